"""Metrics from saved reports and from objects that ``--json`` printed, for comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfmodel.core.errors import DataError, cut
from perfmodel.core.units import BASES
from perfmodel.report.charts.schema import Roofline, RooflinePoint
from perfmodel.report.compare import ALL
from perfmodel.report.document import SCHEMA, Column, DataTable, Report, from_data, is_sound
from perfmodel.report.metrics import Metric, Name, better, unit_by_name

UNITS = "metric_units"
"""Key of a printed object for the units of its numbers."""
LEFT_OUT = ("inputs", "hardware", "explanation", "provenance", "ratios", UNITS, "low", "high")
"""Keys whose numbers are no metrics: inputs, formulas, ratios of other numbers, ends of intervals."""
NAMES = ("algorithm", "pass", "name", "phase", "device", "batch", "kernel", "quantity", "id")
"""Keys that identify the objects of a list."""
CONTAINERS = ("results", "time_s", "traffic", "totals", "kernels", "ops")
"""Objects whose name adds nothing to those of their fields."""
PREFIXES = ("sram", "dram", "accesses", "work", "memory", "bytes")
"""Objects whose name goes before those of their fields."""
WITH_ENDS = ("predicted", "mean", "seconds")
"""Keys whose interval has the ends ``low`` and ``high`` beside them."""
WAYS = {-1: ", lower is better", 0: "", 1: ", higher is better"}


def metrics_of(raw: Any, name: str, units: Mapping[str, str] | None = None) -> list[Metric]:
    """Metrics of the document ``raw``, read from the file ``name``. DataError if it is not of this package.

    ``units``: units of the other document of a comparison, for an object of an older version with other units or none.
    """
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema == SCHEMA:
        return of_report(from_data(raw))
    if isinstance(schema, str) and schema.startswith("perfmodel."):
        unit_maps = [unit_map for unit_map in (raw.get(UNITS), units) if isinstance(unit_map, dict)]
        if not unit_maps:
            raise DataError(f"{name}: its numbers have no units", "save the answer again with this version")
        return _each_once(_of_object(raw, unit_maps[0] | unit_maps[-1]))
    raise DataError(f"{name}: neither a report nor what --json prints", "save one with -o report.json")


def units_of(raw: Any, place: str = "") -> dict[str, str]:
    """Unit and better direction, by path, of every number in ``raw`` that is not a plain count.

    >>> from perfmodel.report.metrics import as_json
    >>> units_of({**as_json([Metric("requests_per_s", 2.0), Metric("running", 3)]), "steps": [as_json([Metric("time", 0.1, unit="s")])]})
    {'requests_per_s': 'requests/s, higher is better', 'steps[].time': 's, lower is better'}
    """
    unit_map: dict[str, str] = {}
    if isinstance(raw, (list, tuple)):
        for item in raw:
            unit_map |= units_of(item, f"{place}[]")
    for key, value in raw.items() if isinstance(raw, Mapping) else ():
        if key in LEFT_OUT:
            continue
        inside = _inside(place, key)
        listed = value if isinstance(value, (list, tuple)) and value else [value]
        if not all(map(_is_number, listed)):
            unit_map |= units_of(value, inside)
            continue
        declared = key.unit if isinstance(key, Name) else _unit_beside(raw, key)
        unit = declared or unit_by_name(inside)
        unit_map |= {inside: f"{unit}{WAYS[better(unit)]}"} if unit not in ("count", "text") else {}
    return unit_map


def _inside(place: str, key: Any) -> str:
    """The path of ``key`` of the object at ``place``."""
    return f"{place}.{key}" if place else str(key)


def _unit_beside(raw: Mapping[str, Any], key: str) -> str:
    """The unit beside the number ``key``, in its text or as ``unit``; empty if there is none.

    >>> _unit_beside({"number": 1830000000, "value": "1830 MHz"}, "number"), _unit_beside({"value": 206.1, "unit": "FLOP/B"}, "value")
    ('Hz', 'FLOP/B')
    """
    if key == "number":
        return next((base for base in BASES if str(raw.get("value")).endswith(base)), "")
    return str(raw.get("unit", "")) if key == "value" else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def of_report(report: Report) -> list[Metric]:
    """Metrics from the points of its rooflines and the cells of its tables."""
    several = len({chart.device for chart in report.rooflines}) > 1
    metrics = [metric for chart in report.rooflines for point in chart.points for metric in of_point(point, chart, several)]
    return _each_once([*metrics, *(metric for table in report.data_tables for metric in _of_table(table))])


def of_point(point: RooflinePoint, chart: Roofline, several: bool = False) -> list[Metric]:
    """Metrics of time, FLOP and bytes of a point."""
    name = f"{point.name}, {chart.device_name}" if several else point.name
    time, kind = point.measured or point.predicted, "measured" if point.measured else "predicted"
    metrics = [] if time is None else [Metric(name, time.value, f"time, {kind}", "s", time.low, time.high)]
    if point.roofline_s is not None:
        metrics.append(Metric(name, point.roofline_s, "time at the roof", "s"))
    if point.flops or point.dtype:  # without a dtype, FLOP were not counted
        metrics.append(Metric(name, point.flops, "FLOP", "FLOP"))
    return metrics + [Metric(name, moved, f"{level.upper()} traffic", "B") for level, moved in point.bytes.items()]


def _of_table(table: DataTable) -> Iterator[Metric]:
    """Metrics of cells from the first column with a unit other than a count on. The columns left of it name the row."""
    measured = [place for place, column in enumerate(table.columns) if column.unit not in ("text", "count")]
    ends = {key for column in table.columns for key in (column.low, column.high)}
    keys = [column.key for column in table.columns]
    for row in table.rows:
        first = min(measured, default=len(row))
        words = [
            f"{column.title} {value:,}" if _is_number(value) else str(value)
            for column, value in zip(table.columns[:first], row, strict=False)
            if value not in (None, "")
        ]
        for column, value in list(zip(table.columns, row, strict=True))[first:]:
            if _is_number(value) and column.key not in ends:
                low, high = (row[keys.index(key)] if key in keys else None for key in (column.low, column.high))
                interval = (low, high) if _is_number(low) and _is_number(high) else (None, None)
                yield Metric(", ".join([table.title, *words]), value, column.title, column.unit, *interval)  # type: ignore[arg-type]


def _each_once(metrics: Iterable[Metric]) -> list[Metric]:
    """``metrics`` without repetitions, where different numbers of one name are numbered. DataError for an interval not above zero."""
    by_label: dict[tuple[str, str], Metric] = {}
    times = Counter[tuple[str, str]]()
    for metric in metrics:
        ends = [] if metric.low is None or metric.high is None else [metric.low, metric.high]
        wrong = next((end for end in (metric.value, *ends) if not is_sound(end, above_zero=bool(ends))), None)
        if wrong is not None:
            raise DataError(f"{cut(f'{metric.key}, {metric.label}')} is {cut(str(wrong))}", "save the answer again")
        first = by_label.setdefault((metric.key, metric.label), metric)
        if first.value != metric.value or first.unit != metric.unit:
            times[metric.key, metric.label] += 1
            by_label[metric.key, f"{metric.label} ({times[metric.key, metric.label] + 1})"] = metric
    return [metric._replace(label=label) for (_, label), metric in by_label.items()]


def _of_object(
    raw: Any, units: Mapping[str, str], path: tuple[str, ...] = (), things: tuple[str, ...] = (), place: str = ""
) -> Iterator[Metric]:
    """Metrics of the numbers in ``raw`` at ``place``. ``path``: keys to it within a list's item; ``things``: names of such items."""
    if isinstance(raw, Mapping):
        for key, value in _with_table(raw).items():
            inside = _inside(place, key)
            if isinstance(value, DataTable):
                yield from _of_table(value)
            elif _is_number(value) and key not in (*LEFT_OUT, *NAMES):
                ends = (raw.get("low"), raw.get("high")) if key in WITH_ENDS else (None, None)
                yield _metric((*path, key), things, value, units.get(inside), ends if all(map(_is_number, ends)) else (None, None))
            elif key not in LEFT_OUT:
                yield from _of_object(value, units, (*path, str(key)), things, inside)
    elif isinstance(raw, list):
        outer = (*things, *(word for word in path if word not in CONTAINERS))
        for name, item in zip(_names(raw), raw, strict=True):
            if _is_number(item):
                yield _metric(path or ("value",), (*things, name), item, units.get(place))
            else:
                yield from _of_object(item, units, (), (*outer, name), f"{place}[]")


