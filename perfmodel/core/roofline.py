"""Kernel and device -> counts per memory level, lower bound and roof (roofline model, Williams, Waterman & Patterson 2009).

Lower bound: no schedule of the workload is faster, see ``perfmodel/core/lower_bound.py``.

Roof: for each kernel the largest of executed work over the rate of its unit, and traffic over the bandwidth of its level. Rates are those
at the datasheet's clock; GeForce and RTX cards run faster (``boost``). Kernels run one after another, each over the whole workload. A
schedule by parts has a roof of its own, never under the lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add
from typing import NamedTuple

from perfmodel.core.arith import Number, largest
from perfmodel.core.cache import dram_bytes, multicast_bytes
from perfmodel.core.cost import GROUP_SUM, READ, WRITE, ZERO_FILL, Kernel, Work
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device, FloatDtype
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.lower_bound import Needs, in_turn, needs_of
from perfmodel.core.trace import Trace, is_traced, label
from perfmodel.core.units import Quantity, parse_any

TERMS = ("dram", "l2", "tensor", "vector", "sfu", "interconnect")


class Traffic(NamedTuple):
    """Bytes across the boundary of one memory level."""

    read: Number = 0
    write: Number = 0

    @property
    def total(self) -> Number:
        """Reads and writes."""
        return self.read + self.write

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override] # adds fields
        return Traffic(self.read + other.read, self.write + other.write)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Counts and times of one kernel, or their sum over several: seconds (``_s``), bytes, FLOP; reads, writes and fills in elements.

    ``terms``: seconds of the roof by resource; resources whose rate the profile lacks are in ``unknown``. ``multicast``: bytes read into
    ``sram`` without an L2 read of their own, because one read serves several SMs.
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
    multicast: Number = 0
    terms: dict[str, Number] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    needs: Needs = field(default_factory=Needs)
    roofline_s: Number = 0.0
    no_overlap_s: Number = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        return _added([self, other])

    @property
    def lower_s(self) -> Number:
        """Lower bound in seconds, inputs in DRAM before and outputs there after."""
        return self.needs.cold_s

    @property
    def lower_warm_s(self) -> Number:
        """Lower bound in seconds if the same buffers are used again and again."""
        return self.needs.warm_s

    @property
    def bound(self) -> str | None:
        """The resource (one of ``TERMS``) with the largest term, summed over kernels; None if no rate is known."""
        return max(self.terms, key=lambda name: float(self.terms[name]), default=None)

    def intensity(self, level: Traffic) -> Number:
        """FLOP of visible matmuls per byte that crosses ``level``; ZeroDivisionError without bytes."""
        return self.flops / level.total


def total(estimates: Iterable[Estimate]) -> Estimate:
    """Sum over kernels in the order in which they run. The bound leaves out reads of what earlier kernels wrote."""
    return _added([Estimate(), *estimates])


def _added(listed: Sequence[Estimate]) -> Estimate:
    names = [name for name in Estimate.__slots__ if name not in ("terms", "unknown", "needs")]
    added = {name: reduce(add, [getattr(each, name) for each in listed]) for name in names}
    shown = [name for name in TERMS if any(name in each.terms for each in listed)]
    terms = {name: reduce(add, [each.terms.get(name, 0) for each in listed]) for name in shown}
    unknown = frozenset[str]().union(*[each.unknown for each in listed])
    return Estimate(**added, terms=terms, unknown=unknown, needs=in_turn([each.needs for each in listed]))


class Rates(NamedTuple):
    """Rates of a device per second for one dtype; None if the profile does not say.

    ``dram`` and ``l2`` in B/s; ``matmul`` in FLOP/s on the dtype's unit; ``vector`` in FLOP/s, fp32 or fp64; ``sfu`` in exponentials. All
    but DRAM are at the clock of the matmul peak. ``matmul_at_max_clock`` and ``dram_at_max_clock`` serve the bound.
    """

    dram: Number
    l2: Number | None
    matmul: Number
    matmul_at_max_clock: Number
    vector: Number | None
    sfu: Number | None
    dram_at_max_clock: Number


BOOST, BOOST_FROM = 1.08, 1.17  # tuned
"""Clock at work over the advertised one, for cards whose highest clock exceeds that by at least ``BOOST_FROM``: GeForce and RTX.

Chosen on matmuls of an RTX 3090. Datacenter cards list at most 1.16 times the clock of their peaks."""


def boost(device: Device) -> float:
    """Clock at which kernels run over that of the datasheet's peaks; 1 if the card holds the datasheet's clock."""
    advertised, highest = device.clocks.tensor, device.clocks.max
    return BOOST if advertised and highest and highest.number > BOOST_FROM * advertised.number else 1.0


TIMED_PRODUCT = "matmul {}"
"""Name of the microbenchmark of a large product, with its number format."""


@cached_by_identity
def clock_at_work(device: Device) -> float:
    """Clock of the roofs over that of the datasheet's peaks: ``boost``, or more if a timed product was faster than that allows."""
    measured = {probe.name: probe.value for probe in device.microbenchmarks}
    ratios = [boost(device)]
    for dtype, peak in {**device.peaks_of("vector"), **device.peaks_of("tensor")}.items():
        product = TIMED_PRODUCT.format(dtype)
        if product in measured:
            ratios.append(parse_any(measured[product]) / peak.number)
    return max(ratios)


