"""Markdown that fits a pull-request comment."""

from __future__ import annotations

from perfmodel.report.document import Report, Table


def render(report: Report) -> str:
    """Verdict, tables, notes."""
    blocks = [f"## {_escape(report.title)}", *map(_escape, report.verdict), *map(_table, report.tables)]
    if report.notes:
        blocks.append("\n".join(f"- {_escape(note)}" for note in report.notes))
    return "\n\n".join(blocks) + "\n"


def _escape(text: str) -> str:
    for char in "\\|<>*_`":
        text = text.replace(char, "\\" + char)
    return text


def _table(table: Table) -> str:
    lines = [
        f"| {' | '.join(map(_escape, table.columns))} |",
        "|" + "".join(" ---: |" if align == "r" else " --- |" for align in table.alignment),
    ]
    lines += [f"| {' | '.join(map(_escape, row))} |" for row in table.rows]
    return "\n".join([*([f"**{_escape(table.title)}**", ""] if table.title else []), *lines])
