"""Systems of many GPUs: the links of each level, from an NVLink domain outwards, and the seconds of exchanges over them.

One file of ``configs/systems`` per system. Ranks are laid out as Megatron-LM does: tensor-parallel GPUs are neighbours, then those
of a sequence, then data-parallel ones (expert-parallel ones among them), and pipeline stages are the farthest apart.

A ring over several domains leaves each domain over the links of all GPUs that it has there: its bandwidth is the sum of these links,
at most that of the inner links. All-to-all and point-to-point use each GPU's own link.
Sources: Patarasuk & Yuan 2009 (ring); Thakur et al. 2005 (tree); NCCL, src/graph/tuning.cc (start, latency per step of each kind).
"""

from __future__ import annotations

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
DIVIDED = 2
"""The first stage of ZeRO in which more than the optimizer's state is divided."""


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
    """Links that join domains of up to ``gpus`` GPUs. Bandwidth per GPU and direction; ``measured_bandwidth``: what a library reaches.

    ``latency``: of one step of a ring or tree.
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
    levels = [
        LinkLevel(**{**level, **_quantities(level, bandwidth="B/s", measured_bandwidth="B/s", latency="s")}) for level in raw["levels"]
    ]
    return System(**{**raw, "levels": levels, **_quantities(raw, start="s")})


def _quantities(raw: dict[str, Any], **fields: str) -> dict[str, Quantity]:
    return {name: Quantity(number=units.parse(raw[name]["value"], base), **raw[name]) for name, base in fields.items() if name in raw}


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
    if parallel.zero < DIVIDED or parallel.dp * parallel.cp == 1:
        return False
    return span(system, parallel, DATA).level is not system.levels[0]


@dataclass(frozen=True, slots=True)
class Span:
    """Placement of a group of ``world`` GPUs.

    ``inside``: its GPUs per domain of the level ``inner``, the one below the outermost that it needs. ``crossed``: levels whose links it
    uses, from the inside outwards: levels whose domains hold several of its GPUs, and the outermost one.
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
    (stride, world), levels = _ranks(parallel, group), system.levels
    extent = stride * world  # domains hold it without a group that straddles two of them
    fitting = (index for index, level in enumerate(levels) if level.gpus >= extent and level.gpus % extent == 0)
    index = next(fitting, len(levels) - 1)
    inner, crossed = levels[max(index - 1, 0)], (*(level for level in levels[:index] if level.gpus > stride), levels[index])
    inside = world if index == 0 else max(inner.gpus // stride, 1)
    return Span(world, inside if index == 0 or inside < world else 1, inner, crossed)  # a group may have one GPU per domain


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
    where = span(system, parallel, exchange.group)
    known = None if device is None or where.level is not system.levels[0] else calibrated(exchange, where.world, device)
    if known is not None and device is not None:
        known *= slower(system, device)
    return float(exchange.count) * (system.start_s + _one_run_s(exchange, where) if known is None else known)


def needs(exchange: Exchange, taken_s: float, system: System, parallel: Parallel, device: Device) -> dict[str, float]:
    """Seconds for which ``exchange`` occupies each resource: its links for all of ``taken_s``, DRAM for bytes sent and received."""
    at = span(system, parallel, exchange.group)
    moved = exchange.count * 2 * sent_bytes(exchange.op, exchange.bytes, at.world)
    moved_s = float(moved) / (device.dram.bandwidth_bytes_per_s or float("inf"))
    return {**dict.fromkeys((level.name for level in at.crossed), taken_s), DRAM: moved_s}


def slower(system: System, device: Device) -> float:
    """Factor by which the innermost links of ``system`` are slower than the links in the profile of ``device``; below 1 if faster."""
    own = device.interconnect
    return 1.0 if own is None else float(own.bandwidth_per_direction.number / system.levels[0].bandwidth.number)


def inside_source(system: System, parallel: Parallel, device: Device) -> str:
    """A sentence on the source of the times over the innermost links; empty if no group stays within them."""
    level = system.levels[0]
    spans = [span(system, parallel, group) for group in (TENSOR, CONTEXT, EXPERT, DATA)]
    worlds = {each.world for each in spans if each.world > 1 and each.level is level}
    if not worlds:
        return ""
    over, factor = f"Exchanges over {level.name}:", slower(system, device)
    if all(calibrated(Exchange(TENSOR, ALL_REDUCE, PROBE), world, device) is None for world in worlds):
        return f"{over} by the steps and bandwidth that the system file gives."
    if factor == 1:
        return f"{over} as NCCL was calibrated on {device.name}, where a calibration covers them."
    return f"{over} NCCL as calibrated on {device.name}, times {factor:.3g}, the ratio of its links' bandwidth to these."


def calibrated(exchange: Exchange, world: int, device: Device) -> float | None:
    """Seconds of one run among ``world`` GPUs of one host; None if no calibration covers it."""
    case = Case(Collective(exchange.op, world, exchange.bytes, DTYPES["fp16"]), "nccl")  # bytes count, whatever they mean
    return calibrated_seconds(device, "collective", "fp16", case)


def _one_run_s(exchange: Exchange, at: Span) -> float:
    size, world = float(exchange.bytes), at.world
    if exchange.op == P2P:
        return at.level.alpha_s + size / at.level.reached
    outside = at.inside < world
    if exchange.op == ALL_TO_ALL:
        inner, outer = size * (at.inside - 1) / world, size * (world - at.inside) / world
        steps = (world - at.inside) * at.level.alpha_s if outside else 0.0
        return max(inner / at.inner.reached, outer / at.level.reached) + steps + (at.inside - 1) * at.inner.alpha_s
    pace = min(at.inner.reached, at.inside * at.level.reached) if outside else at.level.reached
    rounds = 2 if exchange.op == ALL_REDUCE else 1
    domains = -(-world // at.inside)
    crossed, kept = rounds * (domains - 1), rounds * (world - domains)
    ring = crossed * at.level.alpha_s + kept * at.inner.alpha_s + rounds * size * (world - 1) / world / pace
    if exchange.op != ALL_REDUCE:
        return ring
    depth = (domains - 1).bit_length() * at.level.alpha_s + (at.inside - 1).bit_length() * at.inner.alpha_s
    return min(ring, 2 * depth + 2 * size / pace)


def stage_border(size: Number, system: System, parallel: Parallel, device: Device | None = None) -> float:
    """Seconds to hand ``size`` bytes of hidden state to the next stage: each tensor-parallel GPU sends its share, and they gather it.

    Under sequence parallelism each has only a share to send. Source: Narayanan et al. 2021, section 4.1, scatter and gather.
    """
    seconds = exchange_seconds(Exchange(STAGES, P2P, size // parallel.tp), system, parallel)
    if parallel.tp > 1 and not parallel.sp:
        seconds += exchange_seconds(Exchange(TENSOR, ALL_GATHER, size), system, parallel, device)
    return seconds
