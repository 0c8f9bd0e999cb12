"""A roofline as a picture: axes from the device, roofs with their names, ridge points, and one layer of points per level."""

from __future__ import annotations

from perfmodel.report.charts.frame import PICTURE, Key, Plot, Size, legend, tick_text, ticks
from perfmodel.report.charts.labels import shortened, text_width
from perfmodel.report.charts.roofline_points import AT_ROOFS, above, absent, as_drawn, at_roofs, beyond, obstacles, placeable, points
from perfmodel.report.charts.roofline_roofs import Layer, plot_of, ridges, roofs, waiting
from perfmodel.report.charts.scene import SHAPES, Group, Scene, Shape, Text
from perfmodel.report.charts.schema import LEVELS, Point, Roofline

SIZE = PICTURE


def scene(chart: Roofline, size: Size = SIZE) -> Scene:
    """``chart`` in a picture of ``size``: every level is a layer with its own roofs, of which only one is not hidden."""
    chart = as_drawn(chart)
    keys, below = legend(_keys(chart), size, size.font * 0.6, size.width - size.font, 2)
    top = below + size.font * 1.9
    rows = max(len(_left_out(chart, level, plot_of(chart, size, top))) for level in chart.levels())
    plot = plot_of(chart, size, top, rows)
    shapes: list[Shape] = [*keys, Text("axis", size.font * 0.6, below + size.font * 0.85, "FLOP/s")]
    shapes += ticks(plot, lambda value: tick_text(value, "FLOP/B"), lambda value: tick_text(value, "FLOP/s"))
    shapes += [_layer(Layer(chart, level, plot)) for level in chart.levels()]
    return Scene(size.width, size.height, shapes, chart.title, describe(chart))


def _layer(layer: Layer) -> Group:
    plot, level = layer.plot, layer.level
    obstacles(layer)
    roofs_first = [*roofs(layer), *ridges(layer)]
    said = [f"arithmetic intensity, FLOP per byte of {LEVELS.get(level, level)}", *_left_out(layer.chart, level, plot)]
    title, *notes = [
        Text("note" if row else "axis", plot.middle, plot.bottom + layer.font * (2.9 + 1.4 * row), words, "middle")
        for row, words in enumerate(said)
    ]
    shapes = [*roofs_first, title, *points(layer), *notes, *waiting(layer)]
    return Group(shapes, {"level": level}, hidden=level != layer.chart.first_level())


def _left_out(chart: Roofline, level: str, plot: Plot) -> list[str]:
    """In words, which points the picture cannot show; in several lines where one has no room."""
    listed = {
        "not shown": absent(chart, level),
        "beyond the edge": [point for point in placeable(chart, level) if beyond(point, level, plot)],
        "ABOVE THE ROOF": above(chart, level),
    }
    said = [f"{words}: {_listed(found)}" for words, found in listed.items() if found] + [AT_ROOFS] * at_roofs(chart)
    room, one_line = plot.right - plot.left, "; ".join(said)
    if text_width(one_line, plot.size.font) <= room:
        return [one_line] * bool(said)
    return [shortened(words, plot.size.font, room) for words in said]


def _listed(found: list[Point]) -> str:
    return ", ".join(str(point.number) for point in found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")


def _keys(chart: Roofline) -> list[Key]:
    points, opened, groups = chart.points, chart.first_level(), chart.groups
    kinds = {
        Key("measured", "measured", "circle"): any(p.measured for p in points),
        Key("predicted", "predicted", "circle"): any(p.predicted for p in points),
        Key("at its roof", "at-roof", "circle"): any(not (p.measured or p.predicted) for p in points),
        Key("baseline", "before", "diamond"): any(p.before for p in points),
        Key("roof, datasheet", "roof"): True,
        Key("roof, measured", "roof-measured"): any(c.measured and c.level in ("", opened) for c in chart.ceilings),
    }
    named = [Key(name, "measured", SHAPES[place % len(SHAPES)], place) for place, name in enumerate(groups) if name]
    return [*(named if len(named) > 1 else []), *(key for key, there in kinds.items() if there)]


def describe(chart: Roofline) -> str:
    """The picture in words."""
    count = len(chart.points)
    level = LEVELS.get(chart.first_level(), chart.first_level())
    return (
        f"Log-log roofline of {chart.device_name}: rate in FLOP/s over FLOP per byte of {level}, with the roofs of {level} and of its "
        f"compute units, and {count} point{'s' if count != 1 else ''}. Every number is in the table."
    )