def _with_table(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """``raw`` with the rows of a sweep as a table."""
    heads, rows = raw.get("columns"), raw.get("rows")
    if not isinstance(heads, list) or not isinstance(rows, list) or not all(isinstance(entry, dict) for entry in (*heads, *rows)):
        return raw
    columns = [Column(str(head.get("name")), str(head.get("name")), str(head.get("unit") or "count")) for head in heads]
    return {**raw, "columns": None, "rows": DataTable("rows", columns, [[row.get(column.key) for column in columns] for row in rows])}


def _names(items: Sequence[Any]) -> list[str]:
    """Names of the ``items`` of a list; their numbers if names are not different."""
    names = [_name(item) if isinstance(item, Mapping) else "" for item in items]
    counted = Counter(names)
    return [name if name and counted[name] == 1 else f"{name} {place}".strip() for place, name in enumerate(names, 1)]


def _name(item: Mapping[str, Any]) -> str:
    """The name of ``item``; a kernel goes only by its own name, without its algorithm."""
    keys = ("name",) if {"name", "algorithm"} <= set(item) else NAMES
    return " ".join(str(item[key]) for key in keys if isinstance(item.get(key), (str, int, float)) and item[key] != "")


def _metric(
    path: tuple[str, ...], things: tuple[str, ...], value: float, known: str | None, ends: tuple[Any, Any] = (None, None)
) -> Metric:
    """The metric at ``path`` of ``things``, with a label such as ``sram read bytes``. ``unit``: its unit and better direction, if known."""
    *head, quantity = path
    unit = str(known or "count").partition(",")[0]
    if head and head[-1] not in CONTAINERS and (head[-1] in PREFIXES or head[-1].endswith("_s")):
        quantity = f"{head.pop().removesuffix('_s')} {quantity}"
    label = (quantity.removesuffix("_s") if unit == "s" else quantity).replace("_", " ")
    return Metric(", ".join([*things, *(word for word in head if word not in CONTAINERS)]) or ALL, value, label, unit, *ends)
