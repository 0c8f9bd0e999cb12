"""The data of charts before any format: numbers in base units, names, and sources of values.

Charts are only data. The modules beside this one lay them out on a page, and a format draws that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, Any, Final, Literal

from perfmodel.core.frozen import dataclass
from perfmodel.core.roofline import Traffic
from perfmodel.report.saved import Interval, Number, SavedPart

COMPUTE: Final = "compute"
MEMORY: Final = "memory"
MEASURED: Final = "measured"
LEVELS = {"sram": "shared memory", "l2": "L2", "llc": "LLC", "dram": "DRAM"}
"""Memory levels from the SRAM outwards. Bytes of a level are those that its bandwidth pays for: ``l2`` counts L2 to SM and back."""


@dataclass(frozen=True, slots=True)
class Ceiling(SavedPart):
    """A roof of a device: ``value`` in FLOP/s of a compute unit and dtype, or in B/s of a memory level.

    ``name``: label on the line. ``evidence``: datasheet or measured. ``source``: source of the number.
    """

    kind: Literal["compute", "memory"]
    name: str
    value: Number
    evidence: Literal["datasheet", "derived", "measured", "estimated"] = "datasheet"
    unit: str = ""
    dtype: str = ""
    level: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """Name of a compute roof and its points in selectors, such as ``tensor bf16``."""
        return f"{self.unit} {self.dtype}".strip()

    @property
    def measured(self) -> bool:
        """Whether it was measured, not stated or derived."""
        return self.evidence == MEASURED


@dataclass(frozen=True, slots=True)
class Before(SavedPart):
    """The same point in a baseline, where its arrow begins."""

    name: str
    flops: Number
    bytes: dict[str, Number]
    time_s: Number


@dataclass(frozen=True, slots=True)
class RooflinePoint(SavedPart):
    """One kernel or workload on a roofline. ``number`` is unique in its report; times in seconds.

    ``bytes`` by memory level (a key of ``LEVELS``). ``terms``: seconds at the roof by resource (dram, l2, tensor, vector, sfu,
    interconnect), of which the largest is ``roofline_s`` unless kernels follow each other. ``share``: of the time of all points,
    0 to 1. ``group``: points of one colour. ``note``: what a reader of its row must know.
    """

    number: int
    name: str
    flops: Number
    bytes: dict[str, Number] = field(default_factory=dict)
    dtype: str = ""
    unit: str = "tensor"
    group: str = ""
    lower_s: Number | None = None
    roofline_s: Number | None = None
    predicted: Interval | None = None
    measured: Interval | None = None
    terms: dict[str, Number] = field(default_factory=dict)
    share: Number | None = None
    before: Before | None = None
    note: str = ""

    @property
    def key(self) -> str:
        """The ``key`` of its compute roof."""
        return f"{self.unit} {self.dtype}".strip()


@dataclass(frozen=True, slots=True)
class Roofline(SavedPart):
    """The log-log roofline of one device with points. Its axes follow from ``ceilings`` and points.

    ``device`` is an id. ``level`` and ``dtypes``: shown first, by default those of the points; selectors show the others.
    """

    title: str
    device: str
    device_name: str
    ceilings: list[Ceiling]
    points: list[RooflinePoint] = field(default_factory=list)
    level: str = "dram"
    dtypes: list[str] = field(default_factory=list)
    caption: str = ""
    kind: Literal["roofline"] = "roofline"

    @property
    def groups(self) -> list[str]:
        """Groups of its points, in the order of their first one: each has a colour and a shape."""
        return list(dict.fromkeys(point.group for point in self.points))

    def compute_roofs(self) -> list[Ceiling]:
        """Roofs in FLOP/s, the highest first."""
        return sorted((c for c in self.ceilings if c.kind == COMPUTE), key=lambda c: -c.value)

    def memory_roofs(self, level: str) -> list[Ceiling]:
        """Roofs in B/s of ``level``, the highest first: an axis of its bytes carries no other level's."""
        return sorted((c for c in self.ceilings if c.kind == MEMORY and c.level == level), key=lambda c: -c.value)

    def all_keys(self) -> list[str]:
        """Keys with a roof or a point, by falling peak."""
        return list(dict.fromkeys([*(c.key for c in self.compute_roofs()), *(point.key for point in self.points)]))

    def shown_keys(self) -> list[str]:
        """Keys shown first: keys of ``dtypes``, else of the points, and the fp32 vector unit's, which runs softmax and reductions."""
        keys = self.all_keys()
        if self.dtypes:
            return [key for key in keys if key.split()[-1] in self.dtypes]
        wanted = {point.key for point in self.points} | {"vector fp32"}
        return [key for key in keys if key in wanted] or keys[:1]

    def levels(self) -> list[str]:
        """Levels at which points have bytes, from DRAM inwards; without points, levels that have a roof."""
        levels = {level for point in self.points for level, moved in point.bytes.items() if moved}
        roofs = set() if self.points else {c.level for c in self.ceilings}
        return [level for level in reversed(LEVELS) if level in (levels or roofs)] or [self.level]

    def first_level(self) -> str:
        """The level shown first."""
        levels = self.levels()
        return self.level if self.level in levels else levels[0]


