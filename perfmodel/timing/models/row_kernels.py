"""Kernels that reduce rows: softmax and norms. Blocks take one row each; wide rows are passed over again.

Sources: PyTorch, aten/src/ATen/native/cuda: SoftMax.cu and PersistentSoftmax.cuh, dispatch by row length and alignment, rows of a warp;
layer_norm_kernel.cu, one block of 128 threads per row, which reads it for its statistics and again for its result, and two kernels by
element where rows do not start on four elements. Times of both on an H200.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.cache import PRIVATE_IS_LOST, PRIVATE_SURVIVES
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Stream
from perfmodel.timing.base import WARM, WARM_LATENCY_S, Case, Model, Parameter, dram_bandwidth, lost_share, numbers_of
from perfmodel.timing.models.stream import BLOCK_THREADS, STREAM_SHARE, model_name

WARP, REGISTERS, SHARED, REPEATED = "warp", "registers", "shared memory", "repeated"
"""Kernels of softmax, by where a row is kept between its maximum, its sum and its result: the last reads it again each time."""
WARP_COLUMNS, WARP_BYTES, SPILLING_COLUMNS, TWO_ROWS_COLUMNS = 2048, 4096, 1024, 128  # known
"""Longest row that a warp takes, in elements and bytes, longest whose elements its registers hold, and longest of two at once."""
SPILLED, SPILLED_FIRST = 1.38, 1.12  # tuned
"""Time of a warp's rows that spill, over what they would take, and latency of the first. Cross-validated on 400 shapes of an H200."""
ROW_CYCLES = 15.0  # tuned
"""Of a multiprocessor, for a row that a warp takes, beside its elements."""
REGISTERS_SINCE, WARP_THREADS = 9.0, 32  # known
"""Compute capability from which records are of a PyTorch whose blocks keep rows, which 2.1 reads again, as traces of AMD's are; threads
of a warp."""
HALF_LANES = ("AMD",)  # known
"""Makers whose multiprocessors start 64 operations of 32 bits a cycle, not 128. Source: AMD CDNA 3 ISA, four SIMDs of 16 lanes."""
SINGLE_STEP, LATENCY = 0.6, 3000.0  # tuned
"""Steps of single elements over those of vectors, and cycles of ``shared_cycles`` where a step waits for memory."""
REPEAT_SURVIVES, REPEAT_IS_LOST = 0.3, 0.78  # tuned
"""Rows of all blocks at once over L2, of softmax that reads them again."""
ROOMY_COLUMNS, REGISTER_COLUMNS = 6144, 9216  # known
"""Longest rows in the registers of a block, two blocks at once and one: 1,024 threads hold up to nine elements each."""
FIRST_CYCLES = 0.7  # tuned
"""Of the first row in registers, per element: fewer than of those that follow, as nothing else is read meanwhile."""
BLOCK_CYCLES = 500.0  # tuned
"""Of a multiprocessor, for each that follows, beside its elements."""
FOLLOWING = 0.85  # tuned
"""Time of each further row of a multiprocessor over the first, where no registers hold them."""
VECTOR_BYTES, SHARED_BYTES = 16, 48 * 1024 - 128  # known
"""What a thread of a block reads at once, and shared memory that a row fits in, less a number of each warp."""
SPILLED_STEP, SCALAR_STEP = 1.5, 0.5  # tuned
"""Steps of a row that is read three times, over one in shared memory: whole vectors, and its last elements one by one."""

WARM_SAVES = {"softmax": 0.35, "norm": 0.45}  # tuned
"""Share of the latency of first rows that they save if the L2 holds them: WARM_LATENCY_S of it as every kernel does."""

NORM_THREADS = 128  # known
"""Of a block."""
AGAIN_SURVIVES, AGAIN_IS_LOST = 0.32, 0.55  # tuned
"""Rows of all blocks at once over L2, up to which a block finds its row again, and from which it does not."""
JOINED = 1.7  # tuned
"""How the latency of first rows and the time of all rows at once add up: 1 is one after the other."""
VECTOR, NORM_WARP_COLUMNS, NORM_COLUMNS = 4, 128, 512  # known
"""Elements that a thread of a norm reads at once, if rows are a multiple of them; a warp, and all 128 threads."""
WARP_SHARE, ISSUED = 0.13, 4.0  # tuned
"""Instructions of each further warp and step over a row's first, and how those and the bytes of all rows add up. Cross-validated on
460 shapes of an H200."""
SCALAR_LAUNCH_US, SCALAR_COLUMN_NS, SCALAR_ROW_NS, SCALAR_ELEMENT_NS = 3.2, 2.2, 660.0, 0.47  # tuned
"""Where rows are read element by element: the second kernel; latency of a row, per element; a row on one multiprocessor, and more per
element. Of both norms alike, on 250 shapes of an H200 that nothing divides."""


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


