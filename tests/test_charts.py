"""Pictures: points lie where their numbers say, labels keep off each other and inside the frame, in every state of a selector."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import device_ids, find_device
from perfmodel.report.charts.chart_tables import brief_table, point_notes, points_table
from perfmodel.report.charts.draw import DARK, LIGHT, ROLES, Pen
from perfmodel.report.charts.format_number import as_text, percent, text
from perfmodel.report.charts.frame import LINEAR, PICTURE, Axis, Size, fitted, power_of_two_text, tick_text
from perfmodel.report.charts.labels import Box, Segment, shortened, square, text_box, text_boxes, text_width
from perfmodel.report.charts.roofline_metrics import above_roof, sentence
from perfmodel.report.charts.roofline_roofs import limits, plot_of
from perfmodel.report.charts.scene import Grid, Marker, Path, Scene, Shape, ShapeGroup, Text
from perfmodel.report.charts.schema import Bar, BarChart, Limit, LineChart, Mark, Roofline, RooflinePoint, Series
from perfmodel.report.document import Report
from perfmodel.report.formats.svg import panel, scene, size_of
from perfmodel.report.roofline_chart import ceilings as device_ceilings
from perfmodel.report.saved import Interval
from tools.refresh.report_example import ceilings, crowded, example, long_names, point

WIDE, NARROW = Size(760, 500, 12), Size(368, 400, 11)
"""Beside the size of a page's pictures: one with much room, and one with little."""
SIZES = [PICTURE, WIDE, NARROW]


def flat(shapes: list[Shape], level: str | None = None, keys: set[str] | None = None, move=(0.0, 0.0)) -> list[tuple[Shape, tuple]]:
    """Shapes that are seen while ``level`` and ``keys`` are chosen (as first shown, if None), each with how far it is moved."""
    seen = []
    for shape in shapes:
        if not isinstance(shape, ShapeGroup):
            seen.append((shape, move))
            continue
        hidden = shape.hidden
        if level is not None and "level" in shape.tags:
            hidden = shape.tags["level"] != level
        if keys is not None and "key" in shape.tags:
            hidden = not set(shape.tags["key"].split(",")) & keys
        if not hidden:
            step = shape.move or (0.0, 0.0)
            seen += flat(shape.children, level, keys, (move[0] + step[0], move[1] + step[1]))
    return seen


def problems(picture: Scene, font: float, level: str | None = None, keys: set[str] | None = None) -> list[str]:
    """Labels that meet another one or leave the picture."""
    boxes = []
    for shape, (x, y) in flat(picture.children, level, keys):
        if isinstance(shape, Text):
            style = ROLES[shape.role]
            moved = replace(shape, x=shape.x + x, y=shape.y + y)
            boxes.append((shape.text, text_boxes(moved, font * style.size, style.bold, air=0)))
    frame = (0, 0), (picture.width, picture.height)
    found = [f"{words!r} leaves the frame" for words, covered in boxes if not all(box.inside(*frame) for box in covered)]
    pairs = itertools.combinations(boxes, 2)
    return found + [f"{a!r} meets {b!r}" for (a, one), (b, other) in pairs if any(box.meets(o) for box in one for o in other)]


def every_state(chart: Roofline, size: Size) -> list[str]:
    picture = scene(chart, size)
    found = []
    for level in chart.levels():
        for keys in (set(chart.shown_keys()), set(chart.all_keys()), {chart.all_keys()[0]}):
            found += problems(picture, size.font, level, keys)
    return found


SLOW_CROWD = pytest.param(crowded(120, seed=7), marks=pytest.mark.slow)


