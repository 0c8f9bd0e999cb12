"""Parts of the page: pictures with their selectors, key and files; tables sorted and downloaded from their numbers, cards on a phone."""

from __future__ import annotations

import json
import re
from collections import Counter

from perfmodel.report.charts.chart_tables import numbers
from perfmodel.report.charts.draw import SERIES, clean, inline
from perfmodel.report.charts.format_number import ABSENT, UNITS, digits, interval, shown_columns, text
from perfmodel.report.charts.layout import reached, scene, size_of
from perfmodel.report.charts.roofline_metrics import share_of_roof
from perfmodel.report.charts.schema import LEVELS, Chart, Roofline
from perfmodel.report.document import Column, DataTable, Table, Value

_BARE = {"FLOP/B": lambda value: digits(value, 4), "count": UNITS["count"]}
"""Units that stand in the head of a column instead of in its cells."""

NARROW_CHARACTERS = 40
"""A table of more in its widest cells becomes cards on a narrow screen."""
LONG_WORD = 24
"""Characters: a word of more may be broken, such as the name of a template's kernel."""
SHORT_WORD = 4
"""Letters: a shorter one is no longer than its place in a list."""
INDENT = "\u00a0\u00a0"


# Pictures


def figure(chart: Chart, place: int) -> str:
    """One chart as a section, the ``place``-th of the page."""
    name = f"chart-{place}"
    device = f' data-device="{clean(chart.device)}"' if isinstance(chart, Roofline) else ""
    drawn = [f'<h2 id="{name}">{clean(chart.title)}</h2>']
    side = _key(chart) if isinstance(chart, Roofline) else _numbers(chart, name)
    caption = f'<p class="caption">{clean(chart.caption)}</p>' if chart.caption else ""
    size = size_of(chart)
    tools = _selectors(chart, name) if isinstance(chart, Roofline) else ""
    picture = f"<div>{tools}{inline(scene(chart, size), size.font, name)}</div>"
    drawn.append(f'<div class="figure">{picture}<div class="side">{caption}{side}{_exports(chart)}</div></div>')
    return f'<section aria-labelledby="{name}"{device}>{"".join(drawn)}</section>'


def _exports(chart: Chart) -> str:
    file, what = file_name(chart.title), clean(chart.title)
    names = ((kind.upper(), f'data-export="{kind}" data-name="{file}"') for kind in ("png", "svg"))
    buttons = "".join(f'<button type="button" {said} aria-label="Save {kind} of {what}">Save {kind}</button>' for kind, said in names)
    return f'<div class="exports">{buttons}</div>'


def _numbers(chart: Chart, name: str) -> str:
    return f"<details><summary>Numbers of this picture</summary>{data_table(numbers(chart), f'{name}-numbers', caption=False)}</details>"


def _selectors(chart: Roofline, name: str) -> str:
    levels, opened, shown = chart.levels(), chart.first_level(), chart.shown_keys()
    radios = "".join(
        _choice(f'radio" name="{name}-level" data-level value="{clean(level)}"', LEVELS.get(level, level), level == opened)
        for level in levels
    )
    boxes = "".join(_choice(f'checkbox" data-key value="{clean(known)}"', known, known in shown) for known in chart.all_keys())
    level = f"<fieldset><legend>Bytes of</legend>{radios}</fieldset>" if len(levels) > 1 else ""
    return f'<div class="tools">{level}<fieldset><legend>Roofs and points</legend>{boxes}</fieldset></div>'


def _choice(kind: str, words: str, checked: bool) -> str:
    return f'<label><input type="{kind}{" checked" * checked}>{clean(words)}</label>'


def _key(chart: Roofline) -> str:
    """The points by number, with the share of the roof that each reaches."""
    if not chart.points:
        return ""
    groups = chart.groups
    rows = []
    for point in chart.points:
        share = share_of_roof(point)
        width = (
            ""
            if share is None
            else f'<span class="meter s{groups.index(point.group) % SERIES}"><u class="w{round(100 * min(share, 1))}"></u></span>'
        )
        words = f"<b>{point.number}</b><span>{clean(point.name)}</span><i>{reached(point)}</i>{width}"
        link = f'<a href="#point-{point.number}">{words}</a>'
        rows.append(f'<li data-key="{clean(point.key)}">{link}</li>')
    return f'<div class="sideh"><span>points</span><span>of its roof</span></div><ol class="key">{"".join(rows)}</ol>'


# Tables


