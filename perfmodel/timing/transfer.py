"""Calibrations of one device, the source, applied to another: scaled parameters, estimated profile values, the clock under a power limit.

The parameters of a calibration are cycles, and shares of what the source's profile states. The other device's profile gives its own clock,
peaks and bandwidth; what it lacks is estimated from the source's (``core/device_scaling.py``), for such predictions alone. Three
microbenchmarks of both devices tell more:

- An empty launch: starts of kernels take as much longer. Without it they take the same number of cycles.
- A copy: the share of the DRAM bandwidth that is reached.
- A large matrix product: products run at the clock and rates with which the time model gives the measured time.

Attention runs at the profile's boost clock, except on a board short of watts without a power model. Boards of one compute capability have
the same multiprocessors. The board with the most watts per multiprocessor and clock holds its boost clock; another one holds (its watts /
the most watts) ^ ``EXPONENT`` of it while tensor units are busy. If a large product was timed on both boards, the shares of the peak that
it reached give the ratio instead. A call draws full power only when all multiprocessors are busy: the share T / (T + ``FILLING_S``) of a
call of T seconds runs at the held clock. Both constants were chosen on large products in microbenchmarks of eight boards and on half of a
table of L40S prefills (NVIDIA aiconfigurator 0.12.0).
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
from perfmodel.timing.intervals import Ends, estimates_error, transferred_interval, widened


class Transferred(NamedTuple):
    """The calibration ``block`` of ``source``, adapted to the device ``target``.

    - ``device``, ``parameters``: arguments for the time model. The device is ``target`` with rates by its microbenchmarks ``probes``, and
      with estimates of the missing fields ``estimated``. ``narrowed``: as in ``CarriedOver``.
    - ``held``: the device at the clock that its power limit leaves for long calls, ``held_share`` of the boost clock; None if it holds its
      boost clock. ``by_products``: a timed large product gave that share.
    """

    block: Calibration
    source: Device
    target: Device
    device: Device
    parameters: dict[str, float]
    probes: tuple[str, ...] = ()
    narrowed: bool = False
    estimated: tuple[str, ...] = ()
    held: Device | None = None
    held_share: float = 1.0
    by_products: bool = False

    @property
    def words(self) -> list[str]:
        """Phrases on what was measured or estimated."""
        phrases = []
        if self.probes:
            phrases.append(f"with {' and '.join(self.probes)} measured here")
        if self.held:
            cause = "as large products measured here" if self.by_products else "by the power limit"
            phrases.append(f"long calls at {self.held_share:.0%} of the boost clock, {cause}")
        return phrases

    @property
    def guess(self) -> str:
        """Reason to trust only the interval: estimated values, or a source by another maker; empty if there is none."""
        if not transferable(self.target, self.source):
            return f"passes over memory as on {self.source.id}, of another maker"
        return in_words(self.estimated, self.source) if self.estimated else ""

    def ends(self, variant: bool) -> Ends:
        """The interval in shares of the time; ``variant``: the prediction is of another kernel than the block's."""
        return transferred_interval(self.block, self.target, self.source, self.narrowed, variant)

    def widened(self, interval: Ends, boost_share: float) -> Ends:
        """``interval`` widened by errors of estimates and of the held clock.

        ``boost_share``: time at the boost clock over time at the held one, at most 1.
        """
        if self.by_products:
            boost_share = max(boost_share, exp(-BESIDE_PRODUCTS))
        if not self.estimated and boost_share >= 1:
            return interval
        return widened(interval, estimates_error(self.estimated), log(boost_share))


def transferred(
    block: Calibration, source: Device, device: Device, seconds: Callable[[Device], float], others: Iterable[Device]
) -> Transferred:
    """``block`` of ``source`` adapted to ``device``; ``seconds(device)``: the requested time, which shows the profile fields it needs."""
    complete, estimated = with_needed_estimates(device, source, seconds) if transferable(device, source) else (device, [])
    if source is device:
        return Transferred(block, source, device, device, block.parameters, estimated=tuple(estimated))
    scaled, held_share = carried_over(complete, source, block), held_clock_ratio(device, source, block, others)
    return Transferred(
        block,
        source,
        device,
        scaled.device,
        scaled.parameters,
        scaled.probes,
        scaled.narrowed,
        tuple(estimated),
        held=at_held_clock(scaled.device, held_share) if held_share < 1 else None,
        held_share=held_share,
        by_products=held_share < 1 and _product_share_ratio(device, source) is not None,
    )


# Estimates of profile values