@pytest.mark.parametrize("report", [example(), crowded(12, seed=3), crowded(), SLOW_CROWD], ids=["example", "12", "50", "120"])
def test_no_label_meets_another_or_leaves_the_frame(report: Report) -> None:
    for chart in report.charts:
        for size in (size_of(chart), *SIZES[1:]):
            wrong = every_state(chart, size) if isinstance(chart, Roofline) else problems(scene(chart, size), size.font)
            assert wrong == [], (chart.title, size)
        drawn = panel(chart)
        assert problems(drawn, 13.0) == [], chart.title


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place % 6 > 0)) for place, name in enumerate(device_ids())]
)
def test_every_device_has_a_clean_picture(name: str) -> None:
    device, draw = find_device(name), random.Random(name)
    found = [
        RooflinePoint(
            number, f"kernel {number}", flops := 10 ** draw.uniform(9, 12), {"dram": flops / 10 ** draw.uniform(-0.5, 3.5)},
            dtype=draw.choice(["bf16", "fp32"]), measured=Interval(flops / 10 ** draw.uniform(10, 14)),
        )
        for number in range(1, 13)
    ]  # fmt: skip
    chart = Roofline(f"Roofline of {device.name}", device.id, device.name, device_ceilings(device), found)
    assert [wrong for size in SIZES for wrong in every_state(chart, size)] == []


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 30), st.integers(0, 10**6))
def test_any_crowd_keeps_its_labels_apart(count: int, seed: int) -> None:
    chart = crowded(count, seed).charts[0]
    assert isinstance(chart, Roofline)
    assert [wrong for size in SIZES[:2] for wrong in every_state(chart, size)] == []


def test_axes_end_near_the_points_and_ridges() -> None:
    empty = Roofline("", "one", "One", ceilings(), dtypes=["fp8"])
    least, most, slowest, fastest = limits(empty)
    assert (least, most) == (20, 2000)  # ridges of fp8: 2000 / 33 = 61 at the SRAM, 2000 / 3.8 = 526 at the measured DRAM
    assert (slowest, fastest) == (1e14, 1e16)
    full = replace(empty, points=crowded().rooflines[0].points, level="l2")
    assert plot_of(full, WIDE, 40) == plot_of(replace(full, level="dram"), WIDE, 40)  # one pair of axes for all levels
    least, most, slowest, fastest = limits(full)
    found = [p.flops / moved for p in full.points for moved in p.bytes.values()]
    rates = [p.flops / p.measured.value for p in full.points if p.measured]
    assert min(found) / 5.1 <= least <= min(found) / 2
    assert max(*found, 2000e12 / 3.8e12) * 2 <= most <= max(*found, 2000e12 / 3.8e12) * 5.1
    assert slowest <= min(rates) / 2
    far = replace(full.points[0], flops=10, measured=Interval(1.0))
    assert limits(replace(full, points=[*full.points, far]))[2] == 1e9 * 2  # a millionth of the highest roof


def markers(chart: Roofline, size: Size, number: int, role: str) -> list[Marker]:
    found = []

    def walk(shapes: list[Shape]) -> None:
        for shape in shapes:
            if isinstance(shape, ShapeGroup) and not shape.hidden:
                if shape.tags.get("point") == str(number):
                    found.extend(s for s in shape.children if isinstance(s, Marker) and s.role == role)
                walk(shape.children)

    walk(scene(chart, size).children)
    return found


def test_the_table_has_numbers_in_base_units() -> None:
    table = points_table(example().rooflines)
    row = dict(zip([column.key for column in table.columns], table.rows[2], strict=True))
    expected = {"number": 3, "flops": 512_000_000_000, "dram_bytes": 2.4e8, "measured_s": 880e-6, "predicted_high_s": 1e-3, "device": "one"}
    assert {key: row[key] for key in expected} == expected
    assert row["headroom"] == pytest.approx(880 / 534)
    printed = as_text(table)
    assert "900 us (850 us to 1 ms)" in printed.rows[2]
    assert "predicted, low" not in printed.columns
    assert point_notes(example().rooflines)[0].startswith("3: calibrated here")
    assert len(brief_table(example().rooflines).columns) < len(table.columns)


def test_text_of_numbers() -> None:
    assert [text(1.5, unit) for unit in ("ratio", "share", "error", "FLOP/B", "s", "B", "rows", "text")] == [
        "1.5x", "150.0%", "+150.0%", "1.5 FLOP/B", "1.5 s", "1.5 B", "1.5 rows", "1.5",
    ]  # fmt: skip
    assert text(1234567, "count") == "1,234,567"


