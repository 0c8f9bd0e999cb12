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
DIRECTIONS = {-1: ", lower is better", 0: "", 1: ", higher is better"}
"""Text after a unit, by which direction is better."""


def metrics_of(raw: Any, name: str, units: Mapping[str, str] | None = None) -> list[Metric]:
    """Metrics of the document ``raw``, read from the file ``name``. DataError if it is not of this package.

    ``units``: units of the other document of a comparison, for an object of an older version with other units or none.
    """
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema == SCHEMA:
        return of_report(from_data(raw))
    if not isinstance(schema, str) or not schema.startswith("perfmodel."):
        raise DataError(f"{name}: neither a report nor what --json prints", "save one with -o report.json")
    unit_maps = [unit_map for unit_map in (raw.get(UNITS), units) if isinstance(unit_map, dict)]
    if not unit_maps:
        raise DataError(f"{name}: its numbers have no units", "save the answer again with this version")
    unit_map = unit_maps[0] | unit_maps[-1]
    return _each_once(_of_object(raw, unit_map))


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
    if not isinstance(raw, Mapping):
        return unit_map
    for key, value in raw.items():
        if key in LEFT_OUT:
            continue
        path = _path(place, key)
        if not _is_number(value) and not _is_list_of_numbers(value):
            unit_map |= units_of(value, path)
            continue
        declared_unit = key.unit if isinstance(key, Name) else _unit_beside(raw, key)
        unit = declared_unit or unit_by_name(path)
        if unit not in ("count", "text"):
            unit_map[path] = f"{unit}{DIRECTIONS[better(unit)]}"
    return unit_map


def _path(place: str, key: Any) -> str:
    """The path of ``key`` of the object at ``place``."""
    return f"{place}.{key}" if place else str(key)


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_number, value))


def _unit_beside(raw: Mapping[str, Any], key: str) -> str:
    """The unit beside the number ``key``, in its text or as ``unit``; empty if there is none.

    >>> _unit_beside({"number": 1830000000, "value": "1830 MHz"}, "number"), _unit_beside({"value": 206.1, "unit": "FLOP/B"}, "value")
    ('Hz', 'FLOP/B')
    """
    if key == "value":
        return str(raw.get("unit", ""))
    if key != "number":
        return ""
    text = str(raw.get("value"))
    units = [base for base in BASES if text.endswith(base)]
    return units[0] if units else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def of_report(report: Report) -> list[Metric]:
    """Metrics from the points of its rooflines and the cells of its tables."""
    several = len({chart.device for chart in report.rooflines}) > 1
    metrics = []
    for chart in report.rooflines:
        for point in chart.points:
            metrics += of_point(point, chart, several)
    for table in report.data_tables:
        metrics += _of_table(table)
    return _each_once(metrics)


def of_point(point: RooflinePoint, chart: Roofline, several: bool = False) -> list[Metric]:
    """Metrics of time, FLOP and bytes of a point."""
    name = f"{point.name}, {chart.device_name}" if several else point.name
    metrics = []
    if point.measured:
        metrics.append(Metric(name, point.measured.value, "time, measured", "s", point.measured.low, point.measured.high))
    elif point.predicted:
        metrics.append(Metric(name, point.predicted.value, "time, predicted", "s", point.predicted.low, point.predicted.high))
    if point.roofline_s is not None:
        metrics.append(Metric(name, point.roofline_s, "time at the roof", "s"))
    if point.flops or point.dtype:  # without a dtype, FLOP were not counted
        metrics.append(Metric(name, point.flops, "FLOP", "FLOP"))
    return metrics + [Metric(name, moved, f"{level.upper()} traffic", "B") for level, moved in point.bytes.items()]


def _of_table(table: DataTable) -> Iterator[Metric]:
    """Metrics of cells from the first column with a unit other than a count on. The columns left of it name the row."""
    first = 0
    while first < len(table.columns) and table.columns[first].unit in ("text", "count"):
        first += 1
    end_keys = {key for column in table.columns for key in (column.low, column.high)}
    for record in table.records():
        names = [table.title]
        for column in table.columns[:first]:
            value = record[column.key]
            if value not in (None, ""):
                names.append(f"{column.title} {value:,}" if _is_number(value) else str(value))
        for column in table.columns[first:]:
            value = record[column.key]
            if _is_number(value) and column.key not in end_keys:
                low, high = _numbers_or_none(record.get(column.low), record.get(column.high))
                yield Metric(", ".join(names), value, column.title, column.unit, low, high)


