"""Markdown for a pull-request comment: charts as tables, of which long ones are folded."""

from __future__ import annotations

import html
import re
from dataclasses import replace

from perfmodel.report.answer import upper_first
from perfmodel.report.charts.format_number import as_text, formula_text, percent
from perfmodel.report.document import Formula, Report, Table, provenance_lines, review_lists
from perfmodel.report.formats.txt import aligned

FOLDED_ROWS = 12
"""Most rows of a table that is not folded."""
FIRST_SENTENCES = 12
_MARKUP = re.compile(r"[\\|<>*_`\[\]]|~(?=~)|&(?=#|[A-Za-z])|:(?=//)|(?<=www)\.", re.IGNORECASE)
_MENTION = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)", re.IGNORECASE)
_APART = "&#8203;"
"""A zero-width space. It keeps mentions and addresses from becoming links, as a backslash would not survive rendering."""
_LINE_START = re.compile(r"^(\s*(?:\d+(?=[.)]))?)((?:[#+=-]+|[.)])(?=\s|$))")


def render(report: Report) -> str:
    """``report`` as Markdown: verdict, main numbers, meters, charts as tables, tables, notes, and provenance."""
    blocks = [f"## {_escape(report.question or report.title)}"]
    if report.question not in ("", report.title):
        blocks.append(_line(report.title))
    blocks += _verdict(report.verdict, bold=bool(report.question))
    blocks += map(_table, _main_numbers(report))
    blocks += [f"### {head}\n\n{_items(lines)}" for head, lines in review_lists(report)]
    blocks += _pictures(report)
    blocks += [_data_table(as_text(table)) for table in report.data_tables]
    blocks += map(_table, report.tables)
    notes = [*report.reasons, *report.notes]
    if notes:
        blocks.append(_items(notes))
    blocks += _foundations(report)
    return "\n\n".join(blocks) + "\n"


def _items(lines: list[str]) -> str:
    """``lines`` as a list."""
    return "\n".join(f"- {_line(line)}" for line in lines)


def _main_numbers(report: Report) -> list[Table]:
    """Tables of the main numbers and of the meters."""
    tables = []
    if report.figures:
        labels, values = [figure.label for figure in report.figures], [figure.value for figure in report.figures]
        tables.append(Table("", labels, [values]))
    if report.meters:
        rows = [[f"{meter.name}{' (limits)' * meter.limits}", percent(float(meter.share)), meter.detail] for meter in report.meters]
        tables.append(Table(f"share of the {report.metered}", ["resource", "share", "rate"], rows, "lrl"))
    return tables


def _escape(text: str) -> str:
    """``text`` escaped: no markup, link, picture, entity or mention."""
    return _MENTION.sub(rf"\g<0>{_APART}", _MARKUP.sub(r"\\\g<0>", text))


def _line(text: str) -> str:
    """``text`` escaped for the beginning of a line: also no heading or list."""
    return _LINE_START.sub(r"\1\\\2", _escape(text))


def _verdict(sentences: list[str], bold: bool) -> list[str]:
    """``sentences`` as lines, the later ones of many folded. ``bold``: the first one is bold."""
    lines = list(map(_line, sentences))
    if bold and lines:
        lines[0] = f"**{lines[0]}**"
    first, others = lines[:FIRST_SENTENCES], lines[FIRST_SENTENCES:]
    if not others:
        return first
    return [*first, _folded(f"and {len(others)} more", "\n".join(f"- {line}" for line in others))]


def _folded(summary: str, content: str) -> str:
    """``content`` folded below ``summary``, which is HTML, where a backslash does not escape."""
    written = _MENTION.sub(rf"\g<0>{_APART}", html.escape(summary, quote=False))
    return f"<details><summary>{written}</summary>\n\n{content}\n\n</details>"


def _pictures(report: Report) -> list[str]:
    if not report.charts:
        return []
    from perfmodel.report.charts.chart_tables import brief_table, marks_table, numbers, point_notes, roofs_table

    blocks = []
    for place, chart in enumerate(report.charts, 1):
        title = f"Figure {place}. {upper_first(chart.title)}" if report.question else chart.title
        blocks.append(f"### {_escape(title)}")
        if chart.caption:
            blocks.append(_line(chart.caption))
        if chart.kind == "roofline":
            if chart.points:
                blocks.append(_data_table(as_text(brief_table([chart]))))
            remarks = point_notes([chart])
            if remarks:
                blocks.append(_items(remarks))
            blocks.append(_folded("roofs", _table(roofs_table(chart, brief=True))))
        else:
            blocks.append(_folded("numbers", _table(as_text(numbers(chart)))))
        marks = marks_table(chart)
        if marks:
            blocks.append(_table(marks))
    return blocks


def _data_table(table: Table) -> str:
    return _folded(f"{table.title}: {len(table.rows)} rows", _table(table)) if len(table.rows) > FOLDED_ROWS else _table(table)


def _table(table: Table) -> str:
    title = [f"**{_escape(table.title)}**", ""] if table.title else []
    if table.drawn:
        return "\n".join([*title, "```text", *aligned(table), "```"])
    lines = [
        f"| {' | '.join(map(_escape, table.columns))} |",
        "|" + "".join(" ---: |" if align == "r" else " --- |" for align in table.alignment),
    ]
    lines += [f"| {' | '.join(map(_escape, row))} |" for row in table.rows]
    return "\n".join([*title, *lines])


def _foundations(report: Report) -> list[str]:
    blocks = []
    if report.formulas:
        blocks.append(_folded("formulas", "\n".join(map(_formula, report.formulas))))
    provenance = report.provenance
    if provenance is not None:
        used = _escape("; ".join(provenance_lines(replace(provenance, command=""))))
        blocks.append(used + (f": `{provenance.command.replace('`', chr(39))}`" if provenance.command else ""))
    return blocks


def _formula(formula: Formula) -> str:
    source = f" ({_escape(formula.source)})" if formula.source else ""
    group = f"{_escape(formula.group)}: " if formula.group else ""
    return f"- {group}{_escape(formula.meaning)}: {_escape(formula_text(formula))}{source}"
