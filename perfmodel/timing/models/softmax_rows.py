"""Softmax over rows as PyTorch runs it: another kernel for each range of row lengths.

Up to 2,048 elements a warp keeps a row in its registers: latency grows with the row, bytes flow at a share of the bandwidth.
Beyond that a block of 1,024 threads takes a row, and its steps, not the bytes, set the pace; up to 8,192 elements it stays in
registers (beyond 4,096 they leave room for one block only), longer ones in shared memory.
Source: PyTorch, aten/src/ATen/native/cuda/SoftMax.cu, dispatch by row length.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth
from perfmodel.timing.models.stream import STREAM_SHARE, cycles_per_second

BLOCK_THREADS = 1024
WARP_COLUMNS, ROOMY_COLUMNS, REGISTER_COLUMNS = 2048, 4096, 8192

PARAMETERS = (
    Parameter("launch_us", "an empty kernel", 5.0),
    Parameter("warp_share", "of the DRAM bandwidth, a warp per row", 0.9),
    Parameter("column_ns", "latency of a row, per element that its warp holds", 3.0),
    Parameter("element_cycles", "of a multiprocessor, per element that warps hold", 0.2),
    Parameter("register_cycles", "the same, a block per row in registers, two blocks at once", 0.8),
    Parameter("single_cycles", "the same, one block at once", 1.0),
    Parameter("shared_cycles", "the same, a block per row in shared memory", 0.5),
)
KNOWN = ("BLOCK_THREADS", "WARP_COLUMNS", "ROOMY_COLUMNS", "REGISTER_COLUMNS")


def padded(cols: int) -> int:
    """Elements that a row's threads hold: a power of two for a warp, whole thousands for a block.

    >>> padded(640), padded(2560), padded(10240)
    (1024, 3072, 10240)
    """
    if cols <= WARP_COLUMNS:
        return 1 << (cols - 1).bit_length()
    return int(ceil_div(cols, BLOCK_THREADS)) * BLOCK_THREADS


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile."""
    w: Stream = case.workload
    columns = padded(w.cols)
    moved = 2 * w.rows * w.cols * w.dtype.size / dram_bandwidth(device)
    held, launch = w.rows * columns / cycles_per_second(device), p["launch_us"] * 1e-6
    if columns <= WARP_COLUMNS:
        return float(launch + columns * p["column_ns"] * 1e-9 + held * p["element_cycles"] + moved / p["warp_share"])
    kernels = ((ROOMY_COLUMNS, "register_cycles"), (REGISTER_COLUMNS, "single_cycles"))
    cycles = next((p[name] for most, name in kernels if columns <= most), p["shared_cycles"])
    return float(launch + max(held * cycles, moved / STREAM_SHARE))


def covers(case: Case) -> bool:
    """Softmax, forward."""
    return isinstance(case.workload, Stream) and case.workload.op == "softmax" and case.direction == FORWARD


MODEL = Model("softmax-rows", PARAMETERS, covers, seconds, "PyTorch's dispatch by row length", implementations=("torch-softmax",))
