"""Parts of the HTML page: charts with selectors and keys, and tables that can be sorted and downloaded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from perfmodel.report.answer import upper_first
from perfmodel.report.charts.chart_tables import numbers
from perfmodel.report.charts.draw import SERIES, clean, inline
from perfmodel.report.charts.format_number import ABSENT, UNITS, digits, interval, percent, shown_columns, text
from perfmodel.report.charts.frame import Size
from perfmodel.report.charts.roofline_metrics import reached, share_of_roof
from perfmodel.report.charts.schema import LEVELS, Chart, Roofline, ScatterChart
from perfmodel.report.document import Column, DataTable, Meter, Report, Table, Value
from perfmodel.report.formats.svg import scene, size_of, wide_of
from perfmodel.report.formats.txt import aligned

_BARE = {"FLOP/B": lambda value: digits(value, 4), "count": UNITS["count"]}
"""Units that are written in the head of a column instead of its cells."""
NARROW_CHARACTERS = 40
"""Characters of a row above which a table becomes cards on a narrow screen."""
HALF = 570
"""Width in pixels of a column of a page with two columns."""
LONG_WORD = 24
"""Longest word in characters that is never broken."""
SHORT_WORD = 4
"""Shortest word in letters that is stored once in a list; a shorter one is no longer than its index."""
INDENT = "\u00a0\u00a0"


# Pictures


def meters(report: Report) -> str:
    """Meters as bars with share and rate."""
    if not report.meters:
        return ""
    rows = "".join(map(_meter, report.meters))
    return f'<div class="meters"><p>Share of the {clean(report.metered)}</p><ul>{rows}</ul></div>'


def _meter(meter: Meter) -> str:
    share = float(meter.share)
    bar = f'<span class="meter"><u class="w{round(100 * min(share, 1))}"></u></span>'
    words = f"<span>{clean(meter.name)}{' (limits)' * meter.limits}</span><i>{percent(share)}</i>{bar}"
    return f"<li{' class=limits' * meter.limits}>{words}<small>{clean(meter.detail)}</small></li>"


def as_wide(chart: Chart, place: int) -> bool:
    """Whether the ``place``-th chart is as wide as the page: the first one and rooflines, but no square chart."""
    return isinstance(chart, Roofline) or (place == 1 and not isinstance(chart, ScatterChart))


def figure(chart: Chart, place: int) -> str:
    """The ``place``-th chart as a section of the page; a wide chart is also drawn for narrow pages."""
    name, title, wide = f"chart-{place}", clean(chart.title), as_wide(chart, place)
    caption = f'<p class="caption">{clean(chart.caption)}</p>' if chart.caption else ""
    folded = "" if isinstance(chart, Roofline) else f"<details><summary>Numbers of this picture</summary>{_values(chart, name)}</details>"
    listed = _key(chart) if isinstance(chart, Roofline) else folded
    side = f'{_selectors(chart, name)}<div class="side">{caption}{listed}{_exports(chart)}</div>'
    pictures = _picture(chart, f"{name}-wide", wide_of(chart)) * wide + _picture(chart, name, size_of(chart))
    drawn = f'<div class="figure">{pictures}{side}</div>'
    return f'<section aria-labelledby="{name}"{" class=wide" * wide}{_device(chart)}><h2 id="{name}">{title}</h2>{drawn}</section>'


def numbered_figure(chart: Chart, place: int) -> str:
    """The ``place``-th chart as a numbered figure: picture, caption, and folded details."""
    name, title = f"chart-{place}", clean(upper_first(chart.title))
    head = f'<p class="caption"><b id="{name}">Figure {place}. {title}.</b> {clean(chart.caption)}</p>'
    listed = f"{_selectors(chart, name)}{_key(chart)}" if isinstance(chart, Roofline) else _values(chart, name)
    words = "Points and roofs" if isinstance(chart, Roofline) else "Numbers"
    details = f'<details class="side"><summary>{words} of figure {place}</summary>{listed}{_exports(chart)}</details>'
    drawn = f'<div class="figure">{_picture(chart, name, size_of(chart))}{head}{details}</div>'
    return f'<section aria-labelledby="{name}"{_device(chart)}>{drawn}</section>'


def _picture(chart: Chart, name: str, size: Size) -> str:
    return inline(scene(chart, size), size.font, name)


def _values(chart: Chart, name: str) -> str:
    """The numbers of a chart as a table."""
    return data_table(numbers(chart), f"{name}-numbers", caption=False)


def _device(chart: Chart) -> str:
    return f' data-device="{clean(chart.device)}"' if isinstance(chart, Roofline) else ""


def _exports(chart: Chart) -> str:
    """Buttons that save a picture."""
    file, title = file_name(chart.title), clean(chart.title)
    buttons = "".join(
        f'<button type="button" data-export="{kind.lower()}" data-name="{file}" aria-label="Save {kind} of {title}">Save {kind}</button>'
        for kind in ("PNG", "SVG")
    )
    return f'<div class="exports">{buttons}</div>'


def _selectors(chart: Chart, name: str) -> str:
    """Controls of a roofline for its level, roofs and points; empty for other charts."""
    if not isinstance(chart, Roofline):
        return ""
    levels, opened, keys = chart.levels(), chart.first_level(), chart.shown_keys()
    radios = "".join(
        _choice(f'radio" name="{name}-level" data-level value="{clean(level)}"', LEVELS.get(level, level), level == opened)
        for level in levels
    )
    boxes = "".join(_choice(f'checkbox" data-key value="{clean(key)}"', key, key in keys) for key in chart.all_keys())
    level = f"<fieldset><legend>Bytes of</legend>{radios}</fieldset>" if len(levels) > 1 else ""
    return f'<div class="tools">{level}<fieldset><legend>Roofs and points</legend>{boxes}</fieldset></div>'


def _choice(kind: str, words: str, checked: bool) -> str:
    return f'<label><input type="{kind}{" checked" * checked}>{clean(words)}</label>'


def _key(chart: Roofline) -> str:
    """The key of a roofline: points by number, with the share of the roof that each reaches."""
    rows, groups = [], chart.groups
    for point in chart.points:
        share, series = share_of_roof(point), groups.index(point.group) % SERIES
        meter = "" if share is None else f'<span class="meter s{series}"><u class="w{round(100 * min(share, 1))}"></u></span>'
        words = f"<b>{point.number}</b><span>{clean(point.name)}</span><i>{reached(point).replace(ABSENT, '')}</i>{meter}"
        rows.append(f'<li data-key="{clean(point.key)}"><a href="#point-{point.number}">{words}</a></li>')
    reaches = any(reached(point) != ABSENT for point in chart.points)
    head = f'<div class="sideh"><span>points</span>{"<span>of its roof</span>" * reaches}</div>'
    return f'{head}<ol class="key">{"".join(rows)}</ol>' if rows else ""


# Tables


def file_name(title: str) -> str:
    """``title`` as a file name without suffix.

    >>> file_name("Standard against flash, A100")
    'standard-against-flash-a100'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "report"


