"""The report of a softmax in its variants: reads per element, bytes, roof, and which way pays."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.hardware import Device
from perfmodel.core.units import format_binary, format_si
from perfmodel.kernels import softmax
from perfmodel.kernels.softmax import Softmax, SoftmaxResult, row_bytes
from perfmodel.report.against import ROOFS_EVEN, Side, against, alone, idle_and_launch, launching
from perfmodel.report.answer import (
    below_roof,
    compared,
    figures,
    limits,
    metered,
    meters_of,
    rate_of,
    sentence,
    starting,
    time_bar,
    too_few,
    unmarked,
)
from perfmodel.report.charts.schema import Bar, BarChart, Chart, Interval
from perfmodel.report.document import Report
from perfmodel.report.metrics import NO_MATMUL, Metric, as_json, as_table, bound_by, of_cost, of_memory, seconds
from perfmodel.report.op_common import guessed, head, note, unknown_rates, whose, with_steps
from perfmodel.timing.explain import explain_time
from perfmodel.timing.predict import Prediction


def report(
    w: Softmax,
    device: Device,
    results: list[SoftmaxResult],
    *,
    prediction: Prediction | None = None,
    explained: bool = False,
    pictures: bool = False,
) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.softmax/1.

    ``prediction``: the time of a kernel that was asked for. ``explained``: with every formula. ``pictures``: with times and bytes.
    """
    title = f"Softmax: {w.rows} rows of {w.columns}, {w.dtype.name} on {device.name}"
    found = {result.variant.name: _softmax_metrics(result, w, device) for result in results}
    same = {"pass": "forward", "implementation": None}
    inputs = {"rows": w.rows, "cols": w.columns, "stored": w.stored, "dtype": w.dtype.name}
    data = {
        **head("softmax", inputs, device),
        "results": [{"algorithm": name, **same, **as_json(metrics)} for name, metrics in found.items()],
    }
    reasons, notes = [_softmax_summary(w, device, results)], _notes(w, device, results)
    if prediction is not None:
        reasons.insert(0, f"{_predicted(results, prediction)}.")
        notes += [note("The softmax", prediction), *guessed([prediction])]
        ends = {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high}
        data["predicted"] = {**whose(prediction), "time_s": ends}
    best, known = _best(results), seconds(prediction)
    notes += below_roof("The softmax", best.cost, known)
    columns = {**found, **({_name(best, prediction): _softmax_metrics(best, w, device, known)} if prediction else {})}
    plain = Report(
        title,
        _verdict(w, device, results, prediction),
        [as_table("", columns, without=NO_MATMUL)],
        notes,
        data,
        charts=_pictures(w, device, results, prediction) if pictures else [],
        meters=unmarked(meters_of(best.cost, known), [] if prediction else _causes(w, device, best, None)),
        metered=metered(known, best.cost, _name(best, prediction)),
        figures=figures(best.cost, known, device, w.dtype, best.memory_bytes),
        brief=[as_table("", columns, labels=BRIEF)],
        reasons=reasons,
    )
    if not explained:
        return plain
    steps = {result.variant.name: softmax.explain(result, w, device) for result in results}
    steps[best.variant.name] += explain_time(prediction)
    return with_steps(plain, [(name, {"algorithm": name}, listed) for name, listed in steps.items()])


BRIEF = (
    *("time_s.predicted", "time_s.roofline", "bound", "reads_per_element", "traffic.sram.bytes", "traffic.dram.bytes", "work.sfu"),
    *("row_fits", "memory_bytes"),
)
"""Keys of the rows that a screen shows."""


def _best(results: list[SoftmaxResult]) -> SoftmaxResult:
    """The one that reads a row least often, of those that run."""
    return next(result for result in reversed(results) if result.row_fits is not False)


def _name(best: SoftmaxResult, prediction: Prediction | None) -> str:
    return prediction.calibration.implementation if prediction else best.variant.name


def _verdict(w: Softmax, device: Device, results: list[SoftmaxResult], prediction: Prediction | None) -> list[str]:
    """Which way is faster, and whether a row fits; time and rate; what limits it."""
    best, known, fused = _best(results), seconds(prediction), results[-1]
    fits = {None: "may fit SRAM", True: "fits SRAM", False: "does not fit SRAM"}[fused.row_fits]
    limit = limits(meters_of(best.cost, known), _causes(w, device, best, prediction), known is None, best.cost.unknown)
    faster = compared(
        Side(results[0].variant.name, float(results[0].cost.roofline_s)), Side(best.variant.name, float(best.cost.roofline_s))
    )
    unfit = "does not fit; " * (device.fits(best.memory_bytes) is False)
    first = sentence(f"{unfit}{faster.partition(';')[0]}; a row ({format_binary(int(row_bytes(w)), 3)}) {fits}")
    return [first, f"{rate_of(best.cost, known, device, w.dtype, best.memory_bytes)}.", f"{limit}."]


