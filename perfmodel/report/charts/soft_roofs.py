"""Roofs that kernels pass: what is said of a point whose largest one is such a roof."""

from __future__ import annotations

from perfmodel.report.charts.format_number import percent, text
from perfmodel.report.charts.schema import Point

WHY = "it counts every tile's load, while clusters multicast one load to several SMs"
"""Of the L2 roof of a tiled product. Sources: PTX ISA, cp.async.bulk.tensor with .multicast::cluster; H200 products measured above it."""
NEAR = 0.9
"""Share of a soft roof from which on reaching it is no aim."""


def soft_bound(point: Point) -> bool:
    """Whether its largest roof is its soft one."""
    return bool(point.soft) and max(point.terms, key=lambda name: point.terms[name], default="") == point.soft


def hard_roof(point: Point) -> tuple[str, float] | None:
    """The largest other term: its resource and its seconds."""
    found = {name: seconds for name, seconds in point.terms.items() if name != point.soft and seconds > 0}
    name = max(found, key=lambda name: found[name], default=None)
    return None if name is None else (name, found[name])


def overcounted(point: Point, level: str) -> bool:
    """Whether its prediction is faster than its bytes at ``level`` could pass: fewer do, so that its place there is not known."""
    known = point.predicted
    soft = known is not None and point.measured is None and point.soft == level
    return soft and known is not None and known.value < point.terms.get(level, 0.0)


def soft_note(point: Point) -> str:
    """The caveat at its row; empty unless its largest roof is soft."""
    return f"its largest roof is soft: {WHY}" if soft_bound(point) else ""


def near_soft(point: Point, spent: float | None) -> bool:
    """Whether a kernel that takes ``spent`` seconds is at its soft roof or above, so that only the next hard one is an aim."""
    return soft_bound(point) and spent is not None and point.roofline_s is not None and point.roofline_s >= NEAR * spent


def aim(point: Point, spent: float, name: str) -> str:
    """Share of the next hard roof, called ``name``, and what reaching it would give."""
    hard = hard_roof(point)
    if hard is None:
        return f"that roof is soft ({WHY}) and no other is known"
    share = hard[1] / spent
    gain = f"reaching that makes it at most {text(1 / share, 'ratio')} faster" if share < 1 - 0.005 else "there is nothing left to gain"
    return f"that roof is soft ({WHY}); the next hard one, {name}, is at {percent(share)}: {gain}"
