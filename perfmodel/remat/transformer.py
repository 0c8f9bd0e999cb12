"""The layers of a model as a chain: what each leaves for its backward pass, and its times.

A layer's interior is every tensor that its backward needs besides its input, as one kernel per operation keeps them; its scratch is
what lies beside that while it runs. Embedding, head, weights and optimizer are left out: perfmodel memory counts them.
Times: forward is a prefill of one layer; backward takes 2 times that for each matmul and each element-wise kernel, two matmuls or
twice the traffic, and 2.5 times for fused attention, which computes its scores again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.cost import WRITE
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.remat.chain import Chain
from perfmodel.remat.chain import Layer as Link
from perfmodel.remat.tensors import Tensor
from perfmodel.timing.predict import FallbackDevices
from perfmodel.transformer.op import ATTENTION, Op
from perfmodel.transformer.op_time import op_estimate, predict_op
from perfmodel.transformer.ops import layer_ops, merged
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.step import Step, prefill
from perfmodel.transformer.training.model_tape import layer_tape
from perfmodel.transformer.training.question import BF16, FP32, TrainingConfig
from perfmodel.transformer.training.shape import Shape, shape_of
from perfmodel.transformer.training.stages import bare
from perfmodel.transformer.training.tape import backward, forward

BACKWARD_OVER_FORWARD, ATTENTION_BACKWARD_OVER_FORWARD = 2.0, 2.5


def model_chain(
    model: ModelSpec, batch: int, n: int, dtype: Dtype, device: Device, fallback_devices: FallbackDevices = tuple
) -> tuple[Chain, str]:
    """The chain in seconds and bytes for ``batch`` sequences of ``n`` tokens, and where its times are from."""
    step = prefill(batch, n, dtype=dtype, weight_bits=8 * dtype.size, cached=False)
    precision = FP32 if dtype.size == 4 else BF16
    shape = replace(shape_of(TrainingConfig(model, batch, n, precision=precision)), kept_gradient=0)
    kinds = [layer for layer, _ in model.layer_kinds]
    times = {layer: _seconds(layer, model, step, device, fallback_devices) for layer in kinds}
    predicted = all(known is not None for _, known in times.values())
    links = {layer: _link(layer, model, shape, times[layer][1] or times[layer][0] if predicted else times[layer][0]) for layer in kinds}
    origin = "predicted by calibrated models" if predicted else "those of the roofline"
    text = f"Times of the layers' kernels on {device.name} are {origin}; backward takes 2x a kernel's forward time, 2.5x for attention."
    return Chain(tuple(links[layer] for layer in model.layers), step.tokens * model.hidden * dtype.size), text


def _link(layer: Layer, model: ModelSpec, shape: Shape, seconds: tuple[float, float]) -> Link:
    tape = layer_tape(bare(model), layer, shape)
    stream, output = tape.stream, tape.sizes[tape.out]
    saved = tape.saved()
    interior = sum(tape.sizes[name] for name in saved if name != stream)
    # each pass is relative to its start, with the stream there: what it takes beyond what the chain counts itself
    passing = forward(tape, {stream}).high - output
    taping = forward(tape, {stream, *saved}).high - output - interior
    turning = backward(tape).high - tape.sizes[stream]
    return Link(*seconds, output=output, interior=interior, scratch=max(0, passing, taping, turning))


def _seconds(
    layer: Layer, model: ModelSpec, step: Step, device: Device, fallback_devices: FallbackDevices
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Forward and backward of one layer: at the roofline, and predicted if every kernel is."""
    ops = merged(layer_ops(layer, model, step))
    roofs = [float(op_estimate(op, device).roofline_s) for op in ops]
    return _both(ops, roofs), _predicted(ops, device, fallback_devices)


def _predicted(ops: list[Op], device: Device, fallback_devices: FallbackDevices) -> tuple[float, float] | None:
    try:
        return _both(ops, [predict_op(op, device, float(op_estimate(op, device).lower_s), fallback_devices).seconds for op in ops])
    except PerfmodelError:
        return None


def _both(ops: list[Op], seconds: Iterable[float]) -> tuple[float, float]:
    ahead = back = 0.0
    for op, one in zip(ops, seconds, strict=True):
        factor = ATTENTION_BACKWARD_OVER_FORWARD if op.group == ATTENTION else BACKWARD_OVER_FORWARD
        ahead += float(op.count) * one
        back += factor * float(op.count) * one
    return ahead, back


def model_tensors(model: ModelSpec, batch: int, n: int, dtype: Dtype, device: Device) -> list[Tensor]:
    """What each kernel of each layer writes, and the FLOP that make it: matmul FLOP, else vector operations."""
    step = prefill(batch, n, dtype=dtype, weight_bits=8 * dtype.size, cached=False)
    found = []
    for layer, count in model.layer_kinds:
        for op in layer_ops(layer, model, step):
            flops: Number = op.kernel.flops or op.kernel.work.vector
            size = op.kernel.bytes(WRITE)
            if flops and size:
                found.append(Tensor(f"result of {op.name}", size, flops, float(op_estimate(op, device).roofline_s), count))
    return found
