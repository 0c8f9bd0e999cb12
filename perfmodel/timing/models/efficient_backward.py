"""Time of the memory-efficient backward pass: blocks that keep key tiles, walk the row tiles, and add to dQ in turn.

A block first sums O dO over all rows of its head, then takes tile after tile: five matmuls with barriers between them, chains of loads
that its few warps do not hide. Blocks of a head add to dQ in memory, one at a time for each row tile: a head takes at least as many
turns as it has key tiles. Over head dim 128 dK and dV pass through memory as well, and a head gets few blocks.

Source: PyTorch 2.11 aten/src/ATen/native/transformers/cuda, attention_backward.cu (splits of the keys) and
mem_eff_attention/kernel_backward.h (tiles, row sums, locks, order), which came from xFormers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import hypot

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.timing.base import ALONE, Case, Model, Parameter, numbers_of, once_per_case, plain_attention
from perfmodel.timing.implementations import kernel_name
from perfmodel.timing.models._flash_blocks import ROUNDS, FlashPlan, TileBlocks, equal_cycles, interleaved_cycles
from perfmodel.timing.models._flash_gradients import key_tiles_visits

PARAMETERS = (
    Parameter("launch_us", "from the launch to the first block, for every kernel of the call"),
    Parameter("block_cycles", "cycles of a block besides its tiles and rows"),
    Parameter("tile_cycles", "cycles of a tile of 64 x 64 of head dim 64, alone on its multiprocessor"),
    Parameter("alone", "cycles of such a tile alone over its share of a full multiprocessor"),
    Parameter("row_cycles", "cycles of a row tile's sums of O dO, per load of each thread"),
    Parameter("turn_cycles", "cycles for which a block of 64 x 64 keeps others from a row tile of dQ"),
    Parameter("crowd_cycles", "cycles of a multiprocessor for each of its blocks of head dim 256, beside what a block takes alone"),
    Parameter("dram", "time of bytes that pass the memory pins over that at the nominal bandwidth"),
)

SHARED = 0.15  # tuned
"""Of a tile: to take and to return dQ where other blocks add to it."""
UNEVEN = 0.12  # tuned
"""Of a tile up to head dim 128: its bounds are checked where tiles do not divide both lengths."""
WIDER = 0.5  # tuned
"""Change of a tile's time over that of head dim, over 128."""
FIRST = 0.35  # tuned
"""Of a tile over head dim 128: to take and to return dK and dV, which the first row tile of a key tile need not."""
SQUARED = 1.5  # tuned
"""Exponent of head dim in ``crowd_cycles``."""
IN_TURN, ONE_ROW = 1.3, 6.0  # tuned
"""Exponent of the norm that adds tiles and waiting where a head has many row tiles, and what a single one adds; 1 is one after the
other. Blocks that all wait for one row tile do nothing else."""
STEEP = 4.0  # tuned
"""How soon blocks of several row tiles wait, once turns of all take longer than their tiles; those of one row tile always do."""
TILES = 0.97, 1.0, 3.3, 8.8  # tuned
"""Cycles of a tile over ``tile_cycles``, by kernel: up to head dim 32, 64, 128, and over."""
BLOCKS = 1.0, 1.0, 2.0, 1.0  # tuned
"""The same of a block over ``block_cycles``."""
ROWS = 1.0, 1.0, 1.1, 6.5  # tuned
"""The same of a row tile's load over ``row_cycles``."""
TURNS = 1.0, 1.0, 1.9, 1.0  # tuned
"""The same of a turn over ``turn_cycles``."""
EMPTY = 0.0, 0.0, 0.7, 0.0  # tuned
"""Share of a tile's time that goes with the rows and keys in it, by kernel."""
MANY, MOST_BLOCKS = 256, 200  # known
"""Heads from which two key tiles share a block; blocks of all heads over head dim 128 (attention_backward.cu)."""
_ACCESS = 8  # known
"""Elements of a load of 16 bytes; heads that those do not divide are read one by one."""
_LINES = 32  # known
"""Rows that a step of the matmuls takes: those of a tile beyond the last row or key are left out."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel for sm80 in two-byte elements. ``per_row``: threads that sum a row of O dO; ``resident``: by registers and SRAM."""

    place: int
    br: int
    bc: int
    resident: int
    per_row: int


