"""What a point of a roofline says: its rates, its limiting roof, how far it is from it; as a table and in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import percent, text
from perfmodel.report.charts.schema import COMPUTE, LEVELS, MEMORY, Ceiling, Point, Roofline
from perfmodel.report.charts.soft_roofs import WHY, aim, hard_roof, near_soft, soft_bound, soft_note
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.report.metrics import BOUND_WORDS

RESOURCES = BOUND_WORDS
SHORT = LEVELS | {"tensor": "tensor", "vector": "vector", "sfu": "exp", "interconnect": "link"}
EQUAL = 1e-6
"""Relative: a time equal to its bound is no violation."""


def time_s(point: Point) -> float | None:
    """The time that counts: measured, else predicted; None for a point that has neither."""
    best = point.measured or point.predicted
    return None if best is None else best.value


def intensity(point: Point, level: str) -> float | None:
    """FLOP/B at ``level``; None without FLOP or without bytes."""
    moved = point.bytes.get(level)
    return point.flops / moved if moved and point.flops else None


def bound(point: Point) -> str | None:
    """The resource with the largest term of the roof."""
    return max(point.terms, key=lambda name: point.terms[name], default=None)


def next_roof(point: Point) -> tuple[str, float] | None:
    """The resource with the second largest term, and how many times smaller it is; None where there is no other."""
    ordered = sorted(((seconds, name) for name, seconds in point.terms.items() if seconds > 0), reverse=True)
    return (ordered[1][1], ordered[0][0] / ordered[1][0]) if len(ordered) > 1 else None


def share_of_roof(point: Point) -> float | None:
    """Roof over time: 1 is a kernel at its limiting roof."""
    spent = time_s(point)
    return None if spent is None or point.roofline_s is None else point.roofline_s / spent


def error(point: Point) -> float | None:
    """predicted / measured - 1."""
    known = point.predicted and point.measured
    return point.predicted.value / point.measured.value - 1 if known and point.predicted and point.measured else None


def noise(point: Point) -> float | None:
    """(p90 - p10) / median of the measurement."""
    seen = point.measured
    return None if seen is None or seen.low is None or seen.high is None else (seen.high - seen.low) / seen.value


def flag(point: Point) -> str:
    """In words, what cannot be: a time below its lower bound or its roof; empty if there is nothing to say."""
    spent = point.measured.value if point.measured else None
    if spent is None:
        return ""
    if point.lower_s is not None and spent < point.lower_s * (1 - EQUAL):
        times = f"{text(spent, 's')} against {text(point.lower_s, 's')}"
        return f"faster than its lower bound ({times}): the measurement, a count or the bound is wrong"
    if point.roofline_s is not None and spent < point.roofline_s * (1 - EQUAL):
        above = text(point.roofline_s / spent, "ratio")
        return f"{above} above its roof: {CAUSES.get(bound(point) or '', CLOCK)}, or a count is wrong"
    return ""


CLOCK = "the clock ran above the datasheet's"
CAUSES = {"dram": "the L2 caught more bytes than counted", "l2": "one read of the L2 fed several SMs (a multicast)"}
"""Why a kernel may be above its roof, by what that roof is of."""


SOFT = 0.005
"""Relative: a prediction this much below its roof is worth a word."""
LAUNCH_S, LAUNCH_SHARE = 10e-6, 0.1
"""A prediction shorter than this, whose roof is less than that share of it, is a launch and little else."""


def soft_roof(point: Point) -> str:
    """In words, that a prediction without a measurement is faster than its roof; empty if it is not."""
    known = point.predicted
    if known is None or point.measured is not None or point.roofline_s is None or known.value >= point.roofline_s * (1 - SOFT):
        return ""
    faster = text(point.roofline_s / known.value, "ratio")
    why = WHY if soft_bound(point) else "it counts more bytes or FLOP than the prediction expects"
    return f"predicted {faster} above its roof: the roof is soft there, {why}"


def launch_bound(point: Point) -> bool:
    """Whether its prediction says that launching it takes most of its time."""
    known, spent = point.predicted, time_s(point)
    if known is None or spent is None or not point.roofline_s:
        return False
    return max(known.value, spent) < LAUNCH_S and point.roofline_s < LAUNCH_SHARE * min(known.value, spent)


# The table

_FIRST = [Column("number", "#", "count"), Column("name", "workload", under="device"), Column("device", "device"), Column("group", "group")]
_LAST = [
    Column("lower_s", "lower bound", "s"),
    Column("roofline_s", "roofline", "s"),
    Column("predicted_s", "predicted", "s", "predicted_low_s", "predicted_high_s"),
    Column("predicted_low_s", "predicted, low", "s"),
    Column("predicted_high_s", "predicted, high", "s"),
    Column("measured_s", "measured", "s", under="noise"),
    Column("noise", "noise", "share"),
    Column("error", "error", "error"),
    Column("bound", "bound by"),
    Column("share_of_roof", "of its roof", "share", under="headroom"),
    Column("headroom", "headroom", "ratio"),
    Column("next_roof", "next roof", under="next_roof_ratio"),
    Column("next_roof_ratio", "away", "ratio"),
    Column("time_share", "share of time", "share"),
    Column("note", "note"),
]


def points_table(charts: Iterable[Roofline]) -> DataTable:
    """Every point of ``charts``, one row each."""
    charts = list(charts)
    found = [(chart, point) for chart in charts for point in chart.points]
    levels = [level for level in reversed(LEVELS) if any(level in point.bytes for _, point in found)]
    counted = [Column("dtype", "dtype"), Column("flops", "FLOP", "FLOP")]
    for level in levels:
        counted += [
            Column(f"{level}_bytes", f"{LEVELS[level]} bytes", "B"),
            Column(f"{level}_intensity", f"{LEVELS[level]} intensity", "FLOP/B"),
        ]
    several = len({chart.device for chart in charts}) > 1
    columns = [*_FIRST, *counted, *_LAST]
    rows = []
    for chart, point in found:
        values = _values(point, levels) | {"device": chart.device if several else None}
        rows.append([values[column.key] for column in columns])
    return DataTable("Points", columns, rows)


def _values(point: Point, levels: list[str]) -> dict[str, Value]:
    near, share, limit = next_roof(point), share_of_roof(point), bound(point)
    seen = point.predicted
    return {
        **{name: getattr(point, name) for name in ("number", "name", "group", "dtype", "lower_s", "roofline_s")},
        "flops": point.flops if point.flops or point.dtype else None,  # nobody counted them
        **{f"{level}_bytes": point.bytes.get(level) for level in levels},
        **{f"{level}_intensity": intensity(point, level) for level in levels},
        "predicted_s": seen.value if seen else None,
        "predicted_low_s": seen.low if seen else None,
        "predicted_high_s": seen.high if seen else None,
        "measured_s": point.measured.value if point.measured else None,
        "noise": noise(point),
        "error": error(point),
        "bound": SHORT.get(limit, limit) if limit else None,
        "share_of_roof": share,
        "headroom": None if not share else 1 / share,
        "next_roof": SHORT.get(near[0], near[0]) if near else None,
        "next_roof_ratio": near[1] if near else None,
        "time_share": point.share,
        "note": "; ".join(filter(None, _remarks(point))) or None,
    }


_BRIEF = ("number", "name", "device", "dtype", "flops", "roofline_s", "predicted_s", "measured_s", "error", "bound", "share_of_roof")


def brief_table(charts: Iterable[Roofline]) -> DataTable:
    """The columns that fit a page of text."""
    table = points_table(charts)
    ends = {key for column in table.columns if column.key in _BRIEF for key in (column.low, column.high)}
    kept = [
        place
        for place, column in enumerate(table.columns)
        if column.key in _BRIEF or column.key in ends or column.key.endswith("_intensity")
    ]
    return DataTable(table.title, [table.columns[place] for place in kept], [[row[place] for place in kept] for row in table.rows])


def _remarks(point: Point) -> list[str]:
    above = soft_roof(point)
    return [flag(point), above or soft_note(point), point.note]


def remarks(charts: Iterable[Roofline]) -> list[str]:
    """What is to be said of points, after the numbers of those it is said of."""
    said: dict[str, list[str]] = {}
    for chart in charts:
        for point in chart.points:
            for words in filter(None, _remarks(point)):
                said.setdefault(words, []).append(str(point.number))
    return [f"{', '.join(numbers)}: {words}" for words, numbers in said.items()]


# The sentence


def sentence(point: Point, ceilings: Iterable[Ceiling]) -> str:
    """Bound by what, at what share of which roof, what reaching it would give, and how far the next roof is."""
    limit, share, near = bound(point), share_of_roof(point), next_roof(point)
    if limit is None:
        return f"{point.name}: no roof is known, so nothing can be said about what bounds it."
    head = f"{point.name} is bound by {_roof(limit, point, ceilings)}"
    problem, spent = flag(point), time_s(point)
    if problem:
        advice = f"; {_aim(point, spent, ceilings)}" if spent and near_soft(point, spent) else ""
        return f"{head}; ABOVE ITS ROOF: {problem}{advice}."
    if spent and near_soft(point, spent) and share is not None:
        return f"{head}, {_kind(point)} at {percent(share)} of its roof: {_aim(point, spent, ceilings)}."
    problem = soft_roof(point)
    if problem:
        return f"{head}; {problem}; {_next(near)}."
    if launch_bound(point):
        return _launched(point, limit)
    if share is not None:
        kind = _kind(point)
        gain = f"reaching it makes it at most {text(1 / share, 'ratio')} faster" if share < 1 - 0.005 else "there is nothing left to gain"
        head += f", {kind} at {percent(share).replace('<', 'under ')} of its roof: {gain}"
    caveat = f"; that roof is soft ({WHY})" if soft_bound(point) else ""
    return f"{head}{caveat}; {_next(near)}."


def _kind(point: Point) -> str:
    return "measured" if point.measured else "predicted"


def _aim(point: Point, spent: float, ceilings: Iterable[Ceiling]) -> str:
    hard = hard_roof(point)
    return aim(point, spent, _roof(hard[0], point, ceilings) if hard else "")


def _launched(point: Point, limit: str) -> str:
    """The sentence of a kernel whose work is a small part of its time."""
    kind, spent = _kind(point), text(time_s(point), "s")
    roof = f"its roof, {RESOURCES.get(limit, limit)}, is at {text(point.roofline_s, 's')}"
    return (
        f"{point.name} is bound by its launch: {kind} {spent}, while {roof}; more work per launch or fewer launches help, no higher roof."
    )


def _roof(limit: str, point: Point, ceilings: Iterable[Ceiling]) -> str:
    fits = [c for c in ceilings if (c.level == limit if c.kind == MEMORY else c.unit == limit and c.dtype in (point.dtype, ""))]
    order = {"datasheet": 0, "derived": 0, "measured": 1}
    best = min(fits, key=lambda c: order[c.evidence], default=None)
    if best is None:
        return RESOURCES.get(limit, limit)
    unit = "FLOP/s" if best.kind == COMPUTE else "B/s"
    return f"{RESOURCES.get(limit, limit)} ({format_si(best.value, unit)}, {best.evidence})"


def _next(near: tuple[str, float] | None) -> str:
    if near is None:
        return "no other roof is known"
    name, ratio = near
    return (
        f"the next roof, {RESOURCES.get(name, name)}, is {text(ratio, 'ratio')} away"
        if ratio > 1.005
        else f"{RESOURCES.get(name, name)} binds as much"
    )
