"""Kernels that reduce rows: softmax and norms. Blocks take one row each; wide rows are passed over again.

Sources: PyTorch, aten/src/ATen/native/cuda: SoftMax.cu, dispatch by row length and alignment; layer_norm_kernel.cu, one block of 128
threads per row, which reads it for its statistics and again for its result, and two kernels by element where rows do not start on
four elements. Times of both on an H200.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth, lost_share, numbers_of
from perfmodel.timing.models.stream import BLOCK_THREADS, STREAM_SHARE, model_name

WARP_COLUMNS, WARP_BYTES, SPILLING_COLUMNS = 2048, 4096, 1024  # known
"""Longest row that a warp takes, in elements and bytes, and longest whose elements its registers hold."""
SPILLED = 1.38  # tuned
"""Time of a warp's rows that spill, over what they would take. Cross-validated on 400 shapes of an H200."""
ROOMY_COLUMNS, REGISTER_COLUMNS = 6144, 9216  # known
"""Longest rows in the registers of a block, two blocks at once and one: 1,024 threads hold up to nine elements each."""

NORM_BLOCKS = 16  # known
"""Of 128 threads, on a multiprocessor of 2,048."""
AGAIN_SURVIVES, AGAIN_IS_LOST = 0.32, 0.55  # tuned
"""Rows of all blocks at once over L2, up to which a block finds its row again, and from which it does not."""
JOINED = 1.7  # tuned
"""How the latency of a first row and the bytes of all rows at once add up: 1 is one after the other."""
VECTOR, NORM_COLUMNS = 4, 512  # known
"""Elements that a thread of a norm reads at once, if rows are a multiple of them, and all 128 threads."""
STEP_SHARE, ISSUED = 0.2, 2.0  # tuned
"""Instructions of each further step over a row's, and how they and the bytes of all rows add up."""
SCALAR_LAUNCH_US, SCALAR_COLUMN_NS, SCALAR_ROW_NS, SCALAR_ELEMENT_NS = 3.2, 2.2, 660.0, 0.47  # tuned
"""Where rows are read element by element: the second kernel; latency of a row, per element; a row on one multiprocessor, and more per
element. Of both norms alike, on 250 shapes of an H200 that nothing divides."""
TWO_ROWS_COLUMNS = 128  # known
"""Longest rows of which a warp takes two."""
ROW_CYCLES = 15.0  # tuned
"""Of a multiprocessor, for a row that a warp takes, beside its elements."""
VECTOR_BYTES, SHARED_BYTES = 16, 48 * 1024 - 128  # known
"""What a thread of a block reads at once, and shared memory that a row fits in, less a number of each warp."""
FIRST_CYCLES = 0.7  # tuned
"""Of the first row in registers, per element: less than of those that follow, with which it does not share anything."""
SPILLED_STEP, SCALAR_STEP = 1.5, 0.5  # tuned
"""Steps of a row that is read three times, over one in shared memory: whole vectors, and its last elements one by one."""


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

    Up to 2,048 elements a warp keeps a row in its registers, of which it has too few beyond 1,024: latency grows with the row, bytes
    flow at a share of the bandwidth. Beyond that a block of 1,024 threads takes a row, one after another on each multiprocessor, and
    its steps, not the bytes, set the pace; up to 9,216 elements it stays in registers, which leave room for one block only beyond
    6,144, longer ones in shared memory.
    UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile.
    """
    w: Stream = case.workload
    columns = padded(w.cols)
    moved = 2 * w.rows * w.cols * w.dtype.size / dram_bandwidth(device)
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    launch = p["launch_us"] * 1e-6
    if w.cols * w.dtype.size <= WARP_BYTES:
        at_once = 2 if w.cols <= TWO_ROWS_COLUMNS else 1
        slower = SPILLED if columns > SPILLING_COLUMNS else 1.0
        held = w.rows / (sms * clock) * (ROW_CYCLES + columns * p["element_cycles"])
        first = at_once * (w.cols + columns) / 2 * p["column_ns"] * 1e-9
        return float(launch + _joined(first, slower * (held + moved / p["warp_share"])))
    waves = ceil_div(w.rows, int(sms))
    if columns > REGISTER_COLUMNS:
        rows_s = waves * (p["shared_row_us"] * 1e-6 + _block_steps(w) * p["shared_cycles"] * BLOCK_THREADS / clock)
    elif columns > ROOMY_COLUMNS:
        rows_s = columns / clock * (FIRST_CYCLES + (waves - 1) * p["single_cycles"])
    else:
        rows_s = columns / clock * (FIRST_CYCLES + max(w.rows / sms - 1, 0.0) * p["register_cycles"])
    return float(launch + max(rows_s, moved / STREAM_SHARE))


def _block_steps(w: Stream) -> float:
    """Elements of each thread of a block for a row that no registers hold, scalar ones and those of repeated reads by what they cost.

    A row of whole vectors is kept in shared memory if it fits. Else it is read three times, its end element by element.
    """
    vector = VECTOR_BYTES // w.dtype.size
    if w.cols % vector == 0 and w.cols * w.dtype.size < SHARED_BYTES:
        return float(ceil_div(w.cols, vector * BLOCK_THREADS) * vector)
    whole, rest = divmod(w.cols, vector * BLOCK_THREADS)
    return float(vector * (SPILLED_STEP * whole + SCALAR_STEP * ceil_div(rest, BLOCK_THREADS)))


def norm_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launch, the first rows, rows one after another on each multiprocessor, and bytes at a share of the bandwidth.

    UnavailableError without DRAM bandwidth or multiprocessors in the profile.
    """
    w: Stream = case.workload
    [sms] = numbers_of(device, "multiprocessors")
    slots, row = int(sms) * NORM_BLOCKS, w.cols * w.dtype.size
    again = lost_share(min(w.rows, slots) * row / device.cache_bytes, AGAIN_SURVIVES, AGAIN_IS_LOST) if device.cache_bytes else 0.0
    bytes_s = (2 + again) * w.rows * row / (dram_bandwidth(device) * p["bandwidth_share"])
    if w.cols % VECTOR:
        first, rows_s = w.cols * SCALAR_COLUMN_NS * 1e-9, w.rows / sms * (SCALAR_ROW_NS + w.cols * SCALAR_ELEMENT_NS) * 1e-9
        return float((p["launch_us"] + SCALAR_LAUNCH_US) * 1e-6 + _joined(first, max(rows_s, bytes_s)))
    steps = ceil_div(w.cols, NORM_COLUMNS)
    first = steps * NORM_COLUMNS * p["column_ns"] * 1e-9
    issued = w.rows / sms * p["row_ns"] * (1 + STEP_SHARE * (steps - 1)) * 1e-9
    all_s = _joined(issued, bytes_s, ISSUED)
    at_once = all_s * min(1.0, slots / w.rows)
    return float(p["launch_us"] * 1e-6 + _joined(first, at_once) + all_s - at_once)


