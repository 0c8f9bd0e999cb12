"""Plain text for files and pipes: nothing is wrapped or cut. The same lines in the width of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.report.charts.format_number import percent
from perfmodel.report.document import DOUBT, GUESSED, Meter, Report, Table, made_lines, on_screen, review_lists
from perfmodel.report.formats import tables
from perfmodel.report.layout import lines, wrap

BAR, LEAST_BAR = 20, 8
"""Characters of a full bar, and of the shortest one."""
WIDE = 10**9
"""Columns in which everything has room."""
SAID = "said"
"""Style of a sentence of the verdict but the first, which is bold too."""


def render(report: Report, full: bool = True) -> str:
    """Title, verdict, meters, tables with aligned columns, notes; without ``full`` what a screen shows."""
    lines = made_lines(report.provenance) if full else []
    return "".join(f"{line}\n" for line, _ in styled(replace(report, notes=[*report.notes, *lines]), WIDE, full))


def styled(report: Report, width: int, full: bool, room: int | None = None) -> Iterator[tuple[str, str]]:
    """Lines of at most ``width`` columns, each with its style; without ``full`` those of a screen, with ``room`` rows of tables."""
    yield from ((line, "") for line in title_lines(report.question or report.title, width))
    for place, sentence in enumerate(report.verdict):
        yield from ((line, SAID if place else f"bold {SAID}") for line in wrap(sentence, width))
    for title, entries in review_lists(report) if full else ():
        yield from (("", ""), (title, "bold"))
        yield from ((f"  {line}", "") for entry in entries for line in wrap(entry, width - 2))
    if report.meters:
        yield from (("", ""), *((line, "bold") for line in wrap(f"share of the {report.metered}", width)))
        yield from ((line, "") for line in _meters(report, width))
    without: list[str] = []
    for table in tables(report, brief=True) if full else on_screen(report, room):
        head, rows, missing = lines(table, width, wrapped=full)
        without += filter(None, missing)
        yield "", ""
        yield from ((line, "bold") for line in [*wrap(table.title, width), *head] if line)
        yield from ((line, "") for line in rows)
    notes = printed_notes(report) if full else screen_notes(report, room)
    notes += [f"left out at {width} columns: {', '.join(dict.fromkeys(without))}"] if without else []
    yield from [("", "")] if notes else []
    yield from ((f"  {line}", "dim") for note in notes for line in wrap(note, width - 2))


def title_lines(title: str, width: int) -> list[str]:
    """``title`` in lines; one that is too long for one line ends it before the device, if that suffices.

    >>> title_lines("Softmax: 8 rows of 512, fp16 on NVIDIA A100 SXM 80 GB", 50)
    ['Softmax: 8 rows of 512, fp16', 'on NVIDIA A100 SXM 80 GB']
    """
    subject, on, device = title.rpartition(" on ")
    if on and len(title) > width >= max(len(subject), len(device) + 3):
        return [subject, f"on {device}"]
    return wrap(title, width)


def _meters(report: Report, width: int) -> list[str]:
    """The meters with bars as wide as there is room for, without their rates where even short ones leave none."""
    lines = meter_lines(report.meters)
    room = BAR - max(0, max(map(len, lines)) - width)
    if room >= LEAST_BAR:
        return meter_lines(report.meters, room)
    return [line[:width].rstrip() for line in meter_lines(report.meters, LEAST_BAR, details=False)]


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
    lines = []
    for meter, rate in zip(meters, rates, strict=True):
        share = f"{_bar(float(meter.share), bar)} {percent(float(meter.share)):>4}"
        lines.append(f"{meter.name:<{widest}}  {share}  {rate:<{room}}{'  < limits' * meter.limits}".rstrip())
    return lines


def _bar(share: float, width: int) -> str:
    filled = min(width, max(round(share * width), share > 0))
    return "█" * filled + "·" * (width - filled)


def screen_notes(report: Report, room: int | None = None) -> list[str]:
    """What a screen says below its tables, of ``room`` rows if it is given: doubts of its numbers, and what ``full`` would add."""
    doubts = [note for note in report.notes if note.endswith((DOUBT, GUESSED))]
    return [*doubts, *filter(None, [left_out(report, len(doubts), room)])]


def left_out(report: Report, sentences: int = 0, room: int | None = None) -> str:
    """What ``full`` would add, in a line; empty where that is nothing. ``said``: notes that a screen shows already."""
    on_page, every_table = on_screen(report, room), tables(report, brief=True)
    rows = sum(len(table.rows) for table in every_table) - sum(len(table.rows) for table in on_page)
    notes = len(printed_notes(report)) + sum(len(listed) for _, listed in review_lists(report)) - sentences
    parts = [f"{rows} row{'s' * (rows > 1)}"] * (rows > 0) + [f"{notes} note{'s' * (notes > 1)}"] * (notes > 0)
    return f"--full: {' and '.join(parts)} more" if parts else ""


def aligned(table: Table) -> list[str]:
    """Lines of a table, columns padded; none of heads if all are empty."""
    head, rows, _ = lines(table, WIDE)
    return [*filter(None, head), *rows]
