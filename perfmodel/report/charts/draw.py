"""A scene as SVG: with its colours written out, for a file of its own, or with class names, for a page that has both themes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from perfmodel.report.charts.scene import XY, Grid, Group, Marker, Path, Rect, Scene, Shape, Text
from perfmodel.report.charts.themes import FONT, LIGHT, ROLES, SERIES, Style, colour

_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF))
"""Characters that XML does not allow."""


def clean(text: str) -> str:
    """``text`` for an element or an attribute of XML or HTML: nothing in it is markup."""
    return escape(text.translate(_CONTROL).encode("utf-8", "replace").decode(), quote=True)


def number(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0").replace("-0.0", "0")


ANCHORS = {"start": "", "middle": " mid", "end": " end"}
"""Classes of a page's texts, by where they are held."""


class Pen:
    """Writes shapes. ``theme``: colours to write out; None for class names. ``font``: pixels of the picture's letters."""

    def __init__(self, theme: dict[str, str] | None, font: float) -> None:
        self.theme, self.font = theme, font

    def draw(self, shapes: list[Shape]) -> str:
        """``shapes`` one after another."""
        return "".join(map(self._shape, shapes))

    def _shape(self, shape: Shape) -> str:
        if isinstance(shape, Group):
            return self._group(shape)
        if isinstance(shape, Text):
            return self._text(shape)
        if isinstance(shape, Path):
            return f'<path{self._look(shape.role, shape.series)} d="{_line(shape.points, shape.closed)}"/>'
        if isinstance(shape, Grid):
            return f'<path{self._look(shape.role, None)} d="{_lines(shape.lines)}"/>' if shape.lines else ""
        if isinstance(shape, Rect):
            place = (
                f'x="{number(shape.x)}" y="{number(shape.y)}" width="{number(max(shape.width, 0))}" height="{number(max(shape.height, 0))}"'
            )
            title = f"><title>{clean(shape.label)}</title></rect>" if shape.label else "/>"
            return f"<rect{self._look(shape.role, shape.series)} {place}{title}"
        return self._marker(shape)

    def _marker(self, shape: Marker) -> str:
        look = self._look(shape.role, shape.series)
        if shape.shape == "circle":
            return f'<circle{look} cx="{number(shape.x)}" cy="{number(shape.y)}" r="{number(shape.r)}"/>'
        return f'<path{look} d="{_line(polygon(shape), closed=True)}"/>'

    def _text(self, shape: Text) -> str:
        anchor = "" if shape.anchor == "start" or self.theme is None else f' text-anchor="{shape.anchor}"'
        place = f' x="{number(shape.x)}" y="{number(shape.y)}"{anchor}'
        look = self._look(f"{shape.role}{ANCHORS[shape.anchor]}" if self.theme is None else shape.role, shape.series, text=True)
        return f"<text{look}{place}>{clean(shape.text)}</text>"

    def _group(self, group: Group) -> str:
        if self.theme is not None:  # a picture of its own shows one state
            return "" if group.hidden else f"<g{_moved(group.move)}>{self.draw(group.children)}</g>"
        told = {} if group.link else group.tags  # of a point, the page's script takes them from the list beside the picture
        tags = "".join(f' data-{name}="{clean(value)}"' for name, value in told.items())
        hidden = " hidden" if group.hidden else ""
        inner = self.draw(group.children)
        return f'<a href="{clean(group.link)}"{tags}{hidden}>{inner}</a>' if group.link else f"<g{tags}{hidden}>{inner}</g>"

    def _look(self, role: str, series: int | None, text: bool = False) -> str:
        if self.theme is None:
            return f' class="{role}{"" if series is None else f" s{series % SERIES}"}"'
        style = ROLES[role]
        found = {"fill": colour(style.fill, self.theme, series), "stroke": colour(style.stroke, self.theme, series)}
        if text:
            del found["stroke"]
            found |= {"font-size": number(self.font * style.size)} | ({"font-weight": "600"} if style.bold else {})
            found |= (
                {"stroke": self.theme["plot"], "stroke-width": "3", "stroke-linejoin": "round", "paint-order": "stroke"}
                if style.halo
                else {}
            )
        elif found["stroke"] == "none":
            del found["stroke"]
        else:
            found |= {"stroke-width": f"{style.width:g}"} | ({"stroke-dasharray": style.dash} if style.dash else {})
        found |= {"opacity": f"{style.opacity:g}"} if style.opacity < 1 else {}
        return "".join(f' {name}="{value}"' for name, value in found.items())


