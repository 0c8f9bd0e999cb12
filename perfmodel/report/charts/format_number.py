"""Numbers of tables and charts as text by unit, the same in every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.document import Column, DataTable, Formula, Table, Value

ABSENT = "-"


def digits(value: float, significant: int) -> str:
    """``value`` to ``significant`` digits; large numbers have commas instead of a power of ten.

    >>> digits(5463.2, 3), digits(0.12345, 3), digits(999.9, 3), digits(1482.4, 4)
    ('5,460', '0.123', '1,000', '1,482')
    """
    rounded = float(f"{value:.{significant}g}")
    return f"{rounded:,.0f}" if 10**significant <= abs(rounded) < 1e15 else f"{value:,.{significant}g}"


def percent(share: float) -> str:
    """A share in whole percent; nonzero shares below 0.5 % are written as <1%.

    >>> percent(0.607), percent(0.0002), percent(0.0)
    ('61%', '<1%', '0%')
    """
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


UNITS: dict[str, Callable[[float], str]] = {
    "count": lambda value: format_count(value) if isinstance(value, int) else digits(value, 4),
    "B": lambda value: format_si(value, "B"),
    "B/s": lambda value: format_si(value, "B/s"),
    "FLOP": lambda value: format_si(value, "FLOP"),
    "FLOP/s": lambda value: format_si(value, "FLOP/s"),
    "FLOP/J": lambda value: format_si(value, "FLOP/J", 3),
    "FLOP/B": lambda value: f"{digits(value, 4)} FLOP/B",
    "tokens/s": lambda value: format_si(value, "tokens/s"),
    "requests/s": lambda value: f"{digits(value, 4)} requests/s",
    "price": format_si,
    "s": format_time,
    "Hz": lambda value: f"{value / 1e6:,.0f} MHz",
    "J": lambda value: format_si(value, "J", 3) if value >= 1 else f"{digits(1e3 * value, 3)} mJ",
    "W": lambda value: f"{value:,.0f} W",
    "share": lambda value: "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}",
    "error": lambda value: f"{value:+.1%}",
    "ratio": lambda value: f"{digits(value, 3)}x",
    "elements": lambda value: f"{format_count(int(value))} elements",
    "operations": format_si,
    "yes or no": lambda value: "yes" if value else "no",
}
"""Functions that write a number in a base unit. Other units follow the number as they are."""


def text(value: Value, unit: str) -> str:
    """``value`` with its unit; words are returned unchanged.

    >>> text(0.0017620060, "s"), text(None, "s"), text(0.5, "share")
    ('1.762 ms', '-', '50.0%')
    """
    if value is None or value == "":
        return ABSENT
    if isinstance(value, str):
        return value
    if unit in UNITS:
        return UNITS[unit](value)
    return f"{value:.6g}" if unit == "text" else f"{value:.6g} {unit}".strip()


def shown_columns(table: DataTable) -> list[Column]:
    """Columns with their own cells: all but the ends of intervals and columns without any value."""
    ends = {key for column in table.columns for key in (column.low, column.high)}
    filled = {key for record in table.records() for key, value in record.items() if value not in (None, "")}
    return [column for column in table.columns if column.key in filled - ends]


def interval(column: Column, record: Mapping[str, Value]) -> str:
    """The interval of a cell, such as ``3.19 to 3.74 ms``; empty where it has none."""
    low, high = record.get(column.low), record.get(column.high)
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return ""
    if column.unit == "s":
        return between(format_time(low, 3), format_time(high, 3))
    return between(text(low, column.unit), text(high, column.unit))


def between(low: str, high: str, word: str = "to") -> str:
    """Two numbers with ``word`` between them; a common unit is written once.

    >>> between("72 us", "84.3 us"), between("960 us", "1.1 ms")
    ('72 to 84.3 us', '960 us to 1.1 ms')
    """
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} {word} {high}"


def as_text(table: DataTable) -> Table:
    """``table`` as text cells, each value with its interval."""
    columns = shown_columns(table)
    rows = [[_cell(column, record) for column in columns] for record in table.records()]
    align = "".join("l" if column.unit == "text" else "r" for column in columns)
    return Table(table.title, [column.title for column in columns], rows, align)


def _cell(column: Column, record: Mapping[str, Value]) -> str:
    value = text(record[column.key], column.unit)
    ends = interval(column, record)
    return f"{value} ({ends})" if ends and value != ABSENT else value


def formula_text(formula: Formula) -> str:
    """``name = formula = numbers = value``."""
    value = formula.value
    if isinstance(value, int):
        value_text = f"{value:,}"
    elif isinstance(value, float):
        value_text = f"{value:.6g}"
    else:
        value_text = str(value or "")
    numbers = formula.numbers if formula.numbers not in (value_text, str(value)) else ""
    return " = ".join(filter(None, [formula.name, formula.formula, numbers, value_text]))
