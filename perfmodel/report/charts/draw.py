"""A scene as SVG: with colours written out for a file, or with class names for a page with a light and a dark theme.

The few colours can be told apart with any colour vision, in grey, and in both themes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from perfmodel.core.frozen import dataclass
from perfmodel.report.charts.scene import XY, Grid, Marker, Path, Rect, Scene, Shape, ShapeGroup, Text

FONT = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
SERIES = 6
"""Number of series colours; a seventh series reuses the first colour with another shape."""
_COLOURS = {
    "page": ("#ffffff", "#12171d"),
    "ink": ("#16202b", "#e8edf2"),
    "quiet": ("#55616e", "#a3aebb"),
    "line": ("#d8dee4", "#303a45"),
    "faint": ("#edf0f3", "#222a33"),
    "edge": ("#b9c2cc", "#4a5663"),
    "warn": ("#b3261e", "#ff8f86"),
    "roof": ("#6b7785", "#8793a1"),
    "strong": ("#16202b", "#e8edf2"),
    "plot": ("#ffffff", "#161c23"),
    "s0": ("#1f5fbf", "#7db0ff"),
    "s1": ("#c2540a", "#f59a57"),
    "s2": ("#00785f", "#4fcfae"),
    "s3": ("#a8327e", "#ee8fc8"),
    "s4": ("#7a6400", "#d9bf4a"),
    "s5": ("#5b4bb5", "#b3a6ff"),
}
"""Colours by name: light theme, dark theme."""
LIGHT, DARK = ({name: pair[side] for name, pair in _COLOURS.items()} for side in (0, 1))


@dataclass(frozen=True, slots=True)
class Style:
    """The style of a role: names of colours, of which ``series`` means the colour of the shape's series; ``size`` in font sizes."""

    fill: str = "none"
    stroke: str = "none"
    width: float = 1.0
    dash: str = ""
    opacity: float = 1.0
    bold: bool = False
    size: float = 1.0
    halo: bool = False


ROLES = {
    "plot": Style("plot", "line"),
    "grid": Style(stroke="line", width=0.8),
    "grid-minor": Style(stroke="faint", width=0.6),
    "tick": Style("quiet"),
    "axis": Style("quiet"),
    "legend": Style("ink"),
    "note": Style("quiet"),
    "roof": Style(stroke="roof", width=1.2),
    "roof-measured": Style(stroke="roof", width=1.2, dash="5 3"),
    "roof-strong": Style(stroke="strong", width=2.2),
    "roof-label": Style("quiet", halo=True),
    "ridge": Style("strong"),
    "ridge-label": Style("ink", halo=True),
    "measured": Style("series", "page", 1.0),
    "predicted": Style("page", "series", 1.8),
    "at-roof": Style("page", "series", 1.4, dash="2 1.6"),
    "join": Style(stroke="series", width=1.4),
    "whisker": Style(stroke="series", width=3.0, opacity=0.35),
    "before": Style("page", "quiet", 1.4),
    "arrow": Style(stroke="quiet", width=1.4),
    "arrow-head": Style("quiet"),
    "leader": Style(stroke="quiet", width=0.7),
    "number": Style("ink", bold=True, halo=True),
    "series": Style(stroke="series", width=2.0),
    "series-dashed": Style(stroke="series", width=1.6, dash="6 4"),
    "band": Style("series", opacity=0.16),
    "area": Style("series", "page", 0.6, opacity=0.8),
    "dot": Style("series", "page", 0.8),
    "mark": Style(stroke="quiet", width=1.0, dash="2 3"),
    "mark-label": Style("ink", halo=True),
    "mark-of-series": Style("series", halo=True),
    "limit": Style(stroke="strong", width=1.4, dash="7 3"),
    "series-label": Style("series", bold=True, halo=True),
    "bar": Style("series", "page", 0.8),
    "bar-inside": Style("page"),
    "interval": Style(stroke="strong", width=1.6),
    "bar-total": Style("ink", bold=True, halo=True),
    "diagonal": Style(stroke="strong", width=1.4),
    "error-band": Style("quiet", opacity=0.13),
    "title": Style("ink", bold=True, size=1.35),
    "subtitle": Style("quiet"),
    "key": Style("ink", halo=True),
    "key-name": Style("ink", size=0.92),
    "key-number": Style("ink", bold=True, size=0.92),
    "key-value": Style("quiet", size=0.92),
}


