"""A chain of linear layers x_(i+1) = x_i W_i on a device: bytes of every value, seconds of every matmul.

Shapes: x_i [rows, widths[i]], W_i [widths[i], widths[i + 1]]. Backward is two matmuls, dW_i = x_i^T dx_(i+1) and
dx_i = dx_(i+1) W_i^T; the first layer's dx_0 is counted like the others. Each matmul takes its predicted time if all have one, else
its roofline time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from perfmodel.core.arith import Number
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import estimate
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul, kernels
from perfmodel.kernels.mlp import layer_flops
from perfmodel.remat.chain import Chain, Layer
from perfmodel.remat.tensors import Tensor
from perfmodel.timing.predict import FallbackDevices
from perfmodel.timing.select_kernel import select_kernel

EDGE = 128
"""Edge of the roof's tile."""


def linear_chain(
    rows: Number, widths: Sequence[Number], dtype: Dtype, device: Device, fallback_devices: FallbackDevices = tuple
) -> tuple[Chain, str]:
    """The chain in seconds and bytes, and where its times are from. UnavailableError if the device has no peak for the dtype."""
    shapes = [_matmuls(rows, inputs, outputs, dtype) for inputs, outputs in pairwise(widths)]
    distinct = {w: _seconds(w, device, fallback_devices) for triple in shapes for w in triple}
    predicted = all(known is not None for _, known in distinct.values())
    seconds = {w: known if predicted and known is not None else roof for w, (roof, known) in distinct.items()}
    layers = [
        Layer(
            forward=seconds[forward],
            backward=seconds[weights] + seconds[inputs],
            output=rows * columns * dtype.size,
            weights=forward.k * columns * dtype.size,
        )
        for (forward, weights, inputs), columns in zip(shapes, widths[1:], strict=True)
    ]
    origin = "predicted by a calibrated model" if predicted else "those of the roofline"
    return Chain(tuple(layers), rows * widths[0] * dtype.size), f"Times of matmuls on {device.name} are {origin}."


def _matmuls(rows: Number, inputs: Number, outputs: Number, dtype: Dtype) -> tuple[Matmul, Matmul, Matmul]:
    """Forward, gradient of the weights, gradient of the input."""
    return (
        Matmul(rows, outputs, inputs, dtype=dtype).check(),
        Matmul(inputs, outputs, rows, dtype=dtype).check(),
        Matmul(rows, inputs, outputs, dtype=dtype).check(),
    )


def _seconds(w: Matmul, device: Device, fallback_devices: FallbackDevices) -> tuple[float, float | None]:
    """Roofline and predicted time of one matmul."""
    [kernel] = kernels(w, Tile(min(EDGE, w.m), min(EDGE, w.n)))
    cost = estimate(kernel, device)
    try:
        known = select_kernel("matmul", w.dtype.name, w, FORWARD, device, float(cost.lower_s), None, lambda name: True, fallback_devices)
    except UnavailableError:
        return float(cost.roofline_s), None
    return float(cost.roofline_s), known.seconds


def linear_tensors(rows: Number, widths: Sequence[Number], dtype: Dtype, device: Device) -> list[Tensor]:
    """Every output that backward needs: not the last. FLOP and roofline time to make it from the value before."""
    found = []
    for inputs, columns in pairwise(widths[:-1]):
        seconds = _seconds(_matmuls(rows, inputs, columns, dtype)[0], device, tuple)[0]
        found.append(
            Tensor(f"{rows} x {columns}, by {inputs} x {columns}", rows * columns * dtype.size, layer_flops(rows, inputs, columns), seconds)
        )
    return found
