"""The report in a terminal: styled, wrapped to its width."""

from __future__ import annotations

import io

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from perfmodel.report.document import Report, Table, on_screen
from perfmodel.report.formats import readable, tables
from perfmodel.report.formats.txt import left_out, meter_lines, printed_notes

LEAST_NAME = 24


def render(report: Report, width: int, color: bool = True, full: bool = True) -> str:
    """``report`` in ``width`` columns, with ANSI codes if ``color``; without ``full`` what fits a first screen."""
    report = readable(report)
    target = io.StringIO()
    console = Console(file=target, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(Text(report.title, style="bold"))
    for sentence in report.verdict:
        console.print(Text(sentence))
    if report.meters:
        console.print(Text(f"\nshare of the {report.metered}", style="bold"))
        for line in meter_lines(report.meters):
            console.print(Text(line, no_wrap=True))
    for table in tables(report, brief=True) if full else on_screen(report):
        console.print()
        if table.title:
            console.print(Text(table.title, style="bold"))
        console.print(_grid(table, max(LEAST_NAME, width // 3)))
    notes = printed_notes(report) if full else [*filter(None, [left_out(report)])]
    if notes:
        console.print()
        for note in notes:
            console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))
    return target.getvalue()


def _cut(cell: str, most: int) -> str:
    """A name of one long word, such as a template's kernel, cut so that the columns beside it keep their room."""
    return cell if len(cell) <= most or max(map(len, cell.split()), default=0) <= most else cell[: most - 1] + "…"


def _grid(table: Table, widest: int) -> RichTable:
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, (column, align) in enumerate(zip(table.columns, table.alignment, strict=True)):
        grid.add_column(Text(_cut(column, widest)), justify="right" if align == "r" else "left", overflow="fold", no_wrap=index == 0)
    for row in table.rows:
        grid.add_row(*(Text(_cut(cell, widest)) for cell in row))
    return grid
