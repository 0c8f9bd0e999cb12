"""Layout of a roofline: named roofs, ridge points and numbered points, with a layer per memory level.

Predicted points are hollow, measured ones filled; a line joins the two of one point. Arrows start at the baseline.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perfmodel.report.charts.frame import PICTURE, Key, Plot, Size, legend, tick_text, ticks
from perfmodel.report.charts.labels import Segment, leader, rings, shortened, square, text_width
from perfmodel.report.charts.roofline_metrics import EQUAL, intensity
from perfmodel.report.charts.roofline_roofs import LevelView, plot_of, ridges, roofs, waiting
from perfmodel.report.charts.scene import SHAPES, XY, Marker, Path, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import LEVELS, Roofline, RooflinePoint
from perfmodel.report.saved import Interval

SIZE = PICTURE
LEAST_RADIUS, MOST_RADIUS, PLAIN_RADIUS = 3.5, 15.0, 5.0
SAME_PLACE = 4.0
"""Distance in pixels below which points share a label."""
AWAY = (3.0, 6.0, 11.0, 18.0, 27.0, 38.0, 50.0, 64.0, 80.0, 100.0)
"""Distances in pixels tried between a marker and its number."""
COVERED = 8
"""Cost of a label on a marker, in crossed lines."""
AT_ROOFS = "drawn at their roofs, since not all are predicted"


def scene(chart: Roofline, size: Size = SIZE) -> Scene:
    """``chart`` in a picture of ``size``: each level is a layer with its own roofs, and only one layer is visible."""
    chart = as_drawn(chart)
    keys, below = legend(_keys(chart), size, size.font * 0.6, size.width - size.font, 2)
    top = below + size.font * 1.9
    rows = max(len(_left_out(chart, level, plot_of(chart, size, top))) for level in chart.levels())
    plot = plot_of(chart, size, top, rows)
    shapes: list[Shape] = [*keys, Text("axis", size.font * 0.6, below + size.font * 0.85, "FLOP/s")]
    shapes += ticks(plot, lambda value: tick_text(value, "FLOP/B"), lambda value: tick_text(value, "FLOP/s"))
    shapes += [_layer(LevelView(chart, level, plot)) for level in chart.levels()]
    return Scene(size.width, size.height, shapes, chart.title, describe(chart))


def _layer(view: LevelView) -> ShapeGroup:
    plot, level = view.plot, view.level
    obstacles(view)
    roofs_first = [*roofs(view), *ridges(view)]
    below = [f"arithmetic intensity, FLOP per byte of {LEVELS.get(level, level)}", *_left_out(view.chart, level, plot)]
    title, *notes = [
        Text("note" if row else "axis", plot.middle, plot.bottom + view.font * (2.9 + 1.4 * row), words, "middle")
        for row, words in enumerate(below)
    ]
    shapes = [*roofs_first, title, *points(view), *notes, *waiting(view)]
    return ShapeGroup(shapes, {"level": level}, hidden=level != view.chart.first_level())


def _left_out(chart: Roofline, level: str, plot: Plot) -> list[str]:
    """Notes on points that the picture cannot show, on one line if they fit."""

    def is_inside(point: RooflinePoint) -> bool:
        return plot.x.holds(intensity(point, level) or 0) and plot.y.holds(point.flops / drawn_s(point))

    drawn = placeable(chart, level)
    drawn_numbers = {point.number for point in drawn}
    points_by_words = {
        "not shown": [point for point in chart.points if point.number not in drawn_numbers],
        "beyond the edge": [point for point in drawn if not is_inside(point)],
        "ABOVE THE ROOF": above(chart, level),
    }
    notes = [f"{words}: {_listed(points)}" for words, points in points_by_words.items() if points]
    if at_roofs(chart):
        notes.append(AT_ROOFS)
    room = plot.right - plot.left
    one_line = "; ".join(notes)
    if notes and text_width(one_line, plot.size.font) <= room:
        return [one_line]
    return [shortened(words, plot.size.font, room) for words in notes]


def _listed(points: list[RooflinePoint]) -> str:
    """The numbers of the first few points, and how many more there are."""
    numbers = ", ".join(str(point.number) for point in points[:6])
    return f"{numbers} and {len(points) - 6} more" if len(points) > 6 else numbers


def _keys(chart: Roofline) -> list[Key]:
    points, opened, groups = chart.points, chart.first_level(), chart.groups
    kinds = {
        Key("measured", "measured", "circle"): any(p.measured for p in points),
        Key("predicted", "predicted", "circle"): any(p.predicted for p in points),
        Key("at another level", "dot", "circle", radius=2.4): len(chart.levels()) > 1 and bool(points),
        Key("10 % of the time, by area", "predicted", "circle", radius=MOST_RADIUS * math.sqrt(0.1)): any(p.share for p in points),
        Key("at its roof", "at-roof", "circle"): any(not (p.measured or p.predicted) for p in points),
        Key("baseline", "before", "diamond"): any(p.before for p in points),
        Key("roof, datasheet", "roof"): True,
        Key("roof, measured", "roof-measured"): any(c.measured and c.level in ("", opened) for c in chart.ceilings),
    }
    named = [Key(name, "measured", SHAPES[place % len(SHAPES)], place) for place, name in enumerate(groups) if name]
    return [*(named if len(named) > 1 else []), *(key for key, present in kinds.items() if present)]


def describe(chart: Roofline) -> str:
    """The picture in words."""
    count = len(chart.points)
    level = LEVELS.get(chart.first_level(), chart.first_level())
    return (
        f"Log-log roofline of {chart.device_name}: rate in FLOP/s over FLOP per byte of {level}, with the roofs of {level} and of its "
        f"compute units, and {count} point{'s' if count != 1 else ''}. Every number is in the table."
    )


# Points


def at_roofs(chart: Roofline) -> bool:
    """Whether unmeasured points are drawn at their roofs, as they are if some point has neither a measured nor a predicted time."""
    return any(point.roofline_s and not (point.measured or point.predicted) for point in chart.points)


def as_drawn(chart: Roofline) -> Roofline:
    """``chart`` without predictions if unmeasured points are drawn at their roofs, so that both are not compared."""
    if not at_roofs(chart):
        return chart
    plain = [point if point.measured or not point.roofline_s else replace(point, predicted=None, before=None) for point in chart.points]
    return replace(chart, points=plain)


def _markers(point: RooflinePoint) -> list[tuple[str, Interval]]:
    """Role and interval of each marker of ``point``, predicted before measured."""
    markers = []
    if point.predicted:
        markers.append(("predicted", point.predicted))
    if point.measured:
        markers.append(("measured", point.measured))
    if not markers and point.roofline_s:
        markers.append(("at-roof", Interval(point.roofline_s)))
    return markers


def drawn_s(point: RooflinePoint) -> float:
    """Seconds at which ``point`` is drawn; 0 if no time is known."""
    if point.measured:
        return point.measured.value
    return point.predicted.value if point.predicted else point.roofline_s or 0.0


def placeable(chart: Roofline, level: str) -> list[RooflinePoint]:
    """Points that have a place at ``level``: with FLOP, known bytes at that level, and some time."""
    return [point for point in chart.points if intensity(point, level) and drawn_s(point)]


def above(chart: Roofline, level: str) -> list[RooflinePoint]:
    """Points above the roofs of ``level`` and of their unit; only a wrong count, rate or clock explains these."""
    return [point for point in placeable(chart, level) if point.flops / drawn_s(point) > _roof(chart, point, level) * (1 + EQUAL)]


def _roof(chart: Roofline, point: RooflinePoint, level: str) -> float:
    """FLOP/s of the roof above ``point``: the lower of the memory roof of ``level`` and the compute roof of its unit and dtype."""
    memory = [c.value * (intensity(point, level) or 0) for c in chart.memory_roofs(level)]
    compute = [c.value for c in chart.compute_roofs() if c.key == point.key]
    return min(max(memory, default=math.inf), max(compute, default=math.inf))


def radius(point: RooflinePoint) -> float:
    """Radius of a point in pixels; the area is proportional to the share of time."""
    return PLAIN_RADIUS if point.share is None else max(LEAST_RADIUS, MOST_RADIUS * math.sqrt(point.share))


def _spot(point: RooflinePoint, seconds: float, level: str, plot: Plot) -> XY:
    """Place of ``point`` if it takes ``seconds``; at the edge of the plot if it lies beyond."""
    return plot.at(intensity(point, level) or plot.x.low, point.flops / seconds)


def obstacles(view: LevelView) -> None:
    """Add markers to the shapes that labels avoid; markers in one place count once."""
    covered: list[tuple[XY, float]] = []
    for point in sorted(placeable(view.chart, view.level), key=lambda point: -radius(point)):
        lines = [shape for shape in _elsewhere(point, 0, view.level, view.plot) if isinstance(shape, Path)]
        view.placer.avoided += [Segment(line.points[0], line.points[1]) for line in lines]
        for _, interval in reversed(_markers(point)):
            at, r = _spot(point, interval.value, view.level, view.plot), radius(point) + 1
            if not any(math.dist(at, other) + r < wide + SAME_PLACE for other, wide in covered):
                covered.append((at, r))
                view.placer.avoided += [square(at, r)] * COVERED


def points(view: LevelView) -> list[Shape]:
    """Shapes of the points at the level, large ones first so that small ones lie on top; then their numbers."""
    points, groups = placeable(view.chart, view.level), view.chart.groups
    ordered = sorted(points, key=lambda point: (-radius(point), point.number))
    return [*(_point(point, groups.index(point.group), view.level, view.plot) for point in ordered), *_numbers(points, view)]


def _point(point: RooflinePoint, series: int, level: str, plot: Plot) -> ShapeGroup:
    r, spots = radius(point), [(role, _spot(point, interval.value, level, plot)) for role, interval in _markers(point)]
    shapes = [*_elsewhere(point, series, level, plot), *_arrow(point, level, plot), *_interval(point, series, level, plot)]
    if len(spots) > 1 and math.dist(spots[0][1], spots[1][1]) > r:
        shapes.append(Path("join", [at for _, at in spots], series=series))
    shapes += [Marker(role, *at, r, SHAPES[series % len(SHAPES)], series) for role, at in spots]
    return ShapeGroup(shapes, {"point": str(point.number), "key": point.key}, f"#point-{point.number}")


def _elsewhere(point: RooflinePoint, series: int, level: str, plot: Plot) -> list[Shape]:
    """A dot for ``point`` at each other level, and a thin line through all of them."""
    elsewhere = [_spot(point, drawn_s(point), other, plot) for other in LEVELS if other != level and intensity(point, other)]
    dots = [Marker("dot", *at, 2.4, SHAPES[series % len(SHAPES)], series) for at in elsewhere]
    spots = sorted([_spot(point, drawn_s(point), level, plot), *elsewhere])
    return [Path("leader", [spots[0], spots[-1]]), *dots] if elsewhere else []


def _interval(point: RooflinePoint, series: int, level: str, plot: Plot) -> list[Shape]:
    """A vertical line over the interval of the prediction, unless the marker hides it."""
    interval = point.predicted
    if interval is None or interval.low is None or interval.high is None:
        return []
    middle, low, high = (_spot(point, seconds, level, plot) for seconds in (interval.value, interval.low, interval.high))
    visible = max(math.dist(middle, low), math.dist(middle, high)) > radius(point)
    return [Path("whisker", [low, high], series=series)] if visible else []


def _arrow(point: RooflinePoint, level: str, plot: Plot) -> list[Shape]:
    """An arrow to ``point`` from its place in the baseline."""
    old = point.before
    if old is None or not old.bytes.get(level):
        return []
    old_point = RooflinePoint(0, old.name, old.flops, old.bytes)
    start, end = _spot(old_point, old.time_s, level, plot), _spot(point, drawn_s(point), level, plot)
    length, r = math.dist(start, end), radius(point)
    marker = Marker("before", *start, 3.5, "diamond")
    if length < r + 8:
        return [marker]
    ux, uy = (end[0] - start[0]) / length, (end[1] - start[1]) / length  # one pixel along the arrow
    tip = (end[0] - ux * (r + 1), end[1] - uy * (r + 1))
    back = (tip[0] - ux * 7, tip[1] - uy * 7)
    left, right = (back[0] - uy * 3.2, back[1] + ux * 3.2), (back[0] + uy * 3.2, back[1] - ux * 3.2)
    return [marker, Path("arrow", [start, back]), Path("arrow-head", [tip, left, right], closed=True)]


# Numbers


def _numbers(points: list[RooflinePoint], view: LevelView) -> list[Shape]:
    """The numbers beside the points, as far as there is room; points in one place share a label."""
    places = {point.number: _spot(point, drawn_s(point), view.level, view.plot) for point in points}
    count = max(len(places), 1)
    centre = (sum(x for x, _ in places.values()) / count, sum(y for _, y in places.values()) / count)
    clusters = [(cluster, places[cluster[0].number]) for cluster in _clusters(points, places)]
    outermost_first = sorted(clusters, key=lambda entry: (len(entry[0]) > 1, -math.dist(entry[1], centre)))
    groups: list[Shape] = []
    for cluster, at in outermost_first:
        other_places = [place for other, place in clusters if other is not cluster]
        tags = {"key": cluster[0].key, "number": " ".join(str(point.number) for point in cluster)}
        shapes = _number(cluster, at, other_places, centre, view)
        if shapes:
            groups.append(ShapeGroup(shapes, tags))
    return groups


def _clusters(points: list[RooflinePoint], places: dict[int, XY]) -> list[list[RooflinePoint]]:
    """Groups of points of one unit and dtype that lie in one place."""
    clusters: list[list[RooflinePoint]] = []
    for point in points:
        for cluster in clusters:
            first = cluster[0]
            if first.key == point.key and math.dist(places[first.number], places[point.number]) < SAME_PLACE:
                cluster.append(point)
                break
        else:
            clusters.append([point])
    return clusters


def _number(cluster: list[RooflinePoint], at: XY, other_places: list[XY], centre: XY, view: LevelView) -> list[Shape]:
    """The label of the points at ``at``, with a thin line if it is further away."""
    r, font, placer = max(map(radius, cluster)), view.font, view.placer
    text = ranges(sorted(point.number for point in cluster))
    half = text_width(text, font, bold=True) / 2

    def penalty(label: Text) -> int:
        """Penalty of a place: nearer points that the label would seem to belong to, and labels that its line would cross."""
        middle = (label.x, label.y - font * 0.35)
        length, line = math.dist(middle, at), Segment(at, middle)
        crossed = sum(line.meets(other) for other in placer.taken) if length > r + 2 * font else 0
        return crossed + sum(math.dist(middle, other) < length for other in other_places)

    outwards = math.atan2(centre[1] - at[1], at[0] - centre[0]) if math.dist(at, centre) > 1 else 0.0
    places = rings(at, outwards, AWAY, r + half - 2, r + font * 0.25)
    label = placer.place((Text("number", x, y + font * 0.35, text, "middle") for x, y in places), bold=True, cost=penalty)
    for x, y in [(label.x, label.y - font * 0.35) for label in label]:
        if math.hypot(max(abs(x - at[0]) - half, 0), y - at[1]) >= r + font * 1.1:
            anchor = (x + math.copysign(half + 2, at[0] - x), y)
            below = (min(max(at[0], x - half), x + half), y + math.copysign(font * 0.6, at[1] - y))
            line = leader(at, anchor if abs(y - at[1]) < font else below, r + 1)
            placer.avoid(line)
            return [line, *label]
    return [*label]


def ranges(numbers: list[int]) -> str:
    """``numbers`` in order as text, with runs as ranges.

    >>> ranges([1, 2, 3, 7, 8])
    '1–3, 7, 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
