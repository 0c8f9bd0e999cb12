"""How each fused attention implementation lays its work out: tile, blocks per multiprocessor, order of blocks.

Sources, by commit: Dao-AILab/flash-attention @0251105a; vllm-project/flash-attention @617264c1 (the fork that vLLM calls, always
with a paged KV cache); flashinfer-ai/flashinfer @3c40456ef and @fb28d7242 (the kernels that vLLM calls on Blackwell).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.timing.base import Case
from perfmodel.timing.models._flash_launch import TCGEN05, WGMMA, Plan, major, padded, resident_blocks
from perfmodel.timing.models._flash_published import PLANS as PUBLISHED
from perfmodel.timing.models._flash_torch import WGMMA_BACKWARD, cudnn, efficient, fa1, numba_mma, torch_flash

_MIB = 1 << 20
_HOPPER = 9
KNOWN = ("_MIB", "_HOPPER")
"""Given by hardware, by the source of a kernel, or by definition."""


def _fa2_paged(case: Case, device: Device) -> Plan:
    """vLLM before Hopper: a paged cache takes the split-KV kernel with one split (csrc/flash_attn flash_api.cpp, launch template)."""
    w: Attention = case.workload
    bc = 256 if w.d <= 64 else 128 if w.d <= 128 else 64
    return Plan(64, bc, resident=resident_blocks(device, 64, bc, 128, w), writes_cache=True)


def _fa3_tile(w: Attention, paged: bool) -> tuple[int, int]:
    """hopper/tile_size.h, two-byte elements."""
    if w.d <= 64:
        return 192, 128 if w.causal else 160 if paged else 192
    if w.d <= 96:
        return 192, 128 if paged else 144
    if w.d <= 128:
        return 128, 128 if w.causal or paged else 176
    return 128, (96 if paged else 112) if w.d <= 192 else 80


def _fa3(case: Case, device: Device) -> Plan:
    """hopper/: persistent; causal blocks longest first over as many heads as fit 32 MB of L2 (tile_scheduler.hpp)."""
    w: Attention = case.workload
    if major(device) != _HOPPER:
        raise UnavailableError(f"FlashAttention-3 has kernels for compute capability {_HOPPER}.0 alone, not for {device.id}")
    if case.direction == BACKWARD:
        return _fa3_backward(w)
    br, bc = _fa3_tile(w, paged=False)
    rows, tall = w.n / (ceil_div(w.n, br) * br), w.n * w.group
    packed = bool(rows < 0.9 * tall / (ceil_div(tall, br) * br))
    fitting = 32 * _MIB // max(1, 2 * w.kv_len * (w.d + w.dv) * w.dtype.size)
    section = (1 << max(0, fitting.bit_length() - 1)) * (1 if packed else w.group)
    walks = w.stored_kv_heads if packed else w.query_heads
    return Plan(br, bc, WGMMA, packed=packed, longest_first=w.causal, group=walks, section=min(section, walks))


def _fa3_in_turn(case: Case, device: Device) -> Plan:
    """FlashAttention-3 without its pipelining: a tile's matmuls and its softmax come one after the other (arXiv:2407.08608, Sec. 3.2).

    Without specialized warps nothing overlaps either, as far as this model goes.
    """
    return replace(_fa3(case, device), overlap=1.0)


def _fa3_backward(w: Attention) -> Plan:
    """hopper/flash_bwd_launch_template.h."""
    br, bc = {64: (128, 128), 96: (64, 128), 192: (64, 96), 256: (64, 80)}.get(max(64, padded(w.d)), (64 if w.causal else 80, 128))
    return Plan(br, bc, WGMMA, softmax_share=WGMMA_BACKWARD)


def _fa3_paged(case: Case, device: Device) -> Plan:
    """vLLM on Hopper: query heads packed, batch after batch, each in sections of heads (hopper/flash_prepare_scheduler.cu)."""
    w: Attention = case.workload
    br, bc = _fa3_tile(w, paged=True)
    if padded(w.d) in (64, 128) and w.n * w.group <= 64:
        br = 64
    halvings = min(4, (w.group - 1).bit_length())
    fitting = (32 * _MIB >> halvings) // (bc * (w.d + w.dv) * w.dtype.size * ceil_div(w.kv_len, bc))
    section = max(1, min(16, 1 << max(0, fitting.bit_length() - 1)))
    splits = _fa3_splits(w, br, bc, device)
    return Plan(br, bc, WGMMA, 1, True, w.causal, w.kv_heads, min(section, w.kv_heads), splits, writes_cache=True)


def _fa3_splits(w: Attention, br: int, bc: int, device: Device) -> int:
    """hopper/heuristics.h gives the most splits, as if the batch were one; flash_prepare_scheduler.cu how many are worth it."""
    sms = int(device.multiprocessors.number) if device.multiprocessors else 1
    row_tiles, key_tiles = ceil_div(w.n * w.group, br), ceil_div(w.kv_len, bc)
    blocks = w.kv_heads * row_tiles
    if blocks >= 0.8 * sms or key_tiles <= 4:
        return 1
    filled = [blocks * s / sms / ceil(blocks * s / sms) for s in range(1, min(128, sms, key_tiles) + 1)]
    most = next(i for i, share in enumerate(filled, 1) if share >= 0.85 * max(filled))
    tiles_per_sm = ceil(1.1 * w.batch * blocks * key_tiles / sms)
    return int(max(1, min(ceil_div(key_tiles, tiles_per_sm), most)))


def _trtllm(case: Case, device: Device) -> Plan:
    """vLLM on Blackwell: TensorRT-LLM's context kernels; two tiles of 128 queries a block up to head dim 128 (kernelMetaInfo.h)."""
    return Plan(256 if padded(case.workload.d) <= 128 else 128, 128, TCGEN05, writes_cache=True)


def _vllm(case: Case, device: Device) -> Plan:
    return {9: _fa3_paged, 10: _trtllm}.get(major(device), _fa2_paged)(case, device)


_PLANS: dict[str, Callable[[Case, Device], Plan]] = {
    "fa1": fa1,
    "fa1-triton": fa1,
    "fa2": torch_flash,
    "fa3": _fa3,
    "fa3-no-pipelining": _fa3_in_turn,
    "fa3-no-specialization": _fa3_in_turn,
    "xformers": efficient,
    "torch-sdpa-flash": torch_flash,
    "torch-sdpa-cudnn": cudnn,
    "torch-sdpa-efficient": efficient,
    "numba-flash-mma": numba_mma,
    "vllm-flash-attn": _vllm,
    **PUBLISHED,
}
IMPLEMENTATIONS = tuple(_PLANS)


def plan_of(case: Case, device: Device) -> Plan:
    """The launch of ``case``; ``br`` and ``bc`` of the case's launch come before those of its implementation.

    UnavailableError where it has no kernel: all of these are CUDA kernels.
    """
    if device.vendor != "NVIDIA":
        raise UnavailableError(f"{case.implementation} is a CUDA kernel: what stands for it on {device.id} is not known")
    plan = _PLANS[case.implementation](case, device)
    if not {"br", "bc"} & set(case.launch):
        return plan
    return replace(plan, br=case.launch.get("br", plan.br), bc=case.launch.get("bc", plan.bc))
