"""Plain text for files and pipes: nothing is wrapped or cut."""

from __future__ import annotations

from perfmodel.report.charts.format_number import percent
from perfmodel.report.document import DOUBT, GUESSED, Meter, Report, Table, made_lines, on_screen
from perfmodel.report.formats import tables

BAR = 20
"""Characters of a full bar."""


def render(report: Report, full: bool = True) -> str:
    """Title, verdict, meters, tables with aligned columns, notes; without ``full`` what a screen shows."""
    lines = [report.title, *report.verdict]
    lines += ["", f"share of the {report.metered}", *meter_lines(report.meters)] if report.meters else []
    for table in tables(report, brief=True) if full else on_screen(report):
        lines += ["", *([table.title] if table.title else []), *aligned(table)]
    notes = [*printed_notes(report), *made_lines(report.provenance)] if full else screen_notes(report)
    if notes:
        lines += ["", *(f"  {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def printed_notes(report: Report) -> list[str]:
    """Reasons, remarks on points, and the report's notes."""
    if not report.rooflines:
        return [*report.reasons, *report.notes]
    from perfmodel.report.charts.chart_tables import point_notes

    return [*report.reasons, *point_notes(report.rooflines), *report.notes]


def meter_lines(meters: list[Meter], bar: int = BAR, details: bool = True) -> list[str]:
    """A bar per resource, of at most ``bar`` characters, with its share and its rate; the one that limits is marked."""
    widest = max(len(meter.name) for meter in meters)
    rates = [meter.detail if details else "" for meter in meters]
    room = max(map(len, rates))
    found = []
    for meter, rate in zip(meters, rates, strict=True):
        share = f"{_bar(float(meter.share), bar)} {percent(float(meter.share)):>4}"
        found.append(f"{meter.name:<{widest}}  {share}  {rate:<{room}}{'  < limits' * meter.limits}".rstrip())
    return found


def _bar(share: float, width: int) -> str:
    filled = min(width, max(round(share * width), share > 0))
    return "█" * filled + "·" * (width - filled)


def screen_notes(report: Report, room: int | None = None) -> list[str]:
    """What a screen says below its tables, of ``room`` rows if it is given: doubts of its numbers, and what ``full`` would add."""
    doubts = [note for note in report.notes if note.endswith((DOUBT, GUESSED))]
    return [*doubts, *filter(None, [left_out(report, len(doubts), room)])]


def left_out(report: Report, said: int = 0, room: int | None = None) -> str:
    """What ``full`` would add, in a line; empty where that is nothing. ``said``: notes that a screen shows already."""
    shown, every = on_screen(report, room), tables(report, brief=True)
    rows = sum(len(table.rows) for table in every) - sum(len(table.rows) for table in shown)
    notes = len(printed_notes(report)) - said
    parts = [f"{rows} row{'s' * (rows > 1)}"] * (rows > 0) + [f"{notes} note{'s' * (notes > 1)}"] * (notes > 0)
    return f"--full: {' and '.join(parts)} more" if parts else ""


def aligned(table: Table) -> list[str]:
    """Lines of a table, columns padded; none of heads if all are empty."""
    rows = [*([table.columns] if any(table.columns) else []), *table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(_pad, row, widths, table.alignment)).rstrip() for row in rows]


def _pad(cell: str, width: int, align: str) -> str:
    return cell.rjust(width) if align == "r" else cell.ljust(width)
