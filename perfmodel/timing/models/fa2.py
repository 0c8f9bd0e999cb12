"""FlashAttention-2, as PyTorch builds it and as vLLM calls it before Hopper.

Forward, a thread block keeps br queries of one head and loops over tiles of bc keys (128 x 128 in four warps at head dim 64:
``kernels/attention/tiles.py``). A tile costs its matmuls and then its exponentials: mma.sync is synchronous, so a warp does not overlap
them. Matmuls take the longer of mma.sync at 63 % of Hopper's peak (arXiv 2402.13499) and of reading K and V from shared memory once per
warp, which has 32 query rows in a block of 128 rows and four warps, else 16. The fitted ``matmul`` scales the longer one. Two blocks of
four warps fit a multiprocessor: while one waits for its first loads, the other has the tensor cores. Blocks start row tile by row tile of
one head, then of the next head.

If blocks of 64 queries would fill under 80 % of the slots (two per multiprocessor), keys are split, in prefill too, and a second kernel
combines the parts.

Masked tiles are unrolled in the code: br / bc of them, one more where tiles do not divide the lengths. With a causal mask that code seems
to exceed the instruction cache at head dim 128, and at 32 and 64 if tiles do not divide the lengths or the head dim: measured after a
flush, blocks run slower past their first tile (``crowded``). Below the compiled head dim each load checks for the end of the head
(``narrow``), in both passes.

Fitted: launch_us, block_cycles, matmul, softmax, dram, side_block_cycles, narrow, crowded. Counted: tiles, grid, order and bytes.
``timing/engine.py`` says how blocks share a multiprocessor and how DRAM runs beside them, with the same few tuned numbers for all kernels.

vLLM first copies K and V into its paged cache, which leaves them in the L2, then runs the kernel that splits keys, unsplit: 64 queries by
more keys, several blocks on a multiprocessor.

Backward, a block keeps a tile of keys and visits tiles of queries: five matmuls (S, dP, dV, dK, dQ), exponentials and dS. dQ is added up in
fp32 by atomics. A kernel before computes row sums of O dO and zeroes dQ; kernels after convert dQ and, with grouped heads, sum dK and dV
over the query heads.

Source: Dao-AILab/flash-attention @0251105a csrc/flash_attn (flash_fwd_kernel.h, flash_fwd_launch_template.h, flash_bwd_launch_template.h,
flash_api.cpp: set_params_splitkv, mha_bwd); grids and registers of PyTorch 2.11's kernels on an H200 by its profiler.
"""

from __future__ import annotations

from perfmodel.core.architectures import BY_THREAD, TCGEN05, WGMMA, Traits, traits_of
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, effective_splits, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.timing.base import Case, never
from perfmodel.timing.models._attention_grid import (
    MMA_ROWS,
    WIDEST,
    AttentionLaunch,
    AttentionWork,
    Stage,
    covers_backward,
    dense,
    multiprocessors_of,
    padded,
    page,
    resident_blocks,
)
from perfmodel.timing.models.decode import FA2 as DECODE
from perfmodel.timing.models.decode import SPLIT_ROWS, split_keys

_WARP_ROWS = {(128, 128): 64 / 3, (64, 128): 16.0, (64, 64): 32 / 3}  # known
"""Backward with eight warps, by tile: 1 / (1/rows + 1/columns) of a warp's part of S (flash_bwd_launch_template.h, AtomLayoutMSdP)."""
CROWDED = (32, 64, 128)  # tuned
"""Head dims whose causal kernels for odd lengths were measured to slow down past the first tile of a block."""
VLLM = "vllm-flash-attn"


