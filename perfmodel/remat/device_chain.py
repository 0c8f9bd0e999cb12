"""Chains of known layers on a device, in bytes and seconds: linear layers of given widths, or the layers of a model.

Linear, x_(i+1) = x_i W_i: x_i [rows, widths[i]], W_i [widths[i], widths[i + 1]]. Backward is two matmuls, dW_i = x_i^T dx_(i+1) and
dx_i = dx_(i+1) W_i^T; the first layer's dx_0 is counted like the others.

Model: a layer's interior is every tensor that its backward needs besides its input, as one kernel per operation keeps them; its scratch is
further memory while it runs. Embedding, head, weights and optimizer are left out: perfmodel memory counts them. Forward is a prefill of one
layer; backward takes 2 times that for each matmul and each element-wise kernel, two matmuls or twice the traffic, and 2.5 times for fused
attention, which computes its scores again.

Kernels take their predicted times if all have one, else their roofline times.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from perfmodel.core.arith import Number
from perfmodel.core.cost import WRITE, Tile
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.mlp import layer_flops
from perfmodel.kernels.recompute import Recompute, RecomputeResult, evaluate
from perfmodel.remat.chain import Chain, ChainLayer, check_length
from perfmodel.remat.source import Source, Tensor, length_of, quantities
from perfmodel.timing.base import Case
from perfmodel.timing.predict import TimeRequest
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.timing.select_kernel import select_kernel
from perfmodel.transformer import spec
from perfmodel.transformer.op import ATTENTION, Op
from perfmodel.transformer.op_time import op_estimate, predict_op
from perfmodel.transformer.ops import layer_ops, merged
from perfmodel.transformer.step import ModelPass, prefill
from perfmodel.transformer.training.matrices import Shape, shape_of
from perfmodel.transformer.training.question import BF16, FP32, TrainingConfig, checked
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import backward, forward

EDGE = 128
"""Edge of the tile of a linear layer's roof."""
BACKWARD_OVER_FORWARD, ATTENTION_BACKWARD_OVER_FORWARD = 2.0, 2.5

_Kind = TypeVar("_Kind", bound=Hashable)
_Time = TypeVar("_Time")


def _predicted_if_all(times: Mapping[_Kind, tuple[_Time, _Time | None]]) -> tuple[dict[_Kind, _Time], bool]:
    """Predicted times if every kind has one, else all roofline times; and whether they are predicted.

    ``times``: the roofline time of each kind, and its predicted time or None.
    """
    predicted = {kind: prediction for kind, (_, prediction) in times.items() if prediction is not None}
    if len(predicted) == len(times):
        return predicted, True
    return {kind: roofline for kind, (roofline, _) in times.items()}, False


# Linear layers


def linear(layers: int | None, batch: int, width: str, dtype: Dtype, device: Device, fallbacks: FallbackDevices) -> Source:
    """The source of a chain of linear layers: ``width`` is one width for all, or that of every value."""
    widths, unit = quantities("width", width, "B")
    if unit or not all(isinstance(value, int) for value in widths):
        raise UsageError(f"--width is {width!r}", "give columns of x_0, x_1, ..., such as 1000 or 784,4096,10")
    length = check_length(length_of(layers, [len(widths) - 1 if len(widths) > 1 else 1]))
    if len(widths) not in (1, length + 1):
        raise UsageError(f"--width has {len(widths)} values for {length} layers", f"give one for all, or {length + 1}")
    if len(widths) == 1:
        widths = widths * (length + 1)
    chain, origin = linear_chain(batch, widths, dtype, device, fallbacks)
    if len(set(widths)) == 1:
        shape = f"{widths[0]} columns"
    else:
        shape = " -> ".join(map(str, widths)) if length < 8 else f"{widths[0]} -> ... -> {widths[-1]}"
    title = f"{length:,} linear layer{'s' * (length > 1)}, {batch} rows, {shape}, {dtype.name} on {device.name}"
    return Source(chain, title, True, True, device, dtype, tuple(linear_tensors(batch, widths, dtype, device)), (origin,))


