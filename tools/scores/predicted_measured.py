"""The picture of README and docs/accuracy.md: kernels of the last draw, predicted against measured, with lines at 10 %."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.report.charts.draw import standalone
from perfmodel.report.charts.frame import LINEAR, Axis, Key, Plot, Size, fitted, legend, tick_text, ticks
from perfmodel.report.charts.scene import SHAPES, Marker, Scene, Shape, Text
from perfmodel.report.charts.scene import Path as Line
from perfmodel.report.charts.schema import Pair
from perfmodel.timing.base import CLEAN
from perfmodel.validation.compare import compare
from perfmodel.validation.records import as_record
from tools.scores import PAGE, wide_rows

PICTURE = PAGE.with_name("predicted-measured.svg")
ONE_IN = 20
"""Of the kernels, so many to one that is drawn."""
NEAR = 0.1
MOST = 0.4
"""Of the error, the end of its axis; what lies beyond stands at the edge."""
SIZE = Size(1000, 520, 14)
NAMES = {"attention": "attention", "decode": "decode attention", "matmul": "matmul", "rows and copies": "softmax, norms, element-wise"}
"""Families of ``wide_rows.class_of``, as the page names them."""


def pairs() -> list[Pair]:
    """One in ``ONE_IN`` of the kernels with clean caches."""
    raws = [raw for raw in wide_rows.raws() if as_record(raw).cache_state == CLEAN][::ONE_IN]
    rows = [compare(raw, as_record(raw), find_device(raw["hardware"]), cache(calibrated_devices)) for raw in raws]
    return [
        Pair(row.record.group, row.record.time_s.median, row.prediction.seconds, NAMES[wide_rows.class_of(wide_rows.group_of(row.record))])
        for row in rows
        if row.prediction is not None
    ]


def scene(shown: Sequence[Pair], size: Size = SIZE) -> Scene:
    """``shown`` twice over the time that was measured: what was predicted, and by how much that is off."""
    font, names = size.font, list(NAMES.values())
    title = f"{len(shown)} kernels on an H200 that no fit saw, one in {ONE_IN} of a draw"
    keys = [Key(name, "dot", SHAPES[place], place) for place, name in enumerate(names)]
    keys += [Key("predicted = measured", "diagonal"), Key(f"{NEAR:.0%} off", "limit")]
    shapes: list[Shape] = [Text("title", font, font * 2, title)]
    listed, below = legend(keys, size, font, size.width - font, font * 2.6)
    low, high = fitted([value for pair in shown for value in (pair.measured, pair.predicted)], "log")
    top, bottom, half = below + font * 2, size.height - font * 3.6, size.width / 2
    times = Plot(Axis(low, high, font * 5, half - font), Axis(low, high, bottom, top), size)
    errors = Plot(Axis(low, high, half + font * 4.5, size.width - font * 1.5), Axis(-MOST, MOST, bottom, top, LINEAR), size)
    shapes += [*listed, *ticks(times, _time, _time), *ticks(errors, _time, lambda value: tick_text(value, "share"))]
    for factor, role in ((1, "diagonal"), (1 + NEAR, "limit"), (1 - NEAR, "limit")):
        ends = [max(low, low / factor), min(high, high / factor)]
        shapes.append(Line(role, [times.at(end, end * factor) for end in ends]))
        shapes.append(Line(role, [errors.at(end, factor - 1) for end in (low, high)]))
    for plot, word in ((times, "predicted"), (errors, "predicted / measured - 1")):
        shapes += [Text("axis", plot.left, plot.top - font * 0.6, word)]
        shapes += [Text("axis", plot.middle, plot.bottom + font * 2.8, "measured", "middle")]
    for pair in shown:
        place = names.index(pair.group)
        spots = times.at(pair.measured, pair.predicted), errors.at(pair.measured, pair.predicted / pair.measured - 1)
        shapes += [Marker("dot", *spot, 3.4, SHAPES[place], place) for spot in spots]
    near = sum(abs(pair.predicted / pair.measured - 1) <= NEAR for pair in shown)
    said = f"{near} of {len(shown)} kernels are predicted within {NEAR:.0%} of what was measured."
    return Scene(size.width, size.height, shapes, title, said)


def _time(value: float) -> str:
    return tick_text(value, "s")


def drawn() -> str:
    """The picture as a file."""
    return standalone(scene(pairs()), SIZE.font)
