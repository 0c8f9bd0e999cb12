"""Softmax over rows as PyTorch runs it: one of four kernels, by the length of a row.

Up to 2,048 elements (4 KiB) a warp keeps a row in registers, or two rows up to 128 elements; beyond 1,024 its registers do not suffice. The
first rows take a latency that grows with their length, all rows their instructions and bytes. Beyond, a block of 1,024 threads takes a row.
Up to 9,216 elements the block keeps the row in registers and takes some cycles per element, more if no second block of the multiprocessor
hides its waits, which needs rows of at most 6,144. Longer rows stay in shared memory if they fit and start on 16 bytes; else they are read
three times, by vectors of 16 bytes per thread and element by element at the end. Such a block takes a fixed time plus a time per step of
its threads, one block after another on each slot, and it reads its bytes again if the rows of all running blocks exceed the L2. PyTorch
before 2.4 has only the warp's kernel and the last one, with blocks of up to 512 threads. GPUs older than Hopper were timed with such a
version. Sources: PyTorch, aten/src/ATen/native/cuda: SoftMax.cu, PersistentSoftmax.cuh, block_reduce.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import scan_limits
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import WARM, Case, Model, dram_bandwidth, lost_share, numbers_of
from perfmodel.timing.cache_state import warm_s
from perfmodel.timing.engine import joined

WARP, REGISTERS, SHARED, REPEATED = "warp", "registers", "shared memory", "repeated"
"""Kernels by where a row is kept between maximum, sum and result; the last one reads it again each time."""
WARP_COLUMNS, WARP_BYTES, SPILLING_COLUMNS, TWO_ROWS_COLUMNS = 2048, 4096, 1024, 128  # known
"""Longest row of a warp in elements and bytes; longest row that its registers hold; longest row of which it takes two at once."""
ROOMY_COLUMNS, REGISTER_COLUMNS = 6144, 9216  # known
"""Longest row in the registers of a block, with two blocks at once and with one: 1,024 threads hold up to nine elements each."""
BLOCK_THREADS, WARP_THREADS = 1024, 32  # known
VECTOR_BYTES, SHARED_BYTES = 16, 48 * 1024 - 128  # known
"""Bytes that a thread of a block reads at once; and bytes of shared memory for a row, less one number per warp."""
REGISTERS_SINCE = 9.0  # known
"""Compute capability from which records come from a PyTorch whose blocks keep rows; so do traces of AMD GPUs."""
SLOWER = {"AMD": 2}  # known
"""Cycles of a multiprocessor for 128 operations of 32 bits, by maker; one by default. Source: AMD CDNA 3 ISA, four SIMDs of 16 lanes."""


def padded(cols: int) -> int:
    """Elements that a row's threads hold: a power of two for a warp, whole thousands for a block.

    >>> padded(640), padded(2560), padded(10240)
    (1024, 3072, 10240)
    """
    if cols <= WARP_COLUMNS:
        return 1 << (cols - 1).bit_length()
    return int(ceil_div(cols, BLOCK_THREADS)) * BLOCK_THREADS


def softmax_kernel(w: Stream) -> str:
    """The kernel of softmax over rows of ``w``.

    >>> [softmax_kernel(Stream("softmax", 1, cols)) for cols in (2048, 2049, 9224, 9225)]
    ['warp', 'registers', 'shared memory', 'repeated']
    """
    row = w.cols * w.dtype.size
    if row <= WARP_BYTES:
        return WARP
    if w.cols <= REGISTER_COLUMNS:
        return REGISTERS
    return SHARED if row % VECTOR_BYTES == 0 and row < SHARED_BYTES else REPEATED


def kernel_on(w: Stream, device: Device) -> tuple[str, int]:
    """The kernel that ``device`` runs, and threads of its blocks."""
    kernel = softmax_kernel(w)
    if kernel == WARP or device.vendor != "NVIDIA" or device.capability >= REGISTERS_SINCE:
        return kernel, BLOCK_THREADS
    return REPEATED, small_block_threads(w.cols, VECTOR_BYTES // w.dtype.size)


def small_block_threads(cols: int, vector: int) -> int:
    """Threads of PyTorch's block for a row: a power of two, so that each reads two vectors or more.

    >>> [small_block_threads(cols, 4) for cols in (1025, 2048, 2052, 16384)]
    [128, 256, 256, 512]
    """
    most = max(min(cols // vector, BLOCK_THREADS) // 2, 1)
    return max(int(1 << (most - 1).bit_length()), WARP_THREADS)


def resident_blocks(device: Device, threads: int) -> int:
    """Blocks of ``threads`` on a multiprocessor, which holds 2,048 threads if the profile does not say."""
    most = device.limits.max_threads_per_multiprocessor
    return int(most.number if most else 2 * BLOCK_THREADS) // threads


def read_again(device: Device, rows_bytes: float, l2_share: float) -> float:
    """Share of the ``rows_bytes`` that blocks do not find in the L2 when they read their rows again."""
    size = device.cache_bytes
    return lost_share(rows_bytes / (size * l2_share), *scan_limits(device, alone=True)) if size else 0.0


def warps_s(w: Stream, cycles_per_s: float, bytes_s: float, warm: float, p: Mapping[str, float]) -> float:
    """Seconds of rows that a warp takes; ``warm``: share of the latency of first rows that is left."""
    columns, at_once = padded(w.cols), 2 if w.cols <= TWO_ROWS_COLUMNS else 1
    first_s = warm * at_once * (w.cols + columns) / 2 * p["column_ns"] * 1e-9
    issued_s = w.rows * (p["row_cycles"] + columns * p["element_cycles"]) / cycles_per_s
    return hypot(first_s, (issued_s + bytes_s) * (p["spill"] if columns > SPILLING_COLUMNS else 1.0))


def registers_s(w: Stream, sms: int, clock: float, p: Mapping[str, float]) -> float:
    """Seconds of rows that a block holds in registers, one after another on each multiprocessor."""
    columns = padded(w.cols)
    if columns <= ROOMY_COLUMNS:
        rows_after_first, element_cycles = max(w.rows / sms - 1, 0.0), p["register_cycles"]
    else:
        rows_after_first, element_cycles = ceil_div(w.rows, sms) - 1, p["single_cycles"]
    later_cycles = rows_after_first * (p["block_cycles"] + columns * element_cycles)
    return float((columns * p["single_cycles"] + later_cycles) / clock)


def steps(w: Stream, threads: int, whole_vectors: bool, tail: float) -> float:
    """Steps in which the ``threads`` of a block read a row; a step of single elements at its end counts as ``tail``."""
    vector = VECTOR_BYTES // w.dtype.size
    whole, rest = divmod(w.cols, vector * threads)
    return float(ceil_div(w.cols, vector * threads) if whole_vectors else whole + tail * ceil_div(rest, threads))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of softmax over rows; UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile."""
    w: Stream = case.workload
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    kernel, threads = kernel_on(w, device)
    bytes_s = 2 * w.rows * w.cols * w.dtype.size / (dram_bandwidth(device) * p["bandwidth_share"])
    slower, warm = SLOWER.get(device.vendor, 1), 1.0
    if case.cache == WARM and device.cache_bytes:
        lost = lost_share(float(w.read_bytes + w.write_bytes) / device.cache_bytes, *scan_limits(device, alone=True))
        warm -= (1 - lost) * (1 - p["warm_share"])
    if kernel == WARP:
        rows_s = warps_s(w, sms * clock, bytes_s, warm, p)
    elif kernel == REGISTERS:
        rows_s = joined(p["overlap"], registers_s(w, int(sms), clock / slower, p), bytes_s)
    else:
        slots = sms * resident_blocks(device, threads)
        row_s = p["row_us"] * 1e-6 + warm * steps(w, threads, kernel == SHARED, p["tail"]) * p["step_us"] * 1e-6 * slower
        at_once = min(w.rows, slots) * w.cols * w.dtype.size
        again = read_again(device, at_once, p["l2_share"]) if kernel == REPEATED else 0.0
        rows_s = joined(p["overlap"], row_s * hypot(1, w.rows / slots), (1 + again) * bytes_s)
    seconds = float(p["launch_us"] * 1e-6 + rows_s)
    return warm_s(seconds, w.read_bytes, w.write_bytes, device) if case.cache == WARM else seconds


MODEL = Model(
    "softmax-rows",
    "softmax-rows",
    lambda case: isinstance(case.workload, Stream) and case.workload.op == "softmax" and case.direction == FORWARD,
    seconds,
    "PyTorch's dispatch by row length",
    implementations=("torch-softmax",),
)
