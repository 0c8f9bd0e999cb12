"""Layout of predicted against measured times: equal axes, the line of no error, and the band of the errors."""

from __future__ import annotations

from perfmodel.report.charts.frame import LINEAR, Axis, Key, Plot, Size, fitted, legend, tick_text, ticks
from perfmodel.report.charts.scene import SHAPES, XY, Marker, Path, Rect, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import Pair, ScatterChart

SIZE = Size(540, 470)
STRIP = 0.26
"""Share of the height for the strip of errors, which has its own axis."""
LEAST_ERROR, MOST_ERROR = 0.1, 1.0
"""Least and largest end of that axis; points beyond are drawn at the edge."""


def scene(chart: ScatterChart, size: Size = SIZE) -> Scene:
    """``chart`` in a picture of ``size``."""
    groups = list(dict.fromkeys(pair.group for pair in chart.pairs))
    keys = [Key(name, "dot", SHAPES[place % len(SHAPES)], place) for place, name in enumerate(groups) if name and len(groups) > 1]
    keys.append(Key("predicted = measured", "diagonal"))
    if chart.low is not None and chart.high is not None:
        keys.append(Key(f"measured {chart.low:.3g} to {chart.high:.3g} of predicted", "error-band", "box"))
    shapes, below = legend(keys, size, size.font * 0.6, size.width - size.font, 2)
    low, high = fitted([value for pair in chart.pairs for value in (pair.measured, pair.predicted)], "log")
    bottom, right = size.height * (1 - STRIP) - size.font * 1.6, size.width - size.font * 1.8
    plot = Plot(Axis(low, high, size.font * 5.2, right), Axis(low, high, bottom, below + size.font * 1.8), size)
    shapes.append(Text("axis", size.font * 0.6, below + size.font, "predicted"))
    strip = _strip(chart, plot)
    shapes.append(Text("axis", plot.middle, strip.bottom + size.font * 2.9, "measured", "middle"))
    shapes += ticks(plot, lambda value: "", lambda value: tick_text(value, chart.unit))
    shapes += ticks(strip, lambda value: tick_text(value, chart.unit), lambda value: tick_text(value, "share"))
    if chart.low is not None and chart.high is not None:
        shapes.append(Path("error-band", _band(plot, chart.low, chart.high), closed=True))
        edges = [strip.y.at(strip.y.clamped(1 / end - 1)) for end in (chart.low, chart.high)]
        shapes.append(Rect("error-band", strip.left, edges[0], strip.right - strip.left, edges[1] - edges[0]))
    shapes.append(Path("diagonal", [(plot.left, plot.bottom), (plot.right, plot.top)]))
    shapes.append(Path("diagonal", [(strip.left, strip.y.at(0)), (strip.right, strip.y.at(0))]))
    shapes.append(Text("axis", size.font * 0.6, strip.top - size.font, "error"))
    shapes += [_pair(pair, place, groups.index(pair.group), plot, strip) for place, pair in enumerate(chart.pairs)]
    return Scene(size.width, size.height, shapes, chart.title, describe(chart))


def describe(chart: ScatterChart) -> str:
    """The picture in words."""
    errors = sorted(abs(pair.predicted / pair.measured - 1) for pair in chart.pairs)
    median = f", with a median error of {errors[len(errors) // 2]:.1%}" if errors else ""
    return f"Predicted against measured for {len(chart.pairs)} runs{median}. Every number is in the table."


def _band(plot: Plot, low: float, high: float) -> list[XY]:
    """Corners of the area measured / ``high`` <= predicted <= measured / ``low`` inside the plot."""
    least, most = plot.x.low, plot.x.high

    def edge(factor: float) -> list[XY]:
        """Both ends of the line predicted = measured / ``factor`` inside the plot."""
        first, last = max(least, least * factor), min(most, most * factor)
        return [(plot.x.at(measured), plot.y.at(measured / factor)) for measured in (first, last)]

    (lower_left, lower_right), (upper_left, upper_right) = edge(high), edge(low)
    if low < 1 < high:  # the band holds the diagonal, so two corners of the plot
        return [lower_left, lower_right, (plot.right, plot.top), upper_right, upper_left, (plot.left, plot.bottom)]
    return [lower_left, lower_right, upper_right, upper_left]


def _pair(pair: Pair, place: int, series: int, plot: Plot, strip: Plot) -> Shape:
    """Both dots of a pair: predicted over measured in the plot, and the error in the strip."""
    shape = SHAPES[series % len(SHAPES)]
    dots: list[Shape] = [
        Marker("dot", *plot.at(pair.measured, pair.predicted), 3.6, shape, series),
        Marker("dot", *strip.at(pair.measured, pair.predicted / pair.measured - 1), 2.8, shape, series),
    ]
    return ShapeGroup(dots, {"row": str(place)})


def _strip(chart: ScatterChart, plot: Plot) -> Plot:
    """The strip of errors below the plot, over the same x."""
    size = plot.size
    errors = [abs(pair.predicted / pair.measured - 1) for pair in chart.pairs]
    errors += [abs(1 / end - 1) for end in (chart.low, chart.high) if end]
    limit = min(MOST_ERROR, max(LEAST_ERROR, 1.15 * max(errors, default=0)))
    return Plot(plot.x, Axis(-limit, limit, size.height - size.font * 3.4, plot.bottom + size.font * 2.6, LINEAR), size)
