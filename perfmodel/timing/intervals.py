"""Intervals of borrowed calibrations and of sequences of kernels, in shares of the time.

A borrowed calibration has the interval that kernels have shown on devices they were not fitted to. The interval of a sequence is composed
of its kernels' intervals. Errors of products go together, as all depend on how the chip multiplies; so do errors of passes over memory, as
all depend on the share of the DRAM bandwidth that is reached. The two kinds are independent: errors add up within each kind, and as squares
across both. ``spread.json``: between two devices, how far apart the shares are that copies reach of the DRAM bandwidth
(``tools/refresh/pooled.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from math import exp, hypot, log, sqrt
from pathlib import Path

from perfmodel.core.architectures import run_the_same_code
from perfmodel.core.device_scaling import FACTS
from perfmodel.core.errors import UnavailableError
from perfmodel.core.files import read_json
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import CONVOLUTION, PASS, WARM, Case, Model, find_model

ENOUGH_TO_TRANSFER = 40  # tuned
"""Number of points from which a fit determines its parameters and its error well enough to serve other devices."""
SAME_ARCHITECTURE = sqrt(1 + 1 / 1)
"""Width of an interval on another device of the same architecture over its own device's, in logarithms, judged by one device."""
SPREAD = Path(__file__).with_name("spread.json")
Ends = tuple[float, float]
"""Low and high end of an interval, in shares of the time."""
ESTIMATES = Path(__file__).with_name("estimates.json")
"""Change of log(time) if an estimate replaces a known number: mean over devices of 90 % quantiles (``tools/scores/hidden_facts.py``)."""


@cache
def moved_by_estimates() -> dict[str, float]:
    """Error of an estimate by profile field, in logarithms of time, from ``ESTIMATES``."""
    known: dict[str, float] = read_json(ESTIMATES)
    return known


def own_interval(block: Calibration, cache: str) -> Ends:
    """Interval of ``block`` on its own device, with the L2 in the state ``cache``."""
    if cache == WARM and block.warm_low is not None and block.warm_high is not None:
        return block.warm_low, block.warm_high
    return block.low, block.high


def transferred_interval(block: Calibration, device: Device, reference: Device, narrowed: bool = False, variant: bool = False) -> Ends:
    """Interval on ``device`` of ``block``, calibrated on ``reference``.

    ``narrowed``: microbenchmarks of ``device`` narrow it; ``variant``: it prices another kernel.

    UnavailableError if the block has no interval for other devices.
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
    certain = reference.id != device.id and block.points >= ENOUGH_TO_TRANSFER and not find_model(block.model).from_tables
    if not certain or not run_the_same_code(device, reference):
        return low, high
    return max(low, block.low**SAME_ARCHITECTURE), min(high, block.high**SAME_ARCHITECTURE)  # one device tells this much of another


@cache
def bandwidth_spread() -> float:
    """Half width in log(time) of the difference between devices in the share of the DRAM bandwidth that is reached."""
    return float(read_json(SPREAD)["half_width"])


def streamed_interval(block: Calibration) -> Ends:
    """Interval of ``block`` of a pass over memory on another device."""
    return widened((block.low, block.high), bandwidth_spread())


def transferred_part(block: Calibration, device: Device, reference: Device) -> Calibration:
    """``block``, for one kernel of a sequence, with its interval on ``device``; unchanged if it was never tried on another device."""
    product = block.workload == "matmul"
    if reference.id == device.id or (product and block.borrowed_low is None):
        return block
    low, high = transferred_interval(block, device, reference) if product else streamed_interval(block)
    return replace(block, low=low, high=high)


Part = tuple[str, float, float, float]
"""A part of a time: its kind, and its low end, middle and high end in seconds."""


def together(parts: Iterable[Part]) -> Ends:
    """Low and high end in seconds of parts one after another: errors of one kind go together, different kinds are independent.

    >>> together([("a", 3.0, 4.0, 5.0), ("a", 3.0, 4.0, 5.0)]), together([("a", 1.0, 4.0, 7.0), ("b", 0.0, 4.0, 8.0)])
    ((6.0, 10.0), (3.0, 13.0))
    """
    off: dict[str, tuple[float, float]] = {}
    whole = 0.0
    for kind, low, middle, high in parts:
        down, up = off.get(kind, (0.0, 0.0))
        off[kind], whole = (down + middle - low, up + high - middle), whole + middle
    down, up = (hypot(*ends) for ends in zip(*off.values(), strict=True))
    return whole - down, whole + up


def composed_interval(model: Model, block: Calibration, case: Case, device: Device, seconds: float) -> Ends:
    """Interval of the ``seconds`` of a sequence, priced by ``block`` of another device; ``device`` has calibrations of its kernels.

    The time beyond the kernels goes to passes over memory that ``block`` itself was fitted to. The interval is no narrower than on the
    other device.
    """
    assert model.parts is not None
    kernels = list(model.parts(case, device))
    left, (low, high) = max(seconds - sum(part.seconds for part in kernels), 0.0), streamed_interval(block)
    parts = [("stream", left * low, left, left * high)]
    for part in kernels:
        kind = "matmul" if part.block.workload == "matmul" else "stream"
        parts.append((kind, part.seconds * part.block.low, part.seconds, part.seconds * part.block.high))
    whole, ends = sum(part[2] for part in parts), together(parts)
    down, up = (whole - ends[0]) / seconds, (ends[1] - whole) / seconds
    return min(1 - down, block.low), max(1 + up, block.high)


def widened(interval: Ends, *moves: float) -> Ends:
    """``interval`` with further independent errors, each in logarithms of time."""
    return exp(-hypot(log(interval[0]), *moves)), exp(hypot(log(interval[1]), *moves))


def moved(facts: Iterable[str]) -> float:
    """Error in log(time) if the profile fields ``facts`` are estimates: independent errors, each field counted once."""
    known = moved_by_estimates()
    return hypot(*(known[name] for name in {FACTS[field] for field in facts}))