def _joined(one_s: float, other_s: float, power: float = JOINED) -> float:
    return float((one_s**power + other_s**power) ** (1 / power))


_LISTED = (
    Model(
        "softmax-rows",
        (
            Parameter("launch_us", "an empty kernel", 4.0),
            Parameter("warp_share", "of the DRAM bandwidth, a warp per row", 0.9),
            Parameter("column_ns", "latency of a row, per element", 4.0),
            Parameter("element_cycles", "of a multiprocessor, per element that warps hold", 0.17),
            Parameter("register_cycles", "the same, a block per row in registers, two blocks at once", 0.8),
            Parameter("single_cycles", "the same, one block at once", 1.0),
            Parameter("shared_cycles", "the same, per element of a row, a block per row in shared memory", 0.35),
            Parameter("shared_row_us", "of a multiprocessor, per row in shared memory", 1.4),
        ),
        lambda case: model_name(case) == "softmax-rows",
        softmax_seconds,
        "PyTorch's dispatch by row length",
        knows_warm=False,
        implementations=("torch-softmax",),
    ),
    Model(
        "norm-rows",
        (
            Parameter("launch_us", "an empty kernel", 4.0),
            Parameter("bandwidth_share", "of the DRAM bandwidth that is reached", 0.9),
            Parameter("column_ns", "latency of a row, per element", 1.5),
            Parameter("row_ns", "per row on one multiprocessor", 80.0),
        ),
        lambda case: model_name(case) == "norm-rows",
        norm_seconds,
        "launch + latency + bytes over bandwidth, rows read twice",
        knows_warm=False,
        implementations=("torch-rms-norm", "torch-layer-norm"),
    ),
)
MODELS = {model.name: model for model in _LISTED}
