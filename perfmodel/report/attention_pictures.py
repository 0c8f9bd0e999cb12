"""The pictures of an attention report: times beside roofs, the roofline, and the bytes that each algorithm moves."""

from __future__ import annotations

from perfmodel.kernels.attention.request import Comparison
from perfmodel.report.answer import compared, sentence, time_bar
from perfmodel.report.attention_verdict import main_result, moved, side
from perfmodel.report.charts.schema import Bar, BarChart, Chart
from perfmodel.report.energy_chart import energy_roofline
from perfmodel.report.metrics import BOUND_WORDS, outside, seconds
from perfmodel.report.roofline_chart import point, roofline
from perfmodel.timing.select_kernel import Predictions


def pictures(comparison: Comparison, predictions: Predictions) -> list[Chart]:
    """Each says in its caption what is seen in it."""
    dtype, device, shown = comparison.workload.dtype, comparison.device, comparison.shown()
    main, reference = main_result(comparison, predictions), comparison.standard(comparison.direction)
    points, times, bars = [], [], []
    for number, result in enumerate(shown, 1):
        name, cost = result.algorithm.name, result.total
        known = predictions.get((name, result.direction))
        points.append(point(number, name, cost, device, dtype.name, dtype.matmul_unit, known, group=name))
        times.append(time_bar(name, float(cost.roofline_s), seconds(known)))
        for level, traffic in ((outside(device), cost.sram), ("DRAM", cost.dram)):
            bars.append(Bar(f"{name}, {level}", [("read", traffic.read), ("written", traffic.write)]))
    faster = fewer = ""
    if reference is not None and reference is not main:
        faster = sentence(compared(side(reference, comparison, predictions), side(main, comparison, predictions)))
        fewer = sentence(f"{main.algorithm.name} moves {moved(reference, main)} than standard")
    waiting: dict[str, list[str]] = {}
    for result in shown:
        waiting.setdefault(BOUND_WORDS.get(result.total.bound or "", "nothing known"), []).append(result.algorithm.name)
    bound = "; ".join(f"{', '.join(names)} by {resource}" for resource, names in waiting.items())
    energies = [(one.algorithm.name, one.total, predictions.get((one.algorithm.name, one.direction))) for one in shown]
    return [
        BarChart("Predicted time of each algorithm, and how much of it is its roof", "s", times, caption=faster),
        roofline(device, points, caption=f"Bound at the roof: {bound}."),
        BarChart(f"Bytes between {outside(device)} and multiprocessors, and to DRAM", "B", bars, caption=fewer),
        *energy_roofline(device, dtype, energies),
    ]