def check_copies(case: Case, device: Device) -> None:
    """UnavailableError for devices before Ampere, for which FlashAttention-2 has no kernels."""
    if traits_of(device).copies == BY_THREAD:
        raise UnavailableError(f"{case.implementation} has no kernels for {device.id}, which has no asynchronous copies into shared memory")


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch of PyTorch's kernel: tile by head dim, blocks by registers (255 a thread) and SRAM. UnavailableError without a kernel."""
    w: Attention = case.workload
    check_copies(case, device)
    tile, widest = fa2_tile(w, device, device.sram_per_block, case.direction), max(w.d, w.dv)
    if case.direction == BACKWARD and (tile is not None or 192 < widest <= WIDEST):
        br, bc = (64, 64) if tile is None else (int(tile.br), int(tile.bc))
        return AttentionLaunch(br, bc, _WARP_ROWS.get((br, bc), MMA_ROWS), side_kernels=4 if w.group > 1 else 2, rounded=True)
    if tile is None:
        raise UnavailableError(f"{case.implementation} has no {case.direction} kernel for head dim {widest} in {w.dtype.name}")
    bc = split_keys(w)
    slots, tiles = BLOCKS_PER_MULTIPROCESSOR * multiprocessors_of(device), int(ceil_div(w.kv_len, bc))
    splits = int(effective_splits(tiles, num_splits(int(w.query_heads * ceil_div(w.n, SPLIT_ROWS)), slots, tiles)))
    if splits > 1:
        resident = resident_blocks(device, SPLIT_ROWS, bc, 128, w)
        return AttentionLaunch(SPLIT_ROWS, bc, resident=resident, splits=splits, fixed_splits=True, side_kernels=1)
    assert tile is not None
    rows = max(16, 32 * tile.br // tile.threads)
    return AttentionLaunch(tile.br, tile.bc, rows, resident=resident_blocks(device, tile.br, tile.bc, tile.threads, w))


def paged_launch(case: Case, device: Device) -> AttentionLaunch:
    """vLLM's launch, over its paged cache; UnavailableError where another kernel runs."""
    if not takes_paged(case.implementation, traits_of(device)):
        raise UnavailableError(f"{case.implementation} runs FlashAttention-2 on devices that multiply by mma.sync, and {device.id} is none")
    check_copies(case, device)
    bc = split_keys(case.workload)
    resident = resident_blocks(device, SPLIT_ROWS, bc, 128, case.workload)
    return AttentionLaunch(SPLIT_ROWS, bc, resident=resident, writes_cache=True)


def takes_paged(implementation: str, traits: Traits) -> bool:
    """Whether vLLM runs FlashAttention-2: it has newer kernels, such as FlashAttention-3, for wgmma and tcgen05."""
    return implementation == VLLM and traits.matrix not in (WGMMA, TCGEN05)


def crowded(case: Case, work: AttentionWork) -> float:
    """Share of masked tiles after the first of a block, mean over the blocks of the last rounds; 0 if the code is short enough."""
    w, launch, last = case.workload, work.launch, work.grid.last
    odd = w.n % launch.br or w.kv_len % launch.bc or padded(w.d) != w.d
    if not (w.causal and odd) or launch.splits > 1 or padded(w.d) not in CROWDED:
        return 0.0
    steps = launch.br // launch.bc
    return sum(min(tiles - 1, steps) for tiles in last if tiles) / (steps * len(last))


def stage(case: Case, work: AttentionWork) -> Stage:
    """Terms for the checks of each load of a narrow head, and forward for code that is too long."""
    narrow = padded(case.workload.d) != case.workload.d
    return Stage(matmul={"narrow": narrow}, block={"crowded": crowded(case, work)} if case.direction == FORWARD else {})


def covers_forward(case: Case) -> bool:
    """Forward, more than one query, that ``decode-fa2`` does not cover; dense, with d = d_v of at most 256."""
    return dense(case, FORWARD) and case.workload.n > 1 and not DECODE.covers(case)


_NAMES = ("torch-sdpa-flash", "fa2")
_SOURCE = "FlashAttention-2 (Dao 2023, Alg. 1 and 2) and its kernels' source; list scheduling, Graham 1966"
_LISTED = (
    page("fa2-forward", launch, covers_forward, _SOURCE, _NAMES, stage, knows_warm=never),
    page("fa2-backward", launch, covers_backward, _SOURCE, _NAMES, stage, knows_warm=never),
    page("fa2-paged", paged_launch, covers_forward, _SOURCE, (VLLM,), runs_on=takes_paged),
)
MODELS = {model.name: model for model in _LISTED}
