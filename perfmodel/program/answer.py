"""What a profile tells of a program: how busy the device is, what its kernels take beside the best known ones, what can be won."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.program.capture import Captured, predicted_profile
from perfmodel.program.price import OperatorGroup, Priced, grouped, priced
from perfmodel.program.profile import ProgramProfile
from perfmodel.timing.reference_devices import FallbackDevices


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A step of the program on another device: seconds with the ends of their 80 % interval, and how many times faster than measured.

    ``kernels_s``: seconds of all kernels alone. ``same``: share of the measured time whose kernels run there too, so that their measured
    times count; ``predicted``: share of it that has a prediction there.
    """

    device: Device
    seconds: float
    low: float
    high: float
    kernels_s: float
    speedup: float
    same: float
    predicted: float


ENOUGH = 0.5
"""Share of a program's time that must have a prediction on another device."""


@dataclass(frozen=True)
class ProgramAnswer:
    """A profile on the device that it was taken on; all times are those of one step.

    ``captured``: the program that ran on no device; its times are predicted ones, and a step's between ``step_ends_s``.
    """

    profile: ProgramProfile
    device: Device
    fallbacks: FallbackDevices
    captured: Captured | None = None
    step_ends_s: tuple[float, float] = (0.0, 0.0)

    @cached_property
    def groups(self) -> list[OperatorGroup]:
        """Operators by shape, the longest first."""
        return grouped(self.profile)

    @cached_property
    def priced(self) -> list[Priced]:
        """Operators whose work is known, priced on the device."""
        return priced(self.groups, self.device, self.fallbacks)

    @property
    def predicted(self) -> list[Priced]:
        """Operators that have a predicted time."""
        return [one for one in self.priced if one.prediction is not None]

    @property
    def step_s(self) -> float:
        """Seconds of a step, waits included."""
        return self.profile.span_s / self.profile.steps

    @property
    def measured_s(self) -> float:
        """Seconds of all kernels, one after another."""
        return sum(one.measured_s for one in self.groups)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds of a step in which nothing runs, by what is waited for."""
        return {name: seconds / self.profile.steps for name, seconds in self.profile.waits().items()}

    @property
    def known_share(self) -> float:
        """Share of the kernels' time of which FLOP and bytes are known."""
        return self._share(one.measured_s for one in self.groups if one.ops)

    @property
    def predicted_share(self) -> float:
        """Share of the kernels' time that has a prediction."""
        return self._share(one.group.measured_s for one in self.predicted)

    def _share(self, seconds: Iterable[float]) -> float:
        return sum(seconds) / self.measured_s if self.measured_s else 0.0

    @property
    def compared_s(self) -> float:
        """Measured seconds of the kernels that have a prediction."""
        return sum(one.group.measured_s for one in self.predicted)

    def predicted_s(self, end: str = "seconds") -> float:
        """Predicted seconds of these kernels; ``low`` or ``high``: the ends of their interval, as if all errors went together."""
        return float(sum(one.group.count * getattr(one.prediction, end) for one in self.predicted))

    @property
    def lower_s(self) -> float:
        """Lower bound of the kernels whose work is known."""
        return sum(one.lower_s for one in self.priced)

    def on(self, device: Device) -> OnDevice:
        """The step on ``device``; the host launches each kernel when it did. UnavailableError where too little is predicted there."""
        there = {(one.group.call.name, one.group.call.arguments): one for one in priced(self.groups, device, self.fallbacks)}
        scales, compared, same = dict[object, tuple[float, float, float]](), 0.0, 0.0
        for one in self.predicted:
            key, here = (one.group.call.name, one.group.call.arguments), one.prediction
            moved = there[key].prediction if key in there else None
            if moved is None or here is None:
                continue
            alike = moved.calibration.implementation == here.calibration.implementation
            unit = here.seconds if alike else one.group.measured_s / one.group.count
            scales[key] = (moved.seconds / unit, moved.low / unit, moved.high / unit)
            compared, same = compared + one.group.measured_s, same + alike * one.group.measured_s
        if compared < ENOUGH * self.measured_s:
            share = f"{compared / self.measured_s:.0%} of the program's time" if self.measured_s else "nothing"
            why = next((one.obstacle for one in there.values() if one.obstacle), "its profile lacks rates")
            raise UnavailableError(f"only {share} is predicted on {device.id}: {why}", f"leave out --on {device.id}")
        (seconds, kernels_s), (low, _), (high, _) = (self._replayed(scales, end, compared) for end in range(3))
        shares = same / self.measured_s, compared / self.measured_s
        return OnDevice(device, seconds, low, high, kernels_s, self.step_s / seconds, *shares)

    def _replayed(self, scales: Mapping[object, tuple[float, float, float]], end: int, compared: float) -> tuple[float, float]:
        """Seconds of a step, and of its kernels, that take so many times as long; those of which nothing is known as all others."""
        moved = sum(one.measured_s * scales[key][end] for one in self.groups if (key := (one.call.name, one.call.arguments)) in scales)
        others = moved / compared
        lengths = {
            id(kernel): kernel.seconds * scale[end]
            for one in self.profile.operators
            for scale in [scales.get((one.call.name, one.call.arguments), (others,) * 3)]
            for kernel in one.kernels
        }
        return self.profile.replayed(lengths) / self.profile.steps, sum(lengths.values()) / self.profile.steps


def captured_answer(program: Captured, device: Device, fallbacks: FallbackDevices) -> ProgramAnswer:
    """The answer of a program that was captured, on ``device``."""
    profile, ends_s = predicted_profile(program, device, fallbacks)
    return ProgramAnswer(profile, device, fallbacks, program, ends_s)
