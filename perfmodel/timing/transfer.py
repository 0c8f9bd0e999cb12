"""A borrowed calibration on another device: what carries over, and what the borrower's own microbenchmarks say.

The parameters of a calibration are cycles, and shares of what the lender's profile states; the borrower's profile gives its own clock,
peaks and bandwidth. Three numbers of the borrower narrow what is left. An empty launch: starts of kernels are as much longer or
shorter; without it they are so many cycles of the clock. A copy: the share of the DRAM bandwidth that is reached, beside the
lender's. A large matrix product: the clock and the rates at which products run under the power limit are those at which the time
model gives the time that was measured. Attention, which draws less power than a large product, keeps the profile's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.hardware import Calibration, Clocks, Device, MemoryLevel, Microbenchmark, Peaks
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.units import Quantity, parse_any
from perfmodel.kernels.matmul import Matmul, flops
from perfmodel.timing.base import SAME_TIME, Case, find_model

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
