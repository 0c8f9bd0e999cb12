"""LaTeX: a section with the verdict, a tabular per table, the notes."""

from __future__ import annotations

import re

from perfmodel.report.document import Report, Table
from perfmodel.report.formats import tables

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", **{c: f"\\{c}" for c in "#$%&_{}"}}


def escaped(text: str) -> str:
    """``text`` without any command."""
    return re.sub(r"[\\~^#$%&_{}]", lambda found: SPECIAL[found[0]], text)


def render(report: Report) -> str:
    """Everything that a report says, as the body of a document."""
    parts = [rf"\section*{{{escaped(report.title)}}}", *map(escaped, report.verdict), *map(tabular, tables(report))]
    if report.notes:
        parts.append("\n".join([r"\begin{itemize}", *(rf"\item {escaped(note)}" for note in report.notes), r"\end{itemize}"]))
    return "\n\n".join(parts) + "\n"


def tabular(table: Table) -> str:
    """One table, its columns aligned as on the terminal."""
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in (table.columns, *table.rows)]
    return "\n".join([escaped(table.title), rf"\begin{{tabular}}{{{table.alignment}}}", lines[0], r"\hline", *lines[1:], r"\end{tabular}"])
