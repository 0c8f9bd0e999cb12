"""Plain text for files and pipes: nothing is wrapped or cut."""

from __future__ import annotations

from perfmodel.report.document import Report, Table
from perfmodel.report.formats import tables


def render(report: Report) -> str:
    """Title, verdict, tables with aligned columns, notes."""
    lines = [report.title, *report.verdict]
    for table in tables(report, brief=True):
        lines += ["", *([table.title] if table.title else []), *_aligned(table)]
    notes = printed_notes(report)
    if notes:
        lines += ["", *(f"  {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def printed_notes(report: Report) -> list[str]:
    """Remarks on points, and the report's notes."""
    if not report.rooflines:
        return report.notes
    from perfmodel.report.charts.chart_tables import point_notes

    return [*point_notes(report.rooflines), *report.notes]


def _aligned(table: Table) -> list[str]:
    rows = [table.columns, *table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(_pad, row, widths, table.alignment)).rstrip() for row in rows]


def _pad(cell: str, width: int, align: str) -> str:
    return cell.rjust(width) if align == "r" else cell.ljust(width)
