"""A calibration of a source device applied to another one: what carries over, and what the other's own microbenchmarks say.

The parameters of a calibration are cycles, and shares of what the source's profile states; the other's profile gives its own clock,
peaks and bandwidth, and what it lacks is estimated from the source's (``core/device_scaling.py``), for such predictions alone. Three
numbers narrow what is left. An empty launch: starts of kernels are as much longer or shorter; without it they are so many cycles of the
clock. A copy: the share of the DRAM bandwidth that is reached, beside the source's. A large matrix product: the clock and the rates at
which products run under the power limit are those at which the time model gives the time that was measured.

Attention keeps the profile's boost clock, except on a board short of watts without a power model. Boards of one compute capability have the
same multiprocessors, made alike. The one with the most watts per multiprocessor and clock sets the standard; another one holds (its watts /
the standard's) ^ ``EXPONENT`` of its boost clock while tensor units are busy. If a large product was timed on both boards, the shares of
the peak that it reached give the ratio instead. A call draws full power only when all its multiprocessors are busy: the share T / (T +
``FILLING_S``) of a call of T seconds runs at the held clock. Both numbers were chosen on large products as microbenchmarks of eight boards
list them and on half of a table of L40S prefills (NVIDIA aiconfigurator 0.12.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp, log
from typing import NamedTuple

from perfmodel.core.architectures import tensor_share, transferable
from perfmodel.core.device_scaling import CHIP, DRAM, FACTS, completed, faster, number, quantity, ratio, with_quantity
from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device, Microbenchmark
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import TIMED_PRODUCT, boost
from perfmodel.core.units import parse_any
from perfmodel.kernels.matmul import Matmul, flops
from perfmodel.timing.base import SAME_TIME, Case, find_model
from perfmodel.timing.intervals import Ends, moved, transferred_interval, widened

COPY, LAUNCH, MATMUL = "DRAM copy, largest", "launch, stream", TIMED_PRODUCT
"""Names of the three microbenchmarks; the last one is followed by its number format."""
PRODUCT = {"m": 8192, "n": 8192, "k": 8192}
"""Shape of the product where a microbenchmark does not say."""
STARTS, WAITS = ("launch_us", "host_us"), ("latency_us", "split_us", "part_us")
"""Parameters for the start of a kernel, and for waits inside one, which last a number of clock cycles."""
PLAIN = ("torch-matmul", "cublas", "torch-scaled-mm", "hipblaslt", "aiter", "xla")
"""Implementations of a product and nothing else, as a microbenchmark times it."""
REACHED = "multiply_share"
"""Parameter: the share of the peak that tiles reach."""
LEAST_RATIO, MOST_RATIO = 0.1, 10.0
"""Ends of plausible ratios; beyond them a number is wrong."""


class CarriedOver(NamedTuple):
    """A device and parameters for a time model.

    ``probes``: phrases on the device's microbenchmarks that were used. ``narrowed``: whether one of them times the resource that this
    workload waits for most: a matrix product for products, a copy for all others.
    """

    device: Device
    parameters: dict[str, float]
    probes: tuple[str, ...]
    narrowed: bool


@cached_by_identity
def carried_over(device: Device, source: Device, block: Calibration) -> CarriedOver:
    """``device`` and the parameters of ``block`` of ``source``, adapted to price a kernel on ``device``."""
    start, timed = launch_ratio(device, source)
    factors = {**dict.fromkeys(STARTS, start), **dict.fromkeys(WAITS, ratio(source, device, "clocks.max"))}
    parameters = {name: value * factors.get(name, 1.0) for name, value in block.parameters.items()}
    probes = ["launch"] if timed else []
    own, other = copied_share(device), copied_share(source)
    if own and other:
        device, probes = faster(device, {DRAM: own / other}), [*probes, "copy"]
    product, source_product = (product_of(timed_on, block) if block.workload == "matmul" else None for timed_on in (device, source))
    if product is not None and (source_product is None or product.value != source_product.value):
        device, probes = faster(device, dict.fromkeys(CHIP, _core_ratio(device, product, block))), [*probes, "matmul"]
    return CarriedOver(device, parameters, tuple(probes), ("matmul" if block.workload == "matmul" else "copy") in probes)


class Transferred(NamedTuple):
    """``block`` of ``source`` adapted to the device ``own``.

    ``device``: ``own`` with probed rates, and with estimates (``facts``) for missing values; ``held``: the same at the clock that its power
    limit leaves for long calls, ``share`` of the boost clock; ``as_products``: a timed large product gave that share.
    """

    block: Calibration
    source: Device
    own: Device
    device: Device
    parameters: dict[str, float]
    probes: tuple[str, ...] = ()
    narrowed: bool = False
    facts: tuple[str, ...] = ()
    held: Device | None = None
    share: float = 1.0
    as_products: bool = False

    @property
    def words(self) -> list[str]:
        """Phrases on what was measured or estimated."""
        measured = f"with {' and '.join(self.probes)} measured here" if self.probes else ""
        cause = "as large products measured here" if self.as_products else "by the power limit"
        clock = f"long calls at {self.share:.0%} of the boost clock, {cause}" if self.held else ""
        return [phrase for phrase in (measured, clock) if phrase]

    @property
    def guess(self) -> str:
        """Reason to trust only the interval: estimated values, or a source by another maker; empty if there is none."""
        if not transferable(self.own, self.source):
            return f"passes over memory as on {self.source.id}, of another maker"
        return in_words(self.facts, self.source) if self.facts else ""

    def ends(self, variant: bool) -> Ends:
        """The interval in shares of the time; ``variant``: it prices another kernel than the block's."""
        return transferred_interval(self.block, self.own, self.source, self.narrowed, variant)

    def widened(self, interval: Ends, boost_share: float) -> Ends:
        """``interval`` widened by errors of estimates; ``boost_share``: time at the boost clock over time at the held one, at most 1."""
        if self.as_products:
            boost_share = max(boost_share, exp(-BESIDE_PRODUCTS))
        return widened(interval, moved(self.facts), log(boost_share)) if self.facts or boost_share < 1 else interval


