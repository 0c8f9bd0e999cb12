"""A roofline as a picture: axes from the device, roofs with their names, ridge points, and one layer of points per level."""

from __future__ import annotations

from perfmodel.report.charts.frame import PICTURE, Key, Plot, Size, legend, tick_text, ticks
from perfmodel.report.charts.labels import shortened, text_width
from perfmodel.report.charts.roofline_axes import first_level, levels_of, plot_of
from perfmodel.report.charts.roofline_points import (
    AT_ROOFS,
    SHAPES,
    above,
    absent,
    as_drawn,
    at_roofs,
    beyond,
    groups_of,
    obstacles,
    placeable,
    points,
)
from perfmodel.report.charts.roofline_roofs import ridges, roofs, waiting
from perfmodel.report.charts.scene import Group, Scene, Shape, Text
from perfmodel.report.charts.schema import LEVELS, MEASURED, Roofline

SIZE = PICTURE


def scene(chart: Roofline, size: Size = SIZE) -> Scene:
    """``chart`` in a picture of ``size``: every level is a layer with its own roofs, of which only one is not hidden."""
    chart = as_drawn(chart)
    keys, below = legend(_keys(chart), size, size.font * 0.6, size.width - size.font, 2)
    rows = max(len(_left_out(chart, level, plot_of(chart, size, below + size.font * 1.9), size)) for level in levels_of(chart))
    plot = plot_of(chart, size, below + size.font * 1.9, rows)
    shapes: list[Shape] = [*keys, Text("axis", size.font * 0.6, below + size.font * 0.85, "FLOP/s")]
    shapes += ticks(plot, size, lambda value: tick_text(value, "FLOP/B"), lambda value: tick_text(value, "FLOP/s"))
    shapes += [_layer(chart, level, plot, size, level != first_level(chart)) for level in levels_of(chart)]
    return Scene(size.width, size.height, shapes, chart.title, describe(chart))


def _layer(chart: Roofline, level: str, plot: Plot, size: Size, hidden: bool) -> Group:
    placer = plot.placer()
    obstacles(chart, level, plot, placer)
    shapes = roofs(chart, plot, size, level, placer) + ridges(chart, plot, size, level, placer)
    name = f"arithmetic intensity, FLOP per byte of {LEVELS.get(level, level)}"
    title = Text("axis", (plot.left + plot.right) / 2, plot.bottom + size.font * 2.9, name, "middle")
    shapes += [title, *points(chart, level, plot, size, placer)]
    for row, words in enumerate(_left_out(chart, level, plot, size), 1):
        shapes.append(Text("note", (plot.left + plot.right) / 2, plot.bottom + size.font * (2.9 + 1.4 * row), words, "middle"))
    return Group([*shapes, *waiting(chart, plot, size, level, placer)], {"level": level}, hidden=hidden)


def _left_out(chart: Roofline, level: str, plot: Plot, size: Size) -> list[str]:
    """In words, which points the picture cannot show; in two lines where one has no room."""
    missing = [point.number for point in absent(chart, level)]
    edge = [point.number for point in placeable(chart, level) if beyond(point, level, plot)]
    over = [point.number for point in above(chart, level)]
    said = [f"not shown: {_listed(missing)}"] * bool(missing) + [f"beyond the edge: {_listed(edge)}"] * bool(edge)
    said += [f"ABOVE THE ROOF: {_listed(over)}"] * bool(over) + [AT_ROOFS] * at_roofs(chart)
    room = plot.right - plot.left
    one_line = "; ".join(said)
    return [one_line] * bool(said) if text_width(one_line, size.font) <= room else [shortened(words, size.font, room) for words in said]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")


def _keys(chart: Roofline) -> list[Key]:
    opened = first_level(chart)
    kinds = [
        Key("measured", "measured", "circle") if any(p.measured for p in chart.points) else None,
        Key("predicted", "predicted", "circle") if any(p.predicted for p in chart.points) else None,
        Key("at its roof", "at-roof", "circle") if any(not (p.measured or p.predicted) for p in chart.points) else None,
        Key("baseline", "before", "diamond") if any(p.before for p in chart.points) else None,
        Key("roof, datasheet", "roof"),
        Key("roof, measured", "roof-measured") if any(c.evidence == MEASURED and c.level in ("", opened) for c in chart.ceilings) else None,
    ]
    named = [group for group in groups_of(chart) if group]
    groups = [Key(name, "measured", SHAPES[place % len(SHAPES)], place) for place, name in enumerate(groups_of(chart)) if name]
    return [*(groups if len(named) > 1 else []), *(key for key in kinds if key)]


def describe(chart: Roofline) -> str:
    """The picture in words."""
    count = len(chart.points)
    level = LEVELS.get(first_level(chart), first_level(chart))
    return (
        f"Log-log roofline of {chart.device_name}: rate in FLOP/s over FLOP per byte of {level}, with the roofs of {level} and of its "
        f"compute units, and {count} point{'s' if count != 1 else ''}. Every number is in the table."
    )