def softmax_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of softmax over rows; each range of row lengths has another kernel.

    Up to 2,048 elements a warp keeps a row in its registers, of which it has too few beyond 1,024, or two rows up to 128: latency grows
    with the row, bytes flow at a share of the bandwidth. Beyond that a block of 1,024 threads takes a row, one after another on each
    multiprocessor, and its steps, not the bytes, set the pace.
    UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile.
    """
    w: Stream = case.workload
    moved_s = 2 * w.rows * w.cols * w.dtype.size / dram_bandwidth(device)
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    if softmax_kernel(w) == WARP:
        rows_s = _joined(_in_state(_warp_latency_s(w, p), case, device), _warps_s(w, sms * clock, moved_s, p))
    elif device.vendor == "NVIDIA" and device.capability < REGISTERS_SINCE:
        rows_s = _small_blocks_s(w, device, sms, clock, p)
    else:
        steps = clock / 2 if device.vendor in HALF_LANES else clock
        rows_s = max(_blocks_s(w, int(sms), steps, p), moved_s / STREAM_SHARE)
    return float(p["launch_us"] * 1e-6 + rows_s)


def _in_state(first_s: float, case: Case, device: Device) -> float:
    """Latency of first rows, ``first_s`` from a clean L2, less what they save beyond every other warm kernel."""
    if case.cache != WARM or not device.cache_bytes:
        return first_s
    w: Stream = case.workload
    lost = lost_share(float(w.read_bytes + w.write_bytes) / device.cache_bytes, PRIVATE_SURVIVES, PRIVATE_IS_LOST)
    return first_s - (1 - lost) * max(WARM_SAVES[w.op] * first_s - WARM_LATENCY_S, 0.0)


def _warp_latency_s(w: Stream, p: Mapping[str, float]) -> float:
    columns, at_once = padded(w.cols), 2 if w.cols <= TWO_ROWS_COLUMNS else 1
    return float(at_once * (w.cols + columns) / 2 * p["column_ns"] * 1e-9 * (SPILLED_FIRST if columns > SPILLING_COLUMNS else 1.0))


def _warps_s(w: Stream, cycles_per_s: float, moved_s: float, p: Mapping[str, float]) -> float:
    columns = padded(w.cols)
    held_s = w.rows / cycles_per_s * (ROW_CYCLES + columns * p["element_cycles"])
    return float((SPILLED if columns > SPILLING_COLUMNS else 1.0) * (held_s + moved_s / p["warp_share"]))


def _blocks_s(w: Stream, sms: int, clock: float, p: Mapping[str, float]) -> float:
    columns, waves = padded(w.cols), ceil_div(w.rows, sms)
    if columns > REGISTER_COLUMNS:
        row_s = p["shared_row_us"] * 1e-6 + thread_elements(w) * p["shared_cycles"] * BLOCK_THREADS / clock
        return float(row_s * (1 + FOLLOWING * (waves - 1)))
    roomy = columns <= ROOMY_COLUMNS
    after, cycles = (max(w.rows / sms - 1, 0.0), p["register_cycles"]) if roomy else (waves - 1, p["single_cycles"])
    return float((columns * FIRST_CYCLES + after * (BLOCK_CYCLES + columns * cycles)) / clock)


def _small_blocks_s(w: Stream, device: Device, sms: float, clock: float, p: Mapping[str, float]) -> float:
    """A row is read three times by a block of up to 512 threads: whole vectors, and its last elements one by one."""
    vector, row = VECTOR_BYTES // w.dtype.size, w.cols * w.dtype.size
    threads = small_block_threads(w.cols, vector)
    at_once = sms * resident_blocks(device, threads)
    whole, rest = divmod(w.cols, vector * threads)
    row_s = p["shared_row_us"] * 1e-6 + (whole + SINGLE_STEP * ceil_div(rest, threads)) * p["shared_cycles"] * LATENCY / clock
    read_again = _lost(min(w.rows, at_once) * row, device, REPEAT_SURVIVES, REPEAT_IS_LOST)
    bytes_s = (2 + 2 * read_again) * w.rows * row / (dram_bandwidth(device) * p["warp_share"])
    return _joined(row_s * max(w.rows / at_once, 1.0), bytes_s, ISSUED)


def small_block_threads(cols: int, vector: int) -> int:
    """Threads of PyTorch's block for a row: a power of two, so that each reads two vectors or more.

    >>> [small_block_threads(cols, 4) for cols in (1025, 2048, 2052, 16384)]
    [128, 256, 256, 512]
    """
    most = max(min(cols // vector, BLOCK_THREADS) // 2, 1)
    return max(int(1 << (most - 1).bit_length()), WARP_THREADS)


def resident_blocks(device: Device, threads: int) -> int:
    """Blocks of so many threads on a multiprocessor: of one of 2,048 where the profile does not say."""
    most = device.limits.max_threads_per_multiprocessor
    return int(most.number if most else 2 * BLOCK_THREADS) // threads


def _lost(size: float, device: Device, survives: float, is_lost: float) -> float:
    return lost_share(size / device.cache_bytes, survives, is_lost) if device.cache_bytes else 0.0


def thread_elements(w: Stream) -> float:
    """Elements that each thread of a block reads of a row that no registers hold, by what they cost over those in shared memory.

    Whole vectors; of a row that is read three times, the end element by element.
    """
    vector = VECTOR_BYTES // w.dtype.size
    if softmax_kernel(w) == SHARED:
        return float(ceil_div(w.cols, vector * BLOCK_THREADS) * vector)
    whole, rest = divmod(w.cols, vector * BLOCK_THREADS)
    return float(vector * (SPILLED_STEP * whole + SCALAR_STEP * ceil_div(rest, BLOCK_THREADS)))


def norm_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launch, the first rows, rows one after another on each multiprocessor, and bytes at a share of the bandwidth.

    UnavailableError without DRAM bandwidth or multiprocessors in the profile.
    """
    w: Stream = case.workload
    [sms] = numbers_of(device, "multiprocessors")
    slots, row = int(sms) * resident_blocks(device, NORM_THREADS), w.cols * w.dtype.size
    again = _lost(min(w.rows, slots) * row, device, AGAIN_SURVIVES, AGAIN_IS_LOST)
    bytes_s = (2 + again) * w.rows * row / (dram_bandwidth(device) * p["bandwidth_share"])
    if w.cols % VECTOR:
        first = _in_state(w.cols * SCALAR_COLUMN_NS * 1e-9, case, device)
        rows_s = w.rows / sms * (SCALAR_ROW_NS + w.cols * SCALAR_ELEMENT_NS) * 1e-9
        return float((p["launch_us"] + SCALAR_LAUNCH_US) * 1e-6 + _joined(first, max(rows_s, bytes_s)))
    steps = ceil_div(w.cols, NORM_COLUMNS)
    first = _in_state(steps * NORM_COLUMNS * p["column_ns"] * 1e-9, case, device)
    issued = w.rows / sms * p["row_ns"] * (1 + WARP_SHARE * (ceil_div(w.cols, NORM_WARP_COLUMNS) - 1)) * 1e-9
    all_s = _joined(issued, bytes_s, ISSUED)
    at_once = all_s * min(1.0, slots / w.rows)
    return float(p["launch_us"] * 1e-6 + _joined(first, at_once) + all_s - at_once)


