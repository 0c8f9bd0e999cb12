"""A borrowed calibration on another device: what carries over, and what the borrower's own microbenchmarks say.

The parameters of a calibration are cycles, and shares of what the lender's profile states; the borrower's profile gives its own clock,
peaks and bandwidth. Three numbers of the borrower narrow what is left. An empty launch: starts of kernels are as much longer or
shorter; without it they are so many cycles of the clock. A copy: the share of the DRAM bandwidth that is reached, beside the
lender's. A large matrix product: the clock and the rates at which products run under the power limit are those at which the time
model gives the time that was measured.

Attention keeps the profile's boost clock, but on a board short of watts that has no power model. Boards of one compute capability have the
same multiprocessors, made alike. The one with the most watts per multiprocessor and clock sets the standard; another holds (its watts /
those) ^ ``EXPONENT`` of its boost clock while tensor units are busy. A call draws full power only when all of its multiprocessors are at
work: of one that takes T, T / (T + ``FILLING_S``) runs at the held clock. Both numbers were chosen on large products as microbenchmarks of
eight boards list them and on half of a table of L40S prefills (NVIDIA aiconfigurator 0.12.0); the other half is 9 % off in the median.

The interval is that of kernels on devices that they were not fitted to. That of a sequence of kernels is composed of theirs: errors of
products go together, as they are of how one chip multiplies; so do those of passes over memory, as they are of how much of one DRAM
bandwidth is reached. The two have nothing to do with each other: errors add up within each kind, and as squares across both.
``spread.json``: between two devices, how far apart the shares are that copies reach of the DRAM bandwidth (``tests/refresh_pooled.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, log, sqrt
from pathlib import Path

from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.errors import UnavailableError
from perfmodel.core.files import read_json
from perfmodel.core.hardware import Calibration, Clocks, Device, MemoryLevel, Microbenchmark, Peaks
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.units import Quantity, parse_any
from perfmodel.kernels.matmul import Matmul, flops
from perfmodel.timing.base import SAME_TIME, Case, Model, find_model

COPY, LAUNCH, MATMUL = "DRAM copy, largest", "launch, stream", "matmul {}"
"""Names of the three microbenchmarks; the last one with its number format."""
PRODUCT = {"m": 8192, "n": 8192, "k": 8192}
"""Shape of the product where a microbenchmark does not say."""
STARTS, WAITS = ("launch_us", "host_us"), ("latency_us", "split_us", "part_us")
"""Parameters that time the start of a kernel; and waits inside one, which take so many cycles of the clock."""
PLAIN = ("torch-matmul", "cublas", "torch-scaled-mm", "hipblaslt", "aiter", "xla")
"""Implementations of a product and nothing else, as a microbenchmark times it."""
LEAST_RATIO, MOST_RATIO = 0.1, 10.0
"""What lies beyond is no property of a device but a wrong number."""
SAME_ARCHITECTURE = sqrt(1 + 1 / 1)
"""Width of an interval on another device of the architecture over that on its own, in logarithms: of one device to judge by."""
SPREAD = Path(__file__).with_name("spread.json")
Ends = tuple[float, float]
"""Low and high end of an interval, in shares of the time."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A device and parameters for a time model.

    ``probes``: in words, the microbenchmarks of the borrower that shaped them. ``narrowed``: that of the resource which kernels of this
    workload wait for most is one of them: a product of matrices, else a copy.
    """

    device: Device
    parameters: dict[str, float]
    probes: tuple[str, ...]
    narrowed: bool


@cached_by_identity
def lent(device: Device, lender: Device, block: Calibration) -> Lent:
    """``device``, and the parameters of ``block`` of ``lender``, as the time of a kernel on ``device`` is worked out."""
    start, timed = launch_ratio(device, lender)
    factors = {**dict.fromkeys(STARTS, start), **dict.fromkeys(WAITS, _clock_ratio(device, lender))}
    parameters = {name: value * factors.get(name, 1.0) for name, value in block.parameters.items()}
    probes = ["launch"] if timed else []
    own, its = copied_share(device), copied_share(lender)
    if own and its:
        device, probes = scaled(device, 1.0, own / its), [*probes, "copy"]
    product = product_of(device, block) if block.workload == "matmul" else None
    if product is not None:
        device, probes = scaled(device, _core_ratio(device, product, block), 1.0), [*probes, "matmul"]
    return Lent(device, parameters, tuple(probes), ("matmul" if block.workload == "matmul" else "copy") in probes)


def probe(device: Device, name: str) -> Microbenchmark | None:
    """The microbenchmark of ``device`` called ``name``."""
    return next((one for one in device.microbenchmarks if one.name == name), None)


def copied_share(device: Device) -> float | None:
    """Share of its DRAM bandwidth that a large copy reached; None where either is unknown."""
    found, bandwidth = probe(device, COPY), device.dram.bandwidth_bytes_per_s
    return None if found is None or bandwidth is None else parse_any(found.value) / bandwidth


def product_share(device: Device, dtype: str) -> float | None:
    """Share of its matmul peak that a large product reached in ``dtype``, or one of the same rate; None where none was timed."""
    for name in (dtype, SAME_TIME.get(dtype, dtype)):
        found = probe(device, MATMUL.format(name))
        peaks = {**device.peaks_of("vector"), **device.peaks_of("tensor")}
        if found is not None and name in peaks:
            return parse_any(found.value) / peaks[name].number
    return None


def launch_ratio(device: Device, lender: Device) -> tuple[float, bool]:
    """A launch of ``device`` over one of ``lender``, and whether both were timed alike; else by their clocks, 1 where these are unknown."""
    for seconds in (_probed_launch, _stated_launch):
        own, its = seconds(device), seconds(lender)
        if own and its:
            return own / its, True
    return _clock_ratio(device, lender), False


def _clock_ratio(device: Device, lender: Device) -> float:
    own, its = device.clocks.max, lender.clocks.max
    return its.number / own.number if own and its else 1.0


def _probed_launch(device: Device) -> float | None:
    found = probe(device, LAUNCH)
    return None if found is None else parse_any(found.value)


def _stated_launch(device: Device) -> float | None:
    return None if device.launch_overhead is None else device.launch_overhead.stream.number


def product_of(device: Device, block: Calibration) -> Microbenchmark | None:
    """A product that was timed on ``device`` in a format of ``block``, if that is of plain products: slower kernels draw less power."""
    if block.implementation not in PLAIN:
        return None
    alike = (*block.dtypes, *(SAME_TIME[name] for name in block.dtypes if name in SAME_TIME))
    timed = (probe(device, MATMUL.format(name)) for name in alike)
    return next((one for one in timed if one is not None), None)


def _core_ratio(device: Device, timed: Microbenchmark, block: Calibration) -> float:
    """By which the clock and the rates of ``device`` differ from its profile, so that the time of the product is the one measured."""
    shape = timed.shape or PRODUCT
    w = Matmul(shape["m"], shape["n"], shape["k"], dtype=dtype_of_products(timed.name.removeprefix(MATMUL.format(""))))
    case, model = Case(w, block.implementation), find_model(block.model)
    if not model.covers(case):
        return 1.0
    modelled = float(model.seconds(case, device, block.parameters))
    return float(min(max(modelled * parse_any(timed.value) / flops(w), LEAST_RATIO), MOST_RATIO))


def scaled(device: Device, core: float, dram: float) -> Device:
    """``device`` with the rates of its chip times ``core`` and of its DRAM times ``dram``."""

    def times(one: Quantity | None, factor: float) -> Quantity | None:
        return None if one is None else replace(one, number=one.number * factor)

    def level(one: MemoryLevel) -> MemoryLevel:
        by = dram if one is device.dram else core
        usual, measured, most = (times(rate, by) for rate in (one.bandwidth, one.measured_bandwidth, one.max_bandwidth))
        return replace(one, bandwidth=usual, measured_bandwidth=measured, max_bandwidth=most)

    def table(rates: Mapping[str, Quantity]) -> dict[str, Quantity]:
        return {name: replace(rate, number=rate.number * core) for name, rate in rates.items()}

    own, clocks = device.peaks, device.clocks
    peaks = Peaks(table(own.tensor), table(own.vector), table(own.tensor_int), times(own.exp, core))  # type: ignore[arg-type]
    ticks = Clocks(*(times(one, core) for one in (clocks.tensor, clocks.vector, clocks.max, clocks.base)))
    return replace(device, memory=[level(one) for one in device.memory], peaks=peaks, clocks=ticks)


# The clock under a power limit

EXPONENT = 0.6  # tuned
"""Of the clock over the power: between 1 at the lowest voltage and 1/3 where the voltage follows the clock."""
FILLING_S = 0.3e-3  # tuned
"""Time of a call of which half runs at the clock that the limit leaves."""


def watts_per_clock(device: Device) -> float | None:
    """Joules of the power limit per multiprocessor and cycle; None where the profile lacks one of the three."""
    limit, count, clock = device.tdp, device.multiprocessors, device.clocks.tensor or device.clocks.max
    return None if limit is None or count is None or clock is None else limit.number / (count.number * clock.number)


def held_share(device: Device, others: Iterable[Device]) -> float:
    """The clock that ``device`` holds over its boost clock: at most 1, and 1 where nothing tells."""
    own = watts_per_clock(device)
    alike = [watts_per_clock(one) for one in others if one.vendor == device.vendor and one.capability == device.capability]
    most = max((one for one in alike if one is not None), default=0.0)
    return 1.0 if own is None or own >= most or not device.capability else float((own / most) ** EXPONENT)


def share_beside(device: Device, lender: Device, block: Calibration, others: Iterable[Device]) -> float:
    """``held_share`` of ``device`` over that of ``lender``, for a kernel of ``block`` that waits for tensor units; at most 1.

    1, too, where a power model or a large product that was timed on ``device`` says it.
    """
    tensor = block.workload == "matmul" or (block.workload == "attention" and "matmul" in block.parameters)
    timed = block.workload == "matmul" and (product_of(device, block) is not None or "fp32" in block.dtypes)
    if not tensor or timed or device.power is not None:
        return 1.0
    among = list(others)
    return min(held_share(device, among) / held_share(lender, among), 1.0)


def at_held_clock(device: Device, share: float) -> Device:
    """``device`` with the rates of its chip at the held clock; the same one each time, as time models keep what they know of it."""
    made = _made_of(device)
    if share not in made:
        made[share] = scaled(device, share, 1.0)
    return made[share]


@cached_by_identity
def _made_of(device: Device) -> dict[float, Device]:
    """Devices by the share of the clock of ``device``."""
    return {}


def joined(boosted_s: float, held_s: float) -> float:
    """Seconds of a call that takes ``boosted_s`` at the boost clock and ``held_s`` at the held one."""
    return boosted_s + (held_s - boosted_s) * boosted_s / (boosted_s + FILLING_S)


# Intervals


def lent_ends(block: Calibration, device: Device, lender: Device, narrowed: bool = False, variant: bool = False) -> Ends:
    """Of ``block`` of ``lender`` on ``device``; ``narrowed``: by its microbenchmarks; ``variant``: for another kernel than the block's.

    UnavailableError if the block has no interval for other devices.
    """
    if block.borrowed_low is None or block.borrowed_high is None:
        raise UnavailableError(f"the calibration of {block.implementation} on {lender.id} was never tried on another device")
    low, high = block.borrowed_low, block.borrowed_high
    if narrowed:
        low, high = block.probed_low or low, block.probed_high or high
    if variant:
        return min(low, block.low), max(high, block.high)
    if lender.id == device.id or lender.architecture != device.architecture or find_model(block.model).from_tables:
        return low, high
    return max(low, block.low**SAME_ARCHITECTURE), min(high, block.high**SAME_ARCHITECTURE)  # one device of it tells this much of another


@cache
def bandwidth_spread() -> float:
    """Half width in log(time) of what the share of the DRAM bandwidth that is reached adds from one device to another."""
    return float(read_json(SPREAD)["half_width"])


def streamed_ends(block: Calibration) -> Ends:
    """Of ``block`` of a pass over memory on another device."""
    down, up = (hypot(log(end), bandwidth_spread()) for end in (block.low, block.high))
    return exp(-down), exp(up)


def lent_part(block: Calibration, device: Device, lender: Device) -> Calibration:
    """``block`` of a kernel of a sequence, with its interval on ``device``; as it is if it was never tried on another device."""
    product = block.workload == "matmul"
    if lender.id == device.id or (product and block.borrowed_low is None):
        return block
    low, high = lent_ends(block, device, lender) if product else streamed_ends(block)
    return replace(block, low=low, high=high)


def composed_ends(model: Model, block: Calibration, case: Case, device: Device, seconds: float) -> Ends:
    """Of ``seconds`` of a sequence by ``block`` of another device; ``device`` has calibrations of its kernels, with their intervals.

    What the kernels leave of the time is passes over memory that ``block`` itself was fitted to. No narrower than on the lender.
    """
    assert model.parts is not None
    parts, (low, high) = list(model.parts(case, device)), streamed_ends(block)
    left = max(seconds - sum(part.seconds for part in parts), 0.0)
    off = {"matmul": (0.0, 0.0), "stream": (left * (1 - low), left * (high - 1))}
    for part in parts:
        kind = part.block.workload if part.block.workload in off else "stream"
        off[kind] = off[kind][0] + part.seconds * (1 - part.block.low), off[kind][1] + part.seconds * (part.block.high - 1)
    down, up = (hypot(*ends) / seconds for ends in zip(*off.values(), strict=True))
    return min(1 - down, block.low), max(1 + up, block.high)