def linear_chain(
    rows: Number, widths: Sequence[Number], dtype: Dtype, device: Device, fallbacks: FallbackDevices = tuple
) -> tuple[Chain, str]:
    """The chain, and sentences on the source of its times. UnavailableError if the device has no peak for the dtype."""
    layer_matmuls = [_matmuls(rows, inputs, outputs, dtype) for inputs, outputs in pairwise(widths)]
    times = {w: _matmul_seconds(w, device, fallbacks) for matmuls in layer_matmuls for w in matmuls}
    seconds, predicted = _predicted_if_all(times)
    layers = tuple(
        ChainLayer(
            forward=seconds[matmuls.forward],
            backward=seconds[matmuls.weight_gradient] + seconds[matmuls.input_gradient],
            output=rows * outputs * dtype.size,
            weights=inputs * outputs * dtype.size,
        )
        for (inputs, outputs), matmuls in zip(pairwise(widths), layer_matmuls, strict=True)
    )
    origin = "predicted by a calibrated model" if predicted else "those of the roofline"
    return Chain(layers, rows * widths[0] * dtype.size), f"Times of matmuls on {device.name} are {origin}."


class _LayerMatmuls(NamedTuple):
    """The matmuls of a linear layer."""

    forward: Matmul
    weight_gradient: Matmul
    input_gradient: Matmul


def _matmuls(rows: Number, inputs: Number, outputs: Number, dtype: Dtype) -> _LayerMatmuls:
    """The matmuls of a linear layer on ``rows`` rows."""
    return _LayerMatmuls(
        forward=Matmul(rows, outputs, inputs, dtype=dtype).check(),
        weight_gradient=Matmul(inputs, outputs, rows, dtype=dtype).check(),
        input_gradient=Matmul(rows, inputs, outputs, dtype=dtype).check(),
    )


def _estimate(w: Matmul, device: Device) -> Estimate:
    """Bound and roof of a matmul in tiles of ``EDGE``."""
    [kernel] = w.kernels(Tile(min(EDGE, w.m), min(EDGE, w.n)))
    return estimate(kernel, device)


def _matmul_seconds(w: Matmul, device: Device, fallbacks: FallbackDevices) -> tuple[float, float | None]:
    """Roofline seconds, and predicted seconds or None."""
    cost = _estimate(w, device)
    try:
        prediction = select_kernel(TimeRequest(Case(w, ""), "matmul", w.dtype.name, device, float(cost.lower_s), fallbacks), guesses=False)
    except UnavailableError:
        return float(cost.roofline_s), None
    return float(cost.roofline_s), prediction.seconds


def linear_tensors(rows: Number, widths: Sequence[Number], dtype: Dtype, device: Device) -> list[Tensor]:
    """Outputs that backward needs, all but the last, with FLOP and roofline seconds to make each from the value before."""
    tensors = []
    for inputs, columns in pairwise(widths[:-1]):
        seconds = float(_estimate(_matmuls(rows, inputs, columns, dtype).forward, device).roofline_s)
        name, flops = f"{rows} x {columns}, by {inputs} x {columns}", layer_flops(rows, inputs, columns)
        tensors.append(Tensor(name, rows * columns * dtype.size, flops, seconds))
    return tensors


# Layers of a model


def of_model(model: spec.ModelSpec, batch: int, n: int, dtype: Dtype, device: Device, fallbacks: FallbackDevices) -> Source:
    """The source of a chain of the layers of ``model``, for ``batch`` sequences of ``n`` tokens."""
    chain, origin = model_chain(model, batch, n, dtype, device, fallbacks)
    left_out = "Embedding, head, weights and optimizer are left out of memory and time: perfmodel memory counts them."
    title = f"{len(chain)} layers of {model.name}, {batch} x {n:,} tokens, {dtype.name} on {device.name}"
    return Source(chain, title, True, True, device, dtype, tuple(model_tensors(model, batch, n, dtype, device)), (origin, left_out))


def model_chain(
    model: spec.ModelSpec, batch: int, n: int, dtype: Dtype, device: Device, fallbacks: FallbackDevices = tuple
) -> tuple[Chain, str]:
    """The chain for ``batch`` sequences of ``n`` tokens, and sentences on the source of its times."""
    step = prefill(batch, n, dtype=dtype, weight_bits=8 * dtype.size, cached=False)
    training = checked(TrainingConfig(model, batch, n, precision=FP32 if dtype.size == 4 else BF16))
    shape = replace(shape_of(training), kept_gradient=0)
    seconds, predicted = _predicted_if_all({layer: _layer_seconds(layer, model, step, device, fallbacks) for layer, _ in model.layer_kinds})
    chain_layers = {layer: _chain_layer(layer, shape, times) for layer, times in seconds.items()}
    origin = "predicted by calibrated models" if predicted else "those of the roofline"
    text = f"Times of the layers' kernels on {device.name} are {origin}; backward takes 2x a kernel's forward time, 2.5x for attention."
    return Chain(tuple(chain_layers[layer] for layer in model.layers), step.tokens * model.hidden * dtype.size), text


