"""Pictures in plain text, for terminals and comments: the same axes, on a grid of characters."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.core.units import format_si
from perfmodel.report.charts.cells import text
from perfmodel.report.charts.frame import Plot
from perfmodel.report.charts.kinds import LEVELS, MEASURED, BarChart, Chart, LineChart, Roofline, ScatterChart
from perfmodel.report.charts.line import axes_text, axis_ends
from perfmodel.report.charts.roofline_axes import compute_ceilings, first_level, level_ceiling, limits, shown_keys
from perfmodel.report.charts.roofline_points import AT_ROOFS, above, absent, as_drawn, at_roofs, placeable, spot, time_of
from perfmodel.report.charts.roofline_roofs import merged
from perfmodel.report.charts.scale import Axis, fitted, tick_text

WIDTH, HEIGHT = 72, 20
MARKS = "abcdefghijklmnopqrstuvwxyz"
FILLS = "#=+-:.*o"


@dataclass(slots=True)
class Grid:
    """Characters in rows, the upper left one at (0, 0)."""

    width: int
    height: int
    rows: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [[" "] * self.width for _ in range(self.height)]

    def put(self, x: float, y: float, words: str, over: str = " ", apart: bool = False) -> bool:
        """``words`` from (x, y) on; False, and nothing written, where something other than ``over`` or a space stands.

        ``apart``: nor where a digit or a letter stands beside them.
        """
        column, row = round(x), round(y)
        if not (0 <= row < self.height and column >= 0 and column + len(words) <= self.width):
            return False
        if any(self.rows[row][column + place] not in f" {over}" for place in range(len(words))):
            return False
        if apart and any(0 <= side < self.width and self.rows[row][side].isalnum() for side in (column - 1, column + len(words))):
            return False
        self.rows[row][column : column + len(words)] = words
        return True


def plot(chart: Chart, width: int = WIDTH) -> str:
    """``chart`` in text of at most ``width`` columns."""
    if isinstance(chart, Roofline):
        return _roofline(chart, width)
    if isinstance(chart, BarChart):
        return _bars(chart, width)
    return _lines(chart, width) if isinstance(chart, LineChart) else _scatter(chart, width)


def _framed(grid: Grid, y_labels: dict[int, str], x_labels: dict[int, str], foot: str) -> list[str]:
    """The grid with its axes."""
    room = max(map(len, y_labels.values()), default=0)
    lines = [f"{y_labels.get(row, ''):>{room}} |{''.join(cells).rstrip()}" for row, cells in enumerate(grid.rows)]
    lines.append(" " * room + " +" + "-" * grid.width)
    ticks = [" "] * grid.width
    for column, words in sorted(x_labels.items()):
        start = min(max(0, column - len(words) // 2), grid.width - len(words))
        if all(character == " " for character in ticks[max(0, start - 1) : start + len(words) + 1]):
            ticks[start : start + len(words)] = words
    return [*lines, " " * (room + 2) + "".join(ticks).rstrip(), " " * (room + 2) + foot]


def _labels(axis: Axis, room: float, unit: str) -> dict[int, str]:
    return {round(axis.at(value)): tick_text(value, unit) for value in axis.ticks(room)}


def _roofline(chart: Roofline, width: int) -> str:
    chart = as_drawn(chart)
    least, most, slowest, fastest = limits(chart.ceilings)
    grid = Grid(width - 8, HEIGHT)
    plot = Plot(Axis(least, most, 0, grid.width - 1), Axis(slowest, fastest, HEIGHT - 1, 0))
    level, keys = first_level(chart), shown_keys(chart)
    memory = level_ceiling(chart, level)
    shown = [c for c, own in merged(compute_ceilings(chart), keys) if own[0] in keys and c.evidence != MEASURED]
    top = max((c.value for c in shown), default=fastest)
    for column in range(grid.width):
        x = least * (most / least) ** (column / (grid.width - 1))
        if memory is not None and x * memory.value <= top:
            grid.put(column, plot.y.at(plot.y.clamped(x * memory.value)), "/")
        for ceiling in shown:
            if memory is None or x * memory.value >= ceiling.value:
                grid.put(column, plot.y.at(ceiling.value), "-")
    for ceiling in sorted(shown, key=lambda c: -c.value):
        words = f" {ceiling.name} {format_si(ceiling.value, 'FLOP/s', 3)} "
        any(grid.put(grid.width - len(words) - 1, plot.y.at(ceiling.value) + step, words, "-") for step in (0, -1, 1))
    hidden = [point.number for point in absent(chart, level)]
    for point in placeable(chart, level):
        x, y = spot(point, time_of(point) or 1.0, level, plot)
        words = str(point.number)
        places = [(x + dx, y + dy) for dy in (0, -1, 1) for dx in (0, 1, -len(words), 2)]
        if not any(grid.put(*place, words, "-/", apart=True) for place in places):
            hidden.append(point.number)
    name = LEVELS.get(level, level)
    slope = f"; / {name} {format_si(memory.value, 'B/s', 3)}" if memory else ""
    lines = ["FLOP/s", *_framed(grid, _labels(plot.y, 3, "FLOP/s"), _labels(plot.x, 8, "FLOP/B"), f"FLOP per byte of {name}{slope}")]
    if hidden:
        lines.append(f"no room for, or no place at {name}: {', '.join(map(str, sorted(hidden)))}")
    over = [str(point.number) for point in above(chart, level)]
    lines += [f"ABOVE THE ROOF: {', '.join(over)}"] * bool(over) + [AT_ROOFS] * at_roofs(chart)
    return "\n".join(lines)


def _lines(chart: LineChart, width: int) -> str:
    x_ends, y_ends = axis_ends(chart)
    grid = Grid(width - 12, 16)
    x = Axis(*x_ends, 0, grid.width - 1, chart.x_scale)
    y = Axis(*y_ends, grid.height - 1, 0, chart.y_scale)
    for mark, series in zip(MARKS, chart.series, strict=False):
        for one, other in series.points:
            grid.put(x.at(x.clamped(one)), y.at(y.clamped(other)), mark)
    write = axes_text(chart)
    values = sorted({one for series in chart.series for one, _ in series.points})
    lines = [
        chart.y_label,
        *_framed(grid, _labels(y, 3, chart.y_unit), {round(x.at(x.clamped(value))): write(value) for value in values}, chart.x_label),
    ]
    lines += [f"{mark}: {series.name}" for mark, series in zip(MARKS, chart.series, strict=False)]
    lines += [f"{mark.words}: {chart.x_label} {write(mark.x)}" for mark in chart.marks]
    return "\n".join(lines)


def _bars(chart: BarChart, width: int) -> str:
    parts = list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.segments))
    totals = [sum(value for _, value in bar.segments) for bar in chart.bars]
    names = [bar.name if len(bar.name) <= width // 2 else bar.name[: width // 2 - 1] + "…" for bar in chart.bars]
    room = max(map(len, names), default=0)
    wide = max(10, width - room - 14)
    most = max(totals, default=1) or 1
    lines = []
    for name, bar, total in zip(names, chart.bars, totals, strict=True):
        drawn = "".join(FILLS[parts.index(part) % len(FILLS)] * round(value / most * wide) for part, value in bar.segments)
        lines.append(f"{name:>{room}} |{drawn} {text(total, chart.unit)}")
    lines.append(", ".join(f"{FILLS[place % len(FILLS)]} {name}" for place, name in enumerate(parts)))
    return "\n".join([*lines, *(f"{limit.label}: {text(limit.value, chart.unit)}" for limit in chart.limits)])


def _scatter(chart: ScatterChart, width: int) -> str:
    ends = fitted([value for pair in chart.pairs for value in (pair.measured, pair.predicted)], "log")
    grid = Grid(width - 12, HEIGHT)
    x, y = Axis(*ends, 0, grid.width - 1), Axis(*ends, grid.height - 1, 0)
    groups = list(dict.fromkeys(pair.group for pair in chart.pairs))
    for pair in chart.pairs:
        grid.put(x.at(pair.measured), y.at(pair.predicted), MARKS[groups.index(pair.group) % len(MARKS)])
    for column in range(grid.width):
        grid.put(column, (grid.height - 1) * (1 - column / (grid.width - 1)), ".")
    lines = ["predicted", *_framed(grid, _labels(y, 3, chart.unit), _labels(x, 9, chart.unit), "measured; . is no error")]
    return "\n".join([*lines, *(f"{mark}: {group}" for mark, group in zip(MARKS, groups, strict=False) if group)])
