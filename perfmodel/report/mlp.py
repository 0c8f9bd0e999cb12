"""The report of a two-layer MLP: FLOP per layer and pass, kernels, and what the backward pass needs kept."""

from __future__ import annotations

from typing import Any

from perfmodel.core.hardware import Device
from perfmodel.core.roofline import total
from perfmodel.core.units import format_si, format_time
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.mlp import SOURCE, Mlp, Result, backward_flops, cached, explain, forward_flops, layer_flops
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import NO_EXPONENTIALS, Metric, as_json, as_table, bound_by, of_cost, of_memory
from perfmodel.report.op_common import head, unknown_rates, with_steps

BOTH = "both"


def report(w: Mlp, device: Device, results: list[Result], *, explained: bool = False) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.mlp/1. ``explained``: with every formula."""
    passes = BOTH if len(results) > 1 else results[0].direction
    title = f"MLP {passes}: batch {w.batch}, {w.d_in} -> {w.d_hidden} -> {w.d_out}, {w.dtype.name} on {device.name}"
    plain = Report(title, _verdict(w, results), _tables(w, device, results), _notes(device, results), data(w, device, results))
    if not explained:
        return plain
    return with_steps(plain, [(result.direction, {"pass": result.direction}, explain(w, device, result.direction)) for result in results])


# The JSON object


def data(w: Mlp, device: Device, results: list[Result]) -> dict[str, Any]:
    """The object of schema perfmodel.mlp/1."""
    sizes = {name: getattr(w, name) for name in ("batch", "d_in", "d_hidden", "d_out", "input_gradient")}
    inputs = {**sizes, "dtype": w.dtype.name, "pass": BOTH if len(results) > 1 else results[0].direction}
    entries = [_entry(result, device) for result in results]
    if len(results) > 1:
        entries.append(_entry(together(results), device))
    kept = cached(w)
    return {
        **head("mlp", inputs, device),
        "results": entries,
        "layers": [_layer(name, forward, gradients) for name, forward, gradients in layers(w)],
        "cached_bytes": {"x": kept.x, "a1": kept.a1, "total": kept.total, "relu_sign_bits": kept.sign_bits},
    }


def together(results: list[Result]) -> Result:
    """Forward and backward as one: everything added up, but for the memory, which is the larger one's."""
    kernels = [kernel for result in results for kernel in result.kernels]
    return Result(BOTH, kernels, total(result.total for result in results), max(result.memory_bytes for result in results))


def layers(w: Mlp) -> list[tuple[str, int, int]]:
    """Each layer: its name, the FLOP of one of its matmuls, and the gradients that its backward pass computes."""
    first, second = layer_flops(w.batch, w.d_in, w.d_hidden), layer_flops(w.batch, w.d_hidden, w.d_out)
    return [("x W1", first, 2 if w.input_gradient else 1), ("a1 W2", second, 2)]


def _layer(name: str, forward: int, gradients: int) -> dict[str, Any]:
    return {"name": name, "forward_flops": forward, "backward_flops": gradients * forward, "gradients": gradients}


def _entry(result: Result, device: Device) -> dict[str, Any]:
    return {
        "algorithm": "unfused",
        "pass": result.direction,
        "implementation": None,
        **as_json(_metrics(result, device)),
        "kernels": [{"name": kernel.name, **as_json(of_cost(cost))} for kernel, cost in result.kernels],
    }


def _metrics(result: Result, device: Device) -> list[Metric]:
    return [*of_cost(result.total), *of_memory(result.memory_bytes, device)]


# Words


def _verdict(w: Mlp, results: list[Result]) -> list[str]:
    ratio = backward_flops(w) / forward_flops(w)
    why = "each layer has two gradients" if w.input_gradient else "two gradients per layer, but the first needs none of its input"
    bounds = " and ".join(f"{result.direction} is bound by {bound_by(result.total)}" for result in results)
    return [f"Backward takes {ratio:.3g}x the FLOP of forward: {why}. {bounds[0].upper()}{bounds[1:]}."]


def _tables(w: Mlp, device: Device, results: list[Result]) -> list[Table]:
    shown = [*results, together(results)] if len(results) > 1 else results
    flop = [[name, format_si(one, "FLOP"), format_si(gradients * one, "FLOP")] for name, one, gradients in layers(w)]
    flop.append(["both", format_si(forward_flops(w), "FLOP"), format_si(backward_flops(w), "FLOP")])
    kernels = [
        [kernel.name, format_si(cost.flops, "FLOP"), format_si(cost.sram.total, "B"), format_time(cost.roofline_s), cost.bound or "-"]
        for result in results
        for kernel, cost in result.kernels
    ]
    kept = cached(w)
    cache = [["x", format_si(kept.x, "B"), "dW1"], ["a1", format_si(kept.a1, "B"), "dW2, and a1 > 0 for the ReLU"]]
    cache.append(["ReLU bits, in place of a1 > 0", format_si(kept.sign_bits, "B"), "one bit per element"])
    return [
        as_table("", {result.direction: _metrics(result, device) for result in shown}, without=NO_EXPONENTIALS),
        Table("FLOP per layer", ["layer", FORWARD, BACKWARD], flop),
        Table("kernels", ["kernel", "FLOP", "SRAM traffic", "roofline", "bound by"], kernels, "lrrrl"),
        Table("kept from forward to backward", ["tensor", "bytes", "needed by"], cache, "lrl"),
    ]


def _notes(device: Device, results: list[Result]) -> list[str]:
    notes = [f"{SOURCE}. Tiles re-read operands: see perfmodel matmul.", "Biases are left out; ReLU and its gradient count 1 per element."]
    return [*notes, *unknown_rates([result.total for result in results], device)]