def with_needed_estimates(device: Device, reference: Device, seconds: Callable[[Device], float]) -> tuple[Device, list[str]]:
    """(``device`` with those estimates that ``seconds`` of it depend on, their fields); unchanged if it depends on none.

    It is unchanged too if ``seconds`` are unavailable even with all estimates.
    """
    estimates = _estimates(device, reference)
    fields = estimates.fields
    with_all = _seconds_or_none(seconds, estimates.device(fields)) if fields else None
    if with_all is None or with_all == _seconds_or_none(seconds, device):
        return device, []
    for field in fields:
        others = [other for other in fields if other != field]
        if _seconds_or_none(seconds, estimates.device(others)) == with_all:
            fields = others
    return estimates.device(fields), fields


def _seconds_or_none(seconds: Callable[[Device], float], device: Device) -> float | None:
    try:
        return seconds(device)
    except UnavailableError:
        return None


class _Estimates:
    """Estimates of the ``fields`` that a device lacks, from its reference."""

    def __init__(self, device: Device, reference: Device) -> None:
        self.original, self.reference = device, reference
        self.complete, self.fields = completed(device, reference)
        self.devices: dict[tuple[str, ...], Device] = {}

    def device(self, fields: Iterable[str]) -> Device:
        """The device with estimates of ``fields`` alone; the same object each time, as time models cache by identity."""
        key = tuple(fields)
        if key not in self.devices:
            device = replace(self.original, sources=self.complete.sources)
            for field in key:
                device = with_quantity(device, field, quantity(self.complete, field), self.reference)
            self.devices[key] = device
        return self.devices[key]


_estimates = cached_by_identity(_Estimates)


def in_words(fields: Iterable[str], reference: Device) -> str:
    """Phrase that says which fields are estimated, and from which device."""
    return f"{', '.join(dict.fromkeys(FACTS[field] for field in fields))} estimated from {reference.id}"


# Microbenchmarks

COPY, LAUNCH, MATMUL = "DRAM copy, largest", "launch, stream", TIMED_PRODUCT
"""Names of the three microbenchmarks; the last one is followed by its number format."""
PRODUCT = {"m": 8192, "n": 8192, "k": 8192}
"""Shape of the product if a microbenchmark does not say."""
STARTS, WAITS = ("launch_us", "host_us"), ("latency_us", "split_us", "part_us")
"""Parameters for the start of a kernel, and for waits inside one, which last a number of clock cycles."""
PLAIN = ("torch-matmul", "cublas", "torch-scaled-mm", "hipblaslt", "aiter", "xla")
"""Implementations of a product and nothing else, as a microbenchmark times it."""
MULTIPLY_SHARE = "multiply_share"
"""Parameter: the share of the peak that tiles reach."""
LEAST_RATIO, MOST_RATIO = 0.1, 10.0
"""Ends of plausible ratios; beyond them a number is wrong."""


class CarriedOver(NamedTuple):
    """A device and parameters for a time model.

    ``probes``: names of the device's microbenchmarks that were used. ``narrowed``: whether one of them times the resource that this
    workload waits for most: a matrix product for products, a copy for all others.
    """

    device: Device
    parameters: dict[str, float]
    probes: tuple[str, ...]
    narrowed: bool


@cached_by_identity
def carried_over(device: Device, source: Device, block: Calibration) -> CarriedOver:
    """``device`` with rates by its microbenchmarks, and the parameters of ``block`` of ``source`` scaled to it."""
    launch_factor, launch_timed = launch_ratio(device, source)
    factors = {**dict.fromkeys(STARTS, launch_factor), **dict.fromkeys(WAITS, ratio(source, device, "clocks.max"))}
    parameters = {name: value * factors.get(name, 1.0) for name, value in block.parameters.items()}
    probes = ["launch"] if launch_timed else []
    share, source_share = copied_share(device), copied_share(source)
    if share and source_share:
        device, probes = faster(device, {DRAM: share / source_share}), [*probes, "copy"]
    if block.workload == "matmul":
        product, source_product = product_of(device, block), product_of(source, block)
        if product is not None and (source_product is None or product.value != source_product.value):
            device, probes = faster(device, dict.fromkeys(CHIP, _chip_ratio(device, product, block))), [*probes, "matmul"]
    narrowed = ("matmul" if block.workload == "matmul" else "copy") in probes
    return CarriedOver(device, parameters, tuple(probes), narrowed)


def probe(device: Device, name: str) -> Microbenchmark | None:
    """The microbenchmark of ``device`` called ``name``."""
    return next((benchmark for benchmark in device.microbenchmarks if benchmark.name == name), None)


def copied_share(device: Device) -> float | None:
    """Share of its DRAM bandwidth that a large copy reached; None if either is unknown."""
    copy, bandwidth = probe(device, COPY), device.dram.bandwidth_bytes_per_s
    return None if copy is None or bandwidth is None else parse_any(copy.value) / bandwidth


def product_share(device: Device, dtype: str) -> float | None:
    """Share of the matmul peak that a large product reached in ``dtype`` or a format of the same rate; None if none was timed."""
    peaks = {**device.peaks_of("vector"), **device.peaks_of("tensor")}
    for name in (dtype, SAME_TIME.get(dtype, dtype)):
        product = probe(device, MATMUL.format(name))
        if product is not None and name in peaks:
            return parse_any(product.value) / peaks[name].number
    return None


