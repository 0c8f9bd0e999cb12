"""Memory-efficient attention: PyTorch's CUTLASS kernels, which came from xFormers.

**Forward**, a block keeps 64 queries (32 for head dims over 128) and visits tiles of 64 or 128 keys. mma.sync and exponentials take turns.
Two or four blocks share a multiprocessor, by the registers profiled, and hide each other's loads. P is multiplied only by the values of
existing keys. For head dims over 128, O passes through memory between tiles.

**Backward**, a block first sums O dO over all rows of its head. Then it keeps a key tile and visits the row tiles, each with five matmuls
and barriers between them. It adds to dQ in memory while it holds the lock of that row tile. The blocks of a head begin at different rows,
so that they wait for a lock only if the turns of all blocks at a row tile take longer than the tiles of one block, or if the head has only
one row tile.

For head dims over 128, few warps read dO load by load, dK and dV pass through memory between row tiles, and a head has few blocks with
several key tiles each, which all start by zeroing gradients in memory. Other kernels zero dQ before, and sum dK and dV over grouped heads
after.

Source: PyTorch 2.11 aten/src/ATen/native/transformers/cuda, attention_backward.cu (splits of the keys) and mem_eff_attention/
(kernel_forward.h, kernel_backward.h: tiles, row sums, locks, order; kernels/cutlassF.h, cutlassB.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.arith import ceil_div
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.walk import row_tiles, visited_tiles
from perfmodel.timing.base import Case, Model, never, plain_attention
from perfmodel.timing.engine import beside_dram
from perfmodel.timing.models._attention_grid import (
    ASSUMES,
    FP32,
    AttentionLaunch,
    AttentionWork,
    Stage,
    dense,
    grid_of_walk,
    keys_walk,
    page,
    tensor_bytes,
    work_of,
)

_STEP = 32  # known
"""Keys or rows in one step of a product (ThreadblockShape::kK); steps past the last one are left out."""


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Tiles of the sm80 variants for two-byte elements, which later architectures share."""
    if case.direction == BACKWARD:
        return backward_launch(case.workload)
    widest = max(case.workload.d, case.workload.dv)
    if widest <= 64:
        return AttentionLaunch(64, 64, resident=4, width=64)
    if widest <= 128:
        return AttentionLaunch(64, 128, resident=2, threads=256, width=128)
    return AttentionLaunch(32, 128, resident=4, width=int(ceil_div(widest, 64)) * 64)


def stage(case: Case, work: AttentionWork) -> Stage:
    """Terms of a mean tile: P is multiplied by existing values only, and for head dims over 128 O passes through memory between tiles."""
    launch, mean_tiles = work.launch, max(1.0, work.grid.mean_tiles)
    w = replace(case.workload, packed=False, window=None)
    values = _STEP * visited_tiles(w, launch.br, _STEP) / row_tiles(w, launch.br)
    values_share = min(1.0, values / (launch.bc * mean_tiles))
    after_first = 1 - 1 / mean_tiles
    return Stage(matmul={"spilled": after_first * (launch.width > 128)}, done=(1 + values_share) / 2)


# Backward

MANY_HEADS, MOST_BLOCKS = 256, 200  # known
"""Number of heads from which two key tiles share a block; most blocks of all heads for head dims over 128 (attention_backward.cu)."""
STEEP = 4.0  # tuned
"""How fast the share of the turns that is waited for grows, as turns take longer than the tiles of a block."""
_ACCESS = 8  # known
"""Elements of a 16-byte load; a head dim that is no multiple of it is read element by element."""


def backward_launch(w: Attention) -> AttentionLaunch:
    """Launch of the first kernel that fits the head dim (kernels/cutlassB.h). ``threads``: threads that share a row of O dO."""
    widest = max(w.d, w.dv)
    if widest <= 64:
        return AttentionLaunch(64, 64, resident=3, threads=2, width=64)
    if widest <= 128:
        return AttentionLaunch(128, 128, 32, threads=4, width=128)
    return AttentionLaunch(128, 64, 32, threads=2, width=int(w.d))


