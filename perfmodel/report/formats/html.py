"""HTML: one self-contained page with charts, tables and text."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from html import escape
from pathlib import Path

from perfmodel import __version__
from perfmodel.report.answer import upper_first
from perfmodel.report.charts.chart_tables import points_table, roofs_table
from perfmodel.report.charts.draw import DARK, LIGHT, SERIES, clean, style_sheet
from perfmodel.report.charts.format_number import formula_text
from perfmodel.report.charts.schema import Roofline
from perfmodel.report.document import FLOP_CONVENTION, Figure, Formula, Report, Table, captioned, on_screen, review_lists
from perfmodel.report.formats import readable
from perfmodel.report.formats._html_parts import HALF, data_table, figure, meters, numbered_figure, room, text_table

ASSETS = Path(__file__).parent / "assets"
FIRST_SENTENCES, NOTES = 6, 16
"""Most sentences of a verdict, and most notes, that are not folded."""
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; font-src data:; style-src {styles}; script-src {script}"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
{styles}
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
{body}
<div id="tip" role="tooltip" hidden></div>
<script>{script}</script>
</body>
</html>
"""


def render(report: Report) -> str:
    """The page of ``report``."""
    sections = _review(report) if report.question else _answer(report)
    body = f"{_header(report)}\n<main>\n{chr(10).join(filter(None, sections))}\n</main>\n{provenance(report)}"
    script = _lean((ASSETS / "page.js").read_text(encoding="utf-8"))
    styles = _styles()
    policy = _POLICY.format(styles=" ".join(map(_hash, styles.values())), script=_hash(script))
    written = "\n".join(f'<style id="{name}">{style}</style>' for name, style in styles.items())
    return _PAGE.format(policy=policy, title=clean(report.title), styles=written, body=body, script=script)


def _answer(report: Report) -> list[str]:
    """Parts of a command's page: the first chart, then narrower parts in two columns."""
    drawn = [figure(chart, place) for place, chart in enumerate(captioned(report), 1)]
    rates = f'<section aria-label="Shares">{meters(report)}</section>' * bool(report.meters and drawn)
    parts = [*drawn[:1], rates, *_tables(report), *drawn[1:], _points(report), foundations(report)]
    odd = sum(1 for part in parts if part and " class=wide" not in part[:60]) % 2
    return [f'<div class="answer{" odd" * odd}">', *parts, "</div>"]


def _review(report: Report) -> list[str]:
    """Sections of a design review: two figures, assumptions, sensitivity, further figures, folded tables."""
    drawn = [numbered_figure(chart, place) for place, chart in enumerate(report.charts, 1)]
    spoken = _spoken(report)
    side = [meters(report), spoken] if len(drawn) == 1 else [meters(report)]
    points = points_table(report.rooflines) if any(chart.points for chart in report.rooflines) else None
    folded = [("Points", data_table(points, "points", caption=False))] if points else []
    folded += [(table.title, data_table(table, f"table-{place}", caption=False)) for place, table in enumerate(report.data_tables, 1)]
    folded += [(table.title or "Numbers", text_table(table)) for table in report.tables if not (table.drawn and report.charts)]
    listed = "".join(f"<details><summary>{clean(upper_first(title))}</summary>{table}</details>" for title, table in folded)
    return [
        f'<section class="figures2" aria-label="The figures that decide">{"".join([*drawn[:2], *side])}</section>' if drawn else "",
        spoken if len(drawn) != 1 else "",
        f'<section class="figures2" aria-label="Further figures">{"".join(drawn[2:])}</section>' if drawn[2:] else "",
        f'<section class="folded" aria-labelledby="tables-title"><h2 id="tables-title">Tables</h2>{_brief(report)}{listed}</section>'
        if folded
        else "",
        foundations(report),
    ]


def _spoken(report: Report) -> str:
    """Assumptions and sensitivity side by side."""
    lists = "".join(f"<div><h2>{head}</h2>{_sentences(entries, 'notes')}</div>" for head, entries in review_lists(report))
    return f'<section class="spoken" aria-label="What the answer rests on">{lists}</section>' if lists else ""


def _hash(source: str) -> str:
    """Content-Security-Policy hash of a script or style, so that browsers run no injected one."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def framed(report: Report) -> str:
    """The page in an iframe, so that its styles and a notebook's do not mix."""
    look = "width:100%;height:720px;border:0"
    return f'<iframe srcdoc="{escape(render(readable(report)), quote=True)}" style="{look}" title="{clean(report.title)}"></iframe>'


