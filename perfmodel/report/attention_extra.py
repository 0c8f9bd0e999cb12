"""What an attention report can have besides: formulas, crossovers, a comparison of SRAM sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.units import format_binary, format_si, format_time
from perfmodel.kernels.attention.crossover import crossovers
from perfmodel.kernels.attention.evaluate import BOTH
from perfmodel.kernels.attention.explain import explain
from perfmodel.kernels.attention.request import Comparison
from perfmodel.kernels.attention.sram_sweep import sram_sweep
from perfmodel.report.document import Report, Table
from perfmodel.report.steps import Sources, steps_data, steps_table
from perfmodel.timing.select_kernel import Predictions


def with_sram_sweep(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and what each SRAM size buys."""
    points = sram_sweep(comparison)
    rows, objects = [], []
    for point in points:
        result = point.result
        first = next(p.result for p in points if p.algorithm is point.algorithm)
        name, size = point.algorithm.name, format_binary(point.sram_bytes)
        fields: dict[str, Any] = {
            "algorithm": name,
            "sram_bytes": point.sram_bytes,
            "tile": None,
            "accesses_bytes": None,
            "roofline_s": None,
        }
        cells = [name, size, "no tile fits", "-", "-", "-"]
        if result is not None and result.tile is not None:
            moved = result.total.access_bytes
            saved = 0.0 if first is None else 1 - moved / first.total.access_bytes
            tile = f"{result.tile.br} x {result.tile.bc}"
            cells = [name, size, tile, format_si(moved, "B"), f"{saved:+.1%}", format_time(result.total.roofline_s)]
            fields |= {"tile": {"br": result.tile.br, "bc": result.tile.bc}, "accesses_bytes": moved, "roofline_s": result.total.roofline_s}
        rows.append(cells)
        objects.append(fields)
    columns = ["algorithm", "SRAM M", "tile that moves least", "accesses", "saved", "roofline"]
    table = Table("what SRAM buys, forward", columns, rows, "lrrrrr")
    return replace(plain, tables=[*plain.tables, table], data={**plain.data, "sram_sweep": objects})


def with_crossovers(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and the sizes at which tiling stops paying."""
    rows, objects = [], []
    for border in crossovers(comparison):
        law = f"{border.last_d_by_law:.1f}, {border.law}" if border.law and border.last_d_by_law else ""
        sizes = {"first_n": border.first_n, "last_d": border.last_d, "first_sram_bytes": border.first_sram_bytes}
        smallest = "-" if border.first_sram_bytes is None else f"{border.first_sram_bytes:,} B"
        here = "yes" if border.wins_here else "no"
        rows.append([border.algorithm.name, border.measure, here, _border(border.first_n), _border(border.last_d), smallest, law])
        names = {"algorithm": border.algorithm.name, "measure": border.measure, "wins_here": border.wins_here}
        objects.append({**names, **sizes, "law": border.law, "last_d_by_law": border.last_d_by_law})
    columns = ["algorithm", "by", "less here", "from N", "up to d", "from M", "leading terms: up to d"]
    table = Table("where tiling stops paying, forward, the other sizes held", columns, rows, "lllrrrl")
    return replace(plain, tables=[*plain.tables, table], data={**plain.data, "crossover": objects})


def _border(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def with_pictures(plain: Report, comparison: Comparison, predictions: Predictions) -> Report:
    """``plain`` with the roofline of its results and the bytes that each moves, read and written, at both levels."""
    from perfmodel.report.charts.schema import Bar, BarChart
    from perfmodel.report.roofline_chart import point, roofline

    dtype, device, shown = comparison.workload.dtype, comparison.device, comparison.shown()
    points, bars = [], []
    for number, result in enumerate(shown, 1):
        name, cost = result.algorithm.name, result.total
        known = predictions.get((name, result.direction))
        points.append(point(number, name, cost, device, dtype.name, dtype.matmul_unit, known, group=name))
        for level, traffic in (("SRAM", cost.sram), ("DRAM", cost.dram)):
            bars.append(Bar(f"{name}, {level}", [("read", traffic.read), ("written", traffic.write)]))
    return replace(plain, charts=[roofline(device, points), BarChart("Bytes across the SRAM boundary and to DRAM", "B", bars)])


def with_formulas(plain: Report, comparison: Comparison) -> Report:
    """``plain`` and every number of every pass as its formula, with its source."""
    sources, tables, objects = Sources(), list(plain.tables), []
    for result in comparison.results:
        if result.direction != BOTH:  # the sum of two passes needs no formula of its own
            steps = explain(result, comparison.workload, comparison.device, comparison.sram_bytes)
            algorithm = result.algorithm
            title = f"{algorithm.name} {result.direction}: {algorithm.title}; accesses grow as Theta({algorithm.io_class})"
            tables.append(steps_table(title, steps, sources))
            objects.append({"algorithm": algorithm.name, "pass": result.direction, "steps": steps_data(steps)})
    vector = [
        f"{a.name}, vector operations: {a.vector_work}." for a in {r.algorithm.name: r.algorithm for r in comparison.results}.values()
    ]
    summed = ["Forward + backward: each number is the sum of the two passes."] if comparison.direction == BOTH else []
    notes = [*plain.notes, *summed, *vector, *sources.notes()]
    return replace(plain, tables=tables, notes=notes, data={**plain.data, "explanation": objects})
