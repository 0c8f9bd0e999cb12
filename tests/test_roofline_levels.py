"""A picture carries the roofs of the levels of its points: no other line, no point above its own, no roof beside a prediction."""

from __future__ import annotations

import math
from functools import cache

import pytest

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.checks import dtype_on
from perfmodel.core.cost import Kernel, Work
from perfmodel.core.roofline import estimate
from perfmodel.report.charts.chart_tables import point_notes
from perfmodel.report.charts.frame import PICTURE, Axis
from perfmodel.report.charts.roofline import as_drawn, scene
from perfmodel.report.charts.roofline_roofs import limits
from perfmodel.report.charts.scene import Marker, Path, Rect, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import COMPUTE, Roofline, RooflinePoint
from perfmodel.report.document import from_data
from perfmodel.report.roofline_chart import ceilings, roofline
from perfmodel.report.saved import Interval
from perfmodel.study.kinds.roofline import RooflineSection
from perfmodel.study.options import workload_of
from perfmodel.study.schema import Scope

WORKLOADS = [
    ("attention", "n=4096 d=64 heads=16 batch=8"),
    ("attention", "n=512 d=128 heads=16 batch=2 algorithm=all"),
    ("matmul", "m=4096 n=4096 k=4096"),
    ("matmul", "m=8192 n=128 k=8192"),
]
UNTILED = [("attention", "n=4096 d=64 heads=16 batch=8 algorithm=standard"), ("attention", "n=512 d=128 heads=16 algorithm=standard")]
"""Of a device whose SRAM per block is not known."""
MODEL = ("model", "llama-3-8b decode batch=8 kv_len=2048")
TIMED = ("predicted", "at-roof", "measured")
PREDICTED = ("nvidia-h200-sxm", "nvidia-a100-sxm-80gb")
"""Where each question has a picture of its own, so that what is predicted is drawn."""


@cache
def scope() -> Scope:
    return Scope()


def drawn(shapes: list[Shape], level: str) -> list[Shape]:
    """All that a picture shows with that level chosen, whatever units are."""
    found: list[Shape] = []
    for shape in shapes:
        if isinstance(shape, ShapeGroup):
            found += drawn(shape.children, level) if shape.tags.get("level", level) == level else []
        else:
            found.append(shape)
    return found


def value(axis: Axis, pixel: float) -> float:
    return axis.low * (axis.high / axis.low) ** ((pixel - axis.start) / (axis.end - axis.start))


def axes(chart: Roofline, shapes: list[Shape]) -> tuple[Axis, Axis]:
    frame = next(shape for shape in shapes if isinstance(shape, Rect) and shape.role == "plot")
    least, most, slowest, fastest = limits(as_drawn(chart))
    return Axis(least, most, frame.x, frame.x + frame.width), Axis(slowest, fastest, frame.y + frame.height, frame.y)


def check(chart: Roofline) -> None:
    """Every line and every marker of every level, from the pixels that are drawn."""
    top = max(c.value for c in chart.ceilings if c.kind == COMPUTE)
    for level in chart.levels():
        shapes = drawn(scene(chart, PICTURE).children, level)
        x, y = axes(chart, shapes)
        own = [c.value for c in chart.ceilings if c.level == level]
        lines = [shape.points for shape in shapes if isinstance(shape, Path) and shape.role.startswith("roof")]
        slopes = [value(y, ends[0][1]) / value(x, ends[0][0]) for ends in lines if ends[0][1] != ends[1][1]]
        every = [c.value for c in chart.ceilings if c.level in chart.levels()]
        assert all(any(math.isclose(slope, one, rel_tol=1e-6) for slope in slopes) for one in own), (chart.device, level)
        assert all(any(math.isclose(slope, one, rel_tol=1e-6) for one in every) for slope in slopes), (chart.device, level)
        told = " ".join(shape.text for shape in shapes if isinstance(shape, Text) and shape.role == "note")
        for shape in shapes:
            if isinstance(shape, Marker) and shape.role in TIMED and x.start < shape.x < x.end and y.end < shape.y < y.start:
                under = min(max(own, default=math.inf) * value(x, shape.x), top) * (1 + 1e-6)
                assert value(y, shape.y) <= under or "ABOVE THE ROOF" in told, (chart.device, level, shape)


