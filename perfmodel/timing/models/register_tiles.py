"""Attention in fp32 whose tiles are register-blocked: numba-flash, forward.

A block's time alone is its tiles' instructions at the rate of one warp per scheduler, where latencies show; blocks that share
schedulers are bound by the slots in which those issue. Between the two the time is their p-norm. Blocks start in the order of
the grid, each head's longest rows first, and follow each other on multiprocessors (``shared_makespan``).
Source: the kernel's own loops (instructions per tile); CUDA C++ Programming Guide, hardware multithreading (four schedulers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import Block, block_limits, least, multiprocessor
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.timing.base import Case, Model, Parameter, once_per_case
from perfmodel.timing.register_tiles import WARP, Geometry, geometry
from perfmodel.timing.schedule import Shares, shared_makespan, spread_evenly
from perfmodel.timing.tile_schedule import ByRatio, Lanes, drained, lanes

SCHEDULERS = 4
SHARPNESS = 4
"""p of the norm between latency-bound and issue-bound."""
DEFAULT_TILE = (64, 64)
UNKNOWN_REGISTERS = 255
"""Registers per thread where a launch does not say: the most that the compiler uses."""

PARAMETERS = (
    Parameter("launch_us", "before the first block and after the last one", 3.5),
    Parameter("block_cycles", "per block: loading Q, storing O", 3000.0),
    Parameter("fma_issue_cycles", "issue slots per multiply-add of a warp", 1.4),
    Parameter("fma_alone_cycles", "cycles per multiply-add of a warp alone on its scheduler", 1.5),
    Parameter("load_cycles", "per load of a warp from shared memory", 2.0),
    Parameter("score_cycles", "softmax, per score of a thread", 6.0),
    Parameter("chunk_cycles", "softmax, per chunk of keys: reductions over a row, rescaling", 150.0),
    Parameter("copy_cycles", "per 16-byte copy of a thread into shared memory", 20.0),
)
TUNED = ("SHARPNESS",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("SCHEDULERS", "DEFAULT_TILE", "UNKNOWN_REGISTERS")
"""Given by hardware, by the source of a kernel, or by definition."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """What each warp executes for one key tile, in instructions; ``scores`` per thread."""

    multiply_adds: int
    loads: int
    scores: int
    chunks: int
    copies: float


def instructions(shape: Geometry) -> Instructions:
    """Instructions of one key tile.

    >>> instructions(geometry(64, 128, 64))
    Instructions(multiply_adds=8192, loads=512, scores=64, chunks=1, copies=16.0)
    """
    chunks, rows = shape.bc // shape.chunk, shape.rows
    per_chunk = shape.d // 4 * (rows + shape.columns) + shape.chunk // 4 * (rows + shape.width)
    scores = rows * shape.bc // shape.lanes
    return Instructions(2 * scores * shape.d, chunks * per_chunk, scores, chunks, 2 * shape.bc * shape.d / 4 / shape.threads)


def tiles_by_block(w: Attention, br: int, bc: int) -> list[int]:
    """Key tiles that each block of a head visits, in the order in which they start: the last query rows first.

    >>> tiles_by_block(Attention(n=300, kv_len=300, d=64, dv=64, causal=True), 128, 128)
    [3, 2, 1]
    """
    if not w.causal:
        return [ceil_div(w.kv_len, bc)] * ceil_div(w.n, br)
    lasts = (min(w.n, (row + 1) * br) + w.kv_len - w.n for row in reversed(range(ceil_div(w.n, br))))
    return [ceil_div(max(0, last), bc) for last in lasts]


def tile_cycles(work: Instructions, warps_per_scheduler: float, p: Mapping[str, float]) -> float:
    """Cycles of a key tile for a block whose schedulers hold that many warps, at least one."""
    rest = (
        work.loads * p["load_cycles"] + work.scores * p["score_cycles"] + work.chunks * p["chunk_cycles"] + work.copies * p["copy_cycles"]
    )
    alone = work.multiply_adds * p["fma_alone_cycles"] + rest
    issue = max(1.0, warps_per_scheduler) * (work.multiply_adds * p["fma_issue_cycles"] + rest)
    return float((alone**SHARPNESS + issue**SHARPNESS) ** (1 / SHARPNESS))


@dataclass(frozen=True, slots=True)
class _Work:
    """A case on a device before any parameter. ``held``: blocks on a multiprocessor; ``tiles``: of each block of a head.

    ``last``: how unequal blocks end, ``early`` of which come before and fill the device evenly; None where a sum or a round tells.
    """

    sms: int
    clock_hz: float
    held: int
    lanes: int
    warps: int
    tile: Instructions
    tiles: list[int]
    early: int
    last: ByRatio[Lanes] | None

    def shares(self, speeds: tuple[float, ...]) -> Shares:
        """The places for blocks, and how these slow each other down."""
        return Shares(self.sms, self.held, self.lanes, speeds)


@once_per_case
def _work(case: Case, device: Device) -> _Work:
    w: Attention = case.workload
    sm, clock = multiprocessor(device), device.clocks.max
    if clock is None or sm.count is None:
        raise UnavailableError(f"{device.id} lacks its clock or its multiprocessors", "add clocks.max and multiprocessors to the profile")
    shape = geometry(w.d, case.launch.get("br", DEFAULT_TILE[0]), case.launch.get("bc", DEFAULT_TILE[1]))
    block = Block(shape.threads, case.launch.get("registers", UNKNOWN_REGISTERS), shape.shared_bytes)
    held, warps = max(1, int(least(block_limits(block, sm)))), shape.threads // WARP
    tiles, parts = tiles_by_block(w, shape.br, shape.bc), max(1, SCHEDULERS // warps)
    places, blocks = Shares(int(sm.count), held, parts, ()), int(w.query_heads) * len(tiles)
    early = spread_evenly(blocks, len(tiles), places)
    last = lanes(tiles, blocks - early, places) if len(set(tiles)) > 1 and (held < parts or held % parts == 0) else None
    return _Work(int(sm.count), clock.number, held, parts, warps, instructions(shape), tiles, early, last)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without clock or multiprocessors in the profile."""
    work = _work(case, device)
    times = [tile_cycles(work.tile, m * max(1.0, work.warps / SCHEDULERS), p) for m in range(1, ceil_div(work.held, work.lanes) + 1)]
    shares = work.shares(tuple(times[0] / time for time in times))
    return p["launch_us"] * 1e-6 + _grid_cycles(work, shares, times[0], p["block_cycles"], int(case.workload.query_heads)) / work.clock_hz


def _grid_cycles(work: _Work, shares: Shares, tile: float, block: float, heads: int) -> float:
    """Cycles until the last block ends; ``tile`` and ``block``: of a tile, and besides its tiles, of a block alone."""
    if work.last is None:
        return shared_makespan([tiles * tile + block for tiles in work.tiles], heads, shares)
    early = (sum(work.tiles) * tile + len(work.tiles) * block) * work.early / len(work.tiles) / shares.rate
    return early + tile * drained(work.last.at(block / tile), block / tile, shares.speeds)


def covers(case: Case) -> bool:
    """Plain fp32 attention, forward."""
    w = case.workload
    plain = isinstance(w, Attention) and w.window is None and w.sparsity is None and not (w.mask or w.masked_fill or w.dropout)
    return plain and case.direction == FORWARD and w.d == w.dv


MODEL = Model(
    "register-tiles",
    PARAMETERS,
    covers,
    seconds,
    "instructions of the kernel's loops; schedulers of a multiprocessor",
    implementations=("numba-flash",),
)
