"""The report in a terminal: styled and in its width. Lines wrap between words; tables name the columns that have no room."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from perfmodel.report.document import Report, on_screen
from perfmodel.report.formats import readable
from perfmodel.report.formats.txt import SAID, styled
from perfmodel.report.layout import turned

LEAST_WIDTH = 30
"""Least width in columns; a narrower terminal wraps lines itself."""
_GOOD = re.compile(r"\b(fits(?=:)|Fits|FASTER|faster|holds)\b")
_BAD = re.compile(r"\b([Dd]oes not fit|SLOWER|slower|VIOLATION|ABOVE ITS ROOF|wrong)\b")


def render(report: Report, width: int, color: bool = True, full: bool = True, height: int | None = None) -> str:
    """``report`` in ``width`` columns, with ANSI codes if ``color``. Without ``full``: the short report, within ``height`` lines if given.

    The last line of a screen is left for the prompt.
    """
    report, width = readable(report), max(width, LEAST_WIDTH)
    if not full:
        report = replace(report, brief=[turned(table, width) for table in report.brief or report.tables])
    target = io.StringIO()
    console = Console(file=target, width=width + 1, force_terminal=color, no_color=not color, highlight=False, soft_wrap=True)
    for line in _lines(report, width, True) if full else _fitting(report, width, height):
        console.print(line)
    return target.getvalue()


def _fitting(report: Report, width: int, height: int | None) -> list[Text]:
    """The lines of a screen, with as many rows of tables as fit."""
    room = sum(len(table.rows) for table in on_screen(report))
    page = _lines(report, width, False)
    while height is not None and len(page) >= height and room > 1:
        room -= 1
        page = _lines(report, width, False, room)
    return page


def _lines(report: Report, width: int, full: bool, room: int | None = None) -> list[Text]:
    """Lines with ANSI codes; words of judgement in the verdict are coloured."""
    lines = []
    for line, style in styled(report, width, full, room):
        text = Text(line, style.removesuffix(SAID).strip())
        if style.endswith(SAID):
            text.highlight_regex(_GOOD, "green")
            text.highlight_regex(_BAD, "bold red")
        lines.append(text)
    return lines
