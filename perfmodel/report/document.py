"""The data of a report before any format: verdict, numbers, charts, sources and data. Reports are saved as JSON and read again.

What ``-o report.json`` saves is enough to render every format again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel import __version__
from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass
from perfmodel.report.saved import Number, SavedPart

if TYPE_CHECKING:
    from perfmodel.report.charts.schema import Chart, Roofline

FLOP_CONVENTION = "A multiply-add counts 2 FLOP; exponentials are counted apart."


@dataclass(frozen=True, slots=True)
class Table(SavedPart):
    """Text cells, ready to print. ``align``: ``l`` or ``r`` per column; by default labels left, numbers right.

    ``drawn``: a picture made of characters, which needs a fixed-width font.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    align: str = ""
    drawn: bool = False

    @property
    def alignment(self) -> str:
        """One letter per column."""
        return self.align or "l" + "r" * (len(self.columns) - 1)


@dataclass(frozen=True, slots=True)
class Column(SavedPart):
    """One column of numbers. ``unit``: a key of ``format_number.UNITS``, such as ``s``, ``B``, ``share``; ``text`` for words.

    ``low`` and ``high``: keys of the columns with the ends of its interval, shown in the same cells. ``under``: key of a column that a page
    shows below this one.
    """

    key: str
    title: str
    unit: str = "text"
    low: str = ""
    high: str = ""
    under: str = ""


Value = str | int | float | None
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class DataTable(SavedPart):
    """A table of numbers in base units, to be sorted, loaded and compared; None stands for a missing number."""

    title: str
    columns: list[Column]
    rows: list[list[Value]]

    @classmethod
    def of(cls, title: str, items: Iterable[_Item], columns: Sequence[tuple[Column, Callable[[_Item], Value]]]) -> DataTable:
        """A table with a row per item; each column comes with the function that gives its value."""
        return cls(title, [column for column, _ in columns], [[value(item) for _, value in columns] for item in items])

    def records(self) -> list[dict[str, Value]]:
        """The rows of the table, by the keys of its columns."""
        return [{column.key: value for column, value in zip(self.columns, row, strict=True)} for row in self.rows]


@dataclass(frozen=True, slots=True)
class Formula(SavedPart):
    """A formula ``name = formula = numbers = value`` of the result ``group``. ``source``: source of the formula or the value."""

    name: str
    meaning: str
    formula: str = ""
    numbers: str = ""
    value: Value = None
    source: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class ProfileUse(SavedPart):
    """A device profile that was used: the SHA-256 of its file, and the date of its newest calibration."""

    id: str
    sha256: str
    calibrated: str = ""


@dataclass(frozen=True, slots=True)
class Provenance(SavedPart):
    """What is needed to make the report again. ``inputs``: further files with their SHA-256, such as a study or records."""

    command: str = ""
    version: str = ""
    profiles: list[ProfileUse] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meter(SavedPart):
    """How busy a resource is. ``share``: of the report's time, 0 to 1, or above 1 if kernels exceed a roof.

    ``detail``: the same as a rate, such as ``2.1 of 3.35 TB/s``. ``limits``: whether this resource limits.
    """

    name: str
    share: Number
    detail: str = ""
    limits: bool = False


