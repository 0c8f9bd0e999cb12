"""Memory over time in characters: one line of bars, or a chart of several rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.core.arith import Number
from perfmodel.report.document import Table

_EIGHTHS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT = 60, 8
"""Columns and rows of a chart: they fit a terminal of 80 columns."""


def sparkline(values: Sequence[Number], top: Number) -> str:
    """One character per value, an eighth of ``top`` per step; never blank.

    >>> sparkline([1, 4, 8], 8)
    '▁▄█'
    """
    return "".join(_EIGHTHS[max(1, _eighths(value, top, 1))] for value in values)


def memory_chart(
    title: str, bars: Sequence[Number], top: Number, parts: Sequence[tuple[int, str]], label: Callable[[Number], str], rows: int = HEIGHT
) -> Table:
    """Bars of memory up to ``top``, and below them ``parts``: how many columns each takes, and its name."""
    lines = [*chart(bars, top, rows, label), *(["", line] for line in axis(parts))]
    return Table(title, ["memory", ""], lines, "rl")


def chart(values: Sequence[Number], top: Number, rows: int, label: Callable[[Number], str]) -> list[list[str]]:
    """Rows from the top down: the memory that a full column reaches there, and the columns.

    >>> for line in chart([1, 2, 4], 4, 2, str): print(line)
    ['4', '│  █']
    ['2', '│▄██']
    """
    heights = [_eighths(value, top, rows) for value in values]
    lines = []
    for row in range(rows, 0, -1):
        reach = top * row // rows if isinstance(top, int) else top * row / rows
        bars = "".join(_EIGHTHS[min(max(height - 8 * (row - 1), 0), 8)] for height in heights)
        lines.append([label(reach), f"│{bars.rstrip()}"])
    return lines


def axis(parts: Sequence[tuple[int, str]]) -> list[str]:
    """Two lines below a chart: the axis with a mark where each part begins, and the parts' names. ``parts``: columns and name.

    >>> axis([(6, "ahead"), (8, "back")])
    ['└┬─────┬───────', ' ahead back']
    """
    line, names = "└", " "
    for width, name in parts:
        line += "┬" + "─" * (width - 1) if width else ""
        names += (name if len(name) < width else name.split(",")[0][: max(width - 1, 0)]).ljust(width)
    return [line, names.rstrip()]


def _eighths(value: Number, top: Number, rows: int) -> int:
    """Height in eighths of a row; anything above nothing shows."""
    if not top or value <= 0:
        return 0
    return max(1, round(float(value / top) * 8 * rows))
