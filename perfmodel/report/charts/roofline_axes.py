"""The axes of a roofline: from the device's ceilings alone, so that two pictures of one device compare."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfmodel.report.charts.frame import Axis, Plot, Size
from perfmodel.report.charts.schema import COMPUTE, MEASURED, MEMORY, Ceiling, Roofline

LEAST_INTENSITY = 0.1
"""FLOP/B at the left edge of every roofline: an elementwise kernel of fp32 does 1 FLOP per 8 B, a decode step of bf16 about 1."""
_STEPS = (1, 2, 5, 10)


def compute_ceilings(chart: Roofline) -> list[Ceiling]:
    """Roofs in FLOP/s, the highest first."""
    return sorted((c for c in chart.ceilings if c.kind == COMPUTE), key=lambda c: -c.value)


def memory_ceilings(chart: Roofline, level: str) -> list[Ceiling]:
    """Roofs in B/s of ``level``, the highest first: an axis of its bytes carries no other level's."""
    return sorted((c for c in chart.ceilings if c.kind == MEMORY and c.level == level), key=lambda c: -c.value)


def level_ceiling(chart: Roofline, level: str) -> Ceiling | None:
    """The roof of ``level``: its datasheet's where there is one, else what was measured."""
    found = [c for c in chart.ceilings if c.kind == MEMORY and c.level == level]
    return min(found, key=lambda c: c.evidence == MEASURED, default=None)


def limits(ceilings: Sequence[Ceiling]) -> tuple[float, float, float, float]:
    """Least and largest intensity in FLOP/B, least and largest rate in FLOP/s."""
    peaks = [c.value for c in ceilings if c.kind == COMPUTE] or [1e12]
    widths = [c.value for c in ceilings if c.kind == MEMORY] or [1e12]
    slowest, highest = min(widths), max(peaks)
    most = 10.0 ** math.ceil(math.log10(10 * highest / slowest))
    return LEAST_INTENSITY, most, _round(slowest * LEAST_INTENSITY / 10, up=False), _round(4 * highest, up=True)


def _round(value: float, up: bool) -> float:
    """To 1, 2 or 5 times a power of ten."""
    magnitude = 10.0 ** math.floor(math.log10(value))
    steps = [step * magnitude for step in _STEPS]
    return min(step for step in steps if step >= value) if up else max(step for step in steps if step <= value)


def plot_of(chart: Roofline, size: Size, top: float, rows: int = 0) -> Plot:
    """The plot of ``chart`` below ``top``, with ``rows`` lines of words below its axis."""
    least, most, slowest, fastest = limits(chart.ceilings)
    left, right = size.font * 4.2, size.width - size.font * 1.8
    return Plot(Axis(least, most, left, right), Axis(slowest, fastest, size.height - size.font * (3.4 + 1.4 * rows), top))


def key(unit: str, dtype: str) -> str:
    """What a selector calls a compute roof and the points under it, such as ``tensor bf16``."""
    return f"{unit} {dtype}".strip()


def keys_of(chart: Roofline) -> list[str]:
    """Units with their dtypes that have a roof or a point, by falling peak."""
    roofs = [key(c.unit, c.dtype) for c in compute_ceilings(chart)]
    return list(dict.fromkeys([*roofs, *(key(point.unit, point.dtype) for point in chart.points)]))


def shown_keys(chart: Roofline) -> list[str]:
    """Those shown first: of the dtypes asked for, else the points', and the fp32 vector unit, where softmax and reductions run."""
    if chart.dtypes:
        return [known for known in keys_of(chart) if known.split()[-1] in chart.dtypes]
    wanted = {key(point.unit, point.dtype) for point in chart.points} | {"vector fp32"}
    return [known for known in keys_of(chart) if known in wanted] or keys_of(chart)[:1]


def levels_of(chart: Roofline) -> list[str]:
    """Levels at which any point has bytes, from DRAM inwards; where there is no point, those that have a roof."""
    order = ("dram", "llc", "l2", "sram")
    known = {level for point in chart.points for level, moved in point.bytes.items() if moved}
    roofs = set() if chart.points else {c.level for c in chart.ceilings}
    return [level for level in order if level in (known or roofs)] or [chart.level]


def first_level(chart: Roofline) -> str:
    """The level that a picture opens at."""
    known = levels_of(chart)
    return chart.level if chart.level in known else known[0]