def _properties(style: Style, colour: Callable[[str], str], font_size: str = "") -> dict[str, str]:
    """``style`` as SVG properties, for attributes or a style sheet. ``colour``: a function from a colour's name to its text."""
    properties = {"fill": colour(style.fill)}
    if style.stroke != "none":
        properties |= {"stroke": colour(style.stroke), "stroke-width": f"{style.width:g}"}
    if style.dash:
        properties["stroke-dasharray"] = style.dash
    if font_size:
        properties["font-size"] = font_size
    if style.bold:
        properties["font-weight"] = "600"
    if style.halo:
        properties |= {"stroke": colour("plot"), "stroke-width": "3", "stroke-linejoin": "round", "paint-order": "stroke"}
    if style.opacity < 1:
        properties["opacity"] = f"{style.opacity:g}"
    return properties


def style_sheet() -> str:
    """The styles of all roles as CSS, in the page's colours."""
    rules = [f".picture .{role}{{{_declarations(style)}}}" for role, style in ROLES.items()]
    rules += [f".picture .{name.strip()}{{text-anchor:{anchor}}}" for anchor, name in ANCHORS.items() if name]
    return "\n".join(rules)


def _declarations(style: Style) -> str:
    special = {"none": "none", "series": "var(--s)"}
    size = "" if style.size == 1 else f"{style.size:g}em"
    properties = _properties(style, lambda name: special.get(name, f"var(--{name})"), size)
    return ";".join(f"{name}:{value}" for name, value in properties.items())


_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF))
"""Characters that XML does not allow."""


def clean(text: str) -> str:
    """``text`` escaped for an element or an attribute of XML or HTML."""
    return escape(text.translate(_CONTROL).encode("utf-8", "replace").decode(), quote=True)


