"""A picture as shapes with places in pixels and roles; the theme decides how a role looks."""

from __future__ import annotations

from dataclasses import field

from perfmodel.core.frozen import dataclass

XY = tuple[float, float]
SHAPES = ("circle", "square", "triangle", "diamond")
"""Shapes of markers, one per group of points or series."""


@dataclass(frozen=True, slots=True)
class Path:
    """Straight lines through ``points``; filled if its role says so. ``series``: number of its colour, None for the role's own."""

    role: str
    points: list[XY]
    closed: bool = False
    series: int | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Straight lines of one role: each from its first to its second end."""

    role: str
    lines: list[tuple[XY, XY]]


@dataclass(frozen=True, slots=True)
class Rect:
    """A box with its upper left corner at (x, y)."""

    role: str
    x: float
    y: float
    width: float
    height: float
    series: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Marker:
    """A point of radius ``r``; ``shape``: one of ``SHAPES``."""

    role: str
    x: float
    y: float
    r: float
    shape: str = "circle"
    series: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """``text`` on the baseline at (x, y), which is its ``anchor``: start, middle or end. ``turn``: degrees about it, from its start."""

    role: str
    x: float
    y: float
    text: str
    anchor: str = "start"
    series: int | None = None
    turn: float = 0.0


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Shapes that are shown, hidden or described together.

    ``tags``: attributes for selectors, such as key and level. ``link``: its target. ``hidden``: not visible until chosen. ``move``: offset
    of the group.
    """

    children: list[Shape]
    tags: dict[str, str] = field(default_factory=dict)
    link: str = ""
    hidden: bool = False
    move: XY | None = None


Shape = Path | Grid | Rect | Marker | Text | ShapeGroup


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture. ``title`` and ``description`` say in words what it shows."""

    width: float
    height: float
    children: list[Shape]
    title: str
    description: str = ""
