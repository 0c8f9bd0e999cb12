"""The points of a roofline on the page: predicted hollow, measured filled, joined, numbered; arrows from a baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from perfmodel.report.charts.frame import Plot, Size
from perfmodel.report.charts.labels import Placer, rectangle, segment, text_width
from perfmodel.report.charts.roofline_axes import key
from perfmodel.report.charts.roofline_metrics import EQUAL, intensity
from perfmodel.report.charts.scene import XY, Group, Marker, Path, Shape, Text
from perfmodel.report.charts.schema import COMPUTE, MEMORY, Interval, Point, Roofline
from perfmodel.report.charts.soft_roofs import overcounted

LEAST_RADIUS, MOST_RADIUS, PLAIN_RADIUS = 3.5, 15.0, 5.0
SAME_PLACE = 4.0
"""Pixels: points closer than this have one label."""
AWAY = (3.0, 6.0, 11.0, 18.0, 27.0, 38.0, 50.0, 64.0, 80.0, 100.0)
"""Pixels from a marker to its number: the first that is free."""
COVERED = 8
"""A label under a marker is as bad as one over that many lines, which its halo interrupts."""
AT_ROOFS = "drawn at their roofs, since not all are predicted"
SHAPES = ("circle", "square", "triangle", "diamond")


def groups_of(chart: Roofline) -> list[str]:
    """Groups of its points, in the order of their first one: each has a colour and a shape."""
    return list(dict.fromkeys(point.group for point in chart.points))


def at_roofs(chart: Roofline) -> bool:
    """Whether what was not measured is drawn at its roof, since of something neither a measured nor a predicted time is known."""
    return any(point.roofline_s and not (point.measured or point.predicted) for point in chart.points)


def as_drawn(chart: Roofline) -> Roofline:
    """``chart`` with times of one kind: no roof stands beside a prediction, as if the two could be compared."""
    if not at_roofs(chart):
        return chart
    plain = [point if point.measured or not point.roofline_s else replace(point, predicted=None, before=None) for point in chart.points]
    return replace(chart, points=plain)


def placeable(chart: Roofline, level: str) -> list[Point]:
    """Points that have a place at ``level``: FLOP, bytes there that are known to pass, and any time."""
    return [
        point
        for point in chart.points
        if intensity(point, level) is not None and time_of(point) is not None and not overcounted(point, level)
    ]


def above(chart: Roofline, level: str) -> list[Point]:
    """Points that lie above the roofs of ``level`` and of their unit, which only a wrong count, rate or clock explains."""
    return [point for point in placeable(chart, level) if _rate(point) > _roof(chart, point, level) * (1 + EQUAL)]


def _rate(point: Point) -> float:
    return point.flops / (time_of(point) or math.inf)


def _roof(chart: Roofline, point: Point, level: str) -> float:
    """FLOP/s of the highest roof over its place: of the bytes of ``level``, and of its unit and dtype."""
    unit = key(point.unit, point.dtype)
    memory = [c.value * (intensity(point, level) or 0) for c in chart.ceilings if c.kind == MEMORY and c.level == level]
    compute = [c.value for c in chart.ceilings if c.kind == COMPUTE and key(c.unit, c.dtype) == unit]
    return min(max(memory, default=math.inf), max(compute, default=math.inf))


def absent(chart: Roofline, level: str) -> list[Point]:
    """The others."""
    there = {point.number for point in placeable(chart, level)}
    return [point for point in chart.points if point.number not in there]


def time_of(point: Point) -> float | None:
    """The time at which it is drawn: measured, else predicted, else at the roof."""
    known = point.measured or point.predicted
    return known.value if known else point.roofline_s or None


def radius(point: Point) -> float:
    """Pixels; the area grows with the share of time."""
    return PLAIN_RADIUS if point.share is None else max(LEAST_RADIUS, MOST_RADIUS * math.sqrt(point.share))


def spot(point: Point, seconds: float, level: str, plot: Plot) -> XY:
    """Where ``point`` lies if it takes ``seconds``; at the edge of the plot if it lies beyond."""
    x = plot.x.at(plot.x.clamped(intensity(point, level) or plot.x.low))
    return x, plot.y.at(plot.y.clamped(point.flops / seconds))


def beyond(point: Point, level: str, plot: Plot) -> bool:
    """Whether ``point`` lies outside of the axes."""
    best = time_of(point)
    return best is not None and not (plot.x.holds(intensity(point, level) or 0) and plot.y.holds(point.flops / best))


def obstacles(chart: Roofline, level: str, plot: Plot, placer: Placer) -> None:
    """Tell ``placer`` where markers are, so that labels avoid them; many in one place are as bad as one."""
    told: list[tuple[XY, float]] = []
    for point in sorted(placeable(chart, level), key=lambda one: -radius(one)):
        for known in filter(None, (point.measured, point.predicted, _roof_only(point))):
            (x, y), r = spot(point, known.value, level, plot), radius(point) + 1
            if not any(math.dist((x, y), other) + r < wide + SAME_PLACE for other, wide in told):
                told.append(((x, y), r))
                placer.avoided += [rectangle(x - r, y - r, 2 * r, 2 * r)] * COVERED


def _roof_only(point: Point) -> Interval | None:
    return None if point.measured or point.predicted or not point.roofline_s else Interval(point.roofline_s)


def points(chart: Roofline, level: str, plot: Plot, size: Size, placer: Placer) -> list[Shape]:
    """Every point that has a place at ``level``, large ones first so that small ones lie on top; then their numbers."""
    there, groups = placeable(chart, level), groups_of(chart)
    ordered = sorted(there, key=lambda point: (-radius(point), point.number))
    return [*(_point(point, groups.index(point.group), level, plot) for point in ordered), *numbers(there, level, plot, size, placer)]


def _tags(point: Point) -> dict[str, str]:
    return {"point": str(point.number), "key": key(point.unit, point.dtype)}


def _point(point: Point, series: int, level: str, plot: Plot) -> Group:
    shape, r = SHAPES[series % len(SHAPES)], radius(point)
    shapes: list[Shape] = _arrow(point, level, plot)
    shapes += _interval(point, series, level, plot)
    if point.measured and point.predicted:
        ends = [spot(point, known.value, level, plot) for known in (point.predicted, point.measured)]
        shapes += [Path("join", ends, series=series)] if math.dist(*ends) > r else []
    for role, known in (("predicted", point.predicted), ("measured", point.measured), ("at-roof", _roof_only(point))):
        if known:
            shapes.append(Marker(role, *spot(point, known.value, level, plot), r, shape, series))
    return Group(shapes, _tags(point), f"#point-{point.number}")


def _interval(point: Point, series: int, level: str, plot: Plot) -> list[Shape]:
    """A vertical line over the interval of the prediction, where the marker does not hide it."""
    known = point.predicted
    if known is None or known.low is None or known.high is None:
        return []
    middle, low, high = (spot(point, seconds, level, plot) for seconds in (known.value, known.low, known.high))
    seen = max(math.dist(middle, low), math.dist(middle, high)) > radius(point)
    return [Path("whisker", [low, high], series=series)] if seen else []


def _arrow(point: Point, level: str, plot: Plot) -> list[Shape]:
    """From where the point was in the baseline to where it is."""
    old, best = point.before, time_of(point)
    if old is None or best is None or not old.bytes.get(level):
        return []
    was = Point(0, old.name, old.flops, old.bytes)
    start, end = spot(was, old.time_s, level, plot), spot(point, best, level, plot)
    length = math.dist(start, end)
    shapes: list[Shape] = [Marker("before", *start, 3.5, "diamond")]
    if length < radius(point) + 8:
        return shapes
    ux, uy = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    tip = (end[0] - ux * (radius(point) + 1), end[1] - uy * (radius(point) + 1))
    back = (tip[0] - ux * 7, tip[1] - uy * 7)
    head = [tip, (back[0] - uy * 3.2, back[1] + ux * 3.2), (back[0] + uy * 3.2, back[1] - ux * 3.2)]
    return [*shapes, Path("arrow", [start, back]), Path("arrow-head", head, closed=True)]


# Numbers


def numbers(there: list[Point], level: str, plot: Plot, size: Size, placer: Placer) -> list[Shape]:
    """The number of each point beside it; points in one place share a label; none where there is no room."""
    places = {point.number: spot(point, time_of(point) or 1.0, level, plot) for point in there}
    centre = (sum(x for x, _ in places.values()) / max(len(places), 1), sum(y for _, y in places.values()) / max(len(places), 1))
    clusters = _clusters(there, places)
    outwards = sorted(clusters, key=lambda c: (len(c) > 1, -math.dist(places[c[0].number], centre)))
    found: list[Shape] = []
    for cluster in outwards:
        at = places[cluster[0].number]
        others = [places[other[0].number] for other in clusters if other is not cluster]
        shapes = _number(cluster, at, others, centre, size, placer)
        tags = {"key": key(cluster[0].unit, cluster[0].dtype), "number": " ".join(str(point.number) for point in cluster)}
        found += [Group(shapes, tags)] if shapes else []
    return found


def _clusters(there: list[Point], places: dict[int, XY]) -> list[list[Point]]:
    """Points of one unit and dtype that lie in one place, together."""
    clusters: list[list[Point]] = []
    for point in there:
        at, own = places[point.number], key(point.unit, point.dtype)
        near = (c for c in clusters if key(c[0].unit, c[0].dtype) == own and math.dist(places[c[0].number], at) < SAME_PLACE)
        home = next(near, None)
        if home is None:
            clusters.append([point])
        else:
            home.append(point)
    return clusters


def _number(cluster: list[Point], at: XY, others: list[XY], centre: XY, size: Size, placer: Placer) -> list[Shape]:
    """The label of the points at ``at``, with a thin line to them where it had to go further away."""
    r = max(map(radius, cluster))
    text = ranges(sorted(point.number for point in cluster))

    def nearer(label: Text) -> int:
        """How many other places the label would seem to belong to, and labels that a line to it would cross."""
        middle = (label.x, label.y - size.font * 0.35)
        own = math.dist(middle, at)
        line = segment([at, middle])
        crossed = sum(line.meets(other) for other in placer.taken) if own > r + 2 * size.font else 0
        return crossed + sum(math.dist(middle, other) < own for other in others)

    found = placer.place(_around(text, at, r, centre, size), size.font, bold=True, cost=nearer)
    if found is None:
        return []
    x, y, half = found.x, found.y - size.font * 0.35, text_width(text, size.font, bold=True) / 2
    if math.hypot(max(abs(x - at[0]) - half, 0), y - at[1]) < r + size.font * 1.1:
        return [found]
    if abs(y - at[1]) < size.font:
        edge = (x + math.copysign(half + 2, at[0] - x), y)
    else:
        edge = (min(max(at[0], x - half), x + half), y + math.copysign(size.font * 0.6, at[1] - y))
    part = (r + 1) / max(math.dist(edge, at), r + 1)
    line = [(at[0] + (edge[0] - at[0]) * part, at[1] + (edge[1] - at[1]) * part), edge]
    placer.avoided.append(segment(line))
    return [Path("leader", line), found]


def ranges(found: list[int]) -> str:
    """Numbers in order, runs as their ends.

    >>> ranges([1, 2, 3, 7, 8])
    '1–3, 7, 8'
    """
    runs: list[list[int]] = []
    for number in found:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _around(text: str, at: XY, r: float, centre: XY, size: Size) -> Iterator[Text]:
    """Places around a marker on ever wider circles, on each those away from the centre of all points first."""
    half = text_width(text, size.font, bold=True) / 2
    outwards = math.atan2(centre[1] - at[1], at[0] - centre[0]) if math.dist(at, centre) > 1 else 0.0
    for away in AWAY:
        for turn in range(16):
            offset = (turn + 1) // 2 * (1 if turn % 2 else -1)
            angle = outwards + offset * math.pi / 8
            x = at[0] + math.cos(angle) * (r + away + half - 2)
            y = at[1] - math.sin(angle) * (r + away + size.font * 0.25)
            yield Text("number", x, y + size.font * 0.35, text, "middle")