def transferred(
    block: Calibration, source: Device, device: Device, seconds: Callable[[Device], float], others: Iterable[Device]
) -> Transferred:
    """``block`` of ``source`` adapted to ``device``; ``seconds(device)``: the requested time, which shows the profile fields it needs."""
    complete, facts = needed(device, source, seconds) if transferable(device, source) else (device, [])
    if source is device:
        return Transferred(block, source, device, device, block.parameters, facts=tuple(facts))
    scaled, share = carried_over(complete, source, block), held_clock_ratio(device, source, block, others)
    held = at_held_clock(scaled.device, share) if share < 1 else None
    as_products = share < 1 and _share_of_products(device, source) is not None
    return Transferred(
        *(block, source, device, scaled.device, scaled.parameters, scaled.probes, scaled.narrowed, tuple(facts), held, share, as_products)
    )


def needed(device: Device, reference: Device, seconds: Callable[[Device], float]) -> tuple[Device, list[str]]:
    """``device`` with the estimates that ``seconds`` of it depend on, and their fields; unchanged if it depends on none.

    UnavailableError if no estimate helps.
    """
    completed_device = _kept(device, reference)
    facts = completed_device.facts
    with_all = _tried(seconds, completed_device.device(facts)) if facts else None
    if with_all is None or with_all == _tried(seconds, device):
        return device, []
    for field in facts:
        rest = [other for other in facts if other != field]
        if _tried(seconds, completed_device.device(rest)) == with_all:
            facts = rest
    return completed_device.device(facts), facts


def _tried(seconds: Callable[[Device], float], device: Device) -> float | None:
    try:
        return seconds(device)
    except UnavailableError:
        return None


class _Completed:
    """A device and its reference, with one profile object for the same estimates, as time models cache by the identity of a device."""

    def __init__(self, device: Device, reference: Device) -> None:
        self.own, self.reference = device, reference
        self.whole, self.facts = completed(device, reference)
        self.known: dict[tuple[str, ...], Device] = {}

    def device(self, facts: Iterable[str]) -> Device:
        """The device with estimates of the fields ``facts`` alone."""
        key = tuple(facts)
        if key not in self.known:
            estimated = replace(self.own, sources=self.whole.sources)
            for field in key:
                estimated = with_quantity(estimated, field, quantity(self.whole, field), self.reference)
            self.known[key] = estimated
        return self.known[key]


_kept = cached_by_identity(_Completed)


def in_words(facts: Iterable[str], reference: Device) -> str:
    """Phrase that says which fields are estimated, and from which device."""
    return f"{', '.join(dict.fromkeys(FACTS[field] for field in facts))} estimated from {reference.id}"


def probe(device: Device, name: str) -> Microbenchmark | None:
    """The microbenchmark of ``device`` called ``name``."""
    return next((benchmark for benchmark in device.microbenchmarks if benchmark.name == name), None)


def copied_share(device: Device) -> float | None:
    """Share of its DRAM bandwidth that a large copy reached; None where either is unknown."""
    found, bandwidth = probe(device, COPY), device.dram.bandwidth_bytes_per_s
    return None if found is None or bandwidth is None else parse_any(found.value) / bandwidth


def product_share(device: Device, dtype: str) -> float | None:
    """Share of the matmul peak that a large product reached in ``dtype`` or a format of the same rate; None if none was timed."""
    for name in (dtype, SAME_TIME.get(dtype, dtype)):
        timed_product = probe(device, MATMUL.format(name))
        peaks = {**device.peaks_of("vector"), **device.peaks_of("tensor")}
        if timed_product is not None and name in peaks:
            return parse_any(timed_product.value) / peaks[name].number
    return None


def launch_ratio(device: Device, source: Device) -> tuple[float, bool]:
    """Launch time on ``device`` over that on ``source``, by clocks unless both were timed (1 if unknown); whether both were timed."""
    for launch_s in (_probed_launch, lambda of: number(of, "launch_overhead.stream")):
        own, other = launch_s(device), launch_s(source)
        if own and other:
            return own / other, True
    return ratio(source, device, "clocks.max"), False


