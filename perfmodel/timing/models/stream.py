"""Kernels that pass once over rows of memory: copies, element-wise operations, norms, a mask that is broadcast, softmax.

Writes count like reads at every size, although a small kernel's stay in L2: measured copies from 1 MiB on show one rate.
Sources: latency and bandwidth add up where a row is too short to hide the one behind the other. PyTorch, aten/src/ATen/native/cuda:
Loops.cuh, kernels with an offset calculator, which are not vectorized; SoftMax.cu, dispatch by row length.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth, numbers_of

PARAMETERS = (
    Parameter("launch_us", "an empty kernel", 4.0),
    Parameter("bandwidth_share", "of the DRAM bandwidth that is reached", 0.9),
    Parameter("column_ns", "latency of a row, per element", 0.05),
    Parameter("row_ns", "per row on one multiprocessor", 1.0),
)

STREAM_SHARE = 0.92  # tuned
"""Of the DRAM bandwidth, what element-wise kernels reach on an H200: bound of kernels that are timed in cycles."""
BLOCK_THREADS = 1024  # known
WARP_COLUMNS, ROOMY_COLUMNS, REGISTER_COLUMNS = 2048, 4096, 8192  # known


def cycles_per_second(device: Device) -> float:
    """Of all multiprocessors together, at the highest clock; UnavailableError without one in the profile."""
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    return sms * clock


def copy_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launch plus bytes at a share of the bandwidth; UnavailableError without a DRAM bandwidth in the profile."""
    w: Stream = case.workload
    return p["launch_us"] * 1e-6 + float(w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * p["bandwidth_share"])


def row_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launch, latency of one row, rows one after another on each multiprocessor, and bytes at a share of the bandwidth.

    UnavailableError without DRAM bandwidth or multiprocessors in the profile.
    """
    w: Stream = case.workload
    latency = w.cols * p["column_ns"] + w.rows / numbers_of(device, "multiprocessors")[0] * p["row_ns"]
    return float(p["launch_us"] * 1e-6 + latency * 1e-9 + (w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * p["bandwidth_share"]))


def broadcast_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of adding one head's operand (a mask) to all heads, as PyTorch does it.

    Index arithmetic with a division per element, not the bytes, limits the rate.
    UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile.
    """
    w: Stream = case.workload
    moved = (w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * STREAM_SHARE)
    return float(p["launch_us"] * 1e-6 + max(moved, w.rows * w.cols * p["element_cycles"] / cycles_per_second(device)))


def padded(cols: int) -> int:
    """Elements that a row's threads hold: a power of two for a warp, whole thousands for a block.

    >>> padded(640), padded(2560), padded(10240)
    (1024, 3072, 10240)
    """
    if cols <= WARP_COLUMNS:
        return 1 << (cols - 1).bit_length()
    return int(ceil_div(cols, BLOCK_THREADS)) * BLOCK_THREADS


def softmax_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of softmax over rows; each range of row lengths has another kernel.

    Up to 2,048 elements a warp keeps a row in its registers: latency grows with the row, bytes flow at a share of the bandwidth.
    Beyond that a block of 1,024 threads takes a row, and its steps, not the bytes, set the pace; up to 8,192 elements it stays in
    registers (beyond 4,096 they leave room for one block only), longer ones in shared memory.
    UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile.
    """
    w: Stream = case.workload
    columns = padded(w.cols)
    moved = 2 * w.rows * w.cols * w.dtype.size / dram_bandwidth(device)
    held, launch = w.rows * columns / cycles_per_second(device), p["launch_us"] * 1e-6
    if columns <= WARP_COLUMNS:
        return float(launch + columns * p["column_ns"] * 1e-9 + held * p["element_cycles"] + moved / p["warp_share"])
    kernels = ((ROOMY_COLUMNS, "register_cycles"), (REGISTER_COLUMNS, "single_cycles"))
    cycles = next((p[name] for most, name in kernels if columns <= most), p["shared_cycles"])
    return float(launch + max(held * cycles, moved / STREAM_SHARE))


def model_name(case: Case) -> str | None:
    """The model of a forward pass over rows: a copy has no rows, softmax's kernel changes with their length, masks are broadcast."""
    if not isinstance(case.workload, Stream) or case.direction != FORWARD:
        return None
    by_op = {"copy": "copy", "softmax": "softmax-rows"}
    return by_op.get(case.workload.op, "broadcast" if case.implementation == "torch-mask" else "stream")


_LISTED = (
    Model(
        "copy",
        PARAMETERS[:2],
        lambda case: model_name(case) == "copy",
        copy_seconds,
        "launch + bytes over bandwidth",
        knows_warm=False,
        implementations=("numba-copy", "torch-copy"),
    ),
    Model(
        "stream",
        PARAMETERS,
        lambda case: model_name(case) == "stream",
        row_seconds,
        "launch + latency + bytes over bandwidth",
        knows_warm=False,
        implementations=("torch-scale", "torch-add", "torch-silu-mul", "torch-rope", "torch-rms-norm", "torch-layer-norm"),
    ),
    Model(
        "broadcast",
        (PARAMETERS[0], Parameter("element_cycles", "of a multiprocessor, per element", 0.6)),
        lambda case: model_name(case) == "broadcast",
        broadcast_seconds,
        "elements by cycles, bytes by bandwidth",
        knows_warm=False,
        implementations=("torch-mask",),
    ),
    Model(
        "softmax-rows",
        (
            Parameter("launch_us", "an empty kernel", 5.0),
            Parameter("warp_share", "of the DRAM bandwidth, a warp per row", 0.9),
            Parameter("column_ns", "latency of a row, per element that its warp holds", 3.0),
            Parameter("element_cycles", "of a multiprocessor, per element that warps hold", 0.2),
            Parameter("register_cycles", "the same, a block per row in registers, two blocks at once", 0.8),
            Parameter("single_cycles", "the same, one block at once", 1.0),
            Parameter("shared_cycles", "the same, a block per row in shared memory", 0.5),
        ),
        lambda case: model_name(case) == "softmax-rows",
        softmax_seconds,
        "PyTorch's dispatch by row length",
        knows_warm=False,
        implementations=("torch-softmax",),
    ),
)
MODELS = {model.name: model for model in _LISTED}
