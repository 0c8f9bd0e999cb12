"""The numbers of a document that a comparison can hold against another's: of saved reports, and of what ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.core.errors import DataError
from perfmodel.report.charts.roofline_metrics import noise
from perfmodel.report.charts.schema import Point, Roofline
from perfmodel.report.document import DataTable, Report
from perfmodel.report.saved import SCHEMA, from_data

LOW, HIGH, NEITHER = "low", "high", ""
"""Which way is better."""
SPEEDS = ("B/s", "FLOP/s", "tokens/s")
COUNTS = ("B", "FLOP")


@dataclass(frozen=True, slots=True)
class Reading:
    """A number under ``key``: what it is of, and which quantity. ``noise``: (p90 - p10) / median of a measurement.

    ``low``, ``high``: the ends of its interval, of a measured or predicted time.
    """

    key: tuple[str, ...]
    value: float
    unit: str
    better: str = NEITHER
    noise: float = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def what(self) -> str:
        """What it is of, in words."""
        return ", ".join(self.key[:-1])

    @property
    def quantity(self) -> str:
        """Which quantity of it."""
        return self.key[-1]


def better_of(unit: str) -> str:
    """Times are better low, rates high; of counts neither is said."""
    return LOW if unit == "s" else HIGH if unit in SPEEDS else NEITHER


def readings(raw: Any, name: str) -> list[Reading]:
    """Every number of the document ``raw``. DataError if it is none of this package; ``name`` is its file."""
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema == SCHEMA:
        return of_report(from_data(raw))
    if isinstance(schema, str) and schema.startswith("perfmodel."):
        return _once(list(_of_object(raw)))
    raise DataError(f"{name}: neither a report nor what --json prints", "save one with -o report.json")


def of_report(report: Report) -> list[Reading]:
    """Points of its rooflines and cells of its tables of numbers."""
    several = len({chart.device for chart in report.rooflines}) > 1
    found = [reading for chart in report.rooflines for point in chart.points for reading in of_point(point, chart, several)]
    return _once([*found, *(reading for table in report.data_tables for reading in _of_table(table))])


def of_point(point: Point, chart: Roofline, several: bool = False) -> list[Reading]:
    """Time, FLOP and bytes of a point."""
    head = (point.name, chart.device_name) if several else (point.name,)
    found = []
    known = point.measured or point.predicted
    kind = "measured" if point.measured else "predicted"
    if known is not None:
        found.append(Reading((*head, f"time, {kind}"), known.value, "s", LOW, noise(point) or 0.0, known.low, known.high))
    if point.roofline_s is not None:
        found.append(Reading((*head, "time at the roof"), point.roofline_s, "s", LOW))
    if point.flops or point.dtype:  # FLOP that nobody counted have no format
        found.append(Reading((*head, "FLOP"), point.flops, "FLOP"))
    return found + [Reading((*head, f"{level.upper()} bytes"), moved, "B") for level, moved in point.bytes.items()]


def _of_table(table: DataTable) -> Iterator[Reading]:
    """Cells with a unit that can be compared; what tells the rows apart are their words and whole sizes before the first of them."""
    shown = [place for place, column in enumerate(table.columns) if column.unit == "s" or column.unit in (*SPEEDS, *COUNTS)]
    ends = {key for column in table.columns for key in (column.low, column.high)}
    first, places = min(shown, default=0), {column.key: place for place, column in enumerate(table.columns)}
    for row in table.rows:
        words = [
            f"{table.columns[place].title} {value:,}" if isinstance(value, int) else str(value)
            for place, value in enumerate(row[:first])
            if value not in (None, "") and not isinstance(value, float)
        ]
        for place in shown:
            column, value = table.columns[place], row[place]
            if isinstance(value, (int, float)) and column.key not in ends:
                low, high = (row[places[key]] if key else None for key in (column.low, column.high))
                known = (low, high) if isinstance(low, (int, float)) and isinstance(high, (int, float)) else (None, None)
                yield Reading((table.title, *words, column.title), value, column.unit, better_of(column.unit), 0.0, *known)


# What --json prints

NAMES = ("algorithm", "pass", "name", "phase", "device", "batch", "kernel", "quantity", "id")
"""Keys that tell the objects of a list apart."""
LEFT_OUT = (
    *("inputs", "hardware", "explanation", "schema", "version", "terms", "parts", "unknown", "tile", "noise", "theta", "ratios"),
    *("low", "high", "lower_warm", "io_lower_bound"),
)
CONTAINERS = ("results", "time_s", "traffic", "accesses", "totals", "kernels", "ops")
"""Objects whose name says nothing beside their fields'."""
PREFIXES = ("sram", "dram", "work", "memory", "bytes")
"""Objects whose name stands before their fields'."""
PER_SECOND = ("tokens_per_s", "tokens_per_s_bound", "bytes_per_s", "flops_per_s")


def _of_object(raw: Any, place: tuple[str, ...] = (), last: str = "") -> Iterator[Reading]:
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            if key == "predicted" and raw.get("low") is not None and value is not None:
                yield Reading(_told((*place, "predicted")), value, "s", LOW, low=raw["low"], high=raw["high"])
            elif key not in LEFT_OUT and not (key in NAMES and not isinstance(value, (dict, list))):
                yield from _of_object(value, (*place, str(key)), str(key))
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            named = _name(item) if isinstance(item, Mapping) else ""
            yield from _of_object(item, (*place, named or str(index + 1)), last)
    elif isinstance(raw, (int, float)) and not isinstance(raw, bool):
        unit = _unit(place)
        if unit:
            yield Reading(_told(place), raw, unit, better_of(unit))


def _name(item: Mapping[str, Any]) -> str:
    """What tells ``item`` apart; a kernel of an algorithm has a name of its own."""
    keys = ("name",) if {"name", "algorithm"} <= set(item) else NAMES
    return " ".join(str(item[key]) for key in keys if item.get(key) not in (None, ""))


def _told(place: tuple[str, ...]) -> tuple[str, ...]:
    """``place`` in words: what the number is of, and which quantity, with its level or unit before it."""
    quantity = place[-1].removesuffix("_s").replace("_", " ")
    head = place[:-1]
    if head and head[-1] in PREFIXES:
        head, quantity = head[:-1], f"{head[-1]} {quantity}"
    return (*(tuple(word for word in head if word not in CONTAINERS) or head or ("all",)), quantity)


def _unit(place: tuple[str, ...]) -> str:
    """The unit of a number, by its key and those around it."""
    name = place[-1]
    if name in PER_SECOND:
        return "tokens/s" if name.startswith("tokens") else "B/s" if name.startswith("bytes") else "FLOP/s"
    if "time_s" in place or name.endswith("_s"):
        return "s"
    if name.endswith("flops") or "work" in place:
        return "FLOP"
    return "B" if name.endswith("bytes") or name == "bytes" or "bytes" in place or "memory" in place else ""


def _once(found: list[Reading]) -> list[Reading]:
    """Of readings with one key the first."""
    kept: dict[tuple[str, ...], Reading] = {}
    for reading in found:
        kept.setdefault(reading.key, reading)
    return list(kept.values())