def rates_of(device: Device, dtype: Dtype, trace: Trace | None = None) -> Rates:
    """Rates of ``device`` per second for ``dtype``; with a ``trace``, symbols that know their source in the profile.

    UnavailableError if the device has no peak for ``dtype`` or no DRAM bandwidth.
    """
    return _rates_of(device, dtype) if trace is None else _rates(device, dtype, trace)


def _rates(device: Device, dtype: Dtype, trace: Trace | None) -> Rates:
    unit, memory, l2 = device.matmul_unit(dtype.name, dtype.matmul_unit), device.dram, device.level("l2")
    peak, bandwidth = device.products_of(unit)[dtype.name], memory.bandwidth_bytes_per_s
    if bandwidth is None:
        raise UnavailableError(f"{device.id} has no DRAM bandwidth in its profile", "add the bandwidth of its dram level")
    ratio = device.clock_ratio(dtype.name, unit)
    at_clock = "" if ratio == 1 else f" at the clock of P_{dtype.name}"

    def rate(name: str, meaning: str, quantity: Quantity | None, value: Number) -> Number:
        return value if trace is None or quantity is None else trace.symbol(name, value, meaning, device.origin(quantity))

    def on_chip(name: str, meaning: str, quantity: Quantity | None) -> Number | None:
        if quantity is None:
            return None
        return rate(name, meaning + at_clock, quantity, quantity.number if ratio == 1 else quantity.number * ratio)

    dram = rate("BW_dram", "B/s", memory.bandwidth or memory.measured_bandwidth, bandwidth)
    l2_rate = on_chip("BW_l2", "B/s", (l2.bandwidth or l2.measured_bandwidth) if l2 else None)
    matmul = rate(f"P_{dtype.name}", f"FLOP/s, {dtype.matmul_unit} unit, dense", peak, peak.number)
    matmul_at_max_clock = device.best_matmul_rate(dtype.name)
    if trace is not None:
        matmul_at_max_clock = _traced_max_rate(trace, device, dtype, peak, matmul_at_max_clock)
    vector_dtype: FloatDtype = "fp64" if dtype.name == "fp64" else "fp32"
    vector_peak = device.peaks.vector.get(vector_dtype)
    if vector_peak is None and dtype.matmul_unit == "vector" and unit != "vector":  # a tensor unit multiplies fp32
        vector_peak = peak
    vector = on_chip("P_vector", f"FLOP/s, {vector_dtype} vector unit", vector_peak)
    sfu = on_chip("P_exp", "exponentials/s", device.peaks.exp)
    dram_at_max_clock, fastest_dram = dram, device.best_dram_rate or bandwidth
    if fastest_dram != bandwidth:
        dram_at_max_clock = rate("BW_dram_max", "B/s at the highest memory clock", memory.max_bandwidth, fastest_dram)
    return Rates(dram, l2_rate, matmul, matmul_at_max_clock, vector, sfu, dram_at_max_clock)


@cached_by_identity
def _rates_of(device: Device, dtype: Dtype) -> Rates:
    return _rates(device, dtype, None)


def _traced_max_rate(trace: Trace, device: Device, dtype: Dtype, peak: Quantity, rate: Number) -> Number:
    """The matmul rate at the highest clock as a formula: operations per clock x multiprocessors x clock, if the profile has them."""
    name, meaning = f"P_{dtype.name}_max", "FLOP/s at the highest clock"
    clock, count = device.clocks.max, device.multiprocessors
    if peak.per_clk is None or clock is None or count is None or peak.per_clk * count.number * clock.number != rate:
        return trace.symbol(name, rate, meaning, device.origin(peak))
    per_clock = trace.symbol("FLOP_per_clk", peak.per_clk, "per multiprocessor and clock", f"{device.id}: {device.sources[peak.source]}")
    blocks = trace.symbol("SMs", count.number, "multiprocessors", f"{device.id}: {device.sources[count.source]}")
    highest = trace.symbol("f_max", clock.number, "Hz", f"{device.id}: {device.sources[clock.source]}")
    return trace.define(name, meaning, per_clock * blocks * highest, f"{device.id}: product of its rates")


def multiplies_by_vectors(dtype: Dtype, device: Device) -> bool:
    """Whether products in ``dtype`` run on the vector unit at a separate rate, such as AVX-512 BF16's."""
    return dtype.matmul_unit == "vector" == device.matmul_unit(dtype.name, dtype.matmul_unit)