_KERNELS = (_Kernel(0, 64, 64, 3, 2), _Kernel(1, 64, 64, 3, 2), _Kernel(2, 128, 128, 1, 4), _Kernel(3, 128, 64, 1, 2))  # known
"""Up to head dim 32, 64, 128, and over: the first that fits (kernels/cutlassB.h)."""
*_, _WIDE = _KERNELS


def _kernel(w: Attention) -> _Kernel:
    widest = max(w.d, w.dv)
    return next((kernel for kernel, most in zip(_KERNELS, (32, 64, 128), strict=False) if widest <= most), _WIDE)


def splits(w: Attention) -> int:
    """Blocks of a head: one per key tile but for many heads and, over head dim 128, for the gradients they keep in memory."""
    keys, heads = int(ceil_div(w.kv_len, _kernel(w).bc)), int(w.query_heads)
    if heads >= MANY and keys <= 2:
        return 1
    return max(1, min(keys, MOST_BLOCKS // heads)) if max(w.d, w.dv) > 128 else keys


@dataclass(frozen=True, slots=True)
class _Work:
    """A case before any parameter. ``tiles``: of the head's mean block; ``loads``: of a thread for a row; ``full``: share of the tiles'
    rows and keys that exist; ``moved`` and ``zeroed``: bytes of the main kernel, and of the kernel before it."""

    kernel: _Kernel
    blocks: TileBlocks
    splits: int
    rows: int
    tiles: float
    loads: int
    full: float
    even: bool
    equal: bool
    moved: int
    zeroed: int
    summed: int
    clock_hz: float
    bandwidth: float


def _zeroed(w: Attention, kernel: _Kernel, parts: int) -> int:
    """Bytes of dQ in fp32, of dK and dV of a block each over head dim 128, which start from zero where several blocks add to them."""
    if parts == 1:
        return 0
    wide = max(w.d, w.dv) > 128
    columns = ceil_div(w.d, kernel.bc) * kernel.bc if wide else kernel.bc
    kept = parts * kernel.bc * 2 * ceil_div(w.d, kernel.br) * kernel.br if wide else 0
    return int(w.query_heads * (ceil_div(w.n, kernel.br) * kernel.br * columns + kept) * 4)


def _blocks(w: Attention, kernel: _Kernel, parts: int, sms: int) -> tuple[TileBlocks, int]:
    """The launch, and tiles of a head. Each of its blocks takes key tiles j, j + parts, ..."""
    plan, walk = FlashPlan(kernel.br, kernel.bc), replace(w, packed=False)
    each = cache(partial(key_tiles_visits, walk, plan, step=parts))
    count, tiles = int(w.query_heads) * parts, key_tiles_visits(walk, plan, 0, 1)
    listed = min(count, ROUNDS * sms * kernel.resident)
    last = tuple(each(i % parts) for i in range(count - listed, count))
    return TileBlocks(last, count - listed, int(w.query_heads) * tiles - sum(last), sms, kernel.resident), tiles


@once_per_case
def _work(case: Case, device: Device) -> _Work:
    w: Attention = case.workload
    sms, clock_hz, bandwidth = numbers_of(device, "multiprocessors", "tensor clock", "DRAM bandwidth")
    kernel, parts = _kernel(w), splits(w)
    blocks, tiles = _blocks(w, kernel, parts, int(sms))
    rows, keys = int(ceil_div(w.n, kernel.br)), int(ceil_div(w.kv_len, kernel.bc))
    seen_rows = ceil_div(w.n, _LINES) * _LINES / (rows * kernel.br)
    seen_keys = ceil_div(w.kv_len, _LINES) * _LINES / (keys * kernel.bc)
    tensors = w.query_heads * w.n * (2 * w.d + 2 * w.dv), w.query_heads * w.kv_len * 2 * (w.d + w.dv)
    access = _ACCESS if w.dv % _ACCESS == 0 else 1
    return _Work(
        kernel=kernel,
        blocks=blocks,
        splits=parts,
        rows=rows,
        tiles=tiles / parts,
        loads=int(ceil_div(w.dv, access * kernel.per_row)),
        full=1 - EMPTY[kernel.place] * (2 * (1 - seen_rows) + (1 - seen_keys)) / 5,  # dV and dK walk rows, dQ keys, of five matmuls
        even=kernel is _WIDE or not (w.n % kernel.br or w.kv_len % kernel.bc),
        equal=len(set(blocks.last)) == 1 and tiles == parts * blocks.last[0],
        moved=int(sum(tensors)) * w.dtype.size,
        zeroed=_zeroed(w, kernel, parts),
        summed=int(w.kv_heads * w.batch * w.kv_len * (w.d + w.dv) * w.dtype.size * (w.group + 1)) if w.group > 1 else 0,
        clock_hz=clock_hz,
        bandwidth=bandwidth,
    )


def _waiting_cycles(work: _Work, heads: int, tile: float, block: float, turn: float) -> float:
    """Cycles until all heads had their turns, as far as a head's blocks wait for turns rather than for tiles.

    A head with K blocks serves one per turn and row tile, the device holds W blocks in order. With m heads at work a head's blocks enter
    m at a time, so that on average K (m - 1) / 2 of them wait, and W = K (m - 1) / 2 + m b, where a block works for b turns.
    """
    k, held, passes = work.splits, work.blocks.slots, max(1.0, -(-work.tiles // max(1, work.rows)))
    crowding = k * turn * passes / (block + tile * work.tiles) - 1
    share = 1.0 if work.rows == 1 else min(1.0, STEEP * max(crowding, 0.0))
    if k == 1 or share == 0:
        return 0.0
    busy = (block / (work.rows * passes) + tile) / turn
    next_head = k * (busy + k / 2) / (held + k / 2)
    if k >= 2 * held:  # two heads at most
        next_head = max(next_head, k - held + busy)
    return share * (max(0.0, heads - max(1.0, held / k)) * next_head + k + busy) * turn * passes


def main_cycles(work: _Work, w: Attention, parameters: Mapping[str, float]) -> float:
    """Cycles of the main kernel on warm caches."""
    kernel, blocks, widest = work.kernel, work.blocks, max(w.d, w.dv)
    wide = (1 + WIDER * (widest / 256 - 1)) * (1 - FIRST / work.rows) if kernel is _WIDE else 1.0
    tile = parameters["tile_cycles"] * TILES[kernel.place] * wide * work.full * (1 if work.even else 1 + UNEVEN)
    tile *= 1 + SHARED * (work.splits > 1)
    block = parameters["block_cycles"] * BLOCKS[kernel.place] + work.rows * work.loads * parameters["row_cycles"] * ROWS[kernel.place]
    crowd = parameters["crowd_cycles"] * (widest / 256) ** SQUARED if kernel is _WIDE else 0.0
    alone = min(max(parameters["alone"], 1.0), kernel.resident)
    listed = (equal_cycles if work.equal else interleaved_cycles)(blocks, tile / alone, block, alone)
    turn = parameters["turn_cycles"] * TURNS[kernel.place]
    waiting = _waiting_cycles(work, int(w.query_heads), tile, block, turn)
    norm = IN_TURN + ONE_ROW / work.rows
    return float((listed**norm + waiting**norm) ** (1 / norm) + crowd * blocks.count / blocks.slots)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call with all its kernels; UnavailableError if the profile lacks a number."""
    w: Attention = case.workload
    work = _work(case, device)
    per_byte = parameters["dram"] / work.bandwidth
    main_s, moving_s = main_cycles(work, w, parameters) / work.clock_hz, work.moved * per_byte
    kernels = 1 + (work.zeroed > 0) + 2 * (work.summed > 0)
    beside_s = kernels * parameters["launch_us"] * 1e-6 + (work.zeroed + work.summed) * per_byte
    return beside_s + (hypot(main_s, moving_s) if case.flushed else max(main_s, moving_s))


def covers(case: Case) -> bool:
    """The memory-efficient backward pass, dense, with d = d_v."""
    w = case.workload
    if kernel_name(case.implementation) != "torch-sdpa-efficient" or case.direction != BACKWARD:
        return False
    return plain_attention(case, "sparsity", "dropout", "mask") and w.d == w.dv and w.dtype.size == 2


MODEL = Model(
    name="efficient-backward",
    parameters=PARAMETERS,
    covers=covers,
    seconds=seconds,
    source="PyTorch 2.11 attention_backward.cu and mem_eff_attention/kernel_backward.h; list scheduling, Graham 1966",
    assumes=f"{ALONE}; Q, K and V stored as [batch, length, heads, d]",
    implementations=("torch-sdpa-efficient", "xformers"),
)
