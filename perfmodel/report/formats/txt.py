"""Plain text for files and pipes: nothing is wrapped or cut."""

from __future__ import annotations

from perfmodel.report.charts.cells import as_text
from perfmodel.report.document import Report, Table
from perfmodel.report.formats._readable import readable


def render(report: Report) -> str:
    """Title, verdict, pictures, tables with aligned columns, notes."""
    report = readable(report)
    lines = [report.title, *report.verdict]
    for title, drawn in pictures(report):
        lines += ["", title, *drawn.splitlines()]
    for table in printed_tables(report):
        lines += ["", *([table.title] if table.title else []), *_aligned(table)]
    notes = printed_notes(report)
    if notes:
        lines += ["", *(f"  {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def pictures(report: Report, width: int | None = None) -> list[tuple[str, str]]:
    """Title and drawing of every chart, in ``width`` columns."""
    if not report.charts:
        return []
    from perfmodel.report.charts.plain import WIDTH, plot

    return [(chart.title, plot(chart, width or WIDTH)) for chart in report.charts]


def printed_tables(report: Report) -> list[Table]:
    """The points of its rooflines, its tables of numbers, and those of text."""
    points = []
    if report.rooflines:
        from perfmodel.report.charts.points import brief_table

        points = [brief_table(report.rooflines)] if any(chart.points for chart in report.rooflines) else []
    return [*map(as_text, [*points, *report.data_tables]), *report.tables]


def printed_notes(report: Report) -> list[str]:
    """What is said of points, and the report's notes."""
    if not report.rooflines:
        return report.notes
    from perfmodel.report.charts.points import remarks

    return [*remarks(report.rooflines), *report.notes]


def _aligned(table: Table) -> list[str]:
    rows = [table.columns, *table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(_pad, row, widths, table.alignment)).rstrip() for row in rows]


def _pad(cell: str, width: int, align: str) -> str:
    return cell.rjust(width) if align == "r" else cell.ljust(width)
