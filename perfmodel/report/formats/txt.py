"""Plain text: unwrapped for files and pipes, and styled lines in the width of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from perfmodel.report.charts.format_number import percent
from perfmodel.report.document import DOUBT, GUESSED, Meter, Report, Table, on_screen, provenance_lines, review_lists
from perfmodel.report.formats import tables
from perfmodel.report.layout import lines as table_lines
from perfmodel.report.layout import wrap

BAR, LEAST_BAR = 20, 8
"""Characters of a full bar, and fewest characters of a bar."""
WIDE = 10**9
"""Width in which everything fits."""
SAID = "said"
"""Style of the sentences of a verdict after the first, which is bold."""


def render(report: Report, full: bool = True) -> str:
    """``report`` as text: title, verdict, meters, tables, notes. Without ``full``: the short report of a screen."""
    if full:
        report = replace(report, notes=[*report.notes, *provenance_lines(report.provenance)])
    return "".join(f"{line.text}\n" for line in styled(report, WIDE, full))


class StyledLine(NamedTuple):
    """A line of text. ``style``: bold, dim or empty; it ends in ``SAID`` for a line of the verdict."""

    text: str
    style: str = ""


EMPTY_LINE = StyledLine("")


def styled(report: Report, width: int, full: bool, room: int | None = None) -> list[StyledLine]:
    """Lines of at most ``width`` characters. Without ``full``: the short report, with ``room`` rows of tables."""
    lines = [StyledLine(line) for line in title_lines(report.question or report.title, width)]
    for place, sentence in enumerate(report.verdict):
        style = SAID if place else f"bold {SAID}"
        lines += [StyledLine(line, style) for line in wrap(sentence, width)]
    if full:
        for title, entries in review_lists(report):
            lines += [EMPTY_LINE, StyledLine(title, "bold")]
            lines += _indented(entries, width)
    if report.meters:
        lines.append(EMPTY_LINE)
        lines += [StyledLine(line, "bold") for line in wrap(f"share of the {report.metered}", width)]
        lines += map(StyledLine, _meters(report, width))
    without_room: list[str] = []
    for table in tables(report, brief=True) if full else on_screen(report, room):
        head, rows, missing = table_lines(table, width, wrapped=full)
        without_room += filter(None, missing)
        lines.append(EMPTY_LINE)
        lines += [StyledLine(line, "bold") for line in [*wrap(table.title, width), *head] if line]
        lines += map(StyledLine, rows)
    notes = printed_notes(report) if full else screen_notes(report, room)
    if without_room:
        notes.append(f"left out at {width} columns: {', '.join(dict.fromkeys(without_room))}")
    if notes:
        lines.append(EMPTY_LINE)
        lines += _indented(notes, width, "dim")
    return lines


def _indented(texts: Sequence[str], width: int, style: str = "") -> list[StyledLine]:
    return [StyledLine(f"  {line}", style) for text in texts for line in wrap(text, width - 2)]


def title_lines(title: str, width: int) -> list[str]:
    """``title`` in lines; a break comes before the device if that suffices.

    >>> title_lines("Softmax: 8 rows of 512, fp16 on NVIDIA A100 SXM 80 GB", 50)
    ['Softmax: 8 rows of 512, fp16', 'on NVIDIA A100 SXM 80 GB']
    """
    subject, on, device = title.rpartition(" on ")
    if on and len(title) > width >= max(len(subject), len(device) + 3):
        return [subject, f"on {device}"]
    return wrap(title, width)


def _meters(report: Report, width: int) -> list[str]:
    """Lines of the meters, with bars as wide as possible, and without rates if there is no room for them."""
    lines = meter_lines(report.meters)
    room = BAR - max(0, max(map(len, lines)) - width)
    if room >= LEAST_BAR:
        return meter_lines(report.meters, room)
    return [line[:width].rstrip() for line in meter_lines(report.meters, LEAST_BAR, details=False)]


def printed_notes(report: Report) -> list[str]:
    """Reasons, remarks on points, and notes of the report."""
    if not report.rooflines:
        return [*report.reasons, *report.notes]
    from perfmodel.report.charts.chart_tables import point_notes

    return [*report.reasons, *point_notes(report.rooflines), *report.notes]


def meter_lines(meters: list[Meter], bar: int = BAR, details: bool = True) -> list[str]:
    """A line per meter: a bar of at most ``bar`` characters, share and rate, and a mark on the limiting resource."""
    widest = max(len(meter.name) for meter in meters)
    rates = [meter.detail if details else "" for meter in meters]
    room = max(map(len, rates))
    lines = []
    for meter, rate in zip(meters, rates, strict=True):
        share = f"{_bar(float(meter.share), bar)} {percent(float(meter.share)):>4}"
        lines.append(f"{meter.name:<{widest}}  {share}  {rate:<{room}}{'  < limits' * meter.limits}".rstrip())
    return lines


def _bar(share: float, width: int) -> str:
    filled = min(width, max(round(share * width), share > 0))
    return "█" * filled + "·" * (width - filled)


def screen_notes(report: Report, room: int | None = None) -> list[str]:
    """Notes below the tables of a screen (in ``room`` rows if given): doubts about numbers, and what ``full`` would add."""
    doubts = [note for note in report.notes if note.endswith((DOUBT, GUESSED))]
    further = left_out(report, len(doubts), room)
    return [*doubts, further] if further else doubts


def left_out(report: Report, shown_notes: int = 0, room: int | None = None) -> str:
    """Line on what ``full`` would add, empty if nothing. ``shown_notes``: number of notes that the screen already shows."""
    shown_rows = sum(len(table.rows) for table in on_screen(report, room))
    rows = sum(len(table.rows) for table in tables(report, brief=True)) - shown_rows
    notes = len(printed_notes(report)) + sum(len(entries) for _, entries in review_lists(report)) - shown_notes
    parts = [f"{count} {word}{'s' * (count > 1)}" for count, word in ((rows, "row"), (notes, "note")) if count > 0]
    return f"--full: {' and '.join(parts)} more" if parts else ""


def aligned(table: Table) -> list[str]:
    """Lines of a table with padded columns; without a line of heads if all are empty."""
    head, rows, _ = table_lines(table, WIDE)
    return [*filter(None, head), *rows]
