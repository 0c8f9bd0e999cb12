"""The report of a softmax: three ways side by side."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.hardware import Device
from perfmodel.core.units import format_binary, format_si
from perfmodel.kernels.softmax import SOURCE, Softmax, SoftmaxResult, explain, row_bytes
from perfmodel.report.against import ROOFS_EVEN, Side, against, alone, idle_and_launch
from perfmodel.report.document import Report
from perfmodel.report.metrics import NO_MATMUL, Metric, as_json, as_table, bound_by, of_cost, of_memory, seconds
from perfmodel.report.op_common import head, note, unknown_rates, whose, with_steps
from perfmodel.timing.predict import Prediction


def report(
    w: Softmax, device: Device, results: list[SoftmaxResult], *, prediction: Prediction | None = None, explained: bool = False
) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.softmax/1.

    ``prediction``: the time of a kernel that was asked for. ``explained``: with every formula.
    """
    title = f"Softmax: {w.rows} rows of {w.columns}, {w.dtype.name} on {device.name}"
    found = {result.variant.name: _metrics(result, w, device) for result in results}
    same = {"pass": "forward", "implementation": None}
    inputs = {"rows": w.rows, "cols": w.columns, "stored": w.stored, "dtype": w.dtype.name}
    data = {
        **head("softmax", inputs, device),
        "results": [{"algorithm": name, **same, **as_json(metrics)} for name, metrics in found.items()],
    }
    summary, notes = [_summary(w, device, results)], _notes(w, device, results)
    if prediction is not None:
        summary.insert(0, f"{_predicted(results, prediction)}.")
        notes.append(note("The softmax", prediction))
        ends = {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high}
        data["predicted"] = {**whose(prediction), "time_s": ends}
    plain = Report(title, summary, [as_table("", found, without=NO_MATMUL)], notes, data)
    if not explained:
        return plain
    return with_steps(plain, [(result.variant.name, {"algorithm": result.variant.name}, explain(result, w, device)) for result in results])


def _metrics(result: SoftmaxResult, w: Softmax, device: Device) -> list[Metric]:
    memory = of_memory(result.memory_bytes, device, 0)
    if result.row_fits is False:
        memory = [replace(metric, value=False) if metric.key == "fits" else metric for metric in memory]
    return [
        Metric("reads_per_element", result.variant.reads, "reads per element"),
        Metric("writes_per_element", int(w.stored)),
        *of_cost(result.cost),
        *memory,
        Metric("row_fits", None if result.row_fits is None else bool(result.row_fits), "row fits SRAM", "yes or no"),
        Metric("row_bytes", row_bytes(w) if result.variant.row_on_chip else None),
    ]


def _summary(w: Softmax, device: Device, results: list[SoftmaxResult]) -> str:
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
    notes = [f"{SOURCE}; one thread block per row, passes after the first find the row in the L2 as far as all running rows fit."]
    notes += [f"{r.variant.name}, {r.variant.vector} vector operations per element: {r.variant.operations}." for r in results]
    if sram is not None and sram.per_block is not None:
        notes.append(f"A row takes {format_binary(int(row_bytes(w)))}, a block has {format_binary(int(sram.per_block.number))} of SRAM.")
    else:
        notes.append(f"The profile of {device.id} has no SRAM size per block: whether a row fits is unknown.")
    notes += ["The output is not stored: no write is counted."] * (not w.stored)
    return [*notes, *unknown_rates([result.cost for result in results], device)]
