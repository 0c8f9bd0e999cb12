"""Systems of many GPUs: the links of each level, from an NVLink domain outwards, and the seconds of exchanges over them.

One file of ``configs/systems`` per system. Ranks are laid out as Megatron-LM does: tensor-parallel GPUs are neighbours, then those
of a sequence, then data-parallel ones (expert-parallel ones among them), and pipeline stages are the farthest apart.

A ring over several domains leaves each domain over the links of all GPUs that it has there: its bandwidth is the sum of these links,
at most that of the inner links. All-to-all and point-to-point use each GPU's own link.
Sources: Patarasuk & Yuan 2009 (ring); Thakur et al. 2005 (tree); NCCL, src/graph/tuning.cc (start, latency per step of each kind).
"""

from __future__ import annotations

from math import ceil
from typing import Any, ClassVar

from perfmodel.core import units
from perfmodel.core.arith import Number
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.units import Bandwidth, Duration, Quantity
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ALPHA_S, P2P, Collective, sent_bytes
from perfmodel.timing.base import Case, calibrated_seconds
from perfmodel.transformer.parallel import joined_gpus
from perfmodel.transformer.training.question import Parallel

TENSOR, CONTEXT, EXPERT, DATA, EXPERT_DATA, STAGES = "tensor", "context", "expert", "data", "expert data", "pipeline"
"""Groups of GPUs: they share matrices, a sequence, or experts; hold the same weights, or the same experts; are neighbouring stages."""
DRAM = "DRAM"
"""Resource that an exchange occupies besides links."""
PROBE = 1 << 24
"""Bytes of a trial exchange that tests whether a calibration covers a number of GPUs."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The collective ``op`` on ``bytes``, ``count`` times, in each ``group`` of GPUs. ``behind``: name of kernels that may hide it."""

    group: str
    op: str
    bytes: Number
    count: Number = 1
    behind: str = ""


@dataclass(frozen=True)
class LinkLevel:
    """Links that join the GPUs of a domain, of which there are ``gpus``.

    ``bandwidth``: per GPU and direction; ``measured_bandwidth``: what a library reaches. ``latency``: of one step of a ring or tree.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    gpus: int
    bandwidth: Bandwidth
    measured_bandwidth: Bandwidth | None = None
    latency: Duration | None = None

    @property
    def reached(self) -> float:
        """B/s of a collective: measured where known."""
        return float((self.measured_bandwidth or self.bandwidth).number)

    @property
    def alpha_s(self) -> float:
        """Seconds per step of a collective."""
        return ALPHA_S if self.latency is None else float(self.latency.number)


@dataclass(frozen=True, eq=False)
class System:
    """``levels`` from the innermost outwards; ``start``: least time of any collective. ``device``: id of its profile."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    device: str
    gpus: int
    sources: dict[str, str]
    levels: list[LinkLevel]
    start: Duration | None = None

    @property
    def start_s(self) -> float:
        """Least seconds of any collective."""
        return 0.0 if self.start is None else float(self.start.number)

    def holds(self, gpus: int) -> System:
        """This system, if it has ``gpus`` GPUs; else UsageError."""
        if gpus > self.gpus:
            fix = "give fewer, or say with --system what joins them: a name of configs/systems, or a file"
            raise UsageError(f"{gpus:,} GPUs: {self.name} {'have' if self.name.startswith('GPUs') else 'has'} {self.gpus:,}", fix)
        return self

    def check(self) -> System:
        """This system, if its levels grow and its sources are given; else DataError."""
        sizes = [level.gpus for level in self.levels]
        if not sizes or sizes != sorted(sizes) or sizes[0] < 1 or sizes[-1] != self.gpus:
            raise DataError("levels: each joins more GPUs than the one before, the last all of them", "order them from the inside outwards")
        for level in self.levels:
            for quantity in (level.bandwidth, level.measured_bandwidth, level.latency, self.start):
                if quantity is not None and quantity.source not in self.sources:
                    raise DataError(f"levels: no source is called {quantity.source!r}", f"one of {', '.join(self.sources)}")
        return self


def validated(raw: Any) -> System:
    """The system that ``raw``, the content of a file, describes. Raises pydantic's ValidationError or DataError."""
    from pydantic import TypeAdapter

    return TypeAdapter(System).validate_python(raw).check()


