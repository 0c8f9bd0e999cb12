"""Rules of every device profile: ``validated`` applies the schema, ``check`` lists where a profile contradicts itself.

Each rule is a function from a device to a list of messages; a message names the field, the value found and the value expected. A rule that
needs a value the profile does not have says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, wraps
from itertools import pairwise
from typing import Any

from perfmodel.core.errors import DataError
from perfmodel.core.hardware import Device, quantities
from perfmodel.core.units import Quantity, format_si, parse_any

CLOCK_TOLERANCE = 0.02  # datasheets round peaks and clocks; the worst is the L40S with 1.2 %
RATIO_TOLERANCE = 0.03  # the same, of two peaks
RIDGE_RANGE = (0.1, 5000.0)  # FLOP/B; shipped parts lie between 0.7 and 1900

# Dense FP16 FLOP per clock and SM with FP32 accumulate: architecture whitepapers (V100, Turing, A100, GA102, Ada, H100),
# Blackwell Technical Brief, FlashAttention-4 (arXiv 2603.05451) for 10.x, RTX Blackwell PRO for 12.0. With 2:4 sparsity each would be twice
# as high.
DENSE_FP16_PER_CLK = {
    **{"7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 1024, "8.9": 1024},
    **{"9.0": 4096, "10.0": 8192, "10.3": 8192, "12.0": 1024},
}
# GeForce runs FP32 accumulate at half rate: RTX Blackwell whitepaper Table 3.
GEFORCE_FP16_PER_CLK = {"8.6": 512, "8.9": 512, "12.0": 512}

# The highest dense rate of a format, in units of dense FP16.
MOST_TIMES_FP16 = {"tf32": 0.5, "fp8": 2, "int8": 2, "fp4": 4, "int4": 4}
# Halving FP32 accumulate does not touch integer and FP4 rates, so against GeForce FP16 they count double.
GEFORCE_TIMES_FP16 = MOST_TIMES_FP16 | {"int8": 4, "fp4": 8, "int4": 8}
# Blackwell Ultra has 1.5 times the FP4 units: Inside NVIDIA Blackwell Ultra, NVIDIA developer blog.
ULTRA_TIMES_FP16 = MOST_TIMES_FP16 | {"fp4": 6}
INTERVAL_ENDS = ("low", "high", "borrowed_low", "borrowed_high", "probed_low", "probed_high", "warm_low", "warm_high")
LEVELS = ["sram", "l2", "llc", "dram"]
RULES: list[Callable[[Device], list[str]]] = []


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Device)


def validated(raw: Any) -> Device:
    """The device that ``raw``, the content of a profile, describes.

    Raises pydantic's ValidationError for a wrong field, DataError for fields that do not go together.
    """
    device: Device = _adapter().validate_python(raw)
    for place, quantity in quantities(device):
        if quantity.source not in device.sources:
            raise DataError(f"{place}: source {quantity.source!r} is not in 'sources' ({', '.join(device.sources)})")
        if quantity.kind == "estimated":
            raise DataError(f"{place}: kind is 'estimated'", "give datasheet, derived or measured; leave out what is not known")
    _check_calibrations(device)
    _check_power(device)
    for part in ("microbenchmarks", "calibration"):
        for index, block in enumerate(getattr(device, part)):
            if block.source not in device.sources:
                raise DataError(f"{part}.{index}: source {block.source!r} is not in 'sources' ({', '.join(device.sources)})")
    if device.vendor == "NVIDIA" and device.compute_capability is not None and not device.compute_capability.replace(".", "", 1).isdigit():
        raise DataError(f"compute_capability: {device.compute_capability!r} is no number", "write it like '9.0'")
    names = [level.level for level in device.memory]
    if not names or names[-1] != "dram" or names != sorted(set(names), key=LEVELS.index):
        raise DataError("memory: give each level once, in the order sram, l2, llc, dram; dram is required")
    return device


def _check_power(device: Device) -> None:
    """DataError for a power model whose numbers or source mean nothing."""
    fit = device.power
    if fit is None:
        return
    if fit.source not in device.sources:
        raise DataError(f"power: source {fit.source!r} is not in 'sources' ({', '.join(device.sources)})")
    numbers = {"static_w": fit.static_w, "clock_exponent": fit.clock_exponent, **fit.picojoules, **fit.busy_w}
    wrong = next((f"{name} {value}" for name, value in numbers.items() if not 0 <= value < math.inf), None)
    if wrong is None and not 1 <= fit.burst_over_limit < math.inf:
        wrong = f"burst_over_limit {fit.burst_over_limit}"
    if wrong:
        raise DataError(f"power: {wrong}", "joules and watts are zero or more, a moment's draw at least the limit")


def _check_calibrations(device: Device) -> None:
    """DataError for numbers of a calibration that mean nothing."""
    for index, block in enumerate(device.calibration):
        ends = {name: value for name in INTERVAL_ENDS if (value := getattr(block, name)) is not None}
        wrong = {name: str(value) for name, value in (block.parameters | ends).items() if not 0 < value < math.inf}
        if block.low > block.high:
            wrong["low"] = f"{block.low}, above high {block.high}"
        if block.points < 1 or block.held_out < 0:
            wrong["points"] = f"{block.points}, held out {block.held_out}"
        if wrong:
            name, value = next(iter(wrong.items()))
            raise DataError(f"calibration.{index}: {name} is {value}", "give a finite number above zero, low no more than high")
    for index, probe in enumerate(device.microbenchmarks):
        try:
            parse_any(probe.value)
        except DataError as error:
            raise DataError(f"microbenchmarks.{index}: {error.message}", error.fix) from None
        if probe.shape is not None and (sorted(probe.shape) != ["k", "m", "n"] or min(probe.shape.values()) < 1):
            raise DataError(f"microbenchmarks.{index}: shape is {probe.shape}", "write it like {m: 8192, n: 8192, k: 8192}")


def check(device: Device) -> list[str]:
    """Contradictions in ``device``, in words; empty if it is sound."""
    return [message for rule in RULES for message in rule(device)]


def _rule(find: Callable[[Device], Iterator[str]]) -> Callable[[Device], list[str]]:
    @wraps(find)
    def rule(device: Device) -> list[str]:
        return list(find(device))

    RULES.append(rule)
    return rule


@_rule
def peaks_match_clocks(device: Device) -> Iterator[str]:
    """Each peak is multiprocessors x per_clk x clock."""
    for field, peak, clock in _clocked_peaks(device):
        if peak.per_clk is None or clock is None or device.multiprocessors is None:
            continue
        expected = device.multiprocessors.number * peak.per_clk * clock.number
        if abs(peak.number / expected - 1) > CLOCK_TOLERANCE:
            parts = f"{device.multiprocessors.number} x {peak.per_clk} x {format_si(clock.number, 'Hz')}"
            yield f"{field}: {format_si(peak.number, 'OP/s')}, expected {format_si(expected, 'OP/s')} = {parts}"


@_rule
def bandwidth_falls_with_distance(device: Device) -> Iterator[str]:
    """Each memory level is slower than the one inside it, by nominal bandwidth or else measured."""
    bandwidths = [(level.level, level.bandwidth_bytes_per_s) for level in device.memory]
    rates = [(name, rate) for name, rate in bandwidths if rate is not None]
    for (near, nearer), (far, rate) in pairwise(rates):
        if rate >= nearer:
            yield f"memory.{far}.bandwidth: {format_si(rate, 'B/s')}, expected less than the {format_si(nearer, 'B/s')} of {near}"


@_rule
def measured_stays_below_nominal(device: Device) -> Iterator[str]:
    """No measurement exceeds the nominal bandwidth of its level."""
    for level in device.memory:
        nominal, measured = level.bandwidth, level.measured_bandwidth
        if nominal and measured and measured.number > nominal.number:
            measured_text, nominal_text = format_si(measured.number, "B/s"), format_si(nominal.number, "B/s")
            yield f"memory.{level.level}.measured_bandwidth: {measured_text}, expected at most the nominal {nominal_text}"


@_rule
def microbenchmarks_stay_below_peaks(device: Device) -> Iterator[str]:
    """No microbenchmark of DRAM exceeds its bandwidth, and none of a product the peak of its format, at the highest clocks."""
    for index, probe in enumerate(device.microbenchmarks):
        kind, _, dtype = probe.name.partition(" ")
        if kind == "DRAM":
            highest, unit = device.best_dram_rate, "B/s"
        elif kind == "matmul":
            highest, unit = _most_matmul(device, dtype), "FLOP/s"
        else:
            continue
        if highest is not None and parse_any(probe.value) > highest:
            yield f"microbenchmarks.{index}: {probe.name} {probe.value}, expected at most {format_si(highest, unit)}"


def _most_matmul(device: Device, dtype: str) -> float:
    """FLOP/s of products at the highest clock; 0 if the device has no unit for ``dtype``."""
    formats = device.peaks_of("tensor").keys() | device.peaks_of("vector").keys()
    return device.best_matmul_rate(dtype) if dtype in formats else 0.0


@_rule
def ridge_points_are_plausible(device: Device) -> Iterator[str]:
    """Each matmul peak over the DRAM bandwidth lies in RIDGE_RANGE; outside it a unit prefix is wrong."""
    bandwidth, (low, high) = device.dram.bandwidth_bytes_per_s, RIDGE_RANGE
    for unit in ("tensor", "vector"):
        for dtype, peak in device.peaks_of(unit).items():
            if bandwidth is not None and not low <= peak.number / bandwidth <= high:
                yield f"peaks.{unit}.{dtype}: ridge point {peak.number / bandwidth:.4g} FLOP/B, expected {low} to {high:.0f}"


@_rule
def fp16_peak_is_dense(device: Device) -> Iterator[str]:
    """FP16 and BF16 tensor rates per clock are the dense figures of the compute capability.

    A peak without ``per_clk`` may be lower: parts for export are limited.
    """
    table = GEFORCE_FP16_PER_CLK if _is_geforce(device) else DENSE_FP16_PER_CLK
    expected = table.get(device.compute_capability or "") if device.vendor == "NVIDIA" else None
    for dtype in ("fp16", "bf16"):
        peak = device.peaks_of("tensor").get(dtype)
        if expected is None or peak is None:
            continue
        if peak.per_clk is not None and peak.per_clk != expected:
            yield f"peaks.tensor.{dtype}.per_clk: {peak.per_clk}, expected {expected} dense on {device.compute_capability}"
        count, clock = device.multiprocessors, device.clocks.tensor
        computed = expected if count is None or clock is None else peak.number / (count.number * clock.number)
        lowest = 0 if peak.per_clk is None else 1 - RATIO_TOLERANCE
        if not lowest <= computed / expected <= 1 + RATIO_TOLERANCE:
            yield (
                f"peaks.tensor.{dtype}: {format_si(peak.number, 'FLOP/s')} is {computed:.0f} per clock, "
                f"expected {expected} dense on {device.compute_capability}; twice that is 2:4 sparse"
            )


@_rule
def narrow_peaks_are_dense(device: Device) -> Iterator[str]:
    """No other tensor peak of an NVIDIA device exceeds its dense multiple of FP16; 2:4 sparsity would double it."""
    fp16 = device.peaks.tensor.get("fp16")
    if fp16 is None or device.vendor != "NVIDIA":
        return
    limits = ULTRA_TIMES_FP16 if device.compute_capability == "10.3" else MOST_TIMES_FP16
    if _is_geforce(device):
        limits = GEFORCE_TIMES_FP16
    for field, peak, _ in _clocked_peaks(device):
        part, _, dtype = field.rpartition(".")
        times, highest = peak.number / fp16.number, limits.get(dtype)
        if part.startswith("peaks.tensor") and highest is not None and times > highest * (1 + RATIO_TOLERANCE):
            yield f"{field}: {format_si(peak.number, 'OP/s')} is {times:.3g} x fp16, expected at most {highest:g} x dense"


@_rule
def block_fits_its_level(device: Device) -> Iterator[str]:
    """No block can hold more than the capacity of its level."""
    for level in device.memory:
        block, capacity = level.per_block, level.capacity
        if block and capacity and block.number > capacity.number:
            yield f"memory.{level.level}.per_block: {block.number} B, expected at most the capacity, {capacity.number} B"


@_rule
def max_clock_is_highest(device: Device) -> Iterator[str]:
    """No other clock exceeds ``clocks.max``."""
    highest = device.clocks.max
    for name in ("tensor", "vector", "base"):
        clock = getattr(device.clocks, name)
        if clock is not None and highest is not None and clock.number > highest.number:
            highest_text = format_si(highest.number, "Hz")
            yield f"clocks.{name}: {format_si(clock.number, 'Hz')}, expected at most clocks.max, {highest_text}"


def _clocked_peaks(device: Device) -> Iterator[tuple[str, Quantity, Quantity | None]]:
    """(field, peak, clock it is quoted at) of each peak."""
    peaks, clocks = device.peaks, device.clocks
    for dtype, peak in peaks.tensor.items():
        # FP64 is quoted at the vector clock: 66.9 TFLOP/s on the H100 SXM is 132 x 256 x 1980 MHz, not 1830
        yield f"peaks.tensor.{dtype}", peak, device.stated_clock(dtype, "tensor")
    for name, rate in peaks.tensor_int.items():
        yield f"peaks.tensor_int.{name}", rate, clocks.tensor
    for dtype, peak in peaks.vector.items():
        yield f"peaks.vector.{dtype}", peak, clocks.vector
    if peaks.exp is not None:
        yield "peaks.exp", peaks.exp, clocks.vector


def _is_geforce(device: Device) -> bool:
    return "GeForce" in device.name