@dataclass(frozen=True, slots=True)
class Figure(SavedPart):
    """One of at most five main numbers: ``label``, and ``value`` as text with unit and interval."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class KernelSpan(SavedPart):
    """A kernel on a timeline, in seconds from the start of a step. ``lane``: the row of the timeline; ``details``: further facts."""

    name: str
    lane: str
    start_s: float
    seconds: float
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CounterSample(SavedPart):
    """``values`` by name that the counter ``name`` has from ``at_s`` seconds on."""

    name: str
    at_s: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Report(SavedPart):
    """A report. ``verdict``: at most three sentences: whether it fits, the time with interval and rate, and what limits it.

    ``meters``: how busy each resource is, as shares of ``metered``. ``figures``: the main numbers. ``brief``: the short tables for a
    screen, 12 rows in all. ``reasons``: further sentences, such as why one is faster. ``notes``: assumptions and sources. ``data``: the
    object that JSON prints.

    A report for a design review also has its ``question``, its ``assumptions``, and its ``sensitivity``: what would change the answer.

    ``records``: measurements that it rests on, in the record format. ``profile``: text of a device profile that was made. ``timeline``:
    kernels over time, with ``counters`` beside them. A report without ``data`` is a document: JSON saves all of it, and ``read_report``
    reads it back.
    """

    title: str
    verdict: list[str]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    profile: str = ""
    timeline: list[KernelSpan] = field(default_factory=list)
    counters: list[CounterSample] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    data_tables: list[DataTable] = field(default_factory=list)
    formulas: list[Formula] = field(default_factory=list)
    provenance: Provenance | None = None
    meters: list[Meter] = field(default_factory=list)
    metered: str = "predicted time"
    figures: list[Figure] = field(default_factory=list)
    brief: list[Table] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    question: str = ""
    assumptions: list[str] = field(default_factory=list)
    sensitivity: list[str] = field(default_factory=list)

    @property
    def rooflines(self) -> list[Roofline]:
        """The rooflines among its charts."""
        return [chart for chart in self.charts if chart.kind == "roofline"]


def captioned(report: Report) -> list[Chart]:
    """The charts of ``report``. The first one, below the verdict, has no caption if that only repeats the verdict."""
    verdict = " ".join(report.verdict).casefold()
    return [
        replace(chart, caption="") if place == 0 and chart.caption.rstrip(".").partition(";")[0].casefold() in verdict else chart
        for place, chart in enumerate(report.charts)
    ]


def review_lists(report: Report) -> list[tuple[str, list[str]]]:
    """Heading and sentences of the lists of a design review: assumptions, and what would change the verdict."""
    lists = {"Assumptions": report.assumptions, "What would change the verdict": report.sensitivity}
    return [(head, entries) for head, entries in lists.items() if entries and report.question]


SCREEN_ROWS = 12
"""Most rows of tables on a screen."""
DOUBT, GUESSED = "the counts here are wrong.", "go by the interval."
"""Ends of the notes that a screen shows too: doubts about all numbers, and about the predicted time."""
TO_PASTE = "to paste"
"""Title of a column of commands: a screen shows all of them or none."""
FEW_ROWS = 2
"""Fewest rows of other tables; a screen leaves out commands before it shows fewer."""
SUM = re.compile(r"together|total|all|\d+ others")
"""First cells of sum rows, which stay when rows above them are left out."""


def on_screen(report: Report, room: int | None = None) -> list[Table]:
    """The tables of a screen: the brief ones, else the first table; in ``room`` rows altogether if given.

    The last table loses rows first, from its end. Commands are left out once no other table has more than ``FEW_ROWS``.
    """
    tables = [replace(table, rows=table.rows[:SCREEN_ROWS]) for table in report.brief or report.tables[:1]]
    if room is None:
        return tables
    places = list(reversed(range(len(tables))))
    commands = [place for place in places if tables[place].columns == [TO_PASTE]]
    other_places = [place for place in places if place not in commands]
    for fewest, those in ((FEW_ROWS, other_places if commands else []), (0, commands), (0, other_places[:-1]), (1, other_places[-1:])):
        for place in those:
            excess, rows = sum(len(table.rows) for table in tables) - room, tables[place].rows
            if excess > 0:
                rows_kept = 0 if place in commands else max(len(rows) - excess, min(fewest, len(rows)))
                summed = rows[-1:] if 1 < rows_kept < len(rows) and SUM.fullmatch(rows[-1][0]) else []
                tables[place] = replace(tables[place], rows=[*rows[: rows_kept - len(summed)], *summed])
    return [table for table in tables if table.rows]


def provenance_lines(provenance: Provenance | None) -> list[str]:
    """Lines on provenance: the command, each profile and each input.

    >>> provenance_lines(Provenance("perfmodel attention --n 64 --d 64", "1.0", [ProfileUse("a100", "0123456789abcdef", "2026-11-22")]))
    ['perfmodel 1.0: perfmodel attention --n 64 --d 64', 'profile a100, SHA-256 0123456789ab, calibrated 2026-11-22']
    """
    if provenance is None:
        return []
    command = f"perfmodel {provenance.version}" + (f": {provenance.command}" if provenance.command else "")
    profiles = [
        f"profile {use.id}{_hash(use.sha256)}" + (f", calibrated {use.calibrated}" if use.calibrated else "") for use in provenance.profiles
    ]
    return [command, *profiles, *(f"input {name}{_hash(digest)}" for name, digest in provenance.inputs.items())]


def _hash(digest: str) -> str:
    return f", SHA-256 {digest[:12]}" if digest else ""


SCHEMA = "perfmodel.report/1"


def to_data(report: Report) -> dict[str, Any]:
    """``report`` as an object of schema perfmodel.report/1, without empty fields."""
    fields = asdict(report)
    return {"schema": SCHEMA, "version": __version__} | {name: value for name, value in fields.items() if value not in ([], {}, "", None)}


def _without_soft(value: Any) -> Any:
    """``value`` without the key ``soft``, which points of reports of the version before have."""
    if isinstance(value, list):
        return [_without_soft(item) for item in value]
    if not isinstance(value, dict):
        return value
    point = {"number", "name", "flops"} <= value.keys()
    return {name: _without_soft(item) for name, item in value.items() if not (point and name == "soft")}


def from_data(raw: Any) -> Report:
    """The report in ``raw``, an object of that schema. DataError names the first wrong field."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        schema = raw.get("schema") if isinstance(raw, dict) else None
        raise DataError(f"not a saved report: its schema is {schema!r}, not {SCHEMA!r}", "save one with -o report.json")
    from pydantic import TypeAdapter, ValidationError

    from perfmodel.report.charts.schema import Chart  # noqa: F401 - the type of a field

    fields = {"title": "", "verdict": [], "tables": []} | {name: value for name, value in raw.items() if name not in ("schema", "version")}
    fields = _without_soft(fields)
    try:
        report: Report = TypeAdapter(Report).validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}", "save the report again, or mend that field") from None
    return _checked(report)