def trusted(raw: dict[str, Any]) -> System:
    """The system that ``raw`` describes, of a shipped file: the tests have checked its form, so pydantic is not loaded."""
    levels = [LinkLevel(**_with_quantities(level, bandwidth="B/s", measured_bandwidth="B/s", latency="s")) for level in raw["levels"]]
    return System(**{**_with_quantities(raw, start="s"), "levels": levels})


def _with_quantities(raw: dict[str, Any], **unit_of: str) -> dict[str, Any]:
    """``raw`` with its quantities parsed; ``unit_of``: their base units by name."""
    parsed = {name: Quantity(number=units.parse(raw[name]["value"], unit), **raw[name]) for name, unit in unit_of.items() if name in raw}
    return {**raw, **parsed}


def of_device(device: Device) -> System:
    """The system of all GPUs that the interconnect in the profile of ``device`` joins; UnavailableError if it has none."""
    link = device.interconnect
    if link is None:
        raise UnavailableError(f"{device.id} has no interconnect in its profile", "give --system, or take one GPU")
    most = joined_gpus(device)
    return System(f"GPUs joined by {link.name}", device.id, most, {}, [LinkLevel(link.name, most, link.bandwidth_per_direction)])


# Groups


def over_network(system: System, parallel: Parallel) -> bool:
    """Whether ZeRO divides gradients or weights (stages 2, 3) among GPUs beyond the innermost links."""
    if parallel.zero < 2 or parallel.dp * parallel.cp == 1:
        return False
    return span(system, parallel, DATA).level is not system.levels[0]


@dataclass(frozen=True, slots=True)
class Span:
    """Placement of a group of ``world`` GPUs.

    ``crossed``: levels whose links it uses, from the inside outwards. ``inner``: the level below the outermost of these, and ``inside``:
    the group's GPUs in one domain of that level.
    """

    world: int
    inside: int
    inner: LinkLevel
    crossed: tuple[LinkLevel, ...]

    @property
    def level(self) -> LinkLevel:
        """The outermost level that it needs."""
        return self.crossed[-1]


