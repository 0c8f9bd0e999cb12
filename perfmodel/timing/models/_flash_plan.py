"""How each fused attention implementation lays its work out: tile, blocks per multiprocessor, order of blocks.

Sources, by commit: Dao-AILab/flash-attention @0251105a; vllm-project/flash-attention @617264c1 (the fork that vLLM calls, always
with a paged KV cache); flashinfer-ai/flashinfer @3c40456ef and @fb28d7242 (the kernels that vLLM calls on Blackwell).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from perfmodel.arith import ceil_div
from perfmodel.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, effective_splits, num_splits
from perfmodel.attention.tiles import fa2_tile
from perfmodel.errors import UnavailableError
from perfmodel.hardware import Device
from perfmodel.timing.base import Case
from perfmodel.timing.models._flash_launch import Plan, padded, resident_blocks
from perfmodel.workload import BACKWARD, FORWARD, Attention

_MIB = 1 << 20
_WGMMA, _TCGEN05 = 64, 128


def _major(device: Device) -> int:
    return int(float(device.compute_capability or 0))


def _fa2(case: Case, device: Device) -> Plan:
    """FlashAttention-2: grid (tiles, batch, heads), first tiles first. Blocks that fit: registers, 255 a thread, and SRAM."""
    w: Attention = case.workload
    tile = fa2_tile(w, device, device.sram_per_block, case.direction)
    if tile is None and case.direction == BACKWARD and 192 < max(w.d, w.dv) <= 256:
        return Plan(64, 64, fragment=16)
    if tile is None:
        raise UnavailableError(f"{case.implementation} has no {case.direction} kernel for head dim {max(w.d, w.dv)} in {w.dtype.name}")
    fragment = max(16, 32 * tile.br // tile.threads)
    resident = 1 if case.direction == BACKWARD else resident_blocks(device, tile.br, tile.bc, tile.threads, w)
    return Plan(tile.br, tile.bc, fragment, resident)


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
    if case.direction == BACKWARD:
        return _fa3_backward(w)
    br, bc = _fa3_tile(w, paged=False)
    rows, tall = w.n / (ceil_div(w.n, br) * br), w.n * w.group
    packed = bool(rows < 0.9 * tall / (ceil_div(tall, br) * br))
    fitting = 32 * _MIB // max(1, 2 * w.kv_len * (w.d + w.dv) * w.dtype.size)
    section = (1 << max(0, fitting.bit_length() - 1)) * (1 if packed else w.group)
    walks = w.stored_kv_heads if packed else w.query_heads
    return Plan(br, bc, _WGMMA, packed=packed, longest_first=w.causal, group=walks, section=min(section, walks))


def _fa3_backward(w: Attention) -> Plan:
    """hopper/flash_bwd_launch_template.h."""
    br, bc = {64: (128, 128), 96: (64, 128), 192: (64, 96), 256: (64, 80)}.get(max(64, padded(w.d)), (64 if w.causal else 80, 128))
    return Plan(br, bc, _WGMMA)


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
    return Plan(br, bc, _WGMMA, 1, True, w.causal, w.kv_heads, min(section, w.kv_heads), splits, writes_cache=True)


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
    return Plan(256 if padded(case.workload.d) <= 128 else 128, 128, _TCGEN05, writes_cache=True)


def _vllm(case: Case, device: Device) -> Plan:
    return {9: _fa3_paged, 10: _trtllm}.get(_major(device), _fa2_paged)(case, device)


def _side_kernels(w: Attention, direction: str) -> int:
    """Backward: row sums of O dO, conversion of dQ; dK and dV are summed over a group by two more (PyTorch profiler, H200)."""
    return (4 if w.group > 1 else 2) if direction == BACKWARD else 0


def _ragged(w: Attention, plan: Plan) -> bool:
    return bool(w.n % plan.br or w.kv_len % plan.bc)


def _torch_flash(case: Case, device: Device) -> Plan:
    """PyTorch's build of FlashAttention-2 keeps its kernels on Hopper; too few blocks are split over keys in prefill, too."""
    w: Attention = case.workload
    plan = replace(_fa2(case, device), side_kernels=_side_kernels(w, case.direction))
    if case.direction == BACKWARD:
        return plan
    split = _fa2_split(w, device)
    if split.splits > 1:
        plan = split
    ragged = w.causal and _ragged(w, plan) and padded(w.d) in (32, 64, 128)
    return replace(plan, feeding=FA2_FEEDING, overlap=FA2_OVERLAP, interleaved=True, mask_block=FA2_RAGGED * ragged + FA2_MASK * w.causal)


