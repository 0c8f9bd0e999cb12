"""What a profile tells of a program: how busy the device is, what its kernels take beside the best known ones, what can be won."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.program.capture import Captured, predicted_profile
from perfmodel.program.price import OperatorGroup, Priced, grouped, priced
from perfmodel.program.profile import ProgramProfile
from perfmodel.timing.reference_devices import FallbackDevices


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of a step that can be won, by ``what``, and ``why``."""

    what: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A step of the program on another device: seconds with the ends of their 80 % interval, and how many times faster than measured.

    ``same``: share of the measured time whose kernels run there too, so that their measured times count.
    """

    device: Device
    seconds: float
    low: float
    high: float
    speedup: float
    same: float


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

    @cached_property
    def gains(self) -> list[Gain]:
        """What can be won, the most first; gains overlap where one kernel has several."""
        from perfmodel.program.gains import gains

        return gains(self)

    def on(self, device: Device) -> OnDevice:
        """The step on ``device``; the host as measured; UnavailableError where nothing is predicted there.

        Kernels without a prediction there take as much longer or shorter as all others."""
        there = {id(one.group): one.prediction for one in priced(self.groups, device, self.fallbacks)}
        ends, compared, same = [0.0, 0.0, 0.0], 0.0, 0.0
        for one in self.predicted:
            moved, here, group = there.get(id(one.group)), one.prediction, one.group
            if moved is None or here is None:
                continue
            alike = moved.calibration.implementation == here.calibration.implementation
            scale = group.measured_s / here.seconds if alike else group.count
            ends = [total + scale * end for total, end in zip(ends, (moved.seconds, moved.low, moved.high), strict=True)]
            compared, same = compared + group.measured_s, same + alike * group.measured_s
        if not compared:
            raise UnavailableError(
                f"no kernel of the program is predicted on {device.id}", "take a GPU whose profile has rates"
            )
        waits = sum(self.waits.values())
        at_once = max(0.0, self.measured_s + waits - self.step_s) / self.measured_s  # share of kernels that run beside others
        seconds, low, high = (end * self.measured_s / compared * (1 - at_once) + waits for end in ends)
        return OnDevice(device, seconds, low, high, self.step_s / seconds, same / compared)


def captured_answer(program: Captured, device: Device, fallbacks: FallbackDevices) -> ProgramAnswer:
    """The answer of a program that was captured, on ``device``."""
    profile, ends_s = predicted_profile(program, device, fallbacks)
    return ProgramAnswer(profile, device, fallbacks, program, ends_s)