@pytest.mark.parametrize(
    "device",
    [pytest.param(one, marks=[pytest.mark.slow] * (place % 6 > 0 and one not in PREDICTED)) for place, one in enumerate(device_ids())],
)
def test_no_point_lies_above_the_roof_of_its_own_axis(device: str) -> None:
    peaks = find_device(device).peaks_of("tensor") or find_device(device).peaks_of("vector")
    dtype = next(name for name in ("bf16", "fp16", "fp32") if name in peaks)
    sram = find_device(device).level("sram")
    tiled = sram is not None and sram.per_block is not None
    every = [workload_of(kind, f"{words} dtype={dtype}", None) for kind, words in (WORKLOADS if tiled else UNTILED)]
    apart = [[one] for one in [*every, workload_of(*MODEL, None)]] if device in PREDICTED else [every]
    for asked in apart:
        [chart] = RooflineSection([device], asked).build(scope()).charts
        assert isinstance(chart, Roofline)
        assert not any(point.measured for point in chart.points)
        check(chart)


@pytest.mark.parametrize("level", ["dram", "l2"])
def test_a_measurement_above_the_roof_is_told(level: str) -> None:
    device = find_device("nvidia-h200-sxm")
    bandwidth = max(c.value for c in ceilings(device) if c.level == level)
    fast = RooflinePoint(1, "fast", 10**9, {level: 10**9}, "bf16", measured=Interval(10**9 / bandwidth / 1.5), terms={level: 1.0})
    slow = RooflinePoint(2, "slow", 10**9, {level: 10**9}, "bf16", measured=Interval(10**9 / bandwidth * 1.5), terms={level: 1.0})
    chart = roofline(device, [fast, slow])
    assert notes_of(chart, level) == "ABOVE THE ROOF: 1"
    assert "ABOVE THE ROOF: 1" in point_notes([chart])


def notes_of(chart: Roofline, level: str = "") -> str:
    shapes = drawn(scene(chart, PICTURE).children, level or chart.level)
    return "; ".join(shape.text for shape in shapes if isinstance(shape, Text) and shape.role == "note")


def kinds_of(chart: Roofline) -> set[str]:
    shapes = drawn(scene(chart, PICTURE).children, chart.level)
    return {shape.role for shape in shapes if isinstance(shape, Marker) and shape.role in ("predicted", "at-roof")}


def test_no_roof_stands_beside_a_prediction(run) -> None:
    """What is predicted in part is drawn at the roofs as a whole, and said to be; what is predicted throughout is not."""
    line = "roofline --hardware h200 --json --attention"
    [mixed] = from_data(run(line, "n=4096 d=64 heads=16 batch=8 algorithm=all").json).rooflines
    assert {point.predicted is None for point in mixed.points} == {True, False}
    assert len([key for key in kinds_of(mixed) if key]) == 1
    assert kinds_of(mixed) == {"at-roof"}
    assert "drawn at their roofs, since not all are predicted" in notes_of(mixed)
    [whole] = from_data(run(line, "n=4096 d=64 heads=16 batch=8").json).rooflines
    assert kinds_of(whole) == {"predicted"}
    assert "drawn at their roofs" not in notes_of(whole)


def test_products_of_a_vector_unit_run_at_the_rate_of_their_format() -> None:
    """AVX-512 BF16 multiplies twice as fast as fp32; what is no product stays at the fp32 rate."""
    device = find_device("amd-epyc-9654")
    fp32, bf16 = (float(device.peaks.vector[name].number) for name in ("fp32", "bf16"))
    for name, peak in (("fp32", fp32), ("bf16", bf16)):
        dtype = dtype_on(name, device)
        both = Kernel("product and sum", dtype, (), executed_flops=10**9, work=Work(0, 10**9 + 10**6, 0))
        assert estimate(both, device).terms["vector"] == pytest.approx(10**9 / peak + 10**6 / fp32)
