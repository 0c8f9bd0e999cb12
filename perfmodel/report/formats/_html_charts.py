"""Pictures of the page: each wide and narrow, with its selectors, its key and its files."""

from __future__ import annotations

from perfmodel.report.charts.cells import percent, text
from perfmodel.report.charts.draw import clean, inline
from perfmodel.report.charts.kinds import LEVELS, Chart, Roofline
from perfmodel.report.charts.layout import numbers, scene, sizes
from perfmodel.report.charts.points import share_of_roof, time_s
from perfmodel.report.charts.roofline_axes import first_level, key, keys_of, levels_of, shown_keys
from perfmodel.report.charts.roofline_points import groups_of
from perfmodel.report.charts.themes import SERIES
from perfmodel.report.formats._html_tables import data_table, file_name


def figure(chart: Chart, place: int) -> str:
    """One chart as a section, the ``place``-th of the page."""
    name = f"chart-{place}"
    device = f' data-device="{clean(chart.device)}"' if isinstance(chart, Roofline) else ""
    drawn = [f'<h2 id="{name}">{clean(chart.title)}</h2>']
    side = _key(chart) if isinstance(chart, Roofline) else _numbers(chart, name)
    caption = f'<p class="caption">{clean(chart.caption)}</p>' if chart.caption else ""
    tools = _selectors(chart, name) if isinstance(chart, Roofline) else ""
    drawn.append(
        f'<div class="figure"><div>{tools}{_pictures(chart, name)}</div><div class="side">{caption}{side}{_exports(chart)}</div></div>'
    )
    return f'<section aria-labelledby="{name}"{device}>{"".join(drawn)}</section>'


def _pictures(chart: Chart, name: str) -> str:
    drawn = []
    for kind, size in zip(("wide", "narrow"), sizes(chart), strict=True):
        picture = inline(scene(chart, size), size.font, f"{name}-{kind}")
        drawn.append(picture.replace('class="picture"', f'class="picture {kind}"', 1))
    return "".join(drawn)


def _exports(chart: Chart) -> str:
    file, what = file_name(chart.title), clean(chart.title)
    names = ((kind.upper(), f'data-export="{kind}" data-name="{file}"') for kind in ("png", "svg"))
    buttons = "".join(f'<button type="button" {said} aria-label="Save {kind} of {what}">Save {kind}</button>' for kind, said in names)
    return f'<div class="exports">{buttons}</div>'


def _numbers(chart: Chart, name: str) -> str:
    return f"<details><summary>Numbers of this picture</summary>{data_table(numbers(chart), f'{name}-numbers', caption=False)}</details>"


def _selectors(chart: Roofline, name: str) -> str:
    levels, opened, shown = levels_of(chart), first_level(chart), shown_keys(chart)
    radios = "".join(
        _choice(f'radio" name="{name}-level" data-level value="{clean(level)}"', LEVELS.get(level, level), level == opened)
        for level in levels
    )
    boxes = "".join(_choice(f'checkbox" data-key value="{clean(known)}"', known, known in shown) for known in keys_of(chart))
    level = f"<fieldset><legend>Bytes of</legend>{radios}</fieldset>" if len(levels) > 1 else ""
    return f'<div class="tools">{level}<fieldset><legend>Roofs and points</legend>{boxes}</fieldset></div>'


def _choice(kind: str, words: str, checked: bool) -> str:
    return f'<label><input type="{kind}{" checked" * checked}>{clean(words)}</label>'


def _key(chart: Roofline) -> str:
    """The points by number, with the share of the roof that each reaches."""
    if not chart.points:
        return ""
    groups = groups_of(chart)
    rows = []
    for point in chart.points:
        share, spent = share_of_roof(point), time_s(point)
        width = (
            ""
            if share is None
            else f'<span class="meter s{groups.index(point.group) % SERIES}"><u class="w{round(100 * min(share, 1))}"></u></span>'
        )
        said = percent(share) if share is not None else text(spent, "s")
        words = f"<b>{point.number}</b><span>{clean(point.name)}</span><i>{said}</i>{width}"
        link = f'<a href="#point-{point.number}">{words}</a>'
        rows.append(f'<li data-key="{clean(key(point.unit, point.dtype))}">{link}</li>')
    return f'<div class="sideh"><span>points</span><span>of its roof</span></div><ol class="key">{"".join(rows)}</ol>'