def _styles() -> dict[str, str]:
    """Style sheets by name."""
    fonts = "".join(_font(name, weight) for name, weight in (("Regular", 400), ("SemiBold", 600)))
    light, dark = (";".join(f"--{name}:{value}" for name, value in theme.items()) for theme in (LIGHT, DARK))
    themes = (
        f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root:not([data-theme]){{{dark};color-scheme:dark}}}}\n:root[data-theme=dark]{{{dark}}}\n"
        f"@media print{{:root:root,:root:root[data-theme]{{{light};color-scheme:light}}}}\n"
    )
    series = "\n".join(f".s{number}{{--s:var(--s{number})}}" for number in range(SERIES))
    page = _lean((ASSETS / "page.css").read_text(encoding="utf-8"))
    widths = "".join(f".w{share}{{width:{share}%}}" for share in range(101))
    return {"font": fonts, "page": f"{themes}{page}{widths}", "looks": f"{series}\n{style_sheet()}"}


def _lean(source: str) -> str:
    """``source`` without indents, empty lines and comment lines."""
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def _font(name: str, weight: int) -> str:
    data = base64.b64encode((ASSETS / f"Inter-{name}.otf").read_bytes()).decode()
    return f"@font-face{{font-family:Inter;font-weight:{weight};src:url(data:font/otf;base64,{data})}}"


def _header(report: Report) -> str:
    devices = {chart.device: chart.device_name for chart in report.rooflines}
    options = "".join(f'<option value="{clean(device)}">{clean(name)}</option>' for device, name in devices.items())
    choice = f'<label>Device <select id="device"><option value="">all</option>{options}</select></label>' if len(devices) > 1 else ""
    named = " · ".join(map(clean, devices.values())) or "perfmodel"
    controls = f'<div class="controls">{choice}<button type="button" id="theme">Dark</button></div>'
    heading = report.question or report.title
    subtitle = clean(report.title) if heading != report.title else named
    bar = f'<div class="bar"><span>{subtitle}</span>{controls}</div>'
    look = ' class="review"' * bool(report.question)
    return f'<header{look}>\n{bar}\n<h1 id="main" tabindex="-1">{clean(upper_first(heading))}</h1>\n{_verdict(report)}\n</header>'


def _verdict(report: Report) -> str:
    """The verdict, the main numbers, the meters if no chart is beside them, and folded reasons."""
    html = ""
    if report.verdict:
        html += _sentences(report.verdict[:FIRST_SENTENCES], "verdict")
    if report.figures:
        html += _figures(report.figures)
    if not report.charts:
        html += meters(report)
    reasons = [*report.verdict[FIRST_SENTENCES:], *report.reasons]
    if reasons:
        html += f"<details><summary>Why</summary>{_sentences(reasons, 'notes')}</details>"
    return html