def _probed_launch(device: Device) -> float | None:
    launch = probe(device, LAUNCH)
    return None if launch is None else parse_any(launch.value)


def product_of(device: Device, block: Calibration) -> Microbenchmark | None:
    """A product timed on ``device`` in a format of ``block``, if ``block`` prices plain products; slower kernels draw less power."""
    if block.implementation not in PLAIN:
        return None
    dtypes = (*block.dtypes, *(SAME_TIME[name] for name in block.dtypes if name in SAME_TIME))
    return next(filter(None, (probe(device, MATMUL.format(name)) for name in dtypes)), None)


def _core_ratio(device: Device, timed: Microbenchmark, block: Calibration) -> float:
    """Factor on the clock and the rates of ``device`` with which the model gives the measured time of the product; at most the one at which
    tiles reach the whole peak.
    """
    shape = timed.shape or PRODUCT
    w = Matmul(shape["m"], shape["n"], shape["k"], dtype=dtype_of_products(timed.name.removeprefix(MATMUL.format(""))))
    case, model = Case(w, block.implementation), find_model(block.model)
    if not model.covers(case):
        return 1.0
    modelled = float(model.seconds(case, device, block.parameters))
    most = 1 / block.parameters[REACHED] if REACHED in block.parameters else MOST_RATIO
    return float(min(max(modelled * parse_any(timed.value) / flops(w), LEAST_RATIO), most))


# The clock under a power limit

BESIDE_PRODUCTS = 0.1  # tuned
"""Error in logarithms of attention's held clock, if it is known from large products: an L40S is that much slower."""
EXPONENT = 0.6  # tuned
"""Exponent of the clock over the power: between 1 at the lowest voltage and 1/3 where the voltage follows the clock."""
FILLING_S = 0.3e-3  # tuned
"""Seconds of a call that runs half at the clock that the limit leaves."""


def watts_per_clock(device: Device) -> float | None:
    """Joules of the power limit per multiprocessor and cycle; None where the profile lacks one, or a cut tensor rate never draws them."""
    limit, count, clock = device.tdp, device.multiprocessors, device.clocks.tensor or device.clocks.max
    if limit is None or count is None or clock is None or tensor_share(device) < 1:
        return None
    return limit.number / (count.number * clock.number)


def held_share(device: Device, others: Iterable[Device]) -> float:
    """The clock that ``device`` holds over its boost clock: at most 1, and 1 if unknown."""
    own = watts_per_clock(device)
    alike = (watts_per_clock(other) for other in others if other.vendor == device.vendor and other.capability == device.capability)
    most = max(filter(None, alike), default=0.0)
    return 1.0 if own is None or own >= most or not device.capability else float((own / most) ** EXPONENT)


def multiplies(block: Calibration) -> bool:
    """Whether ``block`` prices fused attention, which waits for tensor units."""
    return block.workload == "attention" and "matmul" in block.parameters


def held_clock_ratio(device: Device, source: Device, block: Calibration, others: Iterable[Device]) -> float:
    """The held clock of ``device`` over that of ``source``, in shares of their boost clocks, for a kernel of ``block`` that waits for
    tensor units: by large products if both were timed, else by ``held_share``. At most 1; also 1 on a board that is not short of watts, and
    if a power model or a timed product of ``device`` already accounts for it.
    """
    tensor = block.workload == "matmul" or multiplies(block)
    timed = block.workload == "matmul" and (product_of(device, block) is not None or "fp32" in block.dtypes)
    if not tensor or timed or device.power is not None:
        return 1.0
    among = list(others)
    own, its = held_share(device, among), held_share(source, among)
    by_products = _share_of_products(device, source) if own < 1 else None
    return min(own / its if by_products is None else by_products, 1.0)


def _share_of_products(device: Device, source: Device) -> float | None:
    """The share of the peak that large products reach on ``device`` over the share on ``source``, at the clock at work; None if unknown."""
    own, its = product_share(device, "bf16"), product_share(source, "bf16")
    return own / boost(device) / (its / boost(source)) if own and its else None


def at_held_clock(device: Device, share: float) -> Device:
    """``device`` with the rates of its chip at the held clock; the same object each time, as time models cache by identity."""
    made = _at_clocks(device)
    if share not in made:
        made[share] = faster(device, dict.fromkeys(CHIP, share))
    return made[share]


@cached_by_identity
def _at_clocks(device: Device) -> dict[float, Device]:
    """Cache of ``device`` at lower clocks, by share of its own clock."""
    return {}


def timed(seconds: Callable[[Device], float], device: Device, held: Device | None) -> float:
    """``seconds`` of a call on ``device``; a long call runs at the clock of ``held``, if that is given."""
    boosted_s = seconds(device)
    return boosted_s if held is None else boosted_s + (seconds(held) - boosted_s) * boosted_s / (boosted_s + FILLING_S)
