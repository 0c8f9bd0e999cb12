"""Gradients of layer norm and RMS norm over rows as PyTorch computes them: a kernel for the inputs, and one for the weights.

The gradient of the inputs takes a block of 128 threads for each row. The block reads the row of x and of the gradient for its sums and
again for its result, by vectors of four if four divides the length of a row; from DRAM again if the rows of all running blocks exceed the
L2. The gradient of the weights takes a block for 32 columns, which adds up all rows, 8 of them per thread and step: few columns leave
multiprocessors idle. Beyond 65,536 rows of few columns, warps add up 32 rows each, and another kernel adds up their sums.

Source: PyTorch v2.11, aten/src/ATen/native/cuda/layer_norm_kernel.cu (layer_norm_grad_input_kernel, LaunchGammaBetaBackwardCUDAKernel).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Stream
from perfmodel.timing.base import Case, Model, dram_bandwidth, never, numbers_of
from perfmodel.timing.engine import joined
from perfmodel.timing.models.norms import COLUMNS, THREADS, VECTOR, WARP_COLUMNS
from perfmodel.timing.models.softmax import read_again, resident_blocks

BLOCK_COLUMNS = 32  # known
"""Columns of a block of the weights' gradient, one per thread of a warp."""
STEP_ROWS = ((64, 8), (128, 64), (256, 128))  # known
"""Rows up to which, exclusive, a block takes how many in a step; ``MOST_STEP_ROWS`` beyond."""
MOST_STEP_ROWS, THREAD_ROWS = 256, 8  # known
"""Rows of a step beyond those; rows that a thread adds up in one, so that more rows take more warps."""
MANY_ROWS, PART_ROWS, MOST_PARTS = 65536, 32, 32768  # known
"""Rows beyond which few columns are added up in parts, rows of a part, and most parts of all columns."""


def in_parts(w: Stream, sms: float) -> bool:
    """Whether sums over all rows are added up in parts."""
    return bool(w.rows > MANY_ROWS and w.cols // BLOCK_COLUMNS < sms // 2)


def inputs_s(w: Stream, device: Device, sms: float, p: Mapping[str, float]) -> float:
    """Seconds of the gradient of the inputs."""
    slots, row = int(sms) * resident_blocks(device, THREADS), w.cols * w.dtype.size
    again = read_again(device, min(w.rows, slots) * 2 * row, p["l2_share"])
    bytes_s = (3 + 2 * again) * w.rows * row / (dram_bandwidth(device) * p["bandwidth_share"])
    step_s = p["step_us"] * 1e-6 * ceil_div(w.cols, COLUMNS)
    row_ns = p["row_ns"] * (1 + p["warp_share"] * (ceil_div(w.cols, WARP_COLUMNS) - 1))
    if w.cols % VECTOR:
        step_s, row_ns = p["element_step"] * step_s, p["element_share"] * row_ns
    all_s = joined(p["overlap"], w.rows / sms * row_ns * 1e-9, bytes_s)
    return float(hypot(step_s, all_s))


def weights_s(w: Stream, device: Device, sms: float, p: Mapping[str, float]) -> float:
    """Seconds of the gradient of the weights."""
    columns = ceil_div(w.cols, BLOCK_COLUMNS)
    bytes_s = 2 * w.rows * w.cols * w.dtype.size / (dram_bandwidth(device) * p["bandwidth_share"])
    if in_parts(w, sms):
        parts = min(MOST_PARTS // columns, ceil_div(w.rows, PART_ROWS))
        warps = columns * parts / (sms * p["part_warps"])
        return float(
            p["part_us"] * 1e-6 + joined(p["overlap"], bytes_s, p["sum_us"] * 1e-6 * max(1.0, warps) * ceil_div(w.rows, parts * PART_ROWS))
        )
    rows = next((taken for most, taken in STEP_ROWS if w.rows < most), MOST_STEP_ROWS)
    turns = max(1.0, columns * (rows // THREAD_ROWS) / (sms * p["part_warps"]))
    shared_us = p["shared_us"] * (rows > THREAD_ROWS)
    return float(shared_us * 1e-6 + joined(p["overlap"], bytes_s, p["sum_us"] * 1e-6 * ceil_div(w.rows, rows) * turns))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of both kernels; UnavailableError without DRAM bandwidth or multiprocessors in the profile."""
    w: Stream = case.workload
    [sms] = numbers_of(device, "multiprocessors")
    return p["launch_us"] * 1e-6 + inputs_s(w, device, sms, p) + weights_s(w, device, sms, p)


MODEL = Model(
    "norm-backward",
    "norm-backward",
    lambda case: isinstance(case.workload, Stream) and case.workload.op == "norm" and case.direction == BACKWARD,
    seconds,
    "two kernels: rows read twice, columns added up",
    knows_warm=never,
    implementations=("torch-rms-norm", "torch-layer-norm"),
)
