"""The report of a two-layer MLP: FLOP per layer and pass, kernels, and what the backward pass needs kept."""

from __future__ import annotations

from typing import Any

from perfmodel.core.hardware import Device
from perfmodel.core.roofline import total
from perfmodel.core.units import format_si
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.mlp import SOURCE, Mlp, MlpResult, backward_flops, cached, explain, forward_flops, layer_flops
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import NO_EXPONENTIALS, Metric, as_json, as_rows, as_table, bound_by, of_cost, of_memory
from perfmodel.report.op_common import head, unknown_rates, with_steps

BOTH = "both"


def report(w: Mlp, device: Device, results: list[MlpResult], *, explained: bool = False) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.mlp/1. ``explained``: with every formula."""
    passes = BOTH if len(results) > 1 else results[0].direction
    title = f"MLP {passes}: batch {w.batch}, {w.d_in} -> {w.d_hidden} -> {w.d_out}, {w.dtype.name} on {device.name}"
    notes = [f"{SOURCE}. Tiles re-read operands: see perfmodel matmul.", "Biases are left out; ReLU and its gradient count 1 per element."]
    notes += unknown_rates([result.total for result in results], device)
    plain = Report(title, [_summary(w, results)], _tables(w, device, results), notes, data(w, device, results))
    if not explained:
        return plain
    return with_steps(plain, [(result.direction, {"pass": result.direction}, explain(w, device, result.direction)) for result in results])


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
        **as_json(_metrics(result, device)),
        "kernels": [{"name": kernel.name, **as_json(of_cost(cost))} for kernel, cost in result.kernels],
    }


def _metrics(result: MlpResult, device: Device) -> list[Metric]:
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


KERNELS = {"name": "kernel", "flops": "FLOP", "traffic.sram.bytes": "SRAM traffic", "time_s.roofline": "roofline", "bound": "bound by"}


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
        as_table("", {result.direction: _metrics(result, device) for result in _shown(results)}, without=NO_EXPONENTIALS),
        as_rows("FLOP per layer", [*_layers(w), both]),
        as_rows("kernels", kernels, labels=KERNELS),
        Table("kept from forward to backward", ["tensor", "bytes", "needed by"], cache, "lrl"),
    ]


def _summary(w: Mlp, results: list[MlpResult]) -> str:
    ratio = backward_flops(w) / forward_flops(w)
    why = "each layer has two gradients" if w.input_gradient else "two gradients per layer, but the first needs none of its input"
    bounds = " and ".join(f"{result.direction} is bound by {bound_by(result.total)}" for result in results)
    return f"Backward takes {ratio:.3g}x the FLOP of forward: {why}. {bounds[0].upper()}{bounds[1:]}."
