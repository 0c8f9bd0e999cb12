"""A report as one JSON object and back: what ``-o report.json`` saves is enough to render every format again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.core.errors import DataError
from perfmodel.report.charts.schema import Roofline, ScatterChart
from perfmodel.report.document import Report

SCHEMA = "perfmodel.report/1"


def to_data(report: Report) -> dict[str, Any]:
    """``report`` as the object of schema perfmodel.report/1; fields that are empty are left out."""
    fields = asdict(report)
    return {"schema": SCHEMA, "version": __version__} | {name: value for name, value in fields.items() if value not in ([], {}, "", None)}


def from_data(raw: Any) -> Report:
    """The report that ``raw``, such an object, holds. DataError names the first field that is wrong."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else None
        raise DataError(f"not a saved report: its schema is {found!r}, not {SCHEMA!r}", "save one with -o report.json")
    from pydantic import TypeAdapter, ValidationError

    fields = {"title": "", "verdict": [], "tables": []} | {name: value for name, value in raw.items() if name not in ("schema", "version")}
    try:
        report: Report = TypeAdapter(Report).validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}", "save the report again, or mend that field") from None
    return _checked(report)


def read_report(path: Path) -> Report:
    """The report saved in ``path``."""
    from perfmodel.catalog import read_json

    try:
        return from_data(read_json(path))
    except DataError as error:
        raise DataError(error.message if str(path) in error.message else f"{path}: {error.message}", error.fix) from None


def _checked(report: Report) -> Report:
    """DataError for tables whose rows are not as wide as their columns, and for point numbers that are used twice."""
    shapes = [(table.title, len(table.columns), {len(row) for row in table.rows}) for table in report.tables]
    shapes += [(table.title, len(table.columns), {len(row) for row in table.rows}) for table in report.data_tables]
    for title, columns, rows in shapes:
        if rows - {columns}:
            raise DataError(f"table {title!r}: a row does not have {columns} cells")
    numbers = [point.number for chart in report.rooflines for point in chart.points]
    if len(set(numbers)) < len(numbers):
        raise DataError("two points have the same number", "number the points of all rooflines 1, 2, 3, ...")
    for place, value in _above_zero(report):
        if value <= 0:
            raise DataError(f"{place} is {value}", "give a number above zero")
    return report


def _above_zero(report: Report) -> Iterator[tuple[str, float]]:
    """Rates and times, by which something is divided, with their places."""
    for place, chart in enumerate(report.charts):
        if isinstance(chart, Roofline):
            yield from ((f"charts.{place}: ceiling {c.name}", c.value) for c in chart.ceilings)
            for point in chart.points:
                times = {"measured": point.measured, "predicted": point.predicted}
                yield from ((f"point {point.number}: {name}", known.value) for name, known in times.items() if known)
                yield from [(f"point {point.number}: roofline_s", point.roofline_s)] if point.roofline_s is not None else []
                yield from [(f"point {point.number}: before", point.before.time_s)] if point.before else []
        elif isinstance(chart, ScatterChart):
            yield from ((f"charts.{place}: {pair.name}", min(pair.measured, pair.predicted)) for pair in chart.pairs)
