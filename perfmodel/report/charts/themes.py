"""How roles look: a few colours, told apart by readers with any colour vision and in grey, in light and in dark."""

from __future__ import annotations

from dataclasses import dataclass

FONT = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
SERIES = 6
"""Colours of series; a seventh series begins again with another shape."""

LIGHT = {
    "page": "#ffffff",
    "ink": "#16202b",
    "quiet": "#55616e",
    "line": "#d8dee4",
    "faint": "#edf0f3",
    "edge": "#b9c2cc",
    "warn": "#b3261e",
    "roof": "#6b7785",
    "strong": "#16202b",
    "plot": "#ffffff",
    "s0": "#1f5fbf",
    "s1": "#c2540a",
    "s2": "#00785f",
    "s3": "#a8327e",
    "s4": "#7a6400",
    "s5": "#5b4bb5",
}
DARK = {
    "page": "#12171d",
    "ink": "#e8edf2",
    "quiet": "#a3aebb",
    "line": "#303a45",
    "faint": "#222a33",
    "edge": "#4a5663",
    "warn": "#ff8f86",
    "roof": "#8793a1",
    "strong": "#e8edf2",
    "plot": "#161c23",
    "s0": "#7db0ff",
    "s1": "#f59a57",
    "s2": "#4fcfae",
    "s3": "#ee8fc8",
    "s4": "#d9bf4a",
    "s5": "#b3a6ff",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Names of colours of a theme; ``series`` stands for the colour of the shape's series. ``size`` in units of the picture's font."""

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
    "number-inside": Style("page", bold=True),
    "series": Style(stroke="series", width=2.0),
    "series-dashed": Style(stroke="series", width=1.6, dash="6 4"),
    "band": Style("series", opacity=0.16),
    "dot": Style("series", "page", 0.8),
    "mark": Style(stroke="quiet", width=1.0, dash="2 3"),
    "mark-label": Style("ink", halo=True),
    "mark-of-series": Style("series", halo=True),
    "limit": Style(stroke="strong", width=1.4, dash="7 3"),
    "series-label": Style("series", bold=True, halo=True),
    "bar": Style("series", "page", 0.8),
    "bar-inside": Style("page"),
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


def colour(name: str, theme: dict[str, str], series: int | None) -> str:
    """The colour that a style's ``name`` means in ``theme``."""
    if name == "none":
        return name
    if name != "series":
        return theme[name]
    return theme["quiet"] if series is None else theme[f"s{series % SERIES}"]