def blocks_of_head(w: Attention) -> int:
    """Number of blocks of a head: one per key tile; fewer with many heads, and for head dims over 128, whose blocks zero gradients."""
    keys, heads = int(ceil_div(w.kv_len, backward_launch(w).bc)), int(w.query_heads)
    if heads >= MANY_HEADS and keys <= 2:
        return 1
    return max(1, min(keys, MOST_BLOCKS // heads)) if max(w.d, w.dv) > 128 else keys


@dataclass(frozen=True, slots=True)
class _Backward:
    """What the backward pass of a case does on a device, before any parameter.

    - ``blocks``: blocks of a head. ``rows``: row tiles of a head. ``mean_tiles``: tiles of the mean block.
    - ``row_loads``: loads of a thread for a row of O dO.
    - ``done``: share of the matmuls on existing rows and keys. ``odd``: whether tiles do not divide the lengths.
    - ``moved``: bytes of the main kernel. ``side_kernels``: number of kernels beside it. ``side_bytes``: their bytes.
    """

    work: AttentionWork
    blocks: int
    rows: int
    mean_tiles: float
    row_loads: int
    done: float
    odd: bool
    moved: int
    side_bytes: int
    side_kernels: int


def zeroed_bytes(w: Attention, blocks: int) -> int:
    """Bytes that are zeroed if several ``blocks`` of a head add to a gradient: dQ, and for head dims over 128 dK and dV, all in fp32."""
    if blocks == 1:
        return 0
    launch = backward_launch(w)
    query_columns, key_elements = launch.bc, 0
    if max(w.d, w.dv) > 128:
        query_columns = ceil_div(w.d, launch.bc) * launch.bc
        key_elements = blocks * launch.bc * 2 * ceil_div(w.d, launch.br) * launch.br
    query_elements = ceil_div(w.n, launch.br) * launch.br * query_columns
    return int(w.query_heads * (query_elements + key_elements) * FP32)


@cached_by_identity
def _backward(case: Case, device: Device) -> _Backward:
    w: Attention = case.workload
    work, blocks = work_of(case, device, launch), blocks_of_head(w)
    plan = work.launch
    walk = keys_walk(replace(w, packed=False), plan, blocks)
    rows, keys = int(ceil_div(w.n, plan.br)), int(ceil_div(w.kv_len, plan.bc))
    # S and dP take steps over the head dim, dV and dK over rows, dQ over keys; the kernel for head dim 32 takes one of two steps
    head_dim_done = int(ceil_div(min(w.d, 2 * _STEP), _STEP)) / 2
    rows_left_out = 1 - ceil_div(w.n, _STEP) * _STEP / (rows * plan.br)
    keys_left_out = 1 - ceil_div(w.kv_len, _STEP) * _STEP / (keys * plan.bc)
    zeroed = zeroed_bytes(w, blocks)
    summed = tensor_bytes(w)[1] * (w.group + 1) if w.group > 1 else 0
    return _Backward(
        work=work._replace(grid=grid_of_walk(walk, int(w.query_heads), plan, work.rates.sms)),
        blocks=blocks,
        rows=rows,
        mean_tiles=walk.total / blocks,
        row_loads=int(ceil_div(w.dv, (_ACCESS if w.dv % _ACCESS == 0 else 1) * plan.threads)),
        done=(3 + 2 * head_dim_done - 2 * rows_left_out - keys_left_out) / 5,
        odd=plan.width <= 128 and bool(w.n % plan.br or w.kv_len % plan.bc),
        moved=int(w.query_heads * (w.n + w.kv_len) * 2 * (w.d + w.dv) * w.dtype.size),
        side_bytes=zeroed + summed,
        side_kernels=(zeroed > 0) + 2 * (summed > 0),
    )


def waiting_cycles(blocks: int, rows: int, mean_tiles: float, heads_in_turn: float, tile: float, block: float, turn: float) -> float:
    """Cycles in which the ``blocks`` of a head wait for their turns at its ``rows`` row tiles, over ``heads_in_turn`` heads.

    ``tile``, ``block``, ``turn``: cycles of a tile, of a block beyond its tiles, and of a turn.
    """
    if blocks == 1:
        return 0.0
    turns = blocks * turn * max(1.0, mean_tiles / rows)
    excess = turns / (block + tile * mean_tiles) - 1
    waited_share = 1.0 if rows == 1 else min(1.0, STEEP * max(0.0, excess))
    return heads_in_turn * waited_share * turns


def main_cycles(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Cycles of the main kernel of the backward pass, without its bytes."""
    counts = _backward(case, device)
    launch, grid = counts.work.launch, counts.work.grid
    tile = p["matmul"] * counts.work.matmul * counts.done * (1 + p["odd"] * counts.odd)
    block, turn = p["block_cycles"] * launch.br / 64, p["turn_cycles"] * launch.br / 64
    zeroing = 0.0
    if launch.width > 128:
        tile += p["spilled_cycles"] * (1 - 1 / counts.rows)
        block += counts.rows * counts.row_loads * p["row_cycles"]
        zeroing = p["crowd_cycles"] * (launch.width / 256) * grid.count / grid.slots
    alone = min(max(p["alone"], 1.0), launch.resident)
    heads_in_turn = int(case.workload.query_heads) / max(1.0, grid.slots / counts.blocks)
    waiting = waiting_cycles(counts.blocks, counts.rows, counts.mean_tiles, heads_in_turn, tile * alone, block, turn)
    return grid.cycles(tile, block, alone) + waiting + zeroing


def backward_s(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of the backward pass with all its kernels."""
    counts = _backward(case, device)
    rates = counts.work.rates
    byte_s, computing_s = rates.byte_s(p["dram"]), main_cycles(case, device, p) / rates.clock_hz
    launches_s = (1 + counts.side_kernels) * p["launch_us"] * 1e-6
    return launches_s + counts.side_bytes * byte_s + beside_dram(computing_s, counts.moved * byte_s, case.flushed)


def covers_forward(case: Case) -> bool:
    """Forward over several queries, dense, with d = d_v of at most 256."""
    return dense(case, FORWARD) and case.workload.n > 1


def covers_backward(case: Case) -> bool:
    """Backward, dense, in two-byte elements, with d = d_v."""
    w = case.workload
    return plain_attention(case, "sparsity", "dropout", "mask") and case.direction == BACKWARD and w.d == w.dv and w.dtype.size == 2


_NAMES = ("torch-sdpa-efficient", "xformers")
_SOURCE = "PyTorch 2.11 mem_eff_attention/kernel_forward.h, kernel_backward.h, attention_backward.cu; list scheduling, Graham 1966"
_LISTED = (
    page("efficient-forward", launch, covers_forward, _SOURCE, _NAMES, stage, knows_warm=never),
    Model("efficient-backward", "attention", covers_backward, backward_s, _SOURCE, ASSUMES, _NAMES, knows_warm=never),
)
MODELS = {model.name: model for model in _LISTED}