@dataclass(frozen=True, slots=True)
class Series(SavedPart):
    """One line: ``points`` are (x, y) in base units, in the order of x. ``band``: (low, high) per point, or empty.

    ``style``: predicted lines are solid, bounds dashed, measurements filled markers; areas stand on each other, in their order.
    Series of one ``group`` share a colour.
    """

    name: str
    points: list[tuple[Number, Number]]
    style: Literal["line", "dashed", "markers", "area"] = "line"
    band: list[tuple[Number, Number]] = field(default_factory=list)
    group: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Mark(SavedPart):
    """A crossover, a knee or a limit at ``x``, with ``y`` if it lies on a line. ``group``: the only group of series that it belongs to."""

    x: Number
    label: str
    y: Number | None = None
    group: str = ""

    @property
    def words(self) -> str:
        """The label, with the name of its group where the colour does not show it."""
        return f"{self.label} ({self.group})" if self.group else self.label


@dataclass(frozen=True, slots=True)
class Limit(SavedPart):
    """A capacity or reference value, drawn as a line across a sweep or bars."""

    label: str
    value: Number


@dataclass(frozen=True, slots=True)
class LineChart(SavedPart):
    """A sweep. Units: one of ``format_number.UNITS``, such as ``s``, ``B``, ``count``, ``share``.

    ``marks``: crossovers and knees. ``limits``: capacities, as horizontal lines.
    """

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    x_unit: str = "count"
    y_unit: str = "s"
    x_scale: Literal["log", "linear"] = "log"
    y_scale: Literal["log", "linear"] = "log"
    marks: list[Mark] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    caption: str = ""
    kind: Literal["line"] = "line"


@dataclass(frozen=True, slots=True)
class Bar(SavedPart):
    """One bar, the sum of ``segments``: (name, value) in the chart's unit, in the same order in every bar.

    ``low`` and ``high``: ends of the interval of the sum, if it has one.
    """

    name: str
    segments: list[tuple[str, Number]]
    low: Number | None = None
    high: Number | None = None

    @property
    def total(self) -> Number:
        """The sum of the segments."""
        return sum(value for _, value in self.segments)

    @property
    def ends(self) -> list[Number]:
        """The ends of its interval; empty without one."""
        return [self.low, self.high] if self.low is not None and self.high is not None else []


@dataclass(frozen=True, slots=True)
class BarChart(SavedPart):
    """Stacked bars, such as the parts of a memory. ``origin``: where bars begin; for ratios 1, on a logarithmic axis."""

    title: str
    unit: str
    bars: list[Bar]
    limits: list[Limit] = field(default_factory=list)
    caption: str = ""
    origin: Number = 0
    kind: Literal["bars"] = "bars"


def time_bar(name: str, roof_s: float, predicted: Interval | None) -> Bar:
    """The bar ``name`` of a time: the part that the roof explains and the part beyond; only the roof without a prediction."""
    if predicted is None:
        return Bar(f"{name} (not predicted)", [("roof", roof_s)])
    parts = [("roof", min(roof_s, predicted.value)), ("beyond its roof", max(predicted.value - roof_s, 0.0))]
    return Bar(name, parts, predicted.low, predicted.high)


def traffic_chart(moved: Iterable[tuple[str, Traffic, Traffic]], caption: str, inside: str = "L2") -> BarChart:
    """Chart of bytes. ``moved``: name, traffic to multiprocessors and DRAM traffic of each. ``inside``: where the former comes from."""
    bars = [
        Bar(f"{name}, {level}", [("read", traffic.read), ("written", traffic.write)])
        for name, sram, dram in moved
        for level, traffic in ((inside, sram), ("DRAM", dram))
    ]
    return BarChart(f"Bytes between {inside} and multiprocessors, and to DRAM", "B", bars, caption=caption)


@dataclass(frozen=True, slots=True)
class Pair(SavedPart):
    """One measured value beside its prediction."""

    name: str
    measured: Number
    predicted: Number
    group: str = ""


@dataclass(frozen=True, slots=True)
class ScatterChart(SavedPart):
    """Predicted against measured. ``low``, ``high``: measured / predicted at the ends of the band, such as 0.9 and 1.1."""

    title: str
    pairs: list[Pair]
    unit: str = "s"
    low: Number | None = None
    high: Number | None = None
    caption: str = ""
    kind: Literal["scatter"] = "scatter"


class _ByKind:
    """Marker of a union of charts in which ``kind`` selects the class, so that errors name fields of that class only."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import Field

        return handler.generate_schema(Annotated[source, Field(discriminator="kind")])


Chart = Annotated[Roofline | LineChart | BarChart | ScatterChart, _ByKind()]