def _line(points: Sequence[XY], closed: bool = False) -> str:
    """The path through ``points``, in the shortest commands."""
    written = [(number(x), number(y)) for x, y in points]
    parts = [f"M{written[0][0]} {written[0][1]}"]
    for (x, y), (last_x, last_y) in zip(written[1:], written, strict=False):
        parts.append(f"V{y}" if x == last_x else f"H{x}" if y == last_y else f"L{x} {y}")
    return "".join(parts) + ("Z" if closed else "")


def _lines(lines: Sequence[Sequence[XY]]) -> str:
    """Lines of a grid, one path: between lines of one length the pen moves by differences, which are shorter to write."""
    parts: list[str] = []
    last: tuple[float, float] | None = None
    for ends in lines:
        (x1, y1), (x2, y2) = [(round(x, 1), round(y, 1)) for x, y in (ends[0], ends[-1])]
        dx, dy = x2 - x1, y2 - y1
        move = f"M{number(x1)} {number(y1)}" if last is None else f"m{number(x1 - last[0])} {number(y1 - last[1])}".replace(" -", "-")
        parts.append(move + (f"h{number(dx)}" if not dy else f"v{number(dy)}" if not dx else f"l{number(dx)} {number(dy)}"))
        last = x2, y2
    return "".join(parts)


def polygon(marker: Marker) -> list[XY]:
    """Corners of a marker, of about the area of its circle."""
    x, y, r = marker.x, marker.y, marker.r
    if marker.shape == "square":
        half = r * math.sqrt(math.pi) / 2
        return [(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]
    if marker.shape == "diamond":
        half = r * math.sqrt(math.pi / 2)
        return [(x, y - half), (x + half, y), (x, y + half), (x - half, y)]
    tall = r * 1.45
    return [(x, y - tall), (x + tall * 0.88, y + tall * 0.62), (x - tall * 0.88, y + tall * 0.62)]


def inline(scene: Scene, font: float, name: str) -> str:
    """``scene`` for an HTML page, its looks in classes; ``name`` makes its ids unique."""
    head = (
        f'<svg class="picture" viewBox="0 0 {number(scene.width)} {number(scene.height)}" role="group" aria-labelledby="{name}-t {name}-d"'
    )
    words = f'<title id="{name}-t">{clean(scene.title)}</title><desc id="{name}-d">{clean(scene.description)}</desc>'
    return f'{head} font-size="{number(font)}">{words}{Pen(None, font).draw(scene.children)}</svg>'


def _moved(move: XY | None) -> str:
    return "" if move is None else f' transform="translate({number(move[0])} {number(move[1])})"'


def standalone(scene: Scene, font: float) -> str:
    """``scene`` as a file of its own, a line per group."""
    size = f'width="{number(scene.width)}" height="{number(scene.height)}" viewBox="0 0 {number(scene.width)} {number(scene.height)}"'
    words = f"<title>{clean(scene.title)}</title>\n<desc>{clean(scene.description)}</desc>"
    back = f'<rect width="100%" height="100%" fill="{LIGHT["page"]}"/>'
    body = Pen(LIGHT, font).draw(scene.children).replace("><g", ">\n<g")
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">\n{words}\n{back}\n{body}\n</svg>\n'


def style_sheet() -> str:
    """The looks of all roles as CSS, in the page's colours."""
    anchors = [f".picture .{name.strip()}{{text-anchor:{anchor}}}" for anchor, name in ANCHORS.items() if name]
    return "\n".join([*(_rule(role, style) for role, style in ROLES.items()), *anchors])


def _rule(role: str, style: Style) -> str:
    names = {"none": "none", "series": "var(--s)"}
    said = [f"fill:{names.get(style.fill, f'var(--{style.fill})')}"]
    if style.stroke != "none":
        said.append(f"stroke:{names.get(style.stroke, f'var(--{style.stroke})')};stroke-width:{style.width:g}px")
    said += [f"stroke-dasharray:{style.dash}"] * bool(style.dash) + [f"opacity:{style.opacity:g}"] * (style.opacity < 1)
    said += ["font-weight:600"] * style.bold + [f"font-size:{style.size:g}em"] * (style.size != 1)
    said += ["stroke:var(--plot);stroke-width:3px;stroke-linejoin:round;paint-order:stroke"] * style.halo
    return f".picture .{role}{{{';'.join(said)}}}"
