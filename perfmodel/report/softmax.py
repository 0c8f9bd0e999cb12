"""The report of the variants of softmax: reads per element, bytes, roof, and which one is fastest."""

from __future__ import annotations

from perfmodel.core.hardware import Device
from perfmodel.core.units import format_binary, format_si
from perfmodel.kernels import softmax
from perfmodel.kernels.softmax import Softmax, SoftmaxResult, row_bytes
from perfmodel.report.answer import ROOFS_EVEN, few_blocks, headline, sentence, slow_launches, slow_start
from perfmodel.report.charts.schema import Bar, BarChart, Chart, time_bar, traffic_chart
from perfmodel.report.document import Report
from perfmodel.report.kernel_time import KernelTime
from perfmodel.report.metrics import NO_MATMUL, Metric, as_json, as_table, bound_by
from perfmodel.report.op_common import head, prediction_keys, unknown_rates, with_steps
from perfmodel.report.speedup import Side, faster_sentence, side_clause, verdict_sentence
from perfmodel.timing.explain import explain_time
from perfmodel.timing.predict import Prediction

BRIEF = (
    *("time_s.predicted", "time_s.roofline", "bound", "reads_per_element", "traffic.sram.bytes", "traffic.dram.bytes", "work.sfu"),
    *("row_fits", "memory_bytes"),
)


def report(
    w: Softmax,
    device: Device,
    results: list[SoftmaxResult],
    *,
    prediction: Prediction | None = None,
    explained: bool = False,
    pictures: bool = False,
    measured_s: float | None = None,
) -> Report:
    """``results`` as a Report with data of schema perfmodel.softmax/1. ``prediction``: the time of a kernel asked for."""
    times = [_time(result, w, device) for result in results]
    fitting = [result for result in results if result.row_fits is not False]
    best = fitting[-1]
    time = _time(best, w, device, prediction)
    faster = faster_sentence(times[0].side(), times[len(fitting) - 1].side())
    columns = {variant.name: _metrics(result, w, variant) for variant, result in zip(times, results, strict=True)}
    inputs = {"pass": "forward", "implementation": None}
    data = {
        **head("softmax", {"rows": w.rows, "cols": w.columns, "stored": w.stored, "dtype": w.dtype.name}, device),
        "results": [{"algorithm": name, **inputs, **as_json(metrics)} for name, metrics in columns.items()],
    }
    reasons = [_reasons(w, results, *times)]
    if prediction is not None:
        roof = min(float(result.cost.roofline_s) for result in fitting)
        reasons.insert(0, f"{side_clause(Side('The softmax', roof, time.predicted, by=time.name))}.")
        data["predicted"] = {
            **prediction_keys(prediction),
            "time_s": {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high},
        }
        columns |= {time.name: _metrics(best, w, time)}
    plain = Report(
        f"Softmax: {w.rows} row{'s' * (w.rows > 1)} of {w.columns}, {w.dtype.name} on {device.name}",
        _headline(w, results[-1].row_fits, faster, time),
        [as_table("", columns, without=NO_MATMUL)],
        _notes(w, device, results),
        data,
        charts=_charts(fitting, faster, time) if pictures else [],
        brief=[as_table("", columns, labels=BRIEF)],
        reasons=reasons,
    )
    plain = time.added_to(plain, "The softmax", measured_s)
    if not explained:
        return plain
    steps = {result.variant.name: softmax.explain(result, w, device) for result in results}
    steps[best.variant.name] += explain_time(prediction)
    return with_steps(plain, [(name, {"algorithm": name}, listed) for name, listed in steps.items()])


def _metrics(result: SoftmaxResult, w: Softmax, time: KernelTime) -> list[Metric]:
    counts = time.metrics(extra=0)
    if result.row_fits is False:
        counts = [metric._replace(value=False) if metric.key == "fits" else metric for metric in counts]
    return [
        Metric("reads_per_element", result.variant.reads, "reads per element"),
        Metric("writes_per_element", int(w.stored)),
        *counts,
        Metric("row_fits", None if result.row_fits is None else bool(result.row_fits), "row fits SRAM", "yes or no"),
        Metric("row_bytes", row_bytes(w) if result.variant.row_on_chip else None),
    ]


def _headline(w: Softmax, row_fits: bool | None, faster: str, time: KernelTime) -> list[str]:
    """The headline: which variant is fastest, whether a row fits, time and rate, and what limits it."""
    fits = {None: "may fit SRAM", True: "fits SRAM", False: "does not fit SRAM"}[row_fits]
    unfit = "does not fit; " * (time.device.fits(time.memory) is False)
    first = f"{unfit}{faster.partition(';')[0]}; a row ({format_binary(int(row_bytes(w)), 3)}) {fits}"
    return headline(first, time.rate, time.limit)


def _reasons(w: Softmax, results: list[SoftmaxResult], safe: KernelTime, online: KernelTime, fused: KernelTime) -> str:
    """Sentences on the fused or next best variant against the safe one."""
    if results[-1].row_fits is False:
        row = f"a row takes {format_si(row_bytes(w), 'B')}, more than the SRAM of a block on {safe.device.id}"
        return f"fused does not fit: {row}. online is the next best: {verdict_sentence(safe.side(), online.side())}."
    fewer = f"{safe.cost.sram.total / fused.cost.sram.total:.3g}x fewer bytes through the L2"
    even = ", but as many over DRAM" if safe.cost.dram.total <= (1 + ROOFS_EVEN) * fused.cost.dram.total else ""
    return f"{verdict_sentence(safe.side(), fused.side())}. fused is bound by {bound_by(fused.cost)}; it moves {fewer}{even}."


def _time(result: SoftmaxResult, w: Softmax, device: Device, prediction: Prediction | None = None) -> KernelTime:
    """The time of one variant, with causes outside the roof."""
    if prediction:
        name = prediction.calibration.implementation
        causes = [*slow_start(prediction), *few_blocks(int(w.rows), device)]
    else:
        name = result.variant.name
        causes = slow_launches(1, float(result.cost.roofline_s), device)
        if causes:
            causes += few_blocks(int(w.rows), device)
    return KernelTime(result.cost, device, w.dtype, result.memory_bytes, prediction, name, causes)


def _charts(results: list[SoftmaxResult], faster: str, time: KernelTime) -> list[Chart]:
    """Charts of times at the roof and predicted, and of the bytes that each variant moves."""
    bars = [Bar(result.variant.name, [("roof", float(result.cost.roofline_s))]) for result in results]
    title = "Time of each way at its roof"
    if time.predicted:
        bars.append(time_bar(time.name, float(time.cost.roofline_s), time.predicted))
        title = "Time of each way"
    reads = ", ".join(f"{result.variant.name} {result.variant.reads}x" for result in results)
    return [
        BarChart(title, "s", bars, caption=sentence(faster)),
        traffic_chart([(result.variant.name, result.cost.sram, result.cost.dram) for result in results], f"Reads of an element: {reads}."),
    ]


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
