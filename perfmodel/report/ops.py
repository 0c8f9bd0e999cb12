"""Reports of softmax, of a multi-layer perceptron and of recomputing a tensor: counts, bound, roof, and what pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.hardware import Device
from perfmodel.core.roofline import total
from perfmodel.core.units import format_binary, format_si, format_time
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels import mlp, recompute, softmax
from perfmodel.kernels.mlp import Mlp, MlpResult, backward_flops, cached, forward_flops, layer_flops
from perfmodel.kernels.recompute import Level, RecomputeResult, stored_bytes
from perfmodel.kernels.softmax import Softmax, SoftmaxResult, row_bytes
from perfmodel.report.against import ROOFS_EVEN, Side, against, alone, idle_and_launch
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import NO_EXPONENTIALS, NO_MATMUL, Metric, as_json, as_rows, as_table, bound_by, of_cost, of_memory, seconds
from perfmodel.report.op_common import head, note, unknown_rates, whose, with_steps
from perfmodel.timing.predict import Prediction


def softmax_report(
    w: Softmax, device: Device, results: list[SoftmaxResult], *, prediction: Prediction | None = None, explained: bool = False
) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.softmax/1.

    ``prediction``: the time of a kernel that was asked for. ``explained``: with every formula.
    """
    title = f"Softmax: {w.rows} rows of {w.columns}, {w.dtype.name} on {device.name}"
    found = {result.variant.name: _softmax_metrics(result, w, device) for result in results}
    same = {"pass": "forward", "implementation": None}
    inputs = {"rows": w.rows, "cols": w.columns, "stored": w.stored, "dtype": w.dtype.name}
    data = {
        **head("softmax", inputs, device),
        "results": [{"algorithm": name, **same, **as_json(metrics)} for name, metrics in found.items()],
    }
    summary, notes = [_softmax_summary(w, device, results)], _notes(w, device, results)
    if prediction is not None:
        summary.insert(0, f"{_predicted(results, prediction)}.")
        notes.append(note("The softmax", prediction))
        ends = {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high}
        data["predicted"] = {**whose(prediction), "time_s": ends}
    plain = Report(title, summary, [as_table("", found, without=NO_MATMUL)], notes, data)
    if not explained:
        return plain
    return with_steps(
        plain, [(result.variant.name, {"algorithm": result.variant.name}, softmax.explain(result, w, device)) for result in results]
    )


def _softmax_metrics(result: SoftmaxResult, w: Softmax, device: Device) -> list[Metric]:
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


BOTH = "both"


def mlp_report(w: Mlp, device: Device, results: list[MlpResult], *, explained: bool = False) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.mlp/1. ``explained``: with every formula."""
    passes = BOTH if len(results) > 1 else results[0].direction
    title = f"MLP {passes}: batch {w.batch}, {w.d_in} -> {w.d_hidden} -> {w.d_out}, {w.dtype.name} on {device.name}"
    notes = [
        f"{mlp.SOURCE}. Tiles re-read operands: see perfmodel matmul.",
        "Biases are left out; ReLU and its gradient count 1 per element.",
    ]
    notes += unknown_rates([result.total for result in results], device)
    plain = Report(title, [_mlp_summary(w, results)], _tables(w, device, results), notes, data(w, device, results))
    if not explained:
        return plain
    return with_steps(
        plain, [(result.direction, {"pass": result.direction}, mlp.explain(w, device, result.direction)) for result in results]
    )


def data(w: Mlp, device: Device, results: list[MlpResult]) -> dict[str, Any]:
    """The object of schema perfmodel.mlp/1."""
    sizes = {name: getattr(w, name) for name in ("batch", "d_in", "d_hidden", "d_out", "input_gradient")}
    kept = cached(w)
    return {
        **head("mlp", {**sizes, "dtype": w.dtype.name, "pass": BOTH if len(results) > 1 else results[0].direction}, device),
        "results": [_entry(result, device) for result in _shown(results)],
        "layers": [as_json(layer) for layer in _layers(w)],
        "cached_bytes": {"x": kept.x, "a1": kept.a1, "total": kept.total, "relu_sign_bits": kept.sign_bits},
    }


def _shown(results: list[MlpResult]) -> list[MlpResult]:
    """Forward and backward also as one: everything added up, but for the memory, which is the larger one's."""
    if len(results) < 2:
        return results
    kernels = [kernel for result in results for kernel in result.kernels]
    largest = max(result.memory_bytes for result in results)
    return [*results, MlpResult(BOTH, kernels, total(result.total for result in results), largest)]


def _entry(result: MlpResult, device: Device) -> dict[str, Any]:
    return {
        **{"algorithm": "unfused", "pass": result.direction, "implementation": None},
        **as_json(_mlp_metrics(result, device)),
        "kernels": [{"name": kernel.name, **as_json(of_cost(cost))} for kernel, cost in result.kernels],
    }


def _mlp_metrics(result: MlpResult, device: Device) -> list[Metric]:
    return [*of_cost(result.total), *of_memory(result.memory_bytes, device)]


def _layers(w: Mlp) -> list[list[Metric]]:
    """Each layer: the FLOP of one of its matmuls, and of the gradients that its backward pass computes."""
    first, second = layer_flops(w.batch, w.d_in, w.d_hidden), layer_flops(w.batch, w.d_hidden, w.d_out)
    return [_layer("x W1", first, 2 if w.input_gradient else 1), _layer("a1 W2", second, 2)]


