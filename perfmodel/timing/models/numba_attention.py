"""Attention by the project's own kernels beside numba-flash, forward: numba-standard and numba-flash1 in fp32, and numba-flash-mma.

numba-standard, unfused, runs three kernels through global memory. S = Q K^T: a block per tile of S, whose elements each thread stores one
by one. Softmax: a warp per row, whose threads wait for one element at a time; few rows fit shared memory, so latency shows. O = P V: a
block per query tile walks the keys in stages of 32, as numba-matmul does. All scores are computed, hidden ones too. With a causal mask the
softmax guards every element in its loops, and takes longer per visible one.

numba-flash1 has K and V outermost: one block per head visits every pair of a key tile and a query tile that sees it. A pair costs
as much as in numba-flash, except that Q is copied instead of K and V. In addition every pair waits for Q and O, and moves O from L2
and back. Three kernels fill O, l and m first.

numba-flash-mma is FlashAttention-2's forward pass with tensor cores. A block keeps br queries and visits tiles of bc keys, as ``fa2``
explains; tile and threads are those that the launch names. Each warp has 32 br / threads rows. No variant of it masks odd lengths, and
none splits the keys.
Source: the kernels' own loops; instruction costs of numba-flash; Dao et al. 2022, arXiv 2205.14135, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import ThreadBlock
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.register_tiles import FLOAT_BYTES, WARP, Instructions, TileLayout, instructions
from perfmodel.timing.base import Case, Model, dram_bandwidth
from perfmodel.timing.engine import L2_PORT
from perfmodel.timing.models import register_tiles as tiles
from perfmodel.timing.models._attention_grid import AttentionLaunch, dense, page, resident_blocks
from perfmodel.timing.models.numba_matmul import DEPTH, STAGES, stage

DEFAULT_TILE = (128, 64)  # known
REGISTERS = {64: (128, 225), 128: (72, 205)}  # known
"""Registers per thread of the kernels of S and of O, by head dim, as numba 0.68 compiles them for compute capability 9.0.