def _numbers_or_none(low: Any, high: Any) -> tuple[Any, Any]:
    """Both ends of an interval; None twice unless both are numbers."""
    return (low, high) if _is_number(low) and _is_number(high) else (None, None)


def _each_once(metrics: Iterable[Metric]) -> list[Metric]:
    """``metrics`` without repetitions, where different numbers of one name are numbered. DataError for an interval not above zero."""
    by_label: dict[tuple[str, str], Metric] = {}
    further = Counter[tuple[str, str]]()
    for metric in metrics:
        name = (metric.key, metric.label)
        _check_sound(metric)
        first = by_label.setdefault(name, metric)
        if (first.value, first.unit) != (metric.value, metric.unit):
            further[name] += 1
            by_label[metric.key, f"{metric.label} ({further[name] + 1})"] = metric
    return [metric._replace(label=label) for (_, label), metric in by_label.items()]


def _check_sound(metric: Metric) -> None:
    """DataError for a number that is not finite, or an interval not above zero."""
    has_interval = metric.low is not None and metric.high is not None
    numbers = [metric.value, metric.low, metric.high] if has_interval else [metric.value]
    for number in numbers:
        if not is_sound(number, above_zero=has_interval):
            raise DataError(f"{cut(f'{metric.key}, {metric.label}')} is {cut(str(number))}", "save the answer again")


def _of_object(
    raw: Any, units: Mapping[str, str], path: tuple[str, ...] = (), item_names: tuple[str, ...] = (), place: str = ""
) -> Iterator[Metric]:
    """Metrics of the numbers in ``raw`` at ``place``, the path by which ``units`` knows it.

    ``item_names``: names of the list items that it is in. ``path``: keys to it within the innermost of these items.
    """
    if isinstance(raw, Mapping):
        for key, value in _with_table(raw).items():
            inside = _path(place, key)
            if isinstance(value, DataTable):
                yield from _of_table(value)
            elif _is_number(value) and key not in (*LEFT_OUT, *NAMES):
                ends = _numbers_or_none(raw.get("low"), raw.get("high")) if key in WITH_ENDS else (None, None)
                yield _metric((*path, key), item_names, value, units.get(inside), ends)
            elif key not in LEFT_OUT:
                yield from _of_object(value, units, (*path, str(key)), item_names, inside)
    elif isinstance(raw, list):
        keys = [key for key in path if key not in CONTAINERS]
        for name, item in zip(_names(raw), raw, strict=True):
            if _is_number(item):
                yield _metric(path or ("value",), (*item_names, name), item, units.get(place))
            else:
                yield from _of_object(item, units, (), (*item_names, *keys, name), f"{place}[]")


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
    counts = Counter(names)
    return [name if name and counts[name] == 1 else f"{name} {number}".strip() for number, name in enumerate(names, 1)]


def _name(item: Mapping[str, Any]) -> str:
    """The name of ``item``; a kernel goes only by its own name, without its algorithm."""
    keys = ("name",) if {"name", "algorithm"} <= set(item) else NAMES
    values = [item.get(key) for key in keys]
    return " ".join(str(value) for value in values if isinstance(value, (str, int, float)) and value != "")


def _metric(
    path: tuple[str, ...], item_names: tuple[str, ...], value: float, known_unit: str | None, ends: tuple[Any, Any] = (None, None)
) -> Metric:
    """The metric at ``path`` of an item, with a label such as ``sram read bytes``.

    ``known_unit``: its unit and better direction, as in ``units_of``; None for a count.
    """
    unit = str(known_unit or "count").partition(",")[0]
    *outer_keys, quantity = path
    parent = outer_keys[-1] if outer_keys else ""
    if parent in PREFIXES or (parent.endswith("_s") and parent not in CONTAINERS):
        outer_keys.pop()
        quantity = f"{parent.removesuffix('_s')} {quantity}"
    if unit == "s":
        quantity = quantity.removesuffix("_s")
    names = [*item_names, *(key for key in outer_keys if key not in CONTAINERS)]
    return Metric(", ".join(names) or ALL, value, quantity.replace("_", " "), unit, *ends)
