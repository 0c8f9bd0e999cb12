"""Layer norm and RMS norm over rows as PyTorch runs them: a block of 128 threads for each row, or two kernels by element.

If four divides the length of a row, one kernel reads the row for its statistics and again for its result, 128 threads by vectors of four:
steps of 512 elements. The first rows take a latency per step. All rows take the longer of their instructions, per row and per warp with
elements, and of their bytes. A block reads its row from DRAM again if the rows of all running blocks exceed the L2. Other rows take two
kernels that read single elements, with 512 threads for the statistics and 256 for the result. Source: PyTorch,
aten/src/ATen/native/cuda/layer_norm_kernel.cu (vectorized_layer_norm_kernel, RowwiseMomentsCUDAKernel, LayerNormForwardCUDAKernel).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import scan_limits
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import WARM, WARM_LATENCY_S, Case, Model, dram_bandwidth, lost_share, numbers_of
from perfmodel.timing.cache_state import warm_s
from perfmodel.timing.engine import joined
from perfmodel.timing.models.softmax import read_again, resident_blocks

THREADS, VECTOR = 128, 4  # known
"""Threads of a block, and elements that a thread reads at once if they divide the rows."""
WARP_COLUMNS, COLUMNS = 32 * VECTOR, THREADS * VECTOR  # known
"""Elements per step of a warp and of a block."""
ELEMENT_STEPS = (512, 256)  # known
"""Elements per step of the two kernels that read single elements: one per thread."""


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launches, the first rows, and all rows; UnavailableError without DRAM bandwidth or multiprocessors in the profile."""
    w: Stream = case.workload
    [sms] = numbers_of(device, "multiprocessors")
    slots, row = int(sms) * resident_blocks(device, THREADS), w.cols * w.dtype.size
    again = read_again(device, min(w.rows, slots) * row, p["l2_share"])
    bytes_s = (2 + again) * w.rows * row / (dram_bandwidth(device) * p["bandwidth_share"])
    if w.cols % VECTOR:
        launch_us = p["launch_us"] + p["second_us"]
        row_ns = p["element_row_ns"] + w.cols * p["element_ns"]
        first_s = p["element_step_us"] * 1e-6 * sum(ceil_div(w.cols, step) for step in ELEMENT_STEPS)
    else:
        launch_us = p["launch_us"]
        row_ns = p["row_ns"] * (1 + p["warp_share"] * (ceil_div(w.cols, WARP_COLUMNS) - 1))
        first_s = p["step_us"] * 1e-6 * ceil_div(w.cols, COLUMNS)
    if case.cache == WARM and device.cache_bytes:
        lost = lost_share(float(w.read_bytes + w.write_bytes) / device.cache_bytes, *scan_limits(device, alone=True))
        first_s -= (1 - lost) * max((1 - p["warm_share"]) * first_s - WARM_LATENCY_S, 0.0)  # every warm kernel saves that latency
    all_s = joined(p["overlap"], w.rows / sms * row_ns * 1e-9, bytes_s)
    beside_first_s = all_s * min(1.0, slots / w.rows)
    seconds = float(launch_us * 1e-6 + hypot(first_s, beside_first_s) + all_s - beside_first_s)
    return warm_s(seconds, w.read_bytes, w.write_bytes, device) if case.cache == WARM else seconds


MODEL = Model(
    "norm-rows",
    "norm-rows",
    lambda case: isinstance(case.workload, Stream) and case.workload.op == "norm" and case.direction == FORWARD,
    seconds,
    "launch + latency + instructions or bytes, rows read twice",
    implementations=("torch-rms-norm", "torch-layer-norm"),
)
