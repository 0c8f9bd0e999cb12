"""The report in a terminal: styled, in its width. A line is wrapped between words, a table leaves out what has no room and names it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from perfmodel.report.document import Report, Table, on_screen, review_lists
from perfmodel.report.formats import readable, tables
from perfmodel.report.formats.txt import BAR, meter_lines, printed_notes, screen_notes
from perfmodel.report.layout import lines, turned, wrap

LEAST_BAR = 8
LEAST_WIDTH = 30
"""Columns: a narrower terminal wraps lines by itself."""
_GOOD = re.compile(r"\b(fits(?=:)|Fits|FASTER|faster|holds)\b")
_BAD = re.compile(r"\b([Dd]oes not fit|SLOWER|slower|VIOLATION|ABOVE ITS ROOF|wrong)\b")


def render(report: Report, width: int, color: bool = True, full: bool = True, height: int | None = None) -> str:
    """``report`` in ``width`` columns, with ANSI codes if ``color``; without ``full`` what fits a screen of ``height`` lines, if given.

    A screen's last line is the next prompt's.
    """
    report, width = readable(report), max(width, LEAST_WIDTH)
    if not full:
        report = replace(report, brief=[turned(table, width) for table in report.brief or report.tables])
    target = io.StringIO()
    console = Console(file=target, width=width + 1, force_terminal=color, no_color=not color, highlight=False, soft_wrap=True)
    for line in list(_lines(report, width, True)) if full else _fitting(report, width, height):
        console.print(line)
    return target.getvalue()


def _fitting(report: Report, width: int, height: int | None) -> list[Text]:
    """The lines of a screen, with as many rows of tables as fit."""
    room = sum(len(table.rows) for table in on_screen(report))
    found = list(_lines(report, width, False))
    while height is not None and len(found) >= height and room > 1:
        room -= 1
        found = list(_lines(report, width, False, room))
    return found


def _lines(report: Report, width: int, full: bool, room: int | None = None) -> Iterator[Text]:
    yield from map(Text, title_lines(report.question or report.title, width))
    for place, sentence in enumerate(report.verdict):
        yield from (_judged(line, "" if place else "bold") for line in wrap(sentence, width))
    for head, said in review_lists(report) if full else ():
        yield from (Text(), Text(head, "bold"))
        yield from (Text(f"  {line}") for one in said for line in wrap(one, width - 2))
    if report.meters:
        yield Text()
        yield from (Text(line, "bold") for line in wrap(f"share of the {report.metered}", width))
        yield from map(Text, _meters(report, width))
    without: list[str] = []
    for table in tables(report, brief=True) if full else on_screen(report, room):
        yield from _table(table, width, full, without)
    notes = printed_notes(report) if full else screen_notes(report, room)
    notes += [f"left out at {width} columns: {', '.join(dict.fromkeys(without))}"] if without else []
    yield from [Text()] if notes else []
    for note in notes:
        yield from (Text(f"  {line}", "dim") for line in wrap(note, width - 2))


def title_lines(title: str, width: int) -> list[str]:
    """``title`` in lines; one that is too long for one line ends it before the device, if that suffices.

    >>> title_lines("Softmax: 8 rows of 512, fp16 on NVIDIA A100 SXM 80 GB", 50)
    ['Softmax: 8 rows of 512, fp16', 'on NVIDIA A100 SXM 80 GB']
    """
    what, on, device = title.rpartition(" on ")
    if on and len(title) > width >= max(len(what), len(device) + 3):
        return [what, f"on {device}"]
    return wrap(title, width)


def _meters(report: Report, width: int) -> list[str]:
    """The meters with bars as wide as there is room for, without their rates where even short ones leave none."""
    every = meter_lines(report.meters)
    room = BAR - max(0, max(map(len, every)) - width)
    if room >= LEAST_BAR:
        return meter_lines(report.meters, room)
    return [line[:width].rstrip() for line in meter_lines(report.meters, LEAST_BAR, details=False)]


def _table(table: Table, width: int, full: bool, without: list[str]) -> Iterator[Text]:
    """``table`` below an empty line; titles of columns that had no room are added to ``without``."""
    head, rows, missing = lines(table, width, wrapped=full)
    without += filter(None, missing)
    yield Text()
    yield from (Text(line, "bold") for line in wrap(table.title, width) if table.title)
    yield from (Text(line, "bold") for line in head if line)
    yield from map(Text, rows)


def _judged(line: str, style: str) -> Text:
    """A line of the verdict in ``style``, in which what it comes to is coloured."""
    text = Text(line, style)
    text.highlight_regex(_GOOD, "green")
    text.highlight_regex(_BAD, "bold red")
    return text
