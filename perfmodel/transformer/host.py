"""The host of a step whose kernels are launched one by one: it takes its time per launch, and the device waits where it is late.

How long a launch takes belongs to the host and its program, not to the device: a step takes the longer of the device's time and
launches x time per launch. Between hosts that time differs: 5.2 us per kernel in a published run of 30 small ones (157 us per call;
claim S078 of configs/claims), 17 us in an eager decode of Llama-3.2-1B in plain PyTorch 2.11 on an H200, 2026-11-22 (4.15 ms for 243
kernels, which alone take 1.7 ms). ``perfmodel calibrate`` measures it. A CUDA graph is one launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from perfmodel.core.arith import Number
from perfmodel.timing.base import KERNELS_OF_CALL
from perfmodel.transformer.op import Op

FASTEST_US, SLOWEST_US = 5.2, 17.0  # known
"""Per launch of a Python program, as far as hosts are known to differ."""
SPREAD = 1.1  # tuned
"""How much more or less than measured a host takes from one step to the next."""

Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Host:
    """What launches a step. ``launch_us`` per kernel, None if it is not known."""

    launch_us: float | None = None

    def seconds(self, launches: float) -> Interval:
        """Seconds to launch so many kernels, with the ends of their interval."""
        if self.launch_us is None:
            return launches * sqrt(FASTEST_US * SLOWEST_US) * 1e-6, launches * FASTEST_US * 1e-6, launches * SLOWEST_US * 1e-6
        known = launches * self.launch_us * 1e-6
        return known, known / SPREAD, known * SPREAD

    def around(self, device_s: Interval, launches: float) -> Interval:
        """``device_s`` of a step, no shorter than the host takes."""
        value, low, high = (max(one, own) for one, own in zip(device_s, self.seconds(launches), strict=True))
        return value, low, high


def launches(ops: Iterable[Op]) -> Number:
    """Kernels that ``ops`` launch in all their runs."""
    return sum(op.count * max((KERNELS_OF_CALL.get(name, 1) for name in _names(op)), default=1) for op in ops)


def _names(op: Op) -> tuple[str, ...]:
    return (op.timed.implementations or ()) if op.timed is not None else ()