A record of a launch has one of the two numbers and does not say which."""
SOFTMAX_REGISTERS = 32  # known
"""Registers per thread of the softmax kernel, few enough to fill a multiprocessor with warps."""
SOFTMAX_ROWS, SOFTMAX_BYTES = 4, 64 * 1024  # known
"""Most rows of a block, and shared memory that they share."""

# Standard


def scores_seconds(w: Attention, tile: tuple[int, int], device: Device, costs: Mapping[str, float], p: Mapping[str, float]) -> float:
    """Seconds of S = Q K^T; ``tile``: rows and columns of S per block."""
    br, bc = tile
    layout = TileLayout(br, w.d // 8)
    columns = bc // layout.lanes
    stored = layout.rows * columns
    loads = w.d // 4 * (layout.rows + columns)
    work = Instructions(stored * w.d, loads, 0, (br + bc) * w.d / 4 / layout.threads)
    block = ThreadBlock(layout.threads, REGISTERS[int(w.d)][0], (br + bc) * w.d * FLOAT_BYTES)
    blocks = int(ceil_div(w.n, br) * ceil_div(w.kv_len, bc) * w.query_heads)
    return tiles.grid_seconds(
        lambda _, warps: tiles.tile_cycles(work, warps, costs) + warps * stored * p["store_cycles"], blocks, block, device
    )


def visible_keys(w: Attention) -> float:
    """Mean number of keys that a query sees under a causal mask.

    >>> visible_keys(Attention(n=3, kv_len=4, d=64, dv=64)), visible_keys(Attention(n=4, kv_len=2, d=64, dv=64))
    (3.0, 0.75)
    """
    seeing = min(w.n, w.kv_len)
    return float((2 * w.kv_len - seeing + 1) * seeing / 2 / w.n)


def softmax_seconds(w: Attention, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of P = softmax(S): the latency of its rows, or its bytes over the DRAM bandwidth."""
    row_bytes = int(w.kv_len) * FLOAT_BYTES
    rows = max(1, min(SOFTMAX_ROWS, SOFTMAX_BYTES // row_bytes))
    block = ThreadBlock(rows * WARP, SOFTMAX_REGISTERS, rows * row_bytes)
    cycles = (w.kv_len * p["softmax_cycles"] + w.causal * visible_keys(w) * p["mask_cycles"]) / WARP
    latency = tiles.grid_seconds(lambda *_: float(cycles), int(ceil_div(w.query_heads * w.n, rows)), block, device)
    return float(max(latency, 2 * w.query_heads * w.n * row_bytes / dram_bandwidth(device)))


def outputs_seconds(w: Attention, br: int, device: Device, costs: Mapping[str, float]) -> float:
    """Seconds of O = P V; ``br``: rows of O per block."""
    layout = TileLayout(br, w.d // 8)
    work, stages = stage(layout, int(w.d)), ceil_div(w.kv_len, DEPTH)
    block = ThreadBlock(layout.threads, REGISTERS[int(w.d)][1], STAGES * (br + w.d) * DEPTH * FLOAT_BYTES)

    return tiles.grid_seconds(
        lambda _, warps: float(stages) * tiles.tile_cycles(work, warps, costs), int(ceil_div(w.n, br) * w.query_heads), block, device
    )


def standard_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without a calibration of numba-flash, or a number that it needs."""
    w: Attention = case.workload
    costs = tiles.instruction_costs(device)
    tile = case.launch.get("br", DEFAULT_TILE[0]), case.launch.get("bc", DEFAULT_TILE[1])
    products_s = scores_seconds(w, tile, device, costs, p) + outputs_seconds(w, tile[0], device, costs)
    return tiles.launches_seconds(3, device, costs) + products_s + softmax_seconds(w, device, p)


def covers_standard(case: Case) -> bool:
    """Forward attention with d = d_v of 64 or 128, causal or not; no window, blocks, additive mask or dropout."""
    return tiles.covers(case) and case.workload.d in REGISTERS


# flash1


def visits(w: Attention, br: int, bc: int) -> int:
    """Pairs of a key tile and a query tile that sees it, for one head.

    >>> visits(Attention(n=300, kv_len=300, d=64, dv=64, causal=True), 128, 128)
    6
    """
    rows = int(ceil_div(w.n, br))
    if not w.causal:
        return rows * int(ceil_div(w.kv_len, bc))
    hidden = w.kv_len - w.n
    return sum(rows - max(0, begin - hidden) // br for begin in range(0, int(w.kv_len), bc))


def flash1_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without a calibration of numba-flash, or a number that it needs."""
    w: Attention = case.workload
    costs = tiles.instruction_costs(device)
    shape = tiles.launched_shape(case)
    block = ThreadBlock(
        shape.threads, case.launch.get("registers", tiles.UNKNOWN_REGISTERS), shape.shared_bytes + 2 * shape.br * FLOAT_BYTES
    )
    pair = replace(instructions(shape), copies=shape.br * shape.d / 4 / shape.threads)
    key_tile = Instructions(0, 0, 0, 2 * shape.bc * shape.d / 4 / shape.threads)
    wait_cycles = p["pair_cycles"] + 2 * shape.br * shape.d * FLOAT_BYTES / L2_PORT
    pairs, key_tiles = visits(w, shape.br, shape.bc), ceil_div(w.kv_len, shape.bc)

    def block_cycles(_: int, warps: float) -> float:
        pair_cycles = tiles.tile_cycles(pair, warps, costs) + wait_cycles
        return float(pairs * pair_cycles + key_tiles * tiles.tile_cycles(key_tile, warps, costs))

    fill_s = w.query_heads * w.n * (w.d + 2) * FLOAT_BYTES / dram_bandwidth(device)
    return float(tiles.launches_seconds(4, device, costs) + fill_s + tiles.grid_seconds(block_cycles, int(w.query_heads), block, device))


# Tensor cores

WIDEST = 128  # known
_LAUNCH = {"br": 128, "bc": 64, "threads": 128}  # known


def mma_launch(case: Case, device: Device) -> AttentionLaunch:
    """Tile, threads and shared memory of the case's launch."""
    br, bc, threads = (case.launch.get(name, default) for name, default in _LAUNCH.items())
    resident = resident_blocks(device, br, bc, threads, case.workload, case.launch.get("shared_bytes"))
    return AttentionLaunch(br, bc, max(16, 32 * br // threads), resident=resident, threads=threads)


def covers_mma(case: Case) -> bool:
    """Forward over several queries, dense, with d = d_v of at most 128."""
    return dense(case, FORWARD) and case.workload.n > 1 and case.workload.d <= WIDEST


_MMA = page("numba-mma", mma_launch, covers_mma, "FlashAttention-2 (Dao 2023, Alg. 1); list scheduling, Graham 1966", ("numba-flash-mma",))


_LISTED = (
    _MMA,
    Model(
        "numba-standard",
        "numba",
        covers_standard,
        standard_seconds,
        "instructions of the kernels' loops; latency of a row",
        implementations=("numba-standard",),
        composite=True,
    ),
    Model(
        "numba-flash1",
        "numba",
        tiles.covers,
        flash1_seconds,
        "instructions of the kernel's loops",
        implementations=("numba-flash1",),
        composite=True,
    ),
)
MODELS = {model.name: model for model in _LISTED}
