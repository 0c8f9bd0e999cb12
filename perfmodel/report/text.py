"""Plain text for the terminal and for files; nothing is cut where the width is not a terminal's."""

from __future__ import annotations

import io

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from perfmodel.report.document import Report

_UNLIMITED = 10_000


def render(report: Report, width: int | None = None, color: bool = False) -> str:
    """The report as text of at most ``width`` columns (unlimited if None), with ANSI codes if ``color``."""
    target = io.StringIO()
    console = Console(file=target, width=width or _UNLIMITED, force_terminal=color, no_color=not color, highlight=False)
    console.print(Text(report.title, style="bold"))
    for sentence in report.verdict:
        console.print(Text(sentence))
    for table in report.tables:
        grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        grid.add_column(table.columns[0], overflow="fold")
        for column in table.columns[1:]:
            grid.add_column(column, justify="right", overflow="fold")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        console.print()
        if table.title:
            console.print(Text(table.title, style="bold"))
        console.print(grid)
    if report.notes:
        console.print()
        for note in report.notes:
            console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)) if width else Text("  " + note))
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"