def _layer(name: str, forward: int, gradients: int) -> list[Metric]:
    return [
        Metric("name", name, "layer", "text"),
        Metric("forward_flops", forward, FORWARD, "FLOP"),
        Metric("backward_flops", gradients * forward, BACKWARD, "FLOP"),
        Metric("gradients", gradients),
    ]


KERNELS = {"name": "kernel", "flops": "FLOP", "traffic.sram.bytes": "L2 traffic", "time_s.roofline": "roofline", "bound": "bound by"}


def _tables(w: Mlp, device: Device, results: list[MlpResult]) -> list[Table]:
    both = [Metric("", "both", "layer"), Metric("", forward_flops(w), FORWARD, "FLOP"), Metric("", backward_flops(w), BACKWARD, "FLOP")]
    kernels = [[Metric("name", kernel.name), *of_cost(cost)] for result in results for kernel, cost in result.kernels]
    kept = cached(w)
    cache = [
        ["x", format_si(kept.x, "B"), "dW1"],
        ["a1", format_si(kept.a1, "B"), "dW2, and a1 > 0 for the ReLU"],
        ["ReLU bits, in place of a1 > 0", format_si(kept.sign_bits, "B"), "one bit per element"],
    ]
    return [
        as_table("", {result.direction: _mlp_metrics(result, device) for result in _shown(results)}, without=NO_EXPONENTIALS),
        as_rows("FLOP per layer", [*_layers(w), both]),
        as_rows("kernels", kernels, labels=KERNELS),
        Table("kept from forward to backward", ["tensor", "bytes", "needed by"], cache, "lrl"),
    ]


def _mlp_summary(w: Mlp, results: list[MlpResult]) -> str:
    ratio = backward_flops(w) / forward_flops(w)
    why = "each layer has two gradients" if w.input_gradient else "two gradients per layer, but the first needs none of its input"
    bounds = " and ".join(f"{result.direction} is bound by {bound_by(result.total)}" for result in results)
    return f"Backward takes {ratio:.3g}x the FLOP of forward: {why}. {bounds[0].upper()}{bounds[1:]}."


COLUMNS = {"choice": "", "recompute_s": "time", "store_s": "time", "break_even_flop_per_byte": "recompute below", "fits": "fits"}


def recompute_report(result: RecomputeResult, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.recompute/1. ``explained``: with every formula."""
    w, device = result.workload, result.device
    uses = f"{w.times} uses" if w.times > 1 else "one use"
    title = f"Store or recompute: {format_si(w.size, 'B')}, {format_si(w.flops, 'FLOP')}, {uses}, {w.dtype.name} on {device.name}"
    recomputed = [Metric("", "recompute", "choice", "text"), Metric("recompute_s", result.recompute_s, unit="s")]
    levels = {level.name: _level(level) for level in result.levels}
    entry = {
        "verdict": "recompute" if result.recomputes else "store",
        "flop_per_byte": result.intensity,
        "stored_bytes": stored_bytes(w),
        **as_json(recomputed),
        "unit": w.dtype.matmul_unit,
        "against": result.best.name,
        "levels": {name: as_json(level) for name, level in levels.items()},
    }
    inputs = {"bytes": w.size, "flops": w.flops, "times": w.times, "dtype": w.dtype.name}
    data = {**head("recompute", inputs, device), "results": [entry]}
    unit = f"Recomputing runs on the {w.dtype.matmul_unit} unit at {format_si(result.peak, 'FLOP/s')} of {w.dtype.name}"
    notes = [f"{recompute.SOURCE}.", f"{unit}; its inputs are at hand."]
    if any(level.store_s is None for level in result.levels):
        notes.append(f"The profile of {device.id} has no L2 bandwidth: the L2 has no time.")
    plain = Report(title, [_recompute_summary(result)], [as_rows("", [recomputed, *levels.values()], labels=COLUMNS)], notes, data)
    return with_steps(plain, [("every number", {}, recompute.explain(result))]) if explained else plain


def _level(level: Level) -> list[Metric]:
    return [
        Metric("", f"store in {level.name.upper()}", "choice", "text"),
        Metric("store_s", level.store_s, unit="s"),
        Metric("break_even_flop_per_byte", level.break_even, unit="FLOP/B"),
        Metric("fits", level.fits, unit="yes or no"),
    ]


def _recompute_summary(result: RecomputeResult) -> str:
    if result.levels[0].fits is False:
        return f"Recompute it, {format_time(result.recompute_s)}: the tensor does not fit the DRAM."
    best = result.best
    even = ""
    if best.break_even is not None:
        side, where = "below" if result.recomputes else "not below", {"dram": "DRAM", "l2": "the L2"}[best.name]
        even = f": {result.intensity:.4g} FLOP/B is {side} the break-even of {best.break_even:.4g} in {where}"
    sides = [Side("storing", best.store_s or 0.0), Side("recomputing", result.recompute_s)]
    one, other = sides if result.recomputes else sides[::-1]
    return f"{'Recompute' if result.recomputes else 'Store'} it{even}. {against(one, other)}."