def text_table(table: Table) -> str:
    """A table of text cells as HTML; a drawn table stays as it is."""
    if table.drawn:
        return f"<figure><figcaption>{clean(table.title)}</figcaption><pre>{clean(chr(10).join(aligned(table)))}</pre></figure>"
    sides = ["r" if side == "r" else "" for side in table.alignment]
    head = "".join(
        f'<th scope="col"{_look(side, name)}>{clean(name)}</th>' if name else "<td></td>"
        for name, side in zip(table.columns, sides, strict=True)
    )
    names = ["name", *sides[1:]]
    rows = [zip(names, row, strict=True) for row in table.rows]
    cells = ["".join(f"<td{_look(name, cell)}>{clean(cell.replace('  ', INDENT))}</td>" for name, cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    title = f"<caption>{clean(table.title)}</caption>" if table.title else ""
    widest = sum(max(map(len, cells)) for cells in zip(table.columns, *table.rows, strict=True))
    look = ' class="cards"' if widest > NARROW_CHARACTERS else ""
    return f'<div class="scroll"><table{look}>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def room(table: Table) -> float:
    """Approximate width of the table in pixels."""
    return sum(16 + 6.6 * max(map(len, cells)) for cells in zip(table.columns, *table.rows, strict=True))


def _look(name: str, words: str) -> str:
    """The class attribute of a cell in the column ``name`` with the text ``words``."""
    names = [name] if name else []
    if any(len(word) > LONG_WORD for word in words.split()):
        names.append("long")
    return f' class="{" ".join(names)}"' if names else ""


def data_table(table: DataTable, name: str, caption: bool = True) -> str:
    """A table of numbers with id ``name`` and downloads; links to a point lead to its row."""
    by_key = {column.key: column for column in table.columns}
    hidden = {"note", *(column.under for column in table.columns), *(["group"] if "number" in by_key else [])}
    columns = [column for column in shown_columns(table) if column.key not in hidden]
    notes: dict[str, int] = {}
    rows = []
    for record in table.records():
        note, number = record.get("note"), record.get("number")
        mark = f"<sup>{notes.setdefault(note, len(notes) + 1)}</sup>" if note and isinstance(note, str) else ""
        place = f' id="point-{number}"' if isinstance(number, int) and table.title == "Points" else ""
        cells = "".join(_cell(column, by_key.get(column.under), record, mark * (column.key == "name")) for column in columns)
        rows.append(f"<tr{place}>{cells}</tr>")
    title = f'<h3 id="{name}-title">{clean(table.title)}</h3>' if caption and table.title else ""
    named = f' aria-labelledby="{name}-title"' if title else f' aria-label="{clean(table.title)}"'
    head = "".join(map(_head, columns))
    grid = f'<table class="cards data" id="{name}"{named}><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    listed = "".join(f"<li><sup>{place}</sup> {clean(note)}</li>" for note, place in notes.items())
    foot = f'<ol class="footnotes">{listed}</ol>' if notes else ""
    return f'{title}{_tools(table.title, columns, name)}<div class="scroll">{grid}</div>{foot}{_raw_rows(table, name)}'


def _head(column: Column) -> str:
    unit = f" {column.unit}" if column.unit in _BARE and column.unit != "count" else ""
    look = _look("l" if column.unit == "text" else "", column.title)
    return f'<th scope="col"{look} data-k="{clean(column.key)}"><button type="button">{clean(column.title or "name")}{unit}</button></th>'


def _cell(column: Column, below: Column | None, record: dict[str, Value], mark: str) -> str:
    """A cell: the value with its footnote mark, its interval, and the column ``below`` it."""
    value = record[column.key]
    words = _BARE[column.unit](value) if column.unit in _BARE and isinstance(value, (int, float)) else text(value, column.unit)
    look = {"number": "num", "name": "name"}.get(column.key, "l" if column.unit == "text" else "")
    if words == ABSENT:
        look = "none"
    small_lines = [clean(interval(column, record))]
    if below is not None and record[below.key] is not None:
        below_words = clean(text(record[below.key], below.unit))
        small_lines.append(below_words if below.unit == "text" else f"{below_words} {clean(below.title)}")
    small = "".join(f"<small>{line}</small>" for line in small_lines if line)
    return f"<td{_look(look, words)}>{clean(words)}{mark}{small}</td>"


def _tools(title: str, columns: Sequence[Column], name: str) -> str:
    """Controls to sort and save a table, and to show columns that a narrow page hides."""
    options = "".join(f'<option value="{clean(column.key)}">{clean(column.title or "name")}</option>' for column in columns)
    sort = f'<label class="sortby">Sort by <select id="{name}-sort">{options}</select></label>'
    data = f'data-of="{name}" data-name="{file_name(title)}"'
    saves = {kind: f'data-save="{kind}" {data} aria-label="{kind.upper()} of {clean(title or "table")}"' for kind in ("csv", "json")}
    buttons = "".join(f'<button type="button" {attributes}>{kind.upper()}</button>' for kind, attributes in saves.items())
    button = f'<button type="button" class="more" aria-expanded="false" aria-controls="{name}">All values</button>'
    return f'<div class="tabletools">{sort}{buttons}{button}</div>'


def _raw_rows(table: DataTable, name: str) -> str:
    """Data of the table for sorting and downloads; repeated words are stored in a list, and cells have their index."""
    columns = [{"key": column.key, "title": column.title, "unit": column.unit} for column in table.columns]
    counts = Counter(value for row in table.rows for value in row if isinstance(value, str) and len(value) > SHORT_WORD)
    repeated = [value for value, count in counts.items() if count > 1]
    index = {value: place for place, value in enumerate(repeated)}
    rows = [[[index[value]] if isinstance(value, str) and value in index else _short(value) for value in row] for row in table.rows]
    data = as_json({"columns": columns, "words": repeated, "rows": rows})
    return f'<script type="application/json" data-table="{name}">{data}</script>'


def _short(value: Value) -> Value:
    """``value`` with floats cut to ten digits; whole numbers keep all digits."""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def as_json(value: object) -> str:
    """``value`` as JSON for a script element, which nothing in it can end."""
    written = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode("utf-8", "replace").decode()