def _joined(one_s: float, other_s: float, power: float = JOINED) -> float:
    return float((one_s**power + other_s**power) ** (1 / power))


_LISTED = (
    Model(
        "softmax-rows",
        (
            Parameter("launch_us", "an empty kernel"),
            Parameter("warp_share", "of the DRAM bandwidth, a warp per row"),
            Parameter("column_ns", "latency of a row, per element"),
            Parameter("element_cycles", "of a multiprocessor, per element that warps hold"),
            Parameter("register_cycles", "the same, a block per row in registers, two blocks at once"),
            Parameter("single_cycles", "the same, one block at once"),
            Parameter("shared_cycles", "the same, per element of a row, a block per row in shared memory"),
            Parameter("shared_row_us", "of a multiprocessor, per row in shared memory"),
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
            Parameter("launch_us", "an empty kernel"),
            Parameter("bandwidth_share", "of the DRAM bandwidth that is reached"),
            Parameter("column_ns", "latency of a row, per element"),
            Parameter("row_ns", "per row on one multiprocessor"),
        ),
        lambda case: model_name(case) == "norm-rows",
        norm_seconds,
        "launch + latency + bytes over bandwidth, rows read twice",
        knows_warm=False,
        implementations=("torch-rms-norm", "torch-layer-norm"),
    ),
)
MODELS = {model.name: model for model in _LISTED}