FA2_FEEDING, FA2_OVERLAP, FA2_RAGGED, FA2_MASK = 0.4, 1.0, 2.5, 0.3


def _fa2_split(w: Attention, device: Device) -> Plan:
    """csrc/flash_attn flash_api.cpp, set_params_splitkv."""
    bc = 256 if w.d <= 64 else 128 if w.d <= 128 else 64
    sms, tiles = int(device.multiprocessors.number) if device.multiprocessors else 1, ceil_div(w.kv_len, bc)
    splits = effective_splits(tiles, num_splits(w.query_heads * ceil_div(w.n, 64), BLOCKS_PER_MULTIPROCESSOR * sms, tiles))
    return Plan(64, bc, 16, resident_blocks(device, 64, bc, 128, w), splits=int(splits), fixed_splits=True, side_kernels=1)


def _cudnn(case: Case, device: Device) -> Plan:
    """Closed source. Hopper: tiles and grids as profiled; else TensorRT-LLM's kernels on Blackwell, FlashAttention-2 before."""
    major, w = _major(device), case.workload
    side = _side_kernels(w, case.direction)
    if major > 9 and case.direction == FORWARD:
        return Plan(256 if padded(w.d) <= 128 else 128, 128, _TCGEN05)
    if major < 9:
        return replace(_fa2(case, device), side_kernels=side)
    width = next((dim for dim in (64, 128, 192) if max(w.d, w.dv) <= dim), 256)
    if case.direction == BACKWARD:
        return Plan(64, 128 if width <= 128 else 64, _WGMMA, overlap=CUDNN_BWD_OVERLAP, width=width, side_kernels=side)
    plan = Plan(128, 128, _WGMMA, overlap=CUDNN_OVERLAP, width=width)
    masked = not w.causal and _ragged(w, plan)
    return replace(plan, mask_tile=CUDNN_MASK * masked, mask_block=CUDNN_CAUSAL * w.causal)


CUDNN_OVERLAP, CUDNN_MASK, CUDNN_CAUSAL, CUDNN_BWD_OVERLAP = 1.3, 0.3, 0.45, 1.5


def _efficient(case: Case, device: Device) -> Plan:
    """PyTorch's memory-efficient kernels: queries x keys of the sm80 variants for two-byte elements (mem_eff_attention/)."""
    w: Attention = case.workload
    widest = max(w.d, w.dv)
    if case.direction == BACKWARD:
        br, bc, resident = (64, 64, 3) if widest <= 64 else (128, 128, 1) if widest <= 128 else (64, 64, 1)
        return Plan(br, bc, resident=resident, interleaved=True, side_kernels=1, overlap=EFF_OVERLAP)
    br, bc, resident = (64, 64, 4) if widest <= 64 else (64, 128, 2) if widest <= 128 else (32, 128, 2)
    return Plan(br, bc, resident=resident, interleaved=True, overlap=EFF_OVERLAP)


EFF_OVERLAP = 1.0


def _numba_mma(case: Case, device: Device) -> Plan:
    """This project's kernel: four warps; O, S and a part of K in registers, blocks by what the launch says."""
    w, launch = case.workload, case.launch
    br, bc, threads = launch.get("br", 128), launch.get("bc", 64), launch.get("threads", 128)
    resident = resident_blocks(device, br, bc, threads, w)
    return Plan(br, bc, max(16, 32 * br // threads), resident, feeding=MMA_FEEDING, overlap=1.0, interleaved=True)


MMA_FEEDING = 0.4


_PLANS: dict[str, Callable[[Case, Device], Plan]] = {
    "fa2": _fa2,
    "fa3": _fa3,
    "torch-sdpa-flash": _torch_flash,
    "torch-sdpa-cudnn": _cudnn,
    "torch-sdpa-efficient": _efficient,
    "numba-flash-mma": _numba_mma,
    "vllm-flash-attn": _vllm,
}
IMPLEMENTATIONS = tuple(_PLANS)


def plan_of(case: Case, device: Device) -> Plan:
    """The launch of ``case``; ``br`` and ``bc`` of the case's launch come before those of its implementation."""
    plan = _PLANS[case.implementation](case, device)
    if not {"br", "bc"} & set(case.launch):
        return plan
    return replace(plan, br=case.launch.get("br", plan.br), bc=case.launch.get("bc", plan.bc))
