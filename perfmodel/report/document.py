"""A report before any format: what was found, the numbers, what they rest on, and the data behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perfmodel.report.charts.schema import Chart, Roofline, SavedPart

FLOP_CONVENTION = "A multiply-add counts 2 FLOP; exponentials are counted apart."


@dataclass(frozen=True, slots=True)
class Table(SavedPart):
    """Text cells, ready to print. ``align``: ``l`` or ``r`` per column; by default labels left, numbers right."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    align: str = ""

    @property
    def alignment(self) -> str:
        """One letter per column."""
        return self.align or "l" + "r" * (len(self.columns) - 1)


@dataclass(frozen=True, slots=True)
class Column(SavedPart):
    """One column of numbers. ``unit``: a key of ``format_number.UNITS``, such as ``s``, ``B``, ``share``; ``text`` for words.

    ``low`` and ``high``: keys of the columns with the ends of its interval, which are shown in its cells and not beside them;
    ``under``: of one that a page shows below it, with its title.
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
    """Numbers in base units, so that a reader can sort them, load them and compare them. None where there is none."""

    title: str
    columns: list[Column]
    rows: list[list[Value]]

    @classmethod
    def of(cls, title: str, items: Iterable[_Item], columns: Sequence[tuple[Column, Callable[[_Item], Value]]]) -> DataTable:
        """A row per item; each column with its value of an item."""
        return cls(title, [column for column, _ in columns], [[value(item) for _, value in columns] for item in items])

    def records(self) -> list[dict[str, Value]]:
        """Its rows by the keys of their columns."""
        return [{column.key: value for column, value in zip(self.columns, row, strict=True)} for row in self.rows]


@dataclass(frozen=True, slots=True)
class Formula(SavedPart):
    """``name = formula = numbers = value``, of the result ``group``. ``source``: where the formula or the value is from."""

    name: str
    meaning: str
    formula: str = ""
    numbers: str = ""
    value: Value = None
    source: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class ProfileUse(SavedPart):
    """A device profile that numbers rest on: the SHA-256 of its file, and the date of its newest calibration."""

    id: str
    sha256: str
    calibrated: str = ""


@dataclass(frozen=True, slots=True)
class Provenance(SavedPart):
    """How to make the report again. ``inputs``: further files with their SHA-256, such as a study or records."""

    command: str = ""
    version: str = ""
    profiles: list[ProfileUse] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report(SavedPart):
    """``verdict``: sentences to read first. ``notes``: assumptions and sources. ``data``: the object that JSON prints.

    ``records``: the measurements that it rests on, if any, as objects of the record format. ``profile``: the text of a device
    profile that was made. A report without ``data`` is a document: JSON saves all of it, and ``saved.read_report`` reads it back.
    """

    title: str
    verdict: list[str]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    profile: str = ""
    charts: list[Chart] = field(default_factory=list)
    data_tables: list[DataTable] = field(default_factory=list)
    formulas: list[Formula] = field(default_factory=list)
    provenance: Provenance | None = None

    @property
    def rooflines(self) -> list[Roofline]:
        """The rooflines among its charts."""
        return [chart for chart in self.charts if isinstance(chart, Roofline)]
