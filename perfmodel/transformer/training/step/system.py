"""Systems of many GPUs: what connects them, level by level, from an NVLink domain outwards; and how a group spans the levels.

One file of ``configs/systems`` per system. Ranks are laid out as Megatron-LM does: tensor-parallel GPUs are neighbours, then those
of a sequence, then data-parallel ones (expert-parallel ones among them), and pipeline stages are the farthest apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from perfmodel.core import units
from perfmodel.core.errors import DataError, UnavailableError, UsageError
from perfmodel.core.hardware import Bandwidth, Device, Duration, Quantity
from perfmodel.kernels.collectives import ALPHA_S
from perfmodel.transformer.parallel import joined_gpus
from perfmodel.transformer.training.question import Parallel
from perfmodel.transformer.training.step.exchange import CONTEXT, DATA, EXPERT, EXPERT_DATA, STAGES, TENSOR

DIVIDED = 2
"""The first stage of ZeRO in which more than the optimizer's state is divided."""


@dataclass(frozen=True)
class Level:
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
        """Seconds per step."""
        return ALPHA_S if self.latency is None else float(self.latency.number)


@dataclass(frozen=True, eq=False)
class System:
    """``levels`` from the innermost outwards; ``start``: what any collective takes at least. ``device``: id of its profile."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    device: str
    gpus: int
    sources: dict[str, str]
    levels: list[Level]
    start: Duration | None = None

    @property
    def start_s(self) -> float:
        """Seconds."""
        return 0.0 if self.start is None else float(self.start.number)

    def holds(self, gpus: int) -> System:
        """This system, if it has so many GPUs; else UsageError."""
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
    """The same for a shipped file, whose form the tests have checked."""
    levels = [Level(**{**level, **_quantities(level, bandwidth="B/s", measured_bandwidth="B/s", latency="s")}) for level in raw["levels"]]
    return System(**{**raw, "levels": levels, **_quantities(raw, start="s")})


def _quantities(raw: dict[str, Any], **fields: str) -> dict[str, Quantity]:
    return {name: Quantity(number=units.parse(raw[name]["value"], base), **raw[name]) for name, base in fields.items() if name in raw}


def of_device(device: Device) -> System:
    """GPUs that the links of their own profile join, as many as those join."""
    link = device.interconnect
    if link is None:
        raise UnavailableError(f"{device.id} has no interconnect in its profile", "give --system, or take one GPU")
    most = joined_gpus(device)
    return System(f"GPUs joined by {link.name}", device.id, most, {}, [Level(link.name, most, link.bandwidth_per_direction)])


# Groups


def over_network(system: System, parallel: Parallel) -> bool:
    """Whether copies that divide gradients or weights (ZeRO's stages 2 and 3) lie beyond the innermost links."""
    if parallel.zero < DIVIDED or parallel.dp * parallel.cp == 1:
        return False
    return span(system, parallel, DATA).level is not system.levels[0]


@dataclass(frozen=True, slots=True)
class Span:
    """How a group of ``world`` GPUs lies: ``inside`` of them share a domain of the level below ``level``, the outermost that it needs."""

    world: int
    inside: int
    level: Level
    inner: Level


def span(system: System, parallel: Parallel, group: str) -> Span:
    """How the GPUs of ``group`` lie in ``system``; UsageError if all GPUs are more than it has."""
    system.holds(parallel.gpus)
    stride, world = _ranks(parallel, group)
    index = _outermost(system, stride * world)
    level, inner = system.levels[index], system.levels[max(index - 1, 0)]
    inside = world if index == 0 else max(inner.gpus // stride, 1)
    return Span(world, inside if index == 0 or inside < world else 1, level, inner)  # of a group across a border one may be alone


def crossed(system: System, parallel: Parallel, group: str) -> list[Level]:
    """Levels whose links what passes in ``group`` takes: the outermost, and those inside whose domains hold several of its GPUs."""
    stride, world = _ranks(parallel, group)
    index = _outermost(system, stride * world)
    return [level for level in system.levels[:index] if level.gpus > stride] + [system.levels[index]]


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


def _outermost(system: System, extent: int) -> int:
    """Number of the level that joins so many GPUs in a row; groups that straddle a border need the one beyond."""
    fitting = (i for i, level in enumerate(system.levels) if level.gpus >= extent and level.gpus % extent == 0)
    return next(fitting, len(system.levels) - 1)
