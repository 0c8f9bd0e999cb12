"""The report of a two-layer perceptron: FLOP per layer, kernels, roof, and bytes kept for the backward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import total
from perfmodel.core.units import format_si
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels import mlp
from perfmodel.kernels.mlp import Mlp, MlpResult, backward_flops, cached, forward_flops, layer_flops
from perfmodel.report.answer import fit_phrase, headline, sentence, slow_launches
from perfmodel.report.charts.schema import Bar, BarChart, Chart
from perfmodel.report.document import Report, Table
from perfmodel.report.kernel_time import KernelTime
from perfmodel.report.metrics import NO_EXPONENTIALS, Metric, as_json, as_rows, as_table, bound_by, of_cost
from perfmodel.report.op_common import head, unknown_rates, with_steps
from perfmodel.report.roofline_chart import point, roofline

BOTH = "both"
BRIEF = (*("flops", "time_s.roofline", "bound", "traffic.sram.bytes", "traffic.dram.bytes", "arithmetic_intensity.dram"), "memory_bytes")
KERNELS = {"name": "kernel", "flops": "FLOP", "traffic.sram.bytes": "L2 traffic", "time_s.roofline": "roofline", "bound": "bound by"}


def report(w: Mlp, device: Device, results: list[MlpResult], *, explained: bool = False, pictures: bool = False) -> Report:
    """``results`` as a Report with data of schema perfmodel.mlp/1."""
    times = {result.direction: _time(result, w, device) for result in _shown(results)}
    passes = " + ".join(result.direction for result in results)
    whole = replace(list(times.values())[-1], name=passes)
    rows = {direction: time.metrics() for direction, time in times.items()}
    notes = [
        f"{mlp.SOURCE}. Tiles re-read operands: see perfmodel matmul.",
        "Biases are left out; ReLU and its gradient count 1 per element.",
        *unknown_rates([result.total for result in results], device),
    ]
    gradients = f"two gradients per layer{'' if w.input_gradient else ', but the first layer needs no gradient of its input'}"
    plain = Report(
        f"MLP {passes}: batch {w.batch}, {w.d_in} -> {w.d_hidden} -> {w.d_out}, {w.dtype.name} on {device.name}",
        _headline(w, whole),
        [as_table("", rows, without=NO_EXPONENTIALS), *_tables(w, results)],
        notes,
        data(w, device, results),
        charts=_charts(w, device, results) if pictures else [],
        brief=[as_table("", rows, labels=BRIEF)],
        reasons=[f"Backward computes {gradients}. {_bounds(results)}"],
    )
    plain = whole.added_to(plain, passes)
    if not explained:
        return plain
    directions = [result.direction for result in results]
    return with_steps(plain, [(direction, {"pass": direction}, mlp.explain(w, device, direction)) for direction in directions])


def data(w: Mlp, device: Device, results: list[MlpResult]) -> dict[str, Any]:
    """The object of schema perfmodel.mlp/1."""
    sizes = {name: getattr(w, name) for name in ("batch", "d_in", "d_hidden", "d_out", "input_gradient")}
    saved = cached(w)
    return {
        **head("mlp", {**sizes, "dtype": w.dtype.name, "pass": BOTH if len(results) > 1 else results[0].direction}, device),
        "results": [_entry(result, w, device) for result in _shown(results)],
        "layers": [as_json(layer) for layer in _layers(w)],
        "cached_bytes": {"x": saved.x, "a1": saved.a1, "total": saved.total, "relu_sign_bits": saved.sign_bits},
    }


def _entry(result: MlpResult, w: Mlp, device: Device) -> dict[str, Any]:
    return {
        **{"algorithm": "unfused", "pass": result.direction, "implementation": None},
        **as_json(_time(result, w, device).metrics()),
        "kernels": [{"name": kernel.name, **as_json(of_cost(cost))} for kernel, cost in result.kernels],
    }


def _shown(results: list[MlpResult]) -> list[MlpResult]:
    """The results, followed by the sum of forward and backward, whose memory is the larger of both."""
    if len(results) < 2:
        return results
    kernels = [kernel for result in results for kernel in result.kernels]
    largest = max(result.memory_bytes for result in results)
    return [*results, MlpResult(BOTH, kernels, total(result.total for result in results), largest)]


def _layers(w: Mlp) -> list[list[Metric]]:
    """Metrics of both layers: FLOP of one matmul, and of the gradients of the backward pass."""

    def layer(name: str, flops: Number, gradients: int) -> list[Metric]:
        return [
            Metric("name", name, "layer", "text"),
            Metric("forward_flops", flops, FORWARD, "FLOP"),
            Metric("backward_flops", gradients * flops, BACKWARD, "FLOP"),
            Metric("gradients", gradients),
        ]

    first_gradients = 2 if w.input_gradient else 1
    return [
        layer("x W1", layer_flops(w.batch, w.d_in, w.d_hidden), first_gradients),
        layer("a1 W2", layer_flops(w.batch, w.d_hidden, w.d_out), 2),
    ]


def _tables(w: Mlp, results: list[MlpResult]) -> list[Table]:
    headers = [Metric("", "both", "layer"), Metric("", forward_flops(w), FORWARD, "FLOP"), Metric("", backward_flops(w), BACKWARD, "FLOP")]
    kernels = [[Metric("name", kernel.name), *of_cost(cost)] for result in results for kernel, cost in result.kernels]
    saved = cached(w)
    cache = [
        ["x", format_si(saved.x, "B"), "dW1"],
        ["a1", format_si(saved.a1, "B"), "dW2, and a1 > 0 for the ReLU"],
        ["ReLU bits, in place of a1 > 0", format_si(saved.sign_bits, "B"), "one bit per element"],
    ]
    return [
        as_rows("FLOP per layer", [*_layers(w), headers]),
        as_rows("kernels", kernels, labels=KERNELS),
        Table("kept from forward to backward", ["tensor", "bytes", "needed by"], cache, "lrl"),
    ]


def _headline(w: Mlp, time: KernelTime) -> list[str]:
    """The headline: whether it fits, what backward takes, time and rate at the roof, and what limits it."""
    ratio = f"backward takes {backward_flops(w) / forward_flops(w):.3g}x the FLOP of forward"
    fits = fit_phrase(time.memory, time.device).partition(":")[0]
    return headline(f"{fits}; {ratio}" if fits else ratio, time.rate, time.limit)


def _bounds(results: list[MlpResult]) -> str:
    return sentence(" and ".join(f"{result.direction} is bound by {bound_by(result.total)}" for result in results))


def _time(result: MlpResult, w: Mlp, device: Device) -> KernelTime:
    launched = slow_launches(len(result.kernels), float(result.total.roofline_s), device)
    return KernelTime(result.total, device, w.dtype, result.memory_bytes, causes=launched)


def _charts(w: Mlp, device: Device, results: list[MlpResult]) -> list[Chart]:
    """Charts of the kernels: times at the roof, and places on the roofline."""
    kernels = [(result.direction, kernel, cost) for result in results for kernel, cost in result.kernels]
    times = [Bar(f"{kernel.name}, {direction}", [("roof", float(cost.roofline_s))]) for direction, kernel, cost in kernels]
    dots = [
        point(number, kernel.name, cost, device, w.dtype.name, w.dtype.matmul_unit, group=direction)
        for number, (direction, kernel, cost) in enumerate(kernels, 1)
    ]
    _, longest, cost = max(kernels, key=lambda kernel: kernel[2].roofline_s)
    caption = f"{longest.name} takes longest, bound by {bound_by(cost)}; none is predicted."
    return [BarChart("Time of each kernel at its roof", "s", times, caption=caption), roofline(device, dots, caption=_bounds(results))]