def file_name(title: str) -> str:
    """``title`` as the name of a file, without its suffix.

    >>> file_name("Standard against flash, A100")
    'standard-against-flash-a100'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "report"


def text_table(table: Table) -> str:
    """A table of text cells."""
    sides = ["" if side == "l" else ' class="r"' for side in table.alignment]
    head = "".join(
        f'<th scope="col"{_look("r" if side else "", name)}>{clean(name)}</th>' for name, side in zip(table.columns, sides, strict=True)
    )
    rows = ["".join(_plain(cell, side, place) for place, (cell, side) in enumerate(zip(row, sides, strict=True))) for row in table.rows]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    title = f"<caption>{clean(table.title)}</caption>" if table.title else ""
    widest = sum(max(map(len, cells)) for cells in zip(table.columns, *table.rows, strict=True))
    look = ' class="cards"' if widest > NARROW_CHARACTERS else ""
    return f'<div class="scroll"><table{look}>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plain(cell: str, side: str, place: int) -> str:
    look = _look("name" if place == 0 else "r" if side else "", cell)
    return f"<td{look}>{clean(cell.replace('  ', INDENT))}</td>"


def _look(name: str, words: str) -> str:
    """The class attribute of a cell called ``name`` that holds ``words``."""
    names = " ".join(filter(None, [name, "long" if max(map(len, words.split()), default=0) > LONG_WORD else ""]))
    return f' class="{names}"' if names else ""


def data_table(table: DataTable, name: str, caption: bool = True) -> str:
    """A table of numbers called ``name`` in the page, with its downloads; a row of a point is where links to it lead."""
    places = shown_columns(table)
    notes: list[str] = []
    note_at = next((place for place in places if table.columns[place].key == "note"), None)
    below = {column.under for column in table.columns}
    hidden = {"note", "group" if any(column.key == "number" for column in table.columns) else ""} | below
    places = [place for place in places if table.columns[place].key not in hidden]
    head = "".join(_head(table, place) for place in places)
    rows = []
    for row in table.rows:
        mark = _footnote(row[note_at], notes) if note_at is not None else ""
        cells = "".join(_cell(table, row, place, mark) for place in places)
        rows.append(f"<tr{_row_id(table, row)}>{cells}</tr>")
    title = f'<h3 id="{name}-title">{clean(table.title)}</h3>' if caption and table.title else ""
    named = f' aria-labelledby="{name}-title"' if title else f' aria-label="{clean(table.title)}"'
    grid = f'<table class="cards data" id="{name}"{named}><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    listed = "".join(f"<li><sup>{place}</sup> {clean(said)}</li>" for place, said in enumerate(notes, 1))
    foot = f'<ol class="footnotes">{listed}</ol>' if notes else ""
    return f'{title}{_tools(table, places, name)}<div class="scroll">{grid}</div>{foot}{_raw_rows(table, name)}'


def _head(table: DataTable, place: int) -> str:
    column = table.columns[place]
    unit = f" {column.unit}" if column.unit in _BARE and column.unit != "count" else ""
    side = _look("l" if column.unit == "text" else "", column.title)
    return f'<th scope="col"{side} data-k="{clean(column.key)}"><button type="button">{clean(column.title or "name")}{unit}</button></th>'


def _cell(table: DataTable, row: list[Value], place: int, mark: str) -> str:
    column, value = table.columns[place], row[place]
    said = _BARE[column.unit](value) if column.unit in _BARE and isinstance(value, (int, float)) else text(value, column.unit)
    name = "none" if said == ABSENT else {"number": "num", "name": "name"}.get(column.key, "l" if column.unit == "text" else "")
    look = _look(name, said)
    return f"<td{look}>{clean(said)}{mark if column.key == 'name' else ''}{_ends(table, row, place)}{_under(table, row, column)}</td>"


def _under(table: DataTable, row: list[Value], column: Column) -> str:
    place = next((place for place, other in enumerate(table.columns) if other.key == column.under), None)
    if place is None or row[place] is None:
        return ""
    other = table.columns[place]
    return f"<small>{clean(text(row[place], other.unit))}{f' {clean(other.title)}' if other.unit != 'text' else ''}</small>"


def _ends(table: DataTable, row: list[Value], place: int) -> str:
    ends = interval(table, row, place)
    return f"<small>{clean(ends)}</small>" if ends else ""


def _footnote(note: Value, notes: list[str]) -> str:
    if not isinstance(note, str) or not note:
        return ""
    if note not in notes:
        notes.append(note)
    return f"<sup>{notes.index(note) + 1}</sup>"


def _column(table: DataTable, row: list[Value], key: str) -> Value:
    return next((value for column, value in zip(table.columns, row, strict=True) if column.key == key), None)


def _row_id(table: DataTable, row: list[Value]) -> str:
    number = _column(table, row, "number")
    return f' id="point-{number}"' if isinstance(number, int) and table.title == "Points" else ""


def _tools(table: DataTable, places: list[int], name: str) -> str:
    options = "".join(f'<option value="{clean(table.columns[p].key)}">{clean(table.columns[p].title or "name")}</option>' for p in places)
    sort = f'<label class="sortby">Sort by <select id="{name}-sort">{options}</select></label>'
    file, what = file_name(table.title), clean(table.title or "table")
    names = ((kind, f'data-save="{kind}" data-of="{name}" data-name="{file}"') for kind in ("csv", "json"))
    buttons = "".join(f'<button type="button" {said} aria-label="{kind.upper()} of {what}">{kind.upper()}</button>' for kind, said in names)
    more = f'<button type="button" class="more" aria-expanded="false" aria-controls="{name}">All values</button>'
    return f'<div class="tabletools">{sort}{buttons}{more}</div>'


def _raw_rows(table: DataTable, name: str) -> str:
    """The table for sorting and downloads; words that stand in several cells stand in a list, and in each cell their place in it."""
    columns = [{"key": column.key, "title": column.title, "unit": column.unit} for column in table.columns]
    counts = Counter(value for row in table.rows for value in row if isinstance(value, str) and len(value) > SHORT_WORD)
    places = {value: place for place, value in enumerate(value for value, count in counts.items() if count > 1)}
    rows = [[[places[value]] if value in places else _short(value) for value in row] for row in table.rows]
    data = as_json({"columns": columns, "words": list(places), "rows": rows})
    return f'<script type="application/json" data-table="{name}">{data}</script>'


def _short(value: Value) -> Value:
    """Ten digits of a float: more than any of them is known to. Whole numbers keep all of theirs."""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def as_json(value: object) -> str:
    """JSON inside a script element: nothing in it can end the element."""
    written = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode("utf-8", "replace").decode()
