"""Convolutions of cuDNN, by kernels that gather the windows of the input as they multiply.

A block holds a tile of the result, places by filters, and walks the channels of all places of the window. It waits for the first ones.
Smaller tiles reach less of the peak. If tiles leave multiprocessors idle, the depth is divided among more blocks. The bytes of the tensors
move meanwhile. The gradients of input and weights are a convolution of as many FLOP each. Source: NVIDIA cuDNN Developer Guide,
convolutions as implicit matrix products; kernels (implicit_gemm, fprop, dgrad, wgrad) in profiles.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.core.workload import FORWARD, Convolution
from perfmodel.timing.base import Case, Model, always, dram_bandwidth, numbers_of
from perfmodel.timing.engine import joined

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64))  # known
"""Places and filters of the tiles; the library's heuristic is assumed to pick the fastest."""
VECTOR, LEAST_DEPTH = 8, 256  # known
"""Elements of a vector, which channels are padded to; and least depth of a block if the depth is divided."""


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of all passes; UnavailableError without multiprocessors, a peak of the format or a DRAM bandwidth in the profile."""
    w: Convolution = case.workload
    [sms] = numbers_of(device, "multiprocessors")
    depth = float(ceil_div(w.channels, VECTOR) * VECTOR * w.window) + p["start_depth"]
    peak = rates_of(device, w.dtype).matmul / sms * p["tensor_share"]
    largest = TILES[0][0] * TILES[0][1]

    def multiplied_s(br: int, bc: int) -> float:
        blocks = float(ceil_div(w.places, br) * ceil_div(w.filters, bc) * w.groups)
        waves = ceil_div(blocks, sms) if blocks >= sms else max(blocks / sms, min(1.0, LEAST_DEPTH / depth))
        return float(waves * 2 * br * bc * depth / (peak * (br * bc / largest) ** p["tile_exponent"]))

    bytes_s = float(w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * p["bandwidth_share"])
    once_s = joined(p["overlap"], min(multiplied_s(*tile) for tile in TILES), bytes_s)
    return w.passes * (p["launch_us"] * 1e-6 + once_s)


MODEL = Model(
    "convolution",
    "convolution",
    lambda case: isinstance(case.workload, Convolution) and case.direction == FORWARD,
    seconds,
    "implicit product over tiles, with the bytes of its tensors",
    assumes="operands where the kernels before have left them, as in a program",
    knows_warm=always,
    implementations=tuple(f"torch-convolution{kind}{way}" for kind in ("", "-narrow", "-point") for way in ("", "-backward")),
)
