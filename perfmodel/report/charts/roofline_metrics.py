"""Metrics and sentences of a roofline point: its rates, its limiting roof, and its distance from that."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.units import format_si
from perfmodel.report.charts.format_number import percent, text
from perfmodel.report.charts.schema import COMPUTE, LEVELS, MEMORY, Ceiling, RooflinePoint
from perfmodel.report.metrics import BOUND_WORDS

RESOURCES = BOUND_WORDS
SHORT = LEVELS | {"tensor": "tensor", "vector": "vector", "sfu": "exp", "interconnect": "link"}
EQUAL = 1e-6
"""Relative tolerance below which a time equals its bound."""
SOFT = 0.005
"""Relative difference from which a prediction below its roof is mentioned."""
LAUNCH_S, LAUNCH_SHARE = 10e-6, 0.1
"""A prediction below these seconds, with a roof below this share of it, is mostly a launch."""
CLOCK = "the clock ran above the datasheet's"
CAUSES = {"dram": "the L2 caught more bytes than counted", "l2": "one read of the L2 fed several SMs (a multicast)"}
"""Possible causes of a kernel above its roof, by the resource of the roof."""


def time_s(point: RooflinePoint) -> float | None:
    """The measured time, else the predicted one; None for a point without either."""
    best = point.measured or point.predicted
    return None if best is None else best.value


def intensity(point: RooflinePoint, level: str) -> float | None:
    """FLOP/B at ``level``; None without FLOP or without bytes."""
    moved = point.bytes.get(level)
    return point.flops / moved if moved and point.flops else None


def bound(point: RooflinePoint) -> str | None:
    """The resource with the largest term of the roof."""
    return max(point.terms, key=lambda name: point.terms[name], default=None)


def next_roof(point: RooflinePoint) -> tuple[str, float] | None:
    """The resource with the second largest term, and how many times smaller that is; None without a second."""
    by_time = sorted(((seconds, name) for name, seconds in point.terms.items() if seconds > 0), reverse=True)
    if len(by_time) < 2:
        return None
    (most_s, _), (second_s, name), *_ = by_time
    return name, most_s / second_s


def share_of_roof(point: RooflinePoint) -> float | None:
    """Roof over time, 1 for a kernel at its limiting roof; None if either is unknown or the roof is zero."""
    spent = time_s(point)
    return point.roofline_s / spent if spent and point.roofline_s else None


def reached(point: RooflinePoint) -> str:
    """Phrase on the share of its roof that a point reaches, or on its time if no roof is known."""
    share = share_of_roof(point)
    return text(time_s(point), "s") if share is None else percent(share)


def error(point: RooflinePoint) -> float | None:
    """predicted / measured - 1."""
    return point.predicted.value / point.measured.value - 1 if point.predicted and point.measured else None


def noise(point: RooflinePoint) -> float | None:
    """(p90 - p10) / median of the measurement."""
    measured = point.measured
    if measured is None or measured.low is None or measured.high is None:
        return None
    return (measured.high - measured.low) / measured.value


def flag(point: RooflinePoint) -> str:
    """Phrase for an impossible time, below its lower bound or its roof; empty for others."""
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


def above_roof(point: RooflinePoint) -> str:
    """Phrase for an unmeasured prediction that is faster than its roof; empty for others."""
    predicted = point.predicted
    if predicted is None or point.measured is not None or point.roofline_s is None:
        return ""
    if predicted.value >= point.roofline_s * (1 - SOFT):
        return ""
    faster = text(point.roofline_s / predicted.value, "ratio")
    return f"predicted {faster} above its roof: that counts more bytes or FLOP than the prediction expects"


def launch_bound(point: RooflinePoint) -> bool:
    """Whether launching takes most of the predicted time."""
    predicted, spent = point.predicted, time_s(point)
    if predicted is None or spent is None or not point.roofline_s:
        return False
    return max(predicted.value, spent) < LAUNCH_S and point.roofline_s < LAUNCH_SHARE * min(predicted.value, spent)


def remarks(point: RooflinePoint) -> list[str]:
    """Remarks on a point: an impossible time, a prediction above its roof, and the point's note."""
    return list(filter(None, [flag(point), above_roof(point), point.note]))


# The sentence


def sentence(point: RooflinePoint, ceilings: Iterable[Ceiling]) -> str:
    """Sentence on the limiting roof, the share of it, the gain of reaching it, and the distance of the next roof."""
    limit = bound(point)
    if limit is None:
        return f"{point.name}: no roof is known, so nothing can be said about what bounds it."
    head = f"{point.name} is bound by {_roof_phrase(limit, point, ceilings)}"
    problem = flag(point)
    if problem:
        return f"{head}; ABOVE ITS ROOF: {problem}."
    next_words = _next_roof_phrase(point)
    if above_roof(point):
        return f"{head}; {above_roof(point)}; {next_words}."
    kind = "measured" if point.measured else "predicted"
    if launch_bound(point):
        roof = f"its roof, {RESOURCES.get(limit, limit)}, is at {text(point.roofline_s, 's')}"
        advice = "more work per launch or fewer launches help, no higher roof"
        return f"{point.name} is bound by its launch: {kind} {text(time_s(point), 's')}, while {roof}; {advice}."
    share = share_of_roof(point)
    if share is not None:
        gain = "there is nothing left to gain"
        if share < 1 - SOFT:
            gain = f"reaching it makes it at most {text(1 / share, 'ratio')} faster"
        head += f", {kind} at {percent(share).replace('<', 'under ')} of its roof: {gain}"
    return f"{head}; {next_words}."


def _roof_phrase(limit: str, point: RooflinePoint, ceilings: Iterable[Ceiling]) -> str:
    """Phrase on the roof of the resource ``limit``, with its rate: that of the datasheet, else the measured one."""
    matching = [ceiling for ceiling in ceilings if _is_roof_of(ceiling, limit, point.dtype)]
    name = RESOURCES.get(limit, limit)
    if not matching:
        return name
    roof = min(matching, key=lambda ceiling: ceiling.measured)
    unit = "FLOP/s" if roof.kind == COMPUTE else "B/s"
    return f"{name} ({format_si(roof.value, unit)}, {roof.evidence})"


def _is_roof_of(ceiling: Ceiling, resource: str, dtype: str) -> bool:
    if ceiling.kind == MEMORY:
        return ceiling.level == resource
    return ceiling.unit == resource and ceiling.dtype in (dtype, "")


def _next_roof_phrase(point: RooflinePoint) -> str:
    following = next_roof(point)
    if following is None:
        return "no other roof is known"
    name, ratio = following
    roof = RESOURCES.get(name, name)
    return f"the next roof, {roof}, is {text(ratio, 'ratio')} away" if ratio > 1 + SOFT else f"{roof} binds as much"
