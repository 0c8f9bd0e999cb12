"""Plain text for files and pipes: nothing is wrapped or cut."""

from __future__ import annotations

from perfmodel.report.document import Report, Table


def render(report: Report) -> str:
    """Title, verdict, tables with aligned columns, notes."""
    lines = [report.title, *report.verdict]
    for table in report.tables:
        lines += ["", *([table.title] if table.title else []), *_aligned(table)]
    if report.notes:
        lines += ["", *(f"  {note}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def _aligned(table: Table) -> list[str]:
    rows = [table.columns, *table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(_pad, row, widths, table.alignment)).rstrip() for row in rows]


def _pad(cell: str, width: int, align: str) -> str:
    return cell.rjust(width) if align == "r" else cell.ljust(width)
