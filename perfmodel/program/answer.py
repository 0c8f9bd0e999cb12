"""The answer of ``perfmodel trace``: how busy the device is, and measured times of kernels beside predicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.program.calls import Call
from perfmodel.program.capture import Captured, predicted_profile
from perfmodel.program.price import OperatorGroup, Priced, grouped, priced
from perfmodel.program.profile import ProgramProfile
from perfmodel.timing.reference_devices import FallbackDevices


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A step of the program on another device: seconds with the ends of their 80 % interval, and the speedup over the measured step.

    ``kernels_s``: seconds of all kernels, without gaps. ``same``: share of the measured time in operators that run the same kernel there.
    ``predicted``: share of the measured time that has a prediction there.
    """

    device: Device
    seconds: float
    low: float
    high: float
    kernels_s: float
    speedup: float
    same: float
    predicted: float


LEAST_PREDICTED = 0.5
"""Least share of a program's time that must have a prediction on another device."""
Scale = tuple[float, float, float]
"""Time on another device over measured time: as predicted, at the low end of the interval, at the high end."""


@dataclass(frozen=True)
class ProgramAnswer:
    """A profile and predictions for its operators on the device that it was taken on; all times are those of one step.

    ``captured``: the program if it ran on no device. Its times are then predictions, and a step takes between ``step_ends_s``.
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
        return [group for group in self.priced if group.prediction is not None]

    @property
    def step_s(self) -> float:
        """Seconds of a step, waits included."""
        return self.profile.span_s / self.profile.steps

    @property
    def measured_s(self) -> float:
        """Seconds of all kernels, one after another."""
        return sum(group.measured_s for group in self.groups)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds of a step in which nothing runs, by the cause."""
        return {name: seconds / self.profile.steps for name, seconds in self.profile.waits.items()}

    @property
    def known_share(self) -> float:
        """Share of the kernels' time in operators with known FLOP and bytes."""
        return self._share(group.measured_s for group in self.groups if group.ops)

    @property
    def predicted_share(self) -> float:
        """Share of the kernels' time that has a prediction."""
        return self._share(row.group.measured_s for row in self.predicted)

    def _share(self, seconds: Iterable[float]) -> float:
        return sum(seconds) / self.measured_s if self.measured_s else 0.0

    @property
    def compared_s(self) -> float:
        """Measured seconds of the kernels that have a prediction."""
        return sum(row.group.measured_s for row in self.predicted)

    def predicted_s(self, end: str = "seconds") -> float:
        """Predicted seconds of these kernels. ``end``: ``low`` or ``high`` for an end of the interval, with all errors alike."""
        return float(sum(row.group.count * getattr(row.prediction, end) for row in self.predicted))

    @property
    def lower_s(self) -> float:
        """Lower bound in seconds of the kernels whose work is known."""
        return sum(row.lower_s for row in self.priced)

    def on(self, device: Device) -> OnDevice:
        """The step on ``device``, with the host's launches as measured. UnavailableError if too little is predicted there.

        Measured times are scaled by the ratio of both predictions if the kernel is the same there; another kernel takes its predicted time.
        """
        priced_there = {row.group.call: row for row in priced(self.groups, device, self.fallbacks)}
        scales: dict[Call, Scale] = {}
        scaled_s = same_kernels_s = 0.0
        for row in self.predicted:
            call, here = row.group.call, row.prediction
            there = priced_there[call].prediction if call in priced_there else None
            if there is None or here is None:
                continue
            if there.calibration.implementation == here.calibration.implementation:
                before_s = here.seconds
                same_kernels_s += row.group.measured_s
            else:
                before_s = row.group.measured_s / row.group.count
            scales[call] = (there.seconds / before_s, there.low / before_s, there.high / before_s)
            scaled_s += row.group.measured_s
        if scaled_s < LEAST_PREDICTED * self.measured_s:
            share = f"{scaled_s / self.measured_s:.0%} of the program's time" if self.measured_s else "nothing"
            reason = next((row.obstacle for row in priced_there.values() if row.obstacle), "its profile lacks rates")
            raise UnavailableError(f"only {share} is predicted on {device.id}: {reason}", f"leave out --on {device.id}")
        (seconds, kernels_s), (low, _), (high, _) = (self._replayed(scales, end, scaled_s) for end in range(3))
        same_share, predicted_share = same_kernels_s / self.measured_s, scaled_s / self.measured_s
        return OnDevice(device, seconds, low, high, kernels_s, self.step_s / seconds, same_share, predicted_share)

    def _replayed(self, scales: Mapping[Call, Scale], end: int, scaled_s: float) -> tuple[float, float]:
        """Seconds of a step and of its kernels, with kernel times scaled. Kernels without a scale get the mean one.

        ``end``: place in each scale. ``scaled_s``: measured seconds of the operators that have one.
        """
        after_s = sum(group.measured_s * scales[group.call][end] for group in self.groups if group.call in scales)
        mean_scale = after_s / scaled_s
        lengths: dict[int, float] = {}
        for operator in self.profile.operators:
            scale = scales[operator.call][end] if operator.call in scales else mean_scale
            lengths.update((id(kernel), kernel.seconds * scale) for kernel in operator.kernels)
        return self.profile.replayed(lengths) / self.profile.steps, sum(lengths.values()) / self.profile.steps


def captured_answer(program: Captured, device: Device, fallbacks: FallbackDevices) -> ProgramAnswer:
    """The answer for a captured program on ``device``."""
    profile, ends_s = predicted_profile(program, device, fallbacks)
    return ProgramAnswer(profile, device, fallbacks, program, ends_s)
