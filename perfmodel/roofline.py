"""Kernel x device -> counts per memory level, lower bound and roof.

Lower bound: per kernel, the largest of needed work and compulsory DRAM bytes over their rates at the device's highest
clock; kernels depend on each other, so they add up. It does not depend on tiles. Exponentials do not enter it: they can
move from the SFU to polynomials on the vector unit, so the SFU bounds an implementation, not the algorithm.

Roof: the same with executed work, the traffic of every level whose bandwidth is known, and datasheet peaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from perfmodel.arith import Number, maximum
from perfmodel.cache import compulsory_bytes, dram_bytes
from perfmodel.cost import GROUP_SUM, READ, WRITE, ZERO_FILL, Kernel, Work
from perfmodel.errors import UnavailableError
from perfmodel.hardware import Device, Quantity

TERMS = ("dram", "l2", "tensor", "vector", "sfu", "interconnect")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes across the boundary of one memory level."""

    read: Number = 0
    write: Number = 0

    @property
    def total(self) -> Number:
        """Reads and writes."""
        return self.read + self.write

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.write + other.write)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Counts and times of one kernel or, added up, of many. Times in seconds.

    ``terms``: seconds by resource of the roof; a resource whose rate the profile lacks is in ``unknown`` instead.
    """

    flops: Number = 0
    executed_flops: Number = 0
    work: Work = field(default_factory=Work)
    reads: Number = 0
    writes: Number = 0
    zero_fill: Number = 0
    zero_fill_bytes: Number = 0
    group_sum: Number = 0
    access_bytes: Number = 0
    sram: Traffic = field(default_factory=Traffic)
    dram: Traffic = field(default_factory=Traffic)
    terms: dict[str, Number] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    lower_s: Number = 0.0
    roofline_s: Number = 0.0
    no_overlap_s: Number = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name not in ("terms", "unknown")}
        terms = {name: self.terms.get(name, 0) + other.terms.get(name, 0) for name in TERMS if name in self.terms or name in other.terms}
        return Estimate(**added, terms=terms, unknown=self.unknown | other.unknown)

    @property
    def bound(self) -> str:
        """The resource with the largest term, summed over kernels."""
        return max(self.terms, key=lambda name: float(self.terms[name]))

    def intensity(self, level: Traffic) -> Number:
        """FLOP (visible matmuls) per byte of ``level``."""
        return self.flops / level.total


def total(estimates: Iterable[Estimate]) -> Estimate:
    """Sum of dependent kernels."""
    result = Estimate()
    for estimate in estimates:
        result += estimate
    return result


def estimate(kernel: Kernel, device: Device) -> Estimate:
    """Counts, lower bound and roof of ``kernel`` on ``device``.

    UnavailableError if the device has no peak for the kernel's dtype.
    """
    matmul_peak = device.matmul_peak(kernel.dtype.name, kernel.dtype.matmul_unit)
    dram = Traffic(dram_bytes(kernel, device, READ), dram_bytes(kernel, device, WRITE))
    sram = Traffic(kernel.bytes(READ), kernel.bytes(WRITE))
    l2 = device.level("l2")
    rates: dict[str, float | None] = {
        "dram": device.dram.bandwidth_bytes_per_s,
        "l2": l2.bandwidth_bytes_per_s if l2 else None,
        "tensor": matmul_peak.number,
        "vector": _number(device.peaks.vector.get("fp32")),
        "sfu": _number(device.peaks.exp),
    }
    amounts = {"dram": dram.total, "l2": sram.total, **dict(kernel.work.items())}
    terms, unknown = {}, set()
    for name, amount in amounts.items():
        rate = rates[name]
        if rate is not None:
            terms[name] = amount / rate
        elif isinstance(amount, int) and amount:
            unknown.add(name)
    return Estimate(
        flops=kernel.flops,
        executed_flops=kernel.executed_flops,
        work=kernel.work,
        reads=kernel.elements(READ),
        writes=kernel.elements(WRITE),
        zero_fill=kernel.elements(ZERO_FILL),
        zero_fill_bytes=kernel.bytes(ZERO_FILL),
        group_sum=kernel.elements(GROUP_SUM),
        access_bytes=sram.total,
        sram=sram,
        dram=dram,
        terms=terms,
        unknown=frozenset(unknown),
        lower_s=_lower_bound(kernel, device, matmul_peak),
        roofline_s=_largest(terms.values()),
        no_overlap_s=sum(terms.values()),
    )


def _lower_bound(kernel: Kernel, device: Device, matmul_peak: Quantity) -> Number:
    bandwidth = device.dram.bandwidth_bytes_per_s
    if bandwidth is None:
        raise UnavailableError(f"{device.id} has no DRAM bandwidth in its profile", "add memory bandwidth to the profile")
    matmul = (kernel.needed.tensor + kernel.needed.vector) / device.rate_at_max_clock(matmul_peak)
    return maximum(matmul, compulsory_bytes(kernel, device) / bandwidth)


def _largest(values: Iterable[Number]) -> Number:
    result: Number = 0.0
    for value in values:
        result = maximum(result, value)
    return result


def _number(quantity: Quantity | None) -> float | None:
    return None if quantity is None else quantity.number