def estimate(kernel: Kernel, device: Device, rates: Rates | None = None, prefix: str = "") -> Estimate:
    """Counts, lower bound and roof of ``kernel`` on ``device``, at the device's own rates unless given.

    ``prefix`` begins the names in an explanation. UnavailableError if the device has no peak for the kernel's dtype.
    """
    rates = rates or rates_of(device, kernel.dtype)

    def name(symbol: str, meaning: str, value: Number) -> Number:
        return label(prefix + symbol, meaning, value)

    elements, sizes = (dict[str, Number].fromkeys((READ, WRITE, ZERO_FILL, GROUP_SUM), 0) for _ in range(2))
    for access in kernel.accesses:
        elements[access.kind] = elements[access.kind] + access.elements
        sizes[access.kind] = sizes[access.kind] + access.bytes
    sram = Traffic(
        name("SRAM read bytes", "bytes from the L2 into SMs", sizes[READ]),
        name("SRAM write bytes", "bytes from SMs to the L2", sizes[WRITE]),
    )
    dram = Traffic(
        name("DRAM read bytes", "bytes from DRAM after the L2 has caught re-reads", dram_bytes(kernel, device, READ, prefix)),
        name("DRAM write bytes", "bytes to DRAM", dram_bytes(kernel, device, WRITE, prefix)),
    )
    work = Work(
        name("work tensor", "FLOP on the tensor unit", kernel.work.tensor),
        name("work vector", "FLOP on the vector unit", kernel.work.vector),
        name("work sfu", "exponentials", kernel.work.sfu),
    )
    multicast = multicast_bytes(kernel)
    if not _is_no_amount(multicast):
        multicast = name("multicast bytes", "bytes that reach SMs by another one's read of the L2", multicast)
    amounts = {"dram": dram.total, "l2": sram.total - multicast, **dict(work.items())}
    used = {unit: amount for unit, amount in amounts.items() if not _is_no_amount(amount)}
    terms = {unit: name(f"term {unit}", "s", seconds) for unit, seconds in _roof_seconds(kernel, device, rates, used).items()}
    needs = needs_of(kernel, device, rates.dram_at_max_clock, rates.matmul_at_max_clock)
    if is_traced(needs.work_s, *needs.tensors.values(), needs.bandwidth):
        needs = replace(needs, work_s=name("needed", "s of matmuls at the highest clock", needs.work_s))
        compulsory = name("compulsory DRAM bytes", "inputs and outputs, each once; none of what kernels hand on", needs.dram_bytes)
        shown = replace(needs, tensors={(READ, ""): compulsory})
        name("lower bound", "s, at the highest clock", shown.cold_s)
        name("lower bound, warm", "s, inputs and outputs in the caches as far as they fit", shown.warm_s)
    return Estimate(
        flops=name("FLOP, visible", "matmul FLOP on visible scores; a multiply-add counts 2", kernel.flops),
        executed_flops=name("FLOP, executed", "as run: recomputation, masked parts, padding", kernel.executed_flops),
        work=work,
        reads=name("reads", "elements, two-level model", elements[READ]),
        writes=name("writes", "elements, two-level model", elements[WRITE]),
        zero_fill=name("zero fill", "elements, counted apart", elements[ZERO_FILL]),
        zero_fill_bytes=name("zero fill bytes", "bytes, counted apart", sizes[ZERO_FILL]),
        group_sum=name("group sum", "elements, counted apart", elements[GROUP_SUM]),
        access_bytes=sram.total,
        sram=sram,
        dram=dram,
        multicast=multicast,
        terms=terms,
        unknown=frozenset(used) - frozenset(terms),
        needs=needs,
        roofline_s=name("roofline", "s, all terms overlap", largest(list(terms.values()))),
        no_overlap_s=name("without overlap", "s, terms add up", sum(terms.values())),
    )


def _is_no_amount(amount: Number) -> bool:
    """Whether ``amount`` is the int 0; deferred and traced numbers are amounts, whatever their value."""
    return isinstance(amount, int) and amount == 0


def _roof_seconds(kernel: Kernel, device: Device, rates: Rates, used: dict[str, Number]) -> dict[str, Number]:
    """Seconds of each resource for its amount in ``used``; a resource whose rate is unknown is left out."""
    on_chip = {"l2": rates.l2, "tensor": rates.matmul, "vector": rates.vector, "sfu": rates.sfu}
    faster = clock_at_work(device)
    speeds = {"dram": rates.dram, **{unit: rate if rate is None or faster == 1 else rate * faster for unit, rate in on_chip.items()}}
    seconds = {unit: amount / speeds[unit] for unit, amount in used.items() if speeds[unit] is not None}
    if "vector" in seconds and rates.matmul != rates.vector and multiplies_by_vectors(kernel.dtype, device):
        products = kernel.executed_flops
        seconds["vector"] = (used["vector"] - products) / speeds["vector"] + products / (rates.matmul * faster)
    return seconds