def _chain_layer(layer: spec.Layer, shape: Shape, seconds: tuple[float, float]) -> ChainLayer:
    """``layer`` in a chain. ``seconds``: of its forward and its backward pass."""
    tape = Recorder.tape_of(layer, shape)
    stream, output, saved = tape.stream, tape.sizes[tape.out], tape.saved()
    interior = sum(tape.sizes[name] for name in saved if name != stream)
    # Most bytes of each pass beyond those at its start, less those that the chain counts itself
    forward_scratch = forward(tape, {stream}).high - output
    taped_scratch = forward(tape, {stream, *saved}).high - output - interior
    backward_scratch = backward(tape).high - tape.sizes[stream]
    scratch = max(0, forward_scratch, taped_scratch, backward_scratch)
    forward_s, backward_s = seconds
    return ChainLayer(forward_s, backward_s, output=output, interior=interior, scratch=scratch)


def _layer_seconds(
    layer: spec.Layer, model: spec.ModelSpec, step: ModelPass, device: Device, fallbacks: FallbackDevices
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Seconds of forward and of backward of one layer: at the roofline, and predicted if every kernel is."""
    ops = merged((op, 1) for op in layer_ops(layer, model, step))
    costs = [op_estimate(op, device) for op in ops]
    roofline = _both_passes(ops, [float(cost.roofline_s) for cost in costs])
    try:
        seconds = [predict_op(op, device, float(cost.lower_s), fallbacks).seconds for op, cost in zip(ops, costs, strict=True)]
    except PerfmodelError:
        return roofline, None
    return roofline, _both_passes(ops, seconds)


def _both_passes(ops: list[Op], seconds: Iterable[float]) -> tuple[float, float]:
    """Seconds of forward and of backward, from ``seconds`` of one forward run of each kernel."""
    forward_s = backward_s = 0.0
    for op, run_s in zip(ops, seconds, strict=True):
        backward_runs = ATTENTION_BACKWARD_OVER_FORWARD if op.group == ATTENTION else BACKWARD_OVER_FORWARD
        forward_s += float(op.count) * run_s
        backward_s += backward_runs * float(op.count) * run_s
    return forward_s, backward_s


def model_tensors(model: spec.ModelSpec, batch: int, n: int, dtype: Dtype, device: Device) -> list[Tensor]:
    """Tensors that each kernel of each layer writes, with the FLOP that make them: matmul FLOP, else vector operations."""
    step = prefill(batch, n, dtype=dtype, weight_bits=8 * dtype.size, cached=False)
    tensors = []
    for layer, count in model.layer_kinds:
        for op in layer_ops(layer, model, step):
            flops: Number = op.kernel.flops or op.kernel.work.vector
            size = op.kernel.bytes(WRITE)
            if flops and size:
                tensors.append(Tensor(f"result of {op.name}", size, flops, float(op_estimate(op, device).roofline_s), count))
    return tensors


# Tensor by tensor: keep it or compute it again, by the roofline


@dataclass(frozen=True, slots=True)
class Choice:
    """Storing one tensor against recomputing it from its inputs, which are in memory."""

    tensor: Tensor
    result: RecomputeResult

    @property
    def freed_bytes_per_s(self) -> float:
        """Bytes freed per second that running its kernel again takes."""
        return float(self.tensor.size) / self.tensor.seconds


def choices(tensors: Sequence[Tensor], dtype: Dtype, device: Device) -> list[Choice]:
    """Choices for each kind of tensor, the one that frees the most per second first. UnavailableError if the device lacks a rate."""
    alike: dict[tuple[Number, Number], Tensor] = {}
    for tensor in tensors:
        before = alike.get((tensor.size, tensor.flops))
        alike[tensor.size, tensor.flops] = tensor if before is None else replace(before, count=before.count + tensor.count)
    listed = [Choice(tensor, evaluate(Recompute(tensor.size, tensor.flops, dtype), device)) for tensor in alike.values()]
    return sorted(listed, key=lambda choice: -choice.freed_bytes_per_s)
