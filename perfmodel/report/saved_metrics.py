"""Every number of a saved report, or of what ``--json`` prints, as a metric that is compared with that of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perfmodel.core.errors import DataError
from perfmodel.report.charts.schema import Roofline, RooflinePoint
from perfmodel.report.compare import BETTER, COUNTS
from perfmodel.report.document import SCHEMA, DataTable, Report, from_data
from perfmodel.report.metrics import Metric


def metrics_of(raw: Any, name: str) -> list[Metric]:
    """Every number of the document ``raw``. DataError if it is none of this package; ``name`` is its file."""
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema == SCHEMA:
        return of_report(from_data(raw))
    if isinstance(schema, str) and schema.startswith("perfmodel."):
        return _without_repeats(_of_object(raw))
    raise DataError(f"{name}: neither a report nor what --json prints", "save one with -o report.json")


def of_report(report: Report) -> list[Metric]:
    """Metrics from the points of its rooflines and the cells of its tables."""
    several = len({chart.device for chart in report.rooflines}) > 1
    found = [one for chart in report.rooflines for point in chart.points for one in of_point(point, chart, several)]
    return _without_repeats([*found, *(one for table in report.data_tables for one in _of_table(table))])


def of_point(point: RooflinePoint, chart: Roofline, several: bool = False) -> list[Metric]:
    """Time, FLOP and bytes of a point."""
    what = f"{point.name}, {chart.device_name}" if several else point.name
    known, kind = point.measured or point.predicted, "measured" if point.measured else "predicted"
    found = [] if known is None else [Metric(what, known.value, f"time, {kind}", "s", known.low, known.high)]
    if point.roofline_s is not None:
        found.append(Metric(what, point.roofline_s, "time at the roof", "s"))
    if point.flops or point.dtype:  # without a dtype, FLOP were not counted
        found.append(Metric(what, point.flops, "FLOP", "FLOP"))
    return found + [Metric(what, moved, f"{level.upper()} traffic", "B") for level, moved in point.bytes.items()]


def _of_table(table: DataTable) -> Iterator[Metric]:
    """Metrics of the cells with a comparable unit. Texts and integers left of the first such column name the row."""
    shown = [place for place, column in enumerate(table.columns) if column.unit in (*BETTER, *COUNTS)]
    ends = {key for column in table.columns for key in (column.low, column.high)}
    keys = [column.key for column in table.columns]
    for row in table.rows:
        words = [
            f"{column.title} {value:,}" if isinstance(value, int) else str(value)
            for column, value in zip(table.columns[: min(shown, default=0)], row, strict=False)
            if value not in (None, "") and not isinstance(value, float)
        ]
        for place in shown:
            column, value = table.columns[place], row[place]
            if isinstance(value, (int, float)) and column.key not in ends:
                low, high = (row[keys.index(key)] if key in keys else None for key in (column.low, column.high))
                known = (low, high) if isinstance(low, (int, float)) and isinstance(high, (int, float)) else (None, None)
                yield Metric(", ".join([table.title, *words]), value, column.title, column.unit, *known)


def _without_repeats(found: Iterable[Metric]) -> list[Metric]:
    """``found`` without repeated quantities: the first of each stays."""
    kept: dict[tuple[str, str], Metric] = {}
    for one in found:
        kept.setdefault((one.key, one.label), one)
    return list(kept.values())


# The metrics of what --json prints

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
PER_SECOND = {"tokens_per_s": "tokens/s", "tokens_per_s_bound": "tokens/s", "bytes_per_s": "B/s", "flops_per_s": "FLOP/s"}


def _of_object(raw: Any, place: tuple[str, ...] = ()) -> Iterator[Metric]:
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            if key == "predicted" and raw.get("low") is not None and value is not None:
                yield _metric((*place, key), value, "s", raw["low"], raw["high"])
            elif key not in LEFT_OUT and not (key in NAMES and not isinstance(value, (dict, list))):
                yield from _of_object(value, (*place, str(key)))
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            named = _name(item) if isinstance(item, Mapping) else ""
            yield from _of_object(item, (*place, named or str(index + 1)))
    elif isinstance(raw, (int, float)) and not isinstance(raw, bool) and (unit := _unit(place)):
        yield _metric(place, raw, unit)


def _name(item: Mapping[str, Any]) -> str:
    """What tells ``item`` apart from others in its list; a kernel of an algorithm goes by its name alone."""
    keys = ("name",) if {"name", "algorithm"} <= set(item) else NAMES
    return " ".join(str(item[key]) for key in keys if item.get(key) not in (None, ""))


def _metric(place: tuple[str, ...], value: float, unit: str, low: float | None = None, high: float | None = None) -> Metric:
    """The metric at the JSON path ``place``: its key from the path, its label from the last name, such as ``sram read``."""
    *head, quantity = (*place[:-1], place[-1].removesuffix("_s").replace("_", " "))
    if head and head[-1] in PREFIXES:
        quantity = f"{head.pop()} {quantity}"
    what = [word for word in head if word not in CONTAINERS] or head or ["all"]
    return Metric(", ".join(what), value, quantity, unit, low, high)


def _unit(place: tuple[str, ...]) -> str:
    """The unit of a number, by its key and those around it; empty for one that cannot be compared."""
    name = place[-1]
    if name in PER_SECOND:
        return PER_SECOND[name]
    if "time_s" in place or name.endswith("_s"):
        return "s"
    if name.endswith("flops") or "work" in place:
        return "FLOP"
    return "B" if name.endswith("bytes") or "bytes" in place or "memory" in place else ""