def launch_ratio(device: Device, source: Device) -> tuple[float, bool]:
    """(launch time on ``device`` over that on ``source``, whether both were timed); if not, by their clocks, and 1 if these are unknown."""
    for launch_s in (_probed_launch_s, _profile_launch_s):
        device_s, source_s = launch_s(device), launch_s(source)
        if device_s and source_s:
            return device_s / source_s, True
    return ratio(source, device, "clocks.max"), False


def _probed_launch_s(device: Device) -> float | None:
    launch = probe(device, LAUNCH)
    return None if launch is None else parse_any(launch.value)


def _profile_launch_s(device: Device) -> float | None:
    return number(device, "launch_overhead.stream")


def product_of(device: Device, block: Calibration) -> Microbenchmark | None:
    """A product timed on ``device`` in a format of ``block``, if ``block`` is of plain products; slower kernels draw less power."""
    if block.implementation not in PLAIN:
        return None
    for dtype in (*block.dtypes, *(SAME_TIME[name] for name in block.dtypes if name in SAME_TIME)):
        product = probe(device, MATMUL.format(dtype))
        if product is not None:
            return product
    return None


def _chip_ratio(device: Device, product: Microbenchmark, block: Calibration) -> float:
    """Factor on the clock and the rates of ``device`` with which the model gives the measured time of the product.

    It is at most the one at which tiles reach the whole peak.
    """
    shape, dtype = product.shape or PRODUCT, product.name.removeprefix(MATMUL.format(""))
    w = Matmul(shape["m"], shape["n"], shape["k"], dtype=dtype_of_products(dtype))
    case, model = Case(w, block.implementation), find_model(block.model)
    if not model.covers(case):
        return 1.0
    modelled_s = float(model.seconds(case, device, block.parameters))
    most = 1 / block.parameters[MULTIPLY_SHARE] if MULTIPLY_SHARE in block.parameters else MOST_RATIO
    return float(min(max(modelled_s * parse_any(product.value) / flops(w), LEAST_RATIO), most))


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
    watts = watts_per_clock(device)
    similar = [other for other in others if other.vendor == device.vendor and other.capability == device.capability]
    most_watts = max(filter(None, map(watts_per_clock, similar)), default=0.0)
    return 1.0 if watts is None or watts >= most_watts or not device.capability else float((watts / most_watts) ** EXPONENT)


def multiplies(block: Calibration) -> bool:
    """Whether ``block`` is of fused attention, which waits for tensor units."""
    return block.workload == "attention" and "matmul" in block.parameters


def held_clock_ratio(device: Device, source: Device, block: Calibration, others: Iterable[Device]) -> float:
    """The held clock of ``device`` over that of ``source``, in shares of their boost clocks, for a kernel of ``block``.

    It is known by large products if both were timed, else by ``held_share``. It is at most 1. It is 1 for kernels that do not wait for
    tensor units, on a board that is not short of watts, and if a power model or a timed product of ``device`` already accounts for it.
    """
    is_product = block.workload == "matmul"
    timed_product = is_product and (product_of(device, block) is not None or "fp32" in block.dtypes)
    if device.power is not None or timed_product or not (is_product or multiplies(block)):
        return 1.0
    others = list(others)
    device_share, source_share = held_share(device, others), held_share(source, others)
    by_products = _product_share_ratio(device, source) if device_share < 1 else None
    return min(device_share / source_share if by_products is None else by_products, 1.0)


def _product_share_ratio(device: Device, source: Device) -> float | None:
    """The share of the peak that large products reach on ``device`` over the share on ``source``, at the clock at work; None if unknown."""
    device_share, source_share = product_share(device, "bf16"), product_share(source, "bf16")
    if not device_share or not source_share:
        return None
    return device_share / boost(device) / (source_share / boost(source))


def at_held_clock(device: Device, share: float) -> Device:
    """``device`` with the rates of its chip at the held clock; the same object each time, as time models cache by identity."""
    slower_devices = _at_clocks(device)
    if share not in slower_devices:
        slower_devices[share] = faster(device, dict.fromkeys(CHIP, share))
    return slower_devices[share]


@cached_by_identity
def _at_clocks(device: Device) -> dict[float, Device]:
    """Cache of ``device`` at lower clocks, by share of its own clock."""
    return {}


def timed(seconds: Callable[[Device], float], device: Device, held: Device | None) -> float:
    """``seconds`` of a call on ``device``; the longer the call, the nearer they are those on ``held``, if that is given."""
    boosted_s = seconds(device)
    if held is None:
        return boosted_s
    return boosted_s + (seconds(held) - boosted_s) * boosted_s / (boosted_s + FILLING_S)