def span(system: System, parallel: Parallel, group: str) -> Span:
    """Placement of ``group`` in ``system``; UsageError if the layout needs more GPUs than it has."""
    system.holds(parallel.gpus)
    stride, world = _ranks(parallel, group)
    levels, extent = system.levels, stride * world
    # The innermost level whose domains hold whole groups, so that none straddles two domains
    outermost = next((index for index, level in enumerate(levels) if level.gpus >= extent and level.gpus % extent == 0), len(levels) - 1)
    if outermost == 0:
        return Span(world, world, levels[0], (levels[0],))
    inner = levels[outermost - 1]
    inside = max(inner.gpus // stride, 1)
    crossed = (*(level for level in levels[:outermost] if level.gpus > stride), levels[outermost])
    return Span(world, inside if inside < world else 1, inner, crossed)  # a group may have one GPU per domain


def _ranks(p: Parallel, group: str) -> tuple[int, int]:
    """Distance between neighbours of ``group``, and how many GPUs it has."""
    return {
        TENSOR: (1, p.tp),
        CONTEXT: (p.tp, p.cp),
        EXPERT: (p.tp * p.cp, p.ep),
        DATA: (p.tp, p.cp * p.dp),
        EXPERT_DATA: (p.tp * p.ep, p.cp * p.dp // p.ep),
        STAGES: (p.tp * p.cp * p.dp, p.pp),
    }[group]


# Seconds of exchanges: as calibrated inside of a host, else rings and trees by steps and bandwidth


def exchange_seconds(exchange: Exchange, system: System, parallel: Parallel, device: Device | None = None) -> float:
    """Seconds of all runs of ``exchange``, one after the other. Uses the NCCL calibration of ``device`` where one covers this exchange."""
    placement = span(system, parallel, exchange.group)
    run_s = None
    if device is not None and placement.level is system.levels[0]:
        run_s = calibrated(exchange, placement.world, device)
        if run_s is not None:
            run_s *= slower(system, device)
    if run_s is None:
        run_s = system.start_s + _one_run_s(exchange, placement)
    return float(exchange.count) * run_s


def needs(exchange: Exchange, seconds: float, system: System, parallel: Parallel, device: Device) -> dict[str, float]:
    """Seconds for which ``exchange`` occupies each resource: its links for all of its ``seconds``, DRAM for bytes sent and received."""
    placement = span(system, parallel, exchange.group)
    dram_bytes = exchange.count * 2 * sent_bytes(exchange.op, exchange.bytes, placement.world)
    dram_s = float(dram_bytes) / (device.dram.bandwidth_bytes_per_s or float("inf"))
    return {**dict.fromkeys((level.name for level in placement.crossed), seconds), DRAM: dram_s}


def slower(system: System, device: Device) -> float:
    """Factor by which the innermost links of ``system`` are slower than the links in the profile of ``device``; below 1 if faster."""
    link = device.interconnect
    return 1.0 if link is None else float(link.bandwidth_per_direction.number / system.levels[0].bandwidth.number)


def inside_source(system: System, parallel: Parallel, device: Device) -> str:
    """A sentence on the source of the times over the innermost links; empty if no group stays within them."""
    level = system.levels[0]
    spans = [span(system, parallel, group) for group in (TENSOR, CONTEXT, EXPERT, DATA)]
    worlds = {placement.world for placement in spans if placement.world > 1 and placement.level is level}
    if not worlds:
        return ""
    subject, factor = f"Exchanges over {level.name}:", slower(system, device)
    if all(calibrated(Exchange(TENSOR, ALL_REDUCE, PROBE), world, device) is None for world in worlds):
        return f"{subject} by the steps and bandwidth that the system file gives."
    if factor == 1:
        return f"{subject} as NCCL was calibrated on {device.name}, where a calibration covers them."
    return f"{subject} NCCL as calibrated on {device.name}, times {factor:.3g}, the ratio of its links' bandwidth to these."


def calibrated(exchange: Exchange, world: int, device: Device) -> float | None:
    """Seconds of one run among ``world`` GPUs of one host; None if no calibration covers it."""
    case = Case(Collective(exchange.op, world, exchange.bytes, DTYPES["fp16"]), "nccl")  # bytes count, whatever they mean
    return calibrated_seconds(device, "collective", "fp16", case)


def _one_run_s(exchange: Exchange, placement: Span) -> float:
    """Seconds of one run by steps and bandwidth, without the start: a ring, or for an all-reduce a tree if that is faster."""
    size, world, inside = float(exchange.bytes), placement.world, placement.inside
    outer, inner = placement.level, placement.inner
    if exchange.op == P2P:
        return outer.alpha_s + size / outer.reached
    leaves_domain = inside < world
    if exchange.op == ALL_TO_ALL:
        inner_bytes, outer_bytes = size * (inside - 1) / world, size * (world - inside) / world
        outer_steps_s = (world - inside) * outer.alpha_s if leaves_domain else 0.0
        return max(inner_bytes / inner.reached, outer_bytes / outer.reached) + outer_steps_s + (inside - 1) * inner.alpha_s
    bandwidth = min(inner.reached, inside * outer.reached) if leaves_domain else outer.reached
    domains = ceil(world / inside)
    rounds = 2 if exchange.op == ALL_REDUCE else 1
    outer_steps, inner_steps = rounds * (domains - 1), rounds * (world - domains)
    ring_s = outer_steps * outer.alpha_s + inner_steps * inner.alpha_s + rounds * size * (world - 1) / world / bandwidth
    if exchange.op != ALL_REDUCE:
        return ring_s
    to_root_s = (domains - 1).bit_length() * outer.alpha_s + (inside - 1).bit_length() * inner.alpha_s
    return min(ring_s, 2 * to_root_s + 2 * size / bandwidth)


def stage_border(size: Number, system: System, parallel: Parallel, device: Device | None = None) -> float:
    """Seconds to hand ``size`` bytes of hidden state to the next stage: each tensor-parallel GPU sends its share, and they gather it.

    Under sequence parallelism each has only a share to send. Source: Narayanan et al. 2021, section 4.1, scatter and gather.
    """
    seconds = exchange_seconds(Exchange(STAGES, P2P, size // parallel.tp), system, parallel)
    if parallel.tp > 1 and not parallel.sp:
        seconds += exchange_seconds(Exchange(TENSOR, ALL_GATHER, size), system, parallel, device)
    return seconds
