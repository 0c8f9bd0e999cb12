"""How each fused attention implementation lays its work out: tile, blocks per multiprocessor, order of blocks.

Sources, by commit: Dao-AILab/flash-attention @0251105a; vllm-project/flash-attention @617264c1 (the fork that vLLM calls, always
with a paged KV cache); flashinfer-ai/flashinfer @3c40456ef and @fb28d7242 (the kernels that vLLM calls on Blackwell); grids, threads,
registers and shared memory of PyTorch 2.11's kernels on an H200 by its profiler.

cuDNN is closed source: Blackwell's backward pass is supposed to take tiles of 128 x 128. Triton: tutorial 06-fused-attention,
whose autotuner prefers 128 queries by 64 keys; one block per multiprocessor is supposed.
Tuned constants were chosen on the measured shapes that fits may see, on one H200; those of published kernels on one GB200.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from perfmodel.core.architectures import BY_THREAD, traits_of
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, effective_splits, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.timing.base import Case
from perfmodel.timing.models._flash_blocks import TCGEN05, WGMMA, FlashPlan, fragment_of, multiprocessors_of, padded, resident_blocks
from perfmodel.timing.models._flash_forward import masked, ragged

_MIB = 1 << 20  # known
_FA2_WARP_ROWS = {(128, 128): 64 / 3, (64, 128): 16.0, (64, 64): 32 / 3}  # known
"""Backward, eight warps: 1 / (1/rows + 1/columns) of a warp's part of S (flash_bwd_launch_template.h, AtomLayoutMSdP)."""

FEEDING, FEEDING_BACKWARD = 0.4, 0.5  # tuned
"""mma.sync kernels: share of the operand reads that is not hidden."""
SOFTMAX_SHARE = 0.62  # tuned
"""FlashAttention-2 forward on an H200, fitted: ``softmax`` over ``matmul``. A kernel measured with one tile does not show its own."""
UNEVEN, UNEVEN_FORWARD, UNEVEN_SPLIT = 0.2, 0.18, 0.5  # tuned
"""FlashAttention-2: of a tile's matmuls, where each load asks whether its head ends before; in its split kernel up to head dim 128."""
IN_TURN = 1.0  # tuned
"""Overlap of FlashAttention-2's tiles and of cuDNN's backward pass: matmuls and exponentials one after the other."""
WGMMA_BACKWARD = 2.6  # tuned
"""cuDNN backward on an H200, fitted: ``softmax`` over ``matmul``."""
DROPOUT = 1.1  # tuned
"""FlashAttention 1: random numbers of dropout, in exponentials' time of every tile; chosen on the fitted rows of one A100."""
CUDNN_PADDED, CUDNN_CAUSAL = 0.3, 0.8  # tuned
"""cuDNN: masks of keys past the end, in exponentials' time of every tile; causal masks, in block latencies."""
CUDNN_WIDER, CUDNN_CAUSAL_BACKWARD = 0.33, 0.27  # tuned
"""cuDNN's backward pass, in block latencies: per 64 of the head dim it is compiled for beyond the first; causal masks."""
CUDNN_WIDE = 3.65  # tuned
"""cuDNN's backward pass over head dim 128: what one stage of small tiles leaves unhidden, in exponentials' time of every tile."""
CUDNN_OVERLAP = 1.6  # tuned
"""cuDNN: how a tile's matmuls and exponentials add up."""
EFFICIENT_OVERLAP, EFFICIENT_UNHELD = 2.0, 0.2  # tuned
"""Memory-efficient kernels; over head dim 128, O passes through memory: of a tile's matmuls, after the first of a block."""
BACKWARD_FEEDING = 0.0  # tuned
"""cuDNN's backward pass on Blackwell: share of the operand reads that is not hidden."""


def _keys_by_width(w: Attention) -> int:
    """Keys of FlashAttention-2's split kernel (csrc/flash_attn, launch template)."""
    return 256 if w.d <= 64 else 128 if w.d <= 128 else 64


def _compiled(w: Attention) -> int:
    """Head dim of cuDNN's kernels."""
    return next((dim for dim in (64, 128, 192) if max(w.d, w.dv) <= dim), 256)


def _side_kernels(w: Attention) -> int:
    """Backward: row sums of O dO, conversion of dQ; two more sum dK and dV over the query heads of a KV head."""
    return 4 if w.group > 1 else 2


# FlashAttention 1 and 2