def test_ticks_and_their_text() -> None:
    assert Axis(0.1, 1e4, 0, 500).ticks() == [0.1, 1, 10, 100, 1000, 10000]
    assert Axis(0, 100, 0, 300, LINEAR).ticks(60) == [0, 20, 40, 60, 80, 100]
    assert [power_of_two_text(value) for value in (512, 1024, 131072, 1000, 1.5)] == ["512", "1k", "128k", "1000", "1.5"]
    assert [tick_text(value, "B/s") for value in (0, 1e3, 2.5e12)] == ["0", "1 k", "2.5 T"]
    assert fitted([], "log") == fitted([1.0, 10.0], "log")
    low, high = fitted([5.0, 5.0], "linear")
    assert low < 5 < high


@given(st.floats(1e-3, 1e3), st.floats(1.5, 1e6), st.floats(0, 1))
def test_an_axis_is_monotonic_and_keeps_its_ends(low: float, factor: float, part: float) -> None:
    axis = Axis(low, low * factor, 10, 300)
    assert axis.at(low) == pytest.approx(10)
    assert axis.at(low * factor) == pytest.approx(300)
    assert 10 - 1e-6 <= axis.at(low * factor**part) <= 300 + 1e-6


def test_boxes_meet_only_where_they_overlap() -> None:
    assert Box(0, 0, 10, 10).meets(Box(9, 9, 14, 14))
    assert not Box(0, 0, 10, 10).meets(Box(10, 0, 15, 5))
    line = Segment((0, 0), (100, 100))
    assert line.meets(Box(45, 45, 55, 55))
    assert not line.meets(Box(60, 20, 80, 40))  # beside the line, inside of the box around it
    assert Segment((0, 50), (100, 50)).meets(Box(40, 45, 45, 55))
    assert not Segment((0, 50), (30, 50)).meets(Box(40, 45, 45, 55))  # it ends before
    assert not Segment((0, 45), (100, 45)).meets(Box(40, 45, 45, 55))  # along its edge
    assert not Segment((50, 0), (50, 100)).meets(Box(51, 10, 56, 15))
    label = Text("tick", 50, 50, "MMM", "end")
    assert text_box(label, 10).right == pytest.approx(51.5)
    assert text_box(label, 10, air=0).left == pytest.approx(50 - text_width("MMM", 10))


