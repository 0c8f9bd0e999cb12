"""Layout of tables in a given width: no number is broken, no line is longer, and columns without room are named."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from perfmodel.core.frozen import dataclass
from perfmodel.report.document import Table

GAP = 2
"""Spaces between columns."""
LEAST_TEXT = 16
"""Fewest characters of a text; with less room its column is left out."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[pnumkMGTPE]?(?:B|s|W|J|Hz|FLOP)|[KMGT]iB|[kMGTPE]|tokens)(?:/\w+)?\b|%|x )")
_JOINED = "\u00a0"
"""A space at which no line is broken."""
_NUMBER = re.compile(rf"[+-]?\d(?:[\d.,]*\d)?(?:{_JOINED}?[A-Za-z%/]*)")


@dataclass(frozen=True)
class _Column:
    """A column: ``cells`` below ``head``. ``numbers``: cells are broken only before an interval in brackets."""

    head: str
    cells: Sequence[str]
    numbers: bool

    @cached_property
    def widths(self) -> list[int]:
        """Possible widths, widest first: all on one line; the head wrapped; texts wrapped and intervals below values."""
        longest = max(map(len, self.cells), default=0)
        word = max(map(len, self.head.split()), default=0)
        broken = max((len(part) for cell in self.cells for part in interval_apart(cell)), default=0)
        minimum = broken if self.numbers else min(longest, LEAST_TEXT)
        return [max(longest, len(self.head)), max(longest, word), max(minimum, word if self.numbers else min(word, LEAST_TEXT))]


def interval_apart(cell: str) -> list[str]:
    """The value of a cell and, separately, its interval.

    >>> interval_apart("79.1 us (72 us to 84.3 us)"), interval_apart("12 GB")
    (['79.1 us', '(72 us to 84.3 us)'], ['12 GB'])
    """
    value, bracket, ends = cell.partition(" (")
    return [value, f"({ends}"] if bracket else [cell]


def turned(table: Table, width: int) -> Table:
    """``table``, or its transpose without intervals if its columns do not fit ``width``; the transpose keeps the fullest rows that fit.

    >>> turned(Table("", ["", "standard", "flash2"], [["time", "2 ms (1 to 3 ms)", "-"], ["rate", "-", "-"], ["bytes", "4", "1"]]), 22).rows
    [['standard', '2 ms', '4'], ['flash2', '-', '1']]
    """
    if table.align or not lines(table, width)[2]:
        return table
    time, *later = table.rows
    heads, *columns = zip(table.columns, time, *sorted(later, key=lambda row: row.count("-")), strict=True)
    rows = [[name, *(interval_apart(cell)[0] for cell in cells)] for name, *cells in columns]
    split_rows = [[heads[0], *map(str.strip, heads[1:])], *rows]
    ends = accumulate(GAP + max(map(len, cells)) for cells in zip(*split_rows, strict=True))
    fitting = sum(end <= width + GAP for end in ends)
    return Table(table.title, split_rows[0][:fitting], [row[:fitting] for row in split_rows[1:]])


def lines(table: Table, width: int, *, wrapped: bool = False) -> tuple[list[str], list[str], list[str]]:
    """Lines of head and rows of ``table``, each at most ``width`` long, and the titles of columns without room.

    Heads and texts of the first column are wrapped; other texts are cut with an ellipsis unless ``wrapped``. Numbers are shown whole or
    left out, the last columns first.

    >>> head, rows, without = lines(Table("", ["", "time", "share"], [["a kernel", "12.5 us", "30%"]]), 17)
    >>> rows, without
    (['a kernel  12.5 us'], ['share'])
    """
    cells = [
        _Column(head, [row[place] for row in table.rows], side == "r")
        for place, (head, side) in enumerate(zip(table.columns, table.alignment, strict=True))
    ]
    columns = len(cells)
    while columns > 1 and sum(column.widths[-1] for column in cells[:columns]) + GAP * (columns - 1) > width:
        columns -= 1
    widths = _rooms(cells[:columns], width)
    head = _row([column.head for column in cells[:columns]], cells, widths, wrapped=True)
    rows = [line for row in table.rows for line in _row(row[:columns], cells, widths, wrapped)]
    return head, rows, [column.head for column in cells[columns:]]


def _rooms(columns: Sequence[_Column], width: int) -> list[int]:
    """Width of each column: heads are wrapped first, then the widest texts shrink, then intervals move below."""
    rooms = [column.widths[0] for column in columns]

    def excess() -> int:
        return sum(rooms) + GAP * (len(rooms) - 1) - width

    for place in sorted(range(len(rooms)), key=lambda place: columns[place].widths[1] - rooms[place]):
        if excess() > 0:
            rooms[place] = max(columns[place].widths[1], rooms[place] - excess())
    texts = [place for place, column in enumerate(columns) if not column.numbers]
    while excess() > 0:
        shrinkable = [place for place in texts if rooms[place] > columns[place].widths[2]]
        if not shrinkable:
            break
        rooms[max(shrinkable, key=lambda place: rooms[place])] -= 1
    for place, column in enumerate(columns):
        if excess() > 0 and column.numbers:
            rooms[place] = column.widths[2]
    if excess() > 0:
        rooms[0] = max(1, rooms[0] - excess())
    return rooms


def _row(cells: Sequence[str], columns: Sequence[_Column], rooms: Sequence[int], wrapped: bool) -> list[str]:
    parts = [
        _parts(cell, room, column.numbers and cell in column.cells, wrapped or place == 0)
        for place, (cell, column, room) in enumerate(zip(cells, columns, rooms, strict=False))
    ]
    lines = []
    for line in range(max(map(len, parts), default=0)):
        texts = (part[line] if line < len(part) else "" for part in parts)
        aligned = (
            text.rjust(room) if column.numbers else text.ljust(room) for text, column, room in zip(texts, columns, rooms, strict=False)
        )
        lines.append((" " * GAP).join(aligned).rstrip())
    return lines


def _parts(cell: str, room: int, number: bool, wrapped: bool) -> list[str]:
    """``cell`` in lines of at most ``room`` characters."""
    if len(cell) <= room:
        return [cell]
    if number and (ends := interval_apart(cell)) and max(map(len, ends)) <= room:
        return ends
    if not wrapped:
        return [_cut(cell, room)]
    indent = cell[: len(cell) - len(cell.lstrip())]
    return [indent + line for line in wrap(cell.strip(), room - len(indent))]


def _cut(text: str, room: int) -> str:
    """``text`` cut with an ellipsis to ``room`` characters, but not within a number with its unit.

    >>> _cut("void_gemm_sm90_kernel", 12), _cut("it takes 12 ms at most", 13), _cut("n=4096, d=64", 6)
    ('void_gemm_s…', 'it takes…', 'n=…')
    """
    if len(text) <= room:
        return text
    joined, end = _BEFORE_UNIT.sub(_JOINED, text), max(0, room - 1)
    broken = next((match for match in _NUMBER.finditer(joined) if match.start() < end < match.end()), None)
    cut = joined[: broken.start() if broken else end]
    return cut.rstrip(" ,;:(").replace(_JOINED, " ") + "…"


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines that break between words, but never between a number and its unit.

    >>> wrap("it takes 12 ms at most", 11)
    ['it takes', '12 ms at', 'most']
    """
    if len(text) <= width:
        return [text]
    broken = textwrap.wrap(_BEFORE_UNIT.sub(_JOINED, text), max(1, width), break_long_words=False, break_on_hyphens=False)
    return [_cut(line.replace(_JOINED, " "), width) for line in broken] or [""]