def _fa1(case: Case, device: Device) -> FlashPlan:
    """FlashAttention 1.0: K and V outermost, 256 keys of head dim 64 or 128 of 128 by 16 queries at a time. A block for each head, as in
    2022; for fewer heads than multiprocessors in as many parts as fill the device, which later versions added
    (csrc/flash_attn at v1.0.9: fmha_fprop_fp16_kernel.sm80.cu, num_splits_heuristic_fwd).
    """
    w: Attention = case.workload
    edge = 256 if w.d <= 64 and w.kv_len > 128 else 128
    by_head = w.query_heads >= multiprocessors_of(device)
    dropout = DROPOUT if w.dropout else 0.0
    return FlashPlan(edge, edge, 16, 2, feeding=FEEDING, overlap=1.0, softmax_share=SOFTMAX_SHARE, mask_tile=dropout, by_head=by_head)


def fa2(case: Case, device: Device) -> FlashPlan:
    """FlashAttention-2: grid (tiles, batch, heads), first tiles first. Blocks that fit: registers, 255 a thread, and SRAM."""
    w: Attention = case.workload
    check_copies(case.implementation, device)
    tile = fa2_tile(w, device, device.sram_per_block, case.direction)
    if tile is None and case.direction == BACKWARD and 192 < max(w.d, w.dv) <= 256:
        return FlashPlan(64, 64, fragment=16)
    if tile is None:
        raise UnavailableError(f"{case.implementation} has no {case.direction} kernel for head dim {max(w.d, w.dv)} in {w.dtype.name}")
    fragment = max(16, 32 * tile.br // tile.threads)
    resident = 1 if case.direction == BACKWARD else resident_blocks(device, tile.br, tile.bc, tile.threads, w)
    return FlashPlan(tile.br, tile.bc, fragment, resident)


def check_copies(implementation: str, device: Device) -> None:
    """UnavailableError for devices before Ampere, which FlashAttention-2 has no kernels for."""
    if traits_of(device).copies == BY_THREAD:
        raise UnavailableError(f"{implementation} has no kernels for {device.id}, which has no asynchronous copies into shared memory")


def torch_flash(case: Case, device: Device) -> FlashPlan:
    """PyTorch's build of FlashAttention-2 keeps its kernels on Hopper; too few blocks are split over keys in prefill, too."""
    w: Attention = case.workload
    plan = replace(fa2(case, device), uneven=(UNEVEN if case.direction == BACKWARD else UNEVEN_FORWARD) * (padded(w.d) != w.d))
    if case.direction == BACKWARD:
        fragment = _FA2_WARP_ROWS.get((plan.br, plan.bc), 16.0)
        return replace(plan, fragment=fragment, overlap=IN_TURN, feeding=FEEDING_BACKWARD, side_kernels=_side_kernels(w), rounded=True)
    split = _fa2_split(w, device)
    if split.splits == 1:
        split = masked(w, plan)
    elif plan.uneven and w.d <= 128:
        plan = replace(plan, uneven=UNEVEN_SPLIT)
    return replace(split, uneven=plan.uneven, feeding=FEEDING, overlap=IN_TURN, interleaved=True)


def _fa2_split(w: Attention, device: Device) -> FlashPlan:
    """csrc/flash_attn flash_api.cpp, set_params_splitkv; a second kernel combines the splits."""
    bc = _keys_by_width(w)
    slots, tiles = BLOCKS_PER_MULTIPROCESSOR * multiprocessors_of(device), ceil_div(w.kv_len, bc)
    splits = effective_splits(tiles, num_splits(int(w.query_heads * ceil_div(w.n, 64)), slots, int(tiles)))
    return FlashPlan(64, bc, 16, resident_blocks(device, 64, bc, 128, w), splits=int(splits), fixed_splits=True, side_kernels=1)


def _fa2_paged(case: Case, device: Device) -> FlashPlan:
    """vLLM before Hopper: a paged cache takes the split-KV kernel with one split (csrc/flash_attn flash_api.cpp, launch template)."""
    check_copies(case.implementation, device)
    bc = _keys_by_width(case.workload)
    return FlashPlan(64, bc, resident=resident_blocks(device, 64, bc, 128, case.workload), writes_cache=True)


def _numba_mma(case: Case, device: Device) -> FlashPlan:
    """This project's tensor-core kernel: FlashAttention-2's forward pass with the tile and the block that the launch names."""
    br, bc, threads = (case.launch.get(name, default) for name, default in (("br", 128), ("bc", 64), ("threads", 128)))
    resident = resident_blocks(device, br, bc, threads, case.workload, case.launch.get("shared_bytes"))
    plan = FlashPlan(br, bc, max(16, 32 * br // threads), resident, feeding=FEEDING, overlap=IN_TURN, interleaved=True, threads=threads)
    return replace(plan, softmax_share=SOFTMAX_SHARE)


# FlashAttention-3


def _fa3_tile(w: Attention, paged: bool) -> tuple[int, int]:
    """hopper/tile_size.h, two-byte elements."""
    if w.d <= 64:
        return 192, 128 if w.causal else 160 if paged else 192
    if w.d <= 96:
        return 192, 128 if paged else 144
    if w.d <= 128:
        return 128, 128 if w.causal or paged else 176
    return 128, (96 if paged else 112) if w.d <= 192 else 80


def _fa3(case: Case, device: Device) -> FlashPlan:
    """hopper/: persistent; causal blocks longest first over as many heads as fit 32 MB of L2 (tile_scheduler.hpp)."""
    w: Attention = case.workload
    if fragment_of(device) != WGMMA:
        raise UnavailableError(f"FlashAttention-3 has kernels for compute capability 9.0 alone, not for {device.id}")
    if case.direction == BACKWARD:
        return _fa3_backward(w)
    br, bc = _fa3_tile(w, paged=False)
    rows, tall = w.n / (ceil_div(w.n, br) * br), w.n * w.group
    packed = bool(rows < 0.9 * tall / (ceil_div(tall, br) * br))
    fitting = 32 * _MIB // max(1, 2 * w.kv_len * (w.d + w.dv) * w.dtype.size)
    section = (1 << max(0, fitting.bit_length() - 1)) * (1 if packed else w.group)
    walks = w.stored_kv_heads if packed else w.query_heads
    return FlashPlan(br, bc, WGMMA, packed=packed, longest_first=w.causal, group=walks, section=min(section, walks))


def _fa3_backward(w: Attention) -> FlashPlan:
    """hopper/flash_bwd_launch_template.h."""
    br, bc = {64: (128, 128), 96: (64, 128), 192: (64, 96), 256: (64, 80)}.get(max(64, padded(w.d)), (64 if w.causal else 80, 128))
    return FlashPlan(br, bc, WGMMA, softmax_share=WGMMA_BACKWARD)


def _fa3_paged(case: Case, device: Device) -> FlashPlan:
    """vLLM on Hopper: query heads packed, batch after batch, each in sections of heads (hopper/flash_prepare_scheduler.cu)."""
    w: Attention = case.workload
    br, bc = _fa3_tile(w, paged=True)
    if padded(w.d) in (64, 128) and w.n * w.group <= 64:
        br = 64
    halvings = min(4, (w.group - 1).bit_length())
    fitting = (32 * _MIB >> halvings) // (bc * (w.d + w.dv) * w.dtype.size * ceil_div(w.kv_len, bc))
    section = max(1, min(16, 1 << max(0, fitting.bit_length() - 1)))
    splits = _fa3_splits(w, br, bc, device)
    return FlashPlan(br, bc, WGMMA, 1, True, w.causal, w.kv_heads, min(section, w.kv_heads), splits, writes_cache=True)


def _fa3_splits(w: Attention, br: int, bc: int, device: Device) -> int:
    """hopper/heuristics.h gives the most splits, as if the batch were one; flash_prepare_scheduler.cu how many are worth it."""
    sms, row_tiles, key_tiles = multiprocessors_of(device), ceil_div(w.n * w.group, br), ceil_div(w.kv_len, bc)
    blocks = w.kv_heads * row_tiles
    if blocks >= 0.8 * sms or key_tiles <= 4:
        return 1
    filled = [blocks * s / sms / ceil(blocks * s / sms) for s in range(1, min(128, sms, key_tiles) + 1)]
    most = next(i for i, share in enumerate(filled, 1) if share >= 0.85 * max(filled))
    tiles_per_sm = ceil(1.1 * w.batch * blocks * key_tiles / sms)
    return int(max(1, min(ceil_div(key_tiles, tiles_per_sm), most)))


# cuDNN, TensorRT-LLM, memory-efficient kernels, Triton


def _trtllm(case: Case, device: Device) -> FlashPlan:
    """TensorRT-LLM's context kernels on Blackwell; two tiles of 128 queries a block up to head dim 128 (kernelMetaInfo.h)."""
    return FlashPlan(256 if padded(case.workload.d) <= 128 else 128, 128, TCGEN05)


def cudnn(case: Case, device: Device) -> FlashPlan:
    """Closed source. Hopper: tiles and grids as profiled; supposed to be TensorRT-LLM's kernels on B200, unknown elsewhere."""
    w: Attention = case.workload
    backward = case.direction == BACKWARD
    if fragment_of(device) == TCGEN05 and not backward:
        return _trtllm(case, device)
    if fragment_of(device) < WGMMA:
        raise UnavailableError(f"cuDNN's attention kernels for compute capability {device.compute_capability} are not known")
    width = _compiled(w)
    if backward:
        bc, unhidden = (128, 0.0) if width <= 128 else (64, CUDNN_WIDE)
        plan = FlashPlan(64, bc, WGMMA, overlap=IN_TURN, width=width, side_kernels=_side_kernels(w), paired=128 // bc)
        plan = replace(plan, adding=0.0, mask_tile=unhidden)
        return replace(plan, mask_block=CUDNN_WIDER * (width / 64 - 1) + CUDNN_CAUSAL_BACKWARD * w.causal)
    plan = FlashPlan(128, 128, WGMMA, overlap=CUDNN_OVERLAP, width=width)
    return replace(plan, mask_block=CUDNN_CAUSAL) if w.causal else replace(plan, mask_tile=CUDNN_PADDED * ragged(w, plan))


def _cudnn_alone(case: Case, device: Device) -> FlashPlan:
    """cuDNN by its own API: as PyTorch calls it, but for Blackwell's backward pass, compiled for head dims 64, 128, 192 and 256."""
    if fragment_of(device) != TCGEN05 or case.direction != BACKWARD:
        return cudnn(case, device)
    w = case.workload
    return FlashPlan(128, 128, TCGEN05, feeding=BACKWARD_FEEDING, width=_compiled(w), side_kernels=_side_kernels(w))


def _efficient(case: Case, device: Device) -> FlashPlan:
    """PyTorch's memory-efficient kernels, forward: queries x keys of the sm80 variants for two-byte elements (mem_eff_attention/).

    Blocks per multiprocessor by the registers profiled, which other architectures share. Over 128 O passes through memory.
    """
    widest = max(case.workload.d, case.workload.dv)
    width = 64 if widest <= 64 else 128 if widest <= 128 else int(ceil_div(widest, 64)) * 64
    if widest > 128:
        plan = FlashPlan(32, 128, resident=4, uneven=EFFICIENT_UNHELD)
    else:
        plan = FlashPlan(64, 64, resident=4) if widest <= 64 else FlashPlan(64, 128, resident=2, threads=256)
    return replace(plan, interleaved=True, overlap=EFFICIENT_OVERLAP, width=width, cut_values=True)


def _triton(case: Case, device: Device) -> FlashPlan:
    """Triton's tutorial: a program per 128 queries of a head, first rows first; before Hopper four warps of 32 rows."""
    return FlashPlan(128, 64, max(32, fragment_of(device)))


def _vllm(case: Case, device: Device) -> FlashPlan:
    plan_of_device = {WGMMA: _fa3_paged, TCGEN05: _trtllm}.get(int(fragment_of(device)), _fa2_paged)
    return replace(plan_of_device(case, device), writes_cache=True)


PUBLISHED: dict[str, Callable[[Case, Device], FlashPlan]] = {
    "cudnn-attention": _cudnn_alone,
    "cudnn-attention-deterministic": _cudnn_alone,
    "cudnn-attention-mxfp8": _cudnn_alone,
    "cudnn-attention-mxfp8-deterministic": _cudnn_alone,
    "triton-attention": _triton,
    "triton-tileir": _triton,
}
"""Of published benchmarks alone."""
_PLANS: dict[str, Callable[[Case, Device], FlashPlan]] = {
    "fa1": _fa1,
    "fa1-triton": _fa1,
    "fa2": torch_flash,
    "fa3": _fa3,
    # a tile's matmuls and its softmax one after the other (arXiv:2407.08608, Sec. 3.2); without specialized warps nothing overlaps either
    **dict.fromkeys(("fa3-no-pipelining", "fa3-no-specialization"), lambda case, device: replace(_fa3(case, device), overlap=IN_TURN)),
    "xformers": _efficient,
    "torch-sdpa-flash": torch_flash,
    "torch-sdpa-cudnn": cudnn,
    "torch-sdpa-efficient": _efficient,
    "numba-flash-mma": _numba_mma,
    "vllm-flash-attn": _vllm,
    **PUBLISHED,
}
IMPLEMENTATIONS = tuple(_PLANS)


def plan_of(case: Case, device: Device) -> FlashPlan:
    """The launch of ``case``; ``br`` and ``bc`` of the case's launch come before those of its implementation.

    UnavailableError where it has no kernel: all of these are CUDA kernels.
    """
    if device.vendor != "NVIDIA":
        raise UnavailableError(f"{case.implementation} is a CUDA kernel: what stands for it on {device.id} is not known")
    plan = _PLANS[case.implementation](case, device)
    if not {"br", "bc"} & set(case.launch):
        return plan
    return replace(plan, br=case.launch.get("br", plan.br), bc=case.launch.get("bc", plan.bc))
