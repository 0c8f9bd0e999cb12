"""Intervals of predicted times, in shares of the time: of a device's own calibrations, of borrowed ones, and of sequences of kernels.

A borrowed calibration has the interval that kernels have shown on devices they were not fitted to. The interval of a sequence is composed
of its kernels' intervals. Errors of products go together, as all depend on how the chip multiplies; so do errors of passes over memory, as
all depend on the share of the DRAM bandwidth that is reached. The two kinds are independent: errors add up within each kind, and as squares
across both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import NamedTuple

from perfmodel.core.architectures import run_the_same_code
from perfmodel.core.device_scaling import FACTS
from perfmodel.core.errors import UnavailableError
from perfmodel.core.files import read_json
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import CONVOLUTION, PASS, WARM, Case, Model, find_model

ENOUGH_TO_TRANSFER = 40  # tuned
"""Number of points from which a fit determines its parameters and its error well enough to serve other devices."""
SAME_ARCHITECTURE = sqrt(1 + 1 / 1)
"""Width of an interval on another device of the same architecture over its own device's, in logarithms: that of a prediction for one more
device from one device."""
SPREAD = Path(__file__).with_name("spread.json")
"""How far apart, between two devices, the shares of the DRAM bandwidth are that copies reach (``tools/refresh/pooled.py``)."""
ESTIMATES = Path(__file__).with_name("estimates.json")
"""Change of log(time) if an estimate replaces a known number: mean over devices of 90 % quantiles (``tools/scores/hidden_facts.py``)."""
Ends = tuple[float, float]
"""Low and high end of an interval, in shares of the time."""


def own_interval(block: Calibration, cache: str) -> Ends:
    """Interval of ``block`` on its own device, with the L2 in the state ``cache``."""
    if cache == WARM and block.warm_low is not None and block.warm_high is not None:
        return block.warm_low, block.warm_high
    return block.low, block.high


def transferred_interval(block: Calibration, device: Device, reference: Device, narrowed: bool = False, variant: bool = False) -> Ends:
    """Interval on ``device`` of ``block``, calibrated on ``reference``; UnavailableError if it has none for other devices.

    ``narrowed``: ``device`` has microbenchmarks, which narrow it. ``variant``: the block predicts another kernel than its own.
    """
    if block.workload in (PASS, CONVOLUTION):
        return streamed_interval(block)
    if block.borrowed_low is None or block.borrowed_high is None:
        raise UnavailableError(f"the calibration of {block.implementation} on {reference.id} was never tried on another device")
    low, high = block.borrowed_low, block.borrowed_high
    if narrowed:
        low, high = block.probed_low or low, block.probed_high or high
    if variant:
        return min(low, block.low), max(high, block.high)
    from_tables = find_model(block.model).from_tables
    if reference.id == device.id or from_tables or block.points < ENOUGH_TO_TRANSFER or not run_the_same_code(device, reference):
        return low, high
    return max(low, block.low**SAME_ARCHITECTURE), min(high, block.high**SAME_ARCHITECTURE)


@cache
def bandwidth_spread() -> float:
    """Half width in log(time) of the difference between devices in the share of the DRAM bandwidth that is reached."""
    return float(read_json(SPREAD)["half_width"])


def streamed_interval(block: Calibration) -> Ends:
    """Interval of ``block``, of a pass over memory, on another device."""
    return widened((block.low, block.high), bandwidth_spread())


def widened(interval: Ends, *errors: float) -> Ends:
    """``interval`` with further independent ``errors``, each in logarithms of time."""
    return exp(-hypot(log(interval[0]), *errors)), exp(hypot(log(interval[1]), *errors))


@cache
def estimate_errors() -> dict[str, float]:
    """Error in log(time) if a number is an estimate, by its name in ``FACTS``, from ``ESTIMATES``."""
    errors: dict[str, float] = read_json(ESTIMATES)
    return errors


def estimates_error(fields: Iterable[str]) -> float:
    """Error in log(time) if the profile ``fields`` are estimates: independent errors, each number counted once."""
    errors = estimate_errors()
    return hypot(*(errors[name] for name in {FACTS[field] for field in fields}))


# Sequences of kernels


def transferred_part(block: Calibration, device: Device, reference: Device) -> Calibration:
    """``block``, for one kernel of a sequence, with its interval on ``device``; unchanged if it was never tried on another device."""
    is_product = block.workload == "matmul"
    if reference.id == device.id or (is_product and block.borrowed_low is None):
        return block
    low, high = transferred_interval(block, device, reference) if is_product else streamed_interval(block)
    return replace(block, low=low, high=high)


class TimePart(NamedTuple):
    """A part of a time in seconds, with the ends of its interval; errors of one ``kind`` go together."""

    kind: str
    low: float
    seconds: float
    high: float


def summed_interval(parts: Iterable[TimePart]) -> Ends:
    """Low and high end in seconds of parts one after another: errors of one kind go together, different kinds are independent.

    >>> a, b, c = TimePart("a", 3.0, 4.0, 5.0), TimePart("a", 1.0, 4.0, 7.0), TimePart("b", 0.0, 4.0, 8.0)
    >>> summed_interval([a, a]), summed_interval([b, c])
    ((6.0, 10.0), (3.0, 13.0))
    """
    below: dict[str, float] = {}
    above: dict[str, float] = {}
    total = 0.0
    for part in parts:
        below[part.kind] = below.get(part.kind, 0.0) + part.seconds - part.low
        above[part.kind] = above.get(part.kind, 0.0) + part.high - part.seconds
        total += part.seconds
    return total - hypot(*below.values()), total + hypot(*above.values())


def composed_interval(model: Model, block: Calibration, case: Case, device: Device, seconds: float) -> Ends:
    """Interval of the ``seconds`` of a sequence by ``block`` of another device; ``device`` has calibrations of its kernels.

    The time beyond the kernels is that of passes over memory that ``block`` itself was fitted to. The interval is no narrower than on the
    other device.
    """
    assert model.parts is not None
    kernels = list(model.parts(case, device))
    beyond_s, (low, high) = max(seconds - sum(kernel.seconds for kernel in kernels), 0.0), streamed_interval(block)
    parts = [TimePart("stream", beyond_s * low, beyond_s, beyond_s * high)]
    for kernel in kernels:
        kind = "matmul" if kernel.block.workload == "matmul" else "stream"
        parts.append(TimePart(kind, kernel.seconds * kernel.block.low, kernel.seconds, kernel.seconds * kernel.block.high))
    total, (low_s, high_s) = sum(part.seconds for part in parts), summed_interval(parts)
    return min(1 - (total - low_s) / seconds, block.low), max(1 + (high_s - total) / seconds, block.high)