def test_widths_of_text() -> None:
    assert text_width("WW", 10) > text_width("ii", 10)
    assert text_width("abc", 10, bold=True) > text_width("abc", 10)
    assert text_width("注意", 10) >= 20
    assert shortened("a long name of a kernel", 10, 60).endswith("…")
    assert text_width(shortened("a long name of a kernel", 10, 60), 10) <= 60
    assert shortened("short", 10, 60) == "short"


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_page(theme: dict[str, str]) -> None:
    for name in ("ink", "quiet", "warn", *(f"s{number}" for number in range(6))):
        for back in ("page", "plot"):
            bright, dim = sorted((_luminance(theme[name]), _luminance(theme[back])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (name, back)


def test_a_mark_off_the_sweep_is_on_the_picture() -> None:
    chart = LineChart("t", "N", "time", [Series("a", [(1, 1.0), (2, 2.0)])], marks=[Mark(8, "beyond")], x_scale="linear", y_scale="linear")
    marks = [shape for shape, _ in flat(scene(chart, WIDE).children) if isinstance(shape, Path) and shape.role == "mark"]
    assert 0 < marks[0].points[0][0] < WIDE.width
    assert not math.isnan(marks[0].points[0][1])


def test_values_that_a_logarithm_does_not_have_stand_at_the_edge() -> None:
    chart = LineChart("t", "batch", "time", [Series("a", [(0, 0.0), (1, 1.0), (2, 2.0)])])
    dots = [shape for shape, _ in flat(scene(chart, WIDE).children) if isinstance(shape, Marker) and shape.role == "dot"]
    assert [dot.x for dot in dots] == sorted(dot.x for dot in dots)
    assert all(0 <= dot.x <= WIDE.width and 0 <= dot.y <= WIDE.height for dot in dots)


def test_a_prediction_above_its_roof_is_said_to_be() -> None:
    chart = example().rooflines[0]
    fast = point(1, "fast", 4_000, 1e6, 1e3, 25e-6, predicted=Interval(20e-6))
    said = sentence(fast, chart.ceilings)
    assert "predicted 1.25x above its roof: " in said
    assert "nothing left to gain" not in said
    assert above_roof(fast) in dict(zip([c.key for c in points_table([replace(chart, points=[fast])]).columns],
                                       points_table([replace(chart, points=[fast])]).rows[0], strict=True))["note"]  # fmt: skip
    assert point_notes([replace(chart, points=[fast])])[0].startswith("1: predicted 1.25x above its roof")
    for other in (replace(fast, predicted=Interval(24.95e-6)), replace(fast, measured=Interval(30e-6)), replace(fast, roofline_s=None)):
        assert above_roof(other) == ""


def test_numbers_are_written_out() -> None:
    assert [text(value, "ratio") for value in (0.5, 999.4, 999.6, 5463.2)] == ["0.5x", "999x", "1,000x", "5,460x"]
    assert text(123456.0, "FLOP/B") == "123,500 FLOP/B"
    assert [text(value, "share") for value in (0.0, 0.0004, 0.0006, 1.0)] == ["0.0%", "<0.1%", "0.1%", "100.0%"]
    assert [percent(value) for value in (0.0, 0.004, 0.006, 1.0)] == ["0%", "<1%", "1%", "100%"]


def words_of(picture: Scene, role: str) -> list[Text]:
    return [shape for shape, _ in flat(picture.children) if isinstance(shape, Text) and shape.role == role]


@pytest.mark.parametrize("size", SIZES)
def test_no_capacity_strikes_a_value_and_every_one_is_named(size: Size) -> None:
    limits = [Limit("NVIDIA A100 SXM 80 GB", 85.1e9), Limit("NVIDIA H200 SXM", 150.1e9), Limit("a card of a long name " * 8, 152e9)]
    bars = [Bar(f"model {k}", [("weights", k * 20e9), ("activations", k * 1.2e9)]) for k in range(1, 8)]
    picture = scene(BarChart("memory", "B", bars, limits), Size(size.width, 0, size.font))
    assert problems(picture, size.font) == []
    lines = [shape for shape, _ in flat(picture.children) if isinstance(shape, Path) and shape.role == "limit"]
    sums = words_of(picture, "bar-total")
    assert (len(lines), len(sums), len(words_of(picture, "mark-label"))) == (3, 7, 3)
    for label in sums:
        box = text_box(label, size.font, bold=True, air=0)
        assert not [line for line in lines if box.left < line.points[0][0] < box.right], label.text


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("size", [Size(760, 360, 12.0), Size(560, 420, 13.0), Size(560, 340), Size(368, 300, 11.0)])
def test_every_mark_has_its_label_clear_of_the_curves(size: Size, grouped: bool) -> None:
    speeds = [(2**n, 100.0 * 2**n / (1 + 2**n / 60)) for n in range(10)]
    marks = [
        Mark(x, f"{what} at {x}", y, device) if grouped else Mark(x, f"{what} at {x} ({device})", y)
        for device, scale, last in (("NVIDIA H200 SXM", 1, 498), ("NVIDIA A100 SXM 80 GB", 0.4, 256))
        for what, x in (("knee", 38), ("memory ends", last))
        for y in [scale * 100.0 * x / (1 + x / 60)]
    ]
    lines = [(marks[0].group, speeds), (marks[2].group, [(x, 0.4 * y) for x, y in speeds])]
    series = [Series(f"{group or place} at 2,048 tokens, a long name", found, group=group) for place, (group, found) in enumerate(lines)]
    chart = LineChart("tokens per second", "batch", "tokens per second", series, y_unit="tokens/s", marks=marks)
    picture = scene(chart, size)
    assert problems(picture, size.font) == []
    role = "mark-of-series" if grouped else "mark-label"
    labels = words_of(picture, role)
    assert [label.text for label in labels] == [mark.label for mark in marks]
    shapes = [shape for shape, _ in flat(picture.children)]
    over = [shape.role for shape in shapes][[shape.role for shape in shapes].index(role) :]
    assert not {"mark", "series", "dot"} & set(over), "a line drawn later strikes the halo of a label"
    boxes = [text_box(label, size.font, air=0) for label in labels]
    if grouped:
        assert [label.series for label in labels] == [0, 0, 1, 1]
        assert [shape.series for shape in shapes if isinstance(shape, Marker) and shape.shape == "diamond"] == [0, 0, 1, 1]
        assert all(f"{mark.label} ({mark.group}) at {mark.x}" in picture.description for mark in marks)
    if grouped or size.width > 700:
        curves = [
            Segment(*ends) for one in shapes if isinstance(one, Path) and one.role == "series" for ends in itertools.pairwise(one.points)
        ]
        assert not [label.text for label, box in zip(labels, boxes, strict=True) if any(curve.meets(box) for curve in curves)]


@pytest.mark.parametrize(("count", "seed"), [(12, 10), (30, 0), (30, 10), (50, 2), (50, 3)])
@pytest.mark.parametrize("size", SIZES)
def test_no_marker_lies_on_the_words_of_a_ridge(size: Size, count: int, seed: int) -> None:
    seen = [shape for shape, _ in flat(scene(crowded(count, seed).charts[0], size).children)]
    dots = [shape for shape in seen if isinstance(shape, Marker) and shape.role in ("measured", "predicted")]
    labels = [shape for shape in seen if isinstance(shape, Text) and shape.role == "ridge-label"]
    assert len(labels) == 2
    for label in labels:
        box = text_box(label, size.font, air=0)
        assert not [dot for dot in dots if box.meets(square((dot.x, dot.y), dot.r))], label.text


@pytest.mark.parametrize("size", SIZES)
def test_points_that_a_picture_cannot_show_are_named_at_every_size(size: Size) -> None:
    chart = replace(example().rooflines[0], level="dram")
    shown = [point for point in chart.points if point.bytes.get("dram") and point.flops]
    lost = [point.number for point in chart.points if point not in shown]
    assert lost
    notes = [shape.text for shape, _ in flat(scene(chart, size).children, "dram") if isinstance(shape, Text) and shape.role == "note"]
    assert f"not shown: {', '.join(map(str, lost))}" in "; ".join(notes)
    assert "beyond the edge: " in "; ".join(notes)


@pytest.mark.parametrize("size", SIZES)
def test_no_marker_lies_on_the_name_of_a_roof(size: Size) -> None:
    """The points of a batch saturation: large markers on the DRAM roof, and many in one place."""
    spots = [(1.0, 3.9e12, 0.4)] + [(1.0, r * 1e12, 0.02) for r in (2.8, 3.2, 3.6)] + [(4.0, 17e12, 0.4), (4.0, 3e12, 0.02)]
    spots += [(63.0, r * 1e12, 0.03) for r in (180, 220, 250, 270)]
    found = [
        RooflinePoint(n, f"kernel {n}", 10**12, {"dram": 1e12 / x}, "bf16", predicted=Interval(1e12 / rate), share=share)
        for n, (x, rate, share) in enumerate(spots, 1)
    ]
    chart = Roofline("t", "h200", "H200", device_ceilings(find_device("nvidia-h200-sxm")), found, level="dram")
    shapes = [shape for shape, _ in flat(scene(chart, size).children, "dram", set(chart.shown_keys()))]
    dots = [square((s.x, s.y), s.r) for s in shapes if isinstance(s, Marker) and s.role == "predicted"]
    labels = [shape for shape in shapes if isinstance(shape, Text) and shape.role == "roof-label"]
    words = {label.text.split()[0] for label in labels}
    assert "DRAM" in words
    assert not words & {"SRAM", "L2"}
    assert [label.text for label in labels if any(b.meets(dot) for b in text_boxes(label, size.font, air=0) for dot in dots)] == []


def test_lines_of_a_grid_are_where_they_were() -> None:
    """Each is written by itself, its end by what changes, to a tenth of a pixel."""
    lines = [((10.04, 20.0), (10.04, 320.26)), ((5.0, 41.7), (405.5, 41.7)), ((5.0, 30.15), (40.55, 300.0))]
    assert Pen(None, 12).draw([Grid("grid", lines)]) == '<path class="grid" d="M10 20V320.3M5 41.7H405.5M5 30.1L40.5 300"/>'
    assert Pen(None, 12).draw([Grid("grid", [])]) == ""


def test_names_of_any_length_stay_in_their_pictures() -> None:
    for chart in long_names().charts:
        for size in (size_of(chart), *SIZES[1:]):
            wrong = every_state(chart, size) if isinstance(chart, Roofline) else problems(scene(chart, size), size.font)
            assert wrong == [], (chart.kind, size)
        assert problems(panel(chart), 13.0) == []
