"""Memory-efficient attention: PyTorch's CUTLASS kernels, which came from xFormers.

Forward, a block keeps 64 queries, 32 over head dim 128, and visits tiles of 64 or 128 keys, by mma.sync and exponentials in turn. Two or
four blocks share a multiprocessor, by the registers profiled, and hide each other's loads. P is multiplied only by the values of existing
keys. Over head dim 128, O passes through memory between tiles.

Backward, a block first sums O dO over all rows of its head. Then it keeps a key tile and visits the row tiles, each with five matmuls and
barriers between them. It adds to dQ in memory while it holds the lock of that row tile. Blocks wait for the lock if a head has so many of
them that their turns take longer than their tiles, and always if it has one row tile; otherwise they begin at different rows. Over head dim
128 few warps read dO load by load, dK and dV pass through memory between row tiles, and a head gets few blocks with several key tiles each,
which all start by zeroing gradients in memory. Other kernels zero dQ before, and sum dK and dV over grouped heads after.

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
    widest = max(case.workload.d, case.workload.dv)
    if case.direction == BACKWARD:
        return backward_launch(case.workload)
    if widest > 128:
        return AttentionLaunch(32, 128, resident=4, width=int(ceil_div(widest, 64)) * 64)
    return AttentionLaunch(64, 64, resident=4, width=64) if widest <= 64 else AttentionLaunch(64, 128, resident=2, threads=256, width=128)


def stage(case: Case, work: AttentionWork) -> Stage:
    """Terms of a mean tile: matmuls only on the values of existing keys; over head dim 128, O passes through memory between tiles."""
    launch = work.launch
    walk, tiles = replace(case.workload, packed=False, window=None), max(1.0, work.grid.mean_tiles)
    values = _STEP * visited_tiles(walk, launch.br, _STEP) / row_tiles(walk, launch.br)
    done, later = (1 + min(1.0, values / (launch.bc * tiles))) / 2, 1 - 1 / tiles
    return Stage(matmul={"spilled": later * (launch.width > 128)}, done=done)


# Backward

MANY, MOST_BLOCKS = 256, 200  # known
"""Number of heads from which two key tiles share a block; most blocks of all heads over head dim 128 (attention_backward.cu)."""
STEEP = 4.0  # tuned
"""How soon blocks wait for their turns once these take longer than their tiles."""
_ACCESS = 8  # known
"""Elements of a 16-byte load; a head dim that is no multiple of it is read element by element."""


def backward_launch(w: Attention) -> AttentionLaunch:
    """Launch of the first kernel that fits the head dim. ``threads``: threads that share a row of O dO (kernels/cutlassB.h)."""
    widest = max(w.d, w.dv)
    if widest <= 64:
        return AttentionLaunch(64, 64, resident=3, threads=2, width=64)
    return AttentionLaunch(128, 128, 32, threads=4, width=128) if widest <= 128 else AttentionLaunch(128, 64, 32, threads=2, width=int(w.d))


def splits(w: Attention) -> int:
    """Blocks of a head: one per key tile; fewer with many heads, and over head dim 128, where gradients of each stay in memory."""
    keys, heads = int(ceil_div(w.kv_len, backward_launch(w).bc)), int(w.query_heads)
    if heads >= MANY and keys <= 2:
        return 1
    return max(1, min(keys, MOST_BLOCKS // heads)) if max(w.d, w.dv) > 128 else keys


@dataclass(frozen=True, slots=True)
class _Backward:
    """A case before any parameter.

    ``parts``: blocks per head; ``rows``: row tiles per head; ``tiles``: tiles of the mean block; ``loads``: loads of a thread per row;
    ``done``: share of the matmuls on existing rows and keys; ``odd``: tiles do not divide the lengths; ``moved``: bytes of the main kernel;
    ``others``: number of kernels beside it, ``beside``: their bytes.
    """

    work: AttentionWork
    parts: int
    rows: int
    tiles: float
    loads: int
    done: float
    odd: bool
    moved: int
    beside: int
    others: int


def zeroed_bytes(w: Attention, parts: int) -> int:
    """Bytes that are zeroed if several blocks add to a gradient: dQ in fp32, and over head dim 128 dK and dV of each block."""
    if parts == 1:
        return 0
    launch, wide = backward_launch(w), max(w.d, w.dv) > 128
    columns = ceil_div(w.d, launch.bc) * launch.bc if wide else launch.bc
    kept = parts * launch.bc * 2 * ceil_div(w.d, launch.br) * launch.br if wide else 0
    return int(w.query_heads * (ceil_div(w.n, launch.br) * launch.br * columns + kept) * FP32)


@cached_by_identity
def _backward(case: Case, device: Device) -> _Backward:
    w: Attention = case.workload
    work, parts = work_of(case, device, launch), splits(w)
    plan = work.launch
    walk = keys_walk(replace(w, packed=False), plan, parts)
    rows, keys = int(ceil_div(w.n, plan.br)), int(ceil_div(w.kv_len, plan.bc))
    past_rows = 1 - ceil_div(w.n, _STEP) * _STEP / (rows * plan.br)
    past_keys = 1 - ceil_div(w.kv_len, _STEP) * _STEP / (keys * plan.bc)
    steps_done = int(ceil_div(min(w.d, 2 * _STEP), _STEP)) / 2  # the kernel for head dim 32 takes one of two steps
    zeroed, summed = zeroed_bytes(w, parts), tensor_bytes(w)[1] * (w.group + 1) if w.group > 1 else 0
    return _Backward(
        work=work._replace(grid=grid_of_walk(walk, int(w.query_heads), plan, work.rates.sms)),
        parts=parts,
        rows=rows,
        tiles=walk.total / parts,
        loads=int(ceil_div(w.dv, (_ACCESS if w.dv % _ACCESS == 0 else 1) * plan.threads)),
        done=(3 + 2 * steps_done - 2 * past_rows - past_keys) / 5,  # S and dP step over the head dim, dV and dK over rows, dQ over keys
        odd=plan.width <= 128 and bool(w.n % plan.br or w.kv_len % plan.bc),
        moved=int(w.query_heads * (w.n + w.kv_len) * 2 * (w.d + w.dv) * w.dtype.size),
        beside=zeroed + summed,
        others=(zeroed > 0) + 2 * (summed > 0),
    )


def waiting_cycles(parts: int, rows: int, tiles: float, heads_in_turn: float, tile: float, block: float, turn: float) -> float:
    """Cycles in which the ``parts`` blocks of a head wait for their turns at its row tiles, over ``heads_in_turn`` heads."""
    turns = parts * turn * max(1.0, tiles / rows)
    longer = turns / (block + tile * tiles) - 1
    share = 1.0 if rows == 1 else min(1.0, STEEP * max(0.0, longer))
    return heads_in_turn * share * turns if parts > 1 else 0.0


def main_cycles(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Cycles of the main kernel of the backward pass, without its bytes."""
    w, counts = case.workload, _backward(case, device)
    work, launch, heads = counts.work, counts.work.launch, int(w.query_heads)
    wide, grid = launch.width > 128, counts.work.grid
    tile = p["matmul"] * work.matmul * counts.done * (1 + p["odd"] * counts.odd) + wide * p["spilled_cycles"] * (1 - 1 / counts.rows)
    block = p["block_cycles"] * launch.br / 64 + wide * counts.rows * counts.loads * p["row_cycles"]
    alone = min(max(p["alone"], 1.0), launch.resident)
    in_turn = heads / max(1.0, grid.slots / counts.parts)
    turn = p["turn_cycles"] * launch.br / 64
    waiting = waiting_cycles(counts.parts, counts.rows, counts.tiles, in_turn, tile * alone, block, turn)
    crowd = wide * p["crowd_cycles"] * (launch.width / 256) * grid.count / grid.slots
    return grid.cycles(tile, block, alone) + waiting + crowd


def backward_s(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of the backward pass with all its kernels."""
    counts = _backward(case, device)
    rates = counts.work.rates
    byte_s, computing = rates.byte_s(p["dram"]), main_cycles(case, device, p) / rates.clock_hz
    launches_s = (1 + counts.others) * p["launch_us"] * 1e-6
    return launches_s + counts.beside * byte_s + beside_dram(computing, counts.moved * byte_s, case.flushed)


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
