"""The host of a step whose kernels are launched one by one: each launch takes time, and the device waits if the host is late.

The time of a launch depends on the host and its program, not on the device: a step takes the longer of the device's time and launches x
time per launch. Measured where the device waits for the host, in Python: 5.2 us per kernel in a published run of 30 small ones (157 us per
call; claim S078 of configs/claims); 17 us in a decode of Llama-3.2-1B in plain PyTorch 2.11 beside an H200, 2026-11-22 (4.15 ms for 243
kernels, which alone take 1.7 ms); 40 us in a step of a diffusion model beside an L20X (254 ms for 6,372 kernels, which alone take 57 ms;
github.com/vllm-project/vllm-omni/pull/6516); 45 us in SAM 2 in PyTorch 2.6 beside an RTX A6000 (53.7 ms for 1,185 kernels, which alone take
7.3 ms; github.com/facebookresearch/sam2/issues/768). ``perfmodel calibrate`` measures it. A CUDA graph is one launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.timing.implementations import find
from perfmodel.transformer.op import Op

FASTEST_US, SLOWEST_US = 5.2, 45.0  # known
"""Microseconds per launch of a Python program on the fastest and the slowest known host."""
SPREAD = 1.1  # tuned
"""Factor by which a host's time varies from one step to the next."""

Interval = tuple[float, float, float]
"""Predicted seconds with the lower and the upper end of their interval."""


class Host(NamedTuple):
    """The host that launches a step: ``launch_us`` per kernel, None if it is not known."""

    launch_us: float | None = None

    def seconds(self, launches: float) -> Interval:
        """Seconds of ``launches`` launches, with the ends of their interval."""
        if self.launch_us is None:
            return launches * sqrt(FASTEST_US * SLOWEST_US) * 1e-6, launches * FASTEST_US * 1e-6, launches * SLOWEST_US * 1e-6
        known = launches * self.launch_us * 1e-6
        return known, known / SPREAD, known * SPREAD

    def around(self, device_s: Interval, launches: float) -> Interval:
        """``device_s`` of a step, or the host's time if that is longer."""
        value, low, high = (max(device_end, host_end) for device_end, host_end in zip(device_s, self.seconds(launches), strict=True))
        return value, low, high


def launches(ops: Iterable[Op]) -> Number:
    """Kernels that ``ops`` launch in all their runs."""
    return sum(op.count * max((find(name).launches for name in _names(op)), default=1) for op in ops)


def _names(op: Op) -> tuple[str, ...]:
    return (op.timed.implementations or ()) if op.timed is not None else ()
