"""C = A B in fp32 by the project's own kernels: numba-matmul, by register tiles, and numba-matmul-naive, one thread per element of C.

By tiles: a block owns a tile of C and walks k in stages of 32: multiply-adds, loads and copies as in numba-flash, and a barrier per stage,
where a block waits unless others fill the time. Blocks that share schedulers slow each other down. Naive: a warp walks k: each step loads
one element of A, which stays in L1, and 32 neighbours of B, which come from L2 every time, as neighbouring blocks share rows of A and not
columns of B. L2 delivers to each multiprocessor at one rate; a last, partly filled round of blocks takes as long as a full one. Source: the
kernels' own loops; profiled loads from L2 are 4 m n k bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import ThreadBlock
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.register_tiles import FLOAT_BYTES, Instructions, TileLayout
from perfmodel.timing.base import Case, Model, numbers_of
from perfmodel.timing.models import register_tiles as tiles

DEPTH = 32  # known
"""Steps of k per stage."""
STAGES = 2  # known
DEFAULT_TILE = 64  # known
REGISTERS = {32: 72, 64: 237, 128: 201}  # known
"""Registers per thread by tile, if a launch does not say: as numba 0.68 compiles for compute capability 9.0."""

THREADS = 256  # known
"""Threads per block of the naive kernel, along a row of C."""


def layout_of(tile: int) -> TileLayout:
    """The layout of ``tile``: 8 x 8 results per thread, 4 x 4 in the smallest tile.

    >>> layout_of(64).threads, layout_of(32).threads
    (64, 64)
    """
    return TileLayout(tile, tile // 8, 8) if tile > DEPTH else TileLayout(tile, 8, 4)


def stage(layout: TileLayout, columns: int, depth: int = DEPTH) -> Instructions:
    """Instructions that each warp executes for ``depth`` steps of k: a tile of ``layout.br`` x ``columns`` += A B from shared memory.

    >>> stage(layout_of(128), 128)
    Instructions(multiply_adds=2048, loads=128, scores=0, copies=8.0)
    """
    width = columns // layout.lanes
    loads = depth // 4 * layout.rows + depth * (width // 4)
    return Instructions(layout.rows * width * depth, loads, 0, (layout.br + columns) * depth / 4 / layout.threads)


def tiled_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call, UsageError for an unknown tile; UnavailableError without a calibration of numba-flash or a number."""
    w: Matmul = case.workload
    costs = tiles.instruction_costs(device)
    tile = case.launch.get("br", DEFAULT_TILE)
    if tile not in REGISTERS:
        raise UsageError(f"numba-matmul with tile {tile}: no such kernel", f"give one of {', '.join(map(str, REGISTERS))}")
    layout, registers = layout_of(tile), case.launch.get("registers", REGISTERS[tile])
    block = ThreadBlock(layout.threads, registers, STAGES * 2 * tile * DEPTH * FLOAT_BYTES)
    work, stages = stage(layout, tile), ceil_div(w.k, DEPTH)

    def cycles(held: int, warps: float) -> float:
        return float(stages * (tiles.tile_cycles(work, warps, costs) + p["stage_cycles"] / held))

    blocks = int(ceil_div(w.m, tile) * ceil_div(w.n, tile))
    return tiles.launches_seconds(1, device, costs) + tiles.grid_seconds(cycles, blocks, block, device)


def naive_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without a calibration of numba-flash, or a number that it needs."""
    w = case.workload
    threads = case.launch.get("threads", THREADS)
    blocks = ceil_div(w.n, threads) * w.m
    launch = tiles.launches_seconds(1, device, tiles.instruction_costs(device))
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    return float(launch + ceil_div(blocks, int(sms)) * threads * w.k * FLOAT_BYTES / p["l2_bytes_per_clock"] / clock)


def covers(case: Case) -> bool:
    """A single product C[m, n] = A[m, k] B[k, n], forward; no batch, no split of k."""
    w = case.workload
    return isinstance(w, Matmul) and w.batch == 1 and w.split_k == 1 and case.direction == FORWARD


_LISTED = (
    Model(
        "numba-matmul",
        "numba",
        covers,
        tiled_seconds,
        "instructions of the kernel's loops",
        implementations=("numba-matmul",),
        composite=True,
    ),
    Model(
        "numba-matmul-naive", "numba", covers, naive_seconds, "bytes of B from L2", implementations=("numba-matmul-naive",), composite=True
    ),
)
MODELS = {model.name: model for model in _LISTED}