def number(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0").replace("-0.0", "0")


ANCHORS = {"start": "", "middle": " mid", "end": " end"}
"""CSS classes of texts by their anchor."""


class Pen:
    """Writes shapes as SVG. ``theme``: colours to write out, None for class names. ``font``: font size in pixels."""

    def __init__(self, theme: dict[str, str] | None, font: float) -> None:
        self.theme, self.font = theme, font

    def draw(self, shapes: list[Shape]) -> str:
        """``shapes`` as SVG elements."""
        return "".join(map(self._shape, shapes))

    def _shape(self, shape: Shape) -> str:
        if isinstance(shape, ShapeGroup):
            return self._group(shape)
        if isinstance(shape, Text):
            return self._text(shape)
        if isinstance(shape, Rect):
            place = _numbers(x=shape.x, y=shape.y, width=max(shape.width, 0), height=max(shape.height, 0))
            title = f"><title>{clean(shape.label)}</title></rect>" if shape.label else "/>"
            return f"<rect{self._look(shape.role, shape.series)}{place}{title}"
        if isinstance(shape, Marker) and shape.shape == "circle":
            return f"<circle{self._look(shape.role, shape.series)}{_numbers(cx=shape.x, cy=shape.y, r=shape.r)}/>"
        line = outline(shape)
        if not line:
            return ""
        series = None if isinstance(shape, Grid) else shape.series
        return f'<path{self._look(shape.role, series)} d="{line}"/>'

    def _text(self, shape: Text) -> str:
        if self.theme is None:
            look, anchor = self._look(f"{shape.role}{ANCHORS[shape.anchor]}", shape.series), ""
        else:
            look = self._look(shape.role, shape.series, text=True)
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        turn = f' transform="rotate({" ".join(map(number, (shape.turn, shape.x, shape.y)))})"' if shape.turn else ""
        return f"<text{look}{_numbers(x=shape.x, y=shape.y)}{anchor}{turn}>{clean(shape.text)}</text>"

    def _group(self, group: ShapeGroup) -> str:
        if self.theme is not None:  # a picture of its own shows one state
            if group.hidden:
                return ""
            move = "" if group.move is None else f' transform="translate({" ".join(map(number, group.move))})"'
            return f"<g{move}>{self.draw(group.children)}</g>"
        tags = {} if group.link else group.tags  # the page's script takes a point's from the list beside the picture
        attributes = "".join(f' data-{name}="{clean(value)}"' for name, value in tags.items())
        if group.hidden:
            attributes += " hidden"
        inner = self.draw(group.children)
        return f'<a href="{clean(group.link)}"{attributes}>{inner}</a>' if group.link else f"<g{attributes}>{inner}</g>"

    def _look(self, role: str, series: int | None, text: bool = False) -> str:
        """Attributes for the style of ``role``: its classes, or all properties with colours written out."""
        series_name = "" if series is None else f"s{series % SERIES}"
        if self.theme is None:
            return f' class="{role} {series_name}"' if series_name else f' class="{role}"'
        colours = {**self.theme, "none": "none", "series": self.theme[series_name or "quiet"]}
        style = ROLES[role]
        font_size = number(self.font * style.size) if text else ""
        properties = _properties(style, colours.__getitem__, font_size)
        return "".join(f' {name}="{value}"' for name, value in properties.items())


def _numbers(**coordinates: float) -> str:
    return "".join(f' {name}="{number(value)}"' for name, value in coordinates.items())


def outline(shape: Path | Grid | Marker) -> str:
    """The SVG path of a shape other than a circle; empty for a grid without lines."""
    if isinstance(shape, Grid):
        return "".join(map(_line, shape.lines))
    if isinstance(shape, Path):
        return _line(shape.points, shape.closed)
    return _line([(shape.x + x * shape.r, shape.y + y * shape.r) for x, y in _CORNERS[shape.shape]], closed=True)


def _line(points: Sequence[XY], closed: bool = False) -> str:
    """The path through ``points``, in the shortest commands."""
    commands = ""
    last_x = last_y = ""
    for x, y in [(number(x), number(y)) for x, y in points]:
        if not commands:
            commands = f"M{x} {y}"
        elif x == last_x:
            commands += f"V{y}"
        elif y == last_y:
            commands += f"H{x}"
        else:
            commands += f"L{x} {y}"
        last_x, last_y = x, y
    return f"{commands}Z" if closed else commands


_HALF, _DIAGONAL = math.sqrt(math.pi) / 2, math.sqrt(math.pi / 2)
_CORNERS = {
    "square": ((-_HALF, -_HALF), (_HALF, -_HALF), (_HALF, _HALF), (-_HALF, _HALF)),
    "diamond": ((0.0, -_DIAGONAL), (_DIAGONAL, 0.0), (0.0, _DIAGONAL), (-_DIAGONAL, 0.0)),
    "triangle": ((0.0, -1.45), (1.276, 0.899), (-1.276, 0.899)),
}
"""Corners of markers with about the area of a circle of radius 1."""


def inline(scene: Scene, font: float, name: str) -> str:
    """``scene`` for an HTML page, styled by classes; ``name`` makes its ids unique."""
    box = f'viewBox="0 0 {number(scene.width)} {number(scene.height)}"'
    words = f'<title id="{name}-t">{clean(scene.title)}</title><desc id="{name}-d">{clean(scene.description)}</desc>'
    head = f'<svg class="picture" {box} role="group" aria-labelledby="{name}-t {name}-d" font-size="{number(font)}">'
    return f"{head}{words}{Pen(None, font).draw(scene.children)}</svg>"


def standalone(scene: Scene, font: float) -> str:
    """``scene`` as a standalone SVG file, with a line per group."""
    width, height = number(scene.width), number(scene.height)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    words = f"<title>{clean(scene.title)}</title>\n<desc>{clean(scene.description)}</desc>"
    back = f'<rect width="100%" height="100%" fill="{LIGHT["page"]}"/>'
    body = Pen(LIGHT, font).draw(scene.children).replace("><g", ">\n<g")
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">\n{words}\n{back}\n{body}\n</svg>\n'
