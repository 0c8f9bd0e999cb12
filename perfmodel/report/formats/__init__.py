"""File formats. Each module is named after its suffix and has ``render(report)``, which returns text or bytes.

All get the same report, without control characters, and take numbers as text from ``tables``. A module with a line such as ``NEEDS =
"charts"`` writes that field of a report, which only some commands fill. ``check`` says before any work what a format lacks. A module with
``VERBATIM`` gets every character and escapes control characters itself.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.core.errors import visible
from perfmodel.core.plugins import module_names
from perfmodel.report.document import Report, Table

_NEEDS = re.compile(r"^NEEDS = (.+)$", re.MULTILINE)
"""Pattern of that line. Modules are read and not imported, as help lists the formats and some load much."""
UNSHOWN = ("data", "records", "profile", "timeline", "counters")
"""Fields of a report that are saved but not shown, so that they keep every character."""


def suffixes(offers: Collection[str] = ()) -> list[str]:
    """Suffixes, such as ``.json``, that reports with the fields ``offers`` can be written to."""
    needs = {name: _NEEDS.search(_source(name)) for name in module_names(__path__)}
    return [f".{name}" for name, need in needs.items() if need is None or literal_eval(need[1]) in offers]


def _source(name: str) -> str:
    [path] = [path for folder in __path__ if (path := Path(folder, f"{name}.py")).is_file()]
    return path.read_text(encoding="utf-8")


def suffix_of(path: Path) -> str:
    """The suffix of ``path`` that names its format; for ``step.trace.json`` that is ``.trace``."""
    return ".trace" if path.name.endswith(".trace.json") else path.suffix


def render(suffix: str, report: Report) -> str | bytes:
    """``report`` in the format of ``suffix``, such as ``.json``; bytes if that is no text."""
    module = import_module(f"{__name__}{suffix}")
    rendered: str | bytes = module.render(report if getattr(module, "VERBATIM", False) else readable(report))
    return rendered


def tables(report: Report, brief: bool = False) -> list[Table]:
    """All numbers of ``report`` as text tables: points and roofs, tables, and numbers that only its charts show.

    ``brief``: only the columns of points and roofs that fit a page of text.
    """
    from perfmodel.report.charts.format_number import as_text

    tables = [*map(as_text, report.data_tables), *report.tables]
    if not report.charts:
        return tables
    from perfmodel.report.charts.chart_tables import brief_table, marks_table, numbers, points_table, roofs_table

    of_charts: list[Table] = []
    rooflines = report.rooflines
    if any(chart.points for chart in rooflines):
        of_charts.append(as_text(brief_table(rooflines) if brief else points_table(rooflines)))
    of_charts += [roofs_table(chart, brief) for chart in rooflines]
    known_cells = {cell for table in tables for row in table.rows for cell in row}
    for chart in report.charts:
        if chart.kind != "roofline":
            table = as_text(numbers(chart))
            if not known_cells.issuperset(cell for row in table.rows for cell in row):
                of_charts.append(table)
        marks = marks_table(chart)
        if marks:
            of_charts.append(marks)
    return [*of_charts, *tables]


def readable(report: Report) -> Report:
    """``report`` with control characters in shown texts replaced (``visible``)."""
    unshown = {name: getattr(report, name) for name in UNSHOWN}
    rewritten: Report = _rewritten(replace(report, **{name: type(value)() for name, value in unshown.items()}))
    return replace(rewritten, **unshown)


def _rewritten(value: Any) -> Any:
    """``value`` with control characters replaced in every text inside it."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_rewritten, value))
    if isinstance(value, dict):
        return {_rewritten(key): _rewritten(item) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in fields(value):
        old = getattr(value, field.name)
        new = _rewritten(old) if field.init else old
        if new is not old:
            changed[field.name] = new
    return replace(value, **changed) if changed else value