def _sentences(sentences: list[str], look: str) -> str:
    wrong = ("ABOVE ITS ROOF", "VIOLATION")
    items = (f"<li{' class=wrong' if any(word in sentence for word in wrong) else ''}>{clean(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{look}">{"".join(items)}</ul>'


def _figures(figures: list[Figure]) -> str:
    tiles = "".join(f"<div><dt>{clean(figure.label)}</dt><dd>{clean(figure.value)}</dd></div>" for figure in figures)
    return f'<dl class="figures">{tiles}</dl>'


def _brief(report: Report) -> str:
    """The short tables, folded in a design review."""
    rows = "".join(map(text_table, on_screen(report))) if report.brief else ""
    return f"<details><summary>The rows that decide</summary>{rows}</details>" * bool(rows)


def _points(report: Report) -> str:
    if not any(chart.points for chart in report.rooflines):
        return ""
    table = data_table(points_table(report.rooflines), "points", caption=False)
    return f'<section class=wide aria-labelledby="points-title"><h2 id="points-title">Points</h2>{table}</section>'


def _tables(report: Report) -> list[str]:
    """Sections of the short tables, with all other tables folded below; without short tables, all tables."""
    tables = [data_table(table, f"table-{place}") for place, table in enumerate(report.data_tables, 1)]
    tables += [text_table(table) for table in report.tables if not (table.drawn and report.charts)]
    if not report.brief:
        return [f'<section class=wide aria-label="Tables">{"".join(tables)}</section>'] if tables else []
    sections = []
    *first, last = on_screen(report)
    for table in first:
        sections.append(_brief_section(table))
    all_numbers = f"<details><summary>All numbers</summary>{''.join(tables)}</details>" if tables else ""
    return [*sections, _brief_section(last, all_numbers)]


def _brief_section(table: Table, below: str = "") -> str:
    """The section of a short table, with ``below`` under it."""
    look = " class=wide" if room(table) > HALF else ""
    return f'<section{look} aria-label="The rows that decide">{text_table(table)}{below}</section>'


# What the numbers rest on


def foundations(report: Report) -> str:
    """Notes, then folded roofs and formulas."""
    notes = [FLOP_CONVENTION, *report.notes]
    most_open = 0 if report.question else NOTES
    open_notes, folded_notes = notes[:most_open], notes[most_open:]
    parts = []
    if open_notes:
        parts.append(_sentences(open_notes, "notes"))
    if folded_notes:
        summary = f"{len(folded_notes)} {'more ' if open_notes else ''}note{'s' if len(folded_notes) > 1 else ''}"
        parts.append(f"<details><summary>{summary}</summary>{_sentences(folded_notes, 'notes')}</details>")
    parts += map(_roofs, report.rooflines)
    parts += _formulas(report.formulas)
    look = ' class="folded"' if report.question else ""
    return f'<section{look} aria-labelledby="rest-title"><h2 id="rest-title">What the numbers rest on</h2>{"".join(parts)}</section>'


def _roofs(chart: Roofline) -> str:
    table = text_table(replace(roofs_table(chart), title=""))
    return f'<details data-device="{clean(chart.device)}"><summary>Roofs of {clean(chart.device_name)}</summary>{table}</details>'


def _formulas(formulas: list[Formula]) -> list[str]:
    """Formulas by group. A formula of an earlier group is only named, and each source is listed once, below."""
    sources = list(dict.fromkeys(f.source for f in formulas if f.source))
    by_group: dict[str, list[Formula]] = {}
    for formula in formulas:
        by_group.setdefault(formula.group, []).append(formula)
    first_group: dict[Formula, str] = {}
    parts = []
    for group, of_group in by_group.items():
        rows, names_by_group = list[str](), dict[str, list[str]]()
        for formula in of_group:
            earlier = first_group.setdefault(replace(formula, group=""), group)
            if earlier == group:
                rows.append(_formula(formula, sources))
            else:
                names_by_group.setdefault(earlier, []).append(formula.name)
        as_before = "".join(
            f"<dt>as in {clean(earlier)}</dt><dd>{clean(', '.join(names))}</dd>" for earlier, names in names_by_group.items()
        )
        title = f"Formulas: {clean(group)}" if group else "Formulas"
        parts.append(f'<details><summary>{title}</summary><dl class="formula">{as_before}{"".join(rows)}</dl></details>')
    listed = "".join(f"<li>[{place}] {clean(source)}</li>" for place, source in enumerate(sources, 1))
    footnotes = f'<details><summary>Sources of the formulas</summary><ol class="footnotes">{listed}</ol></details>'
    return [*parts, footnotes] if listed else parts


def _formula(formula: Formula, sources: list[str]) -> str:
    mark = f" [{sources.index(formula.source) + 1}]" if formula.source else ""  # not raised: behind a number that would be a power
    return f"<dt>{clean(formula_text(formula))}</dt><dd>{clean(formula.meaning)}{mark}</dd>"


def provenance(report: Report) -> str:
    """The command and inputs that make the page again."""
    provenance = report.provenance
    version = provenance.version if provenance else __version__
    facts = [("made by", f"perfmodel {clean(version)}")]
    if provenance:
        facts += [("command", f"<code>{clean(provenance.command)}</code>")] if provenance.command else []
        for use in provenance.profiles:
            date = f", calibrated {clean(use.calibrated)}" if use.calibrated else ""
            facts.append(("profile", f"{clean(use.id)}{date}, SHA-256 <code>{clean(use.sha256)}</code>"))
        facts += [("input", f"{clean(name)}, SHA-256 <code>{clean(digest)}</code>") for name, digest in provenance.inputs.items()]
    rows = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts)
    return f'<footer><dl class="facts">{rows}</dl></footer>'