def _causes(w: Softmax, device: Device, best: SoftmaxResult, prediction: Prediction | None) -> list[str]:
    """What takes time beside work and traffic."""
    launched = [] if prediction else launching(1, float(best.cost.roofline_s), device)
    return [*starting(prediction), *launched, *(too_few(int(w.rows), device) if prediction or launched else [])]


def _pictures(w: Softmax, device: Device, results: list[SoftmaxResult], prediction: Prediction | None) -> list[Chart]:
    """Times at the roof, and the bytes that each way moves."""
    runs = [result for result in results if result.row_fits is not False]
    times = [Bar(result.variant.name, [("roof", float(result.cost.roofline_s))]) for result in runs]
    if prediction:
        times.append(time_bar(_name(runs[-1], prediction), float(runs[-1].cost.roofline_s), seconds(prediction)))
    moved = [
        Bar(f"{result.variant.name}, {level}", [("read", traffic.read), ("written", traffic.write)])
        for result in runs
        for level, traffic in (("L2", result.cost.sram), ("DRAM", result.cost.dram))
    ]
    faster = sentence(compared(_side(results[0], w, device), _side(_best(results), w, device)))
    counted = ", ".join(f"{result.variant.name} {result.variant.reads}x" for result in runs)
    return [
        BarChart("Time of each way" + ("" if prediction else " at its roof"), "s", times, caption=faster),
        BarChart("Bytes between L2 and multiprocessors, and to DRAM", "B", moved, caption=f"Reads of an element: {counted}."),
    ]


def _softmax_metrics(result: SoftmaxResult, w: Softmax, device: Device, known: Interval | None = None) -> list[Metric]:
    memory = of_memory(result.memory_bytes, device, 0)
    if result.row_fits is False:
        memory = [replace(metric, value=False) if metric.key == "fits" else metric for metric in memory]
    return [
        Metric("reads_per_element", result.variant.reads, "reads per element"),
        Metric("writes_per_element", int(w.stored)),
        *of_cost(result.cost, known),
        *memory,
        Metric("row_fits", None if result.row_fits is None else bool(result.row_fits), "row fits SRAM", "yes or no"),
        Metric("row_bytes", row_bytes(w) if result.variant.row_on_chip else None),
    ]


def _softmax_summary(w: Softmax, device: Device, results: list[SoftmaxResult]) -> str:
    safe, fused = results[0], results[-1]
    if fused.row_fits is False:
        row = f"a row takes {format_si(row_bytes(w), 'B')}, more than the SRAM of a block on {device.id}"
        online = against(_side(safe, w, device), _side(results[1], w, device))
        return f"fused does not fit: {row}. online is the next best: {online}."
    fewer = f"{safe.cost.sram.total / fused.cost.sram.total:.3g}x fewer bytes through the L2"
    even = ", but as many over DRAM" if safe.cost.dram.total <= (1 + ROOFS_EVEN) * fused.cost.dram.total else ""
    both = against(_side(safe, w, device), _side(fused, w, device))
    return f"{both}. fused is bound by {bound_by(fused.cost)}; it moves {fewer}{even}."


def _predicted(results: list[SoftmaxResult], prediction: Prediction) -> str:
    """Beside the lowest roof of the ways that run."""
    roof = min(float(result.cost.roofline_s) for result in results if result.row_fits is not False)
    return alone(Side("The softmax", roof, seconds(prediction), by=prediction.calibration.implementation))


def _side(result: SoftmaxResult, w: Softmax, device: Device) -> Side:
    name, roof = result.variant.name, float(result.cost.roofline_s)
    return Side(name, roof, left_out=tuple(idle_and_launch(name, 1, int(w.rows), roof, device)))


def _notes(w: Softmax, device: Device, results: list[SoftmaxResult]) -> list[str]:
    sram = device.level("sram")
    notes = [f"{softmax.SOURCE}; one thread block per row, passes after the first find the row in the L2 as far as all running rows fit."]
    notes += [f"{r.variant.name}, {r.variant.vector} vector operations per element: {r.variant.operations}." for r in results]
    if sram is not None and sram.per_block is not None:
        notes.append(f"A row takes {format_binary(int(row_bytes(w)))}, a block has {format_binary(int(sram.per_block.number))} of SRAM.")
    else:
        notes.append(f"The profile of {device.id} has no SRAM size per block: whether a row fits is unknown.")
    notes += ["The output is not stored: no write is counted."] * (not w.stored)
    return [*notes, *unknown_rates([result.cost for result in results], device)]