def read_report(path: Path) -> Report:
    """The report saved in ``path``."""
    from perfmodel.core.files import read_json

    try:
        return from_data(read_json(path))
    except DataError as error:
        raise DataError(error.message if str(path) in error.message else f"{path}: {error.message}", error.fix) from None


LEAST, MOST = 1e-60, 1e60
"""Limits of saved numbers, within which ratios of two of them fit a float."""


def is_sound(value: Number, above_zero: bool = False) -> bool:
    """Whether ``value`` is within these limits, or 0 unless it must be ``above_zero``."""
    return LEAST <= (value if above_zero else abs(value)) <= MOST or (value == 0 and not above_zero)


def _checked(report: Report) -> Report:
    """``report`` itself; DataError for rows that do not match their columns, and for point numbers used twice."""
    shapes = [(table.title, len(table.columns), {len(row) for row in table.rows}) for table in report.tables]
    shapes += [(table.title, len(table.columns), {len(row) for row in table.rows}) for table in report.data_tables]
    for title, columns, rows in shapes:
        if rows - {columns}:
            raise DataError(f"table {title!r}: a row does not have {columns} cells")
    numbers = [point.number for chart in report.rooflines for point in chart.points]
    if len(set(numbers)) < len(numbers):
        raise DataError("two points have the same number", "number the points of all rooflines 1, 2, 3, ...")
    for place, value in _above_zero(report):
        if not is_sound(value, above_zero=True):
            raise DataError(f"{place} is {value}", f"give a number above zero, from {LEAST:.0e} to {MOST:.0e}")
    return report


def _above_zero(report: Report) -> Iterator[tuple[str, float]]:
    """Rates and times that serve as divisors, with their places."""
    for place, chart in enumerate(report.charts):
        if chart.kind == "roofline":
            yield from ((f"charts.{place}: ceiling {c.name}", c.value) for c in chart.ceilings)
            for point in chart.points:
                times = {"measured": point.measured, "predicted": point.predicted}
                values = {name: (interval.value, interval.low, interval.high) for name, interval in times.items() if interval}
                yield from ((f"point {point.number}: {name}", end) for name, ends in values.items() for end in ends if end is not None)
                yield from [(f"point {point.number}: roofline_s", point.roofline_s)] if point.roofline_s is not None else []
                yield from [(f"point {point.number}: before", point.before.time_s)] if point.before else []
        elif chart.kind == "scatter":
            yield from ((f"charts.{place}: {pair.name}", min(pair.measured, pair.predicted)) for pair in chart.pairs)
