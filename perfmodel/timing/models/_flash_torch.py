"""How FlashAttention-2, PyTorch's fused attention and this project's tensor-core kernel lay their work out.

Sources: Dao-AILab/flash-attention @0251105a; grids, threads, registers and shared memory of PyTorch 2.11's kernels on an H200 by
its profiler. The constants were chosen on the measured shapes that fits may see, on one H200.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, effective_splits, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.timing.base import Case
from perfmodel.timing.models._flash_launch import TCGEN05, WGMMA, Plan, major, padded, resident_blocks

FEEDING, FEEDING_BACKWARD = 0.4, 0.5
"""mma.sync kernels: share of the operand reads that is not hidden."""
SOFTMAX_SHARE = 0.62
"""FlashAttention-2 forward on an H200, fitted: ``softmax`` over ``matmul``. A kernel measured with one tile does not show its own."""
CAUSAL, CROWDED = 0.5, 3.0
"""FlashAttention-2, in block latencies: masked tiles of a causal block; its variant for lengths that tiles do not divide."""
IN_TURN = 1.0
"""Overlap of FlashAttention-2's tiles, and of cuDNN's backward pass with wide heads: matmuls and exponentials one after the other."""
WGMMA_BACKWARD = 2.6
"""cuDNN backward on an H200, fitted: ``softmax`` over ``matmul``."""
DROPOUT = 1.1
"""FlashAttention 1: random numbers of dropout, in exponentials' time of every tile; chosen on the fitted rows of one A100."""
CUDNN_PADDED, CUDNN_CAUSAL = 0.3, 0.45
"""cuDNN: masks of keys past the end, in exponentials' time of every tile; causal masks, in block latencies."""
CUDNN_OVERLAP, CUDNN_OVERLAP_BACKWARD = 1.3, 3.0
"""cuDNN: how a tile's matmuls and exponentials add up."""
EFFICIENT_OVERLAP, EFFICIENT_WIDE = 2.0, 0.5
"""Memory-efficient kernels; over head dim 128, O passes through memory: in exponentials' time of every tile."""
_FA2_WARP_ROWS = {(128, 128): 64 / 3, (64, 128): 16.0, (64, 64): 32 / 3}
"""Backward, eight warps: 1 / (1/rows + 1/columns) of a warp's part of S (flash_bwd_launch_template.h, AtomLayoutMSdP)."""
TUNED = (
    "FEEDING",
    "FEEDING_BACKWARD",
    "SOFTMAX_SHARE",
    "CAUSAL",
    "CROWDED",
    "IN_TURN",
    "WGMMA_BACKWARD",
    "DROPOUT",
    "CUDNN_PADDED",
    "CUDNN_CAUSAL",
    "CUDNN_OVERLAP",
    "CUDNN_OVERLAP_BACKWARD",
    "EFFICIENT_OVERLAP",
    "EFFICIENT_WIDE",
)
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("_FA2_WARP_ROWS",)
"""Given by hardware, by the source of a kernel, or by definition."""


def fa2(case: Case, device: Device) -> Plan:
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


def fa1(case: Case, device: Device) -> Plan:
    """FlashAttention 1.0: K and V outermost, 256 keys of head dim 64 or 128 of 128 by 16 queries at a time, in as many parts as fill
    the device (csrc/flash_attn at v1.0.9: fmha_fprop_fp16_kernel.sm80.cu, num_splits_heuristic_fwd).
    """
    w: Attention = case.workload
    edge = 256 if w.d <= 64 and w.kv_len > 128 else 128
    return Plan(edge, edge, 16, 2, feeding=FEEDING, overlap=1.0, softmax_share=SOFTMAX_SHARE, mask_tile=DROPOUT if w.dropout else 0.0)


def torch_flash(case: Case, device: Device) -> Plan:
    """PyTorch's build of FlashAttention-2 keeps its kernels on Hopper; too few blocks are split over keys in prefill, too."""
    w: Attention = case.workload
    plan = fa2(case, device)
    if case.direction == BACKWARD:
        fragment = _FA2_WARP_ROWS.get((plan.br, plan.bc), 16.0)
        return replace(plan, fragment=fragment, overlap=IN_TURN, feeding=FEEDING_BACKWARD, side_kernels=side_kernels(w))
    split = _fa2_split(w, device)
    if split.splits > 1:
        return replace(split, feeding=FEEDING, overlap=IN_TURN, interleaved=True)
    crowded = CROWDED * (w.causal and _ragged(w, plan) and padded(w.d) in (64, 128))
    return replace(plan, feeding=FEEDING, overlap=IN_TURN, interleaved=True, mask_block=CAUSAL * w.causal, crowded_block=crowded)


def side_kernels(w: Attention) -> int:
    """Backward: row sums of O dO, conversion of dQ; two more sum dK and dV over the query heads of a KV head."""
    return 4 if w.group > 1 else 2


def _ragged(w: Attention, plan: Plan) -> bool:
    return bool(w.n % plan.br or w.kv_len % plan.bc)


def _fa2_split(w: Attention, device: Device) -> Plan:
    """csrc/flash_attn flash_api.cpp, set_params_splitkv; a second kernel combines the splits."""
    bc = 256 if w.d <= 64 else 128 if w.d <= 128 else 64
    sms, tiles = int(device.multiprocessors.number) if device.multiprocessors else 1, ceil_div(w.kv_len, bc)
    splits = effective_splits(tiles, num_splits(int(w.query_heads * ceil_div(w.n, 64)), BLOCKS_PER_MULTIPROCESSOR * sms, int(tiles)))
    return Plan(64, bc, 16, resident_blocks(device, 64, bc, 128, w), splits=int(splits), fixed_splits=True, side_kernels=1)


def cudnn(case: Case, device: Device) -> Plan:
    """Closed source. Hopper: tiles and grids as profiled; supposed to be TensorRT-LLM's kernels later, unknown before."""
    w: Attention = case.workload
    backward = case.direction == BACKWARD
    if major(device) > 9 and not backward:
        return Plan(256 if padded(w.d) <= 128 else 128, 128, TCGEN05)
    if major(device) < 9:
        raise UnavailableError(f"cuDNN's attention kernels for compute capability {device.compute_capability} are not known")
    width = next((dim for dim in (64, 128, 192) if max(w.d, w.dv) <= dim), 256)
    if backward:  # wide heads fill SRAM with one stage of smaller tiles, which nothing overlaps
        bc, overlap = (128, CUDNN_OVERLAP_BACKWARD) if width <= 128 else (64, IN_TURN)
        return Plan(64, bc, WGMMA, overlap=overlap, width=width, side_kernels=side_kernels(w))
    plan = Plan(128, 128, WGMMA, overlap=CUDNN_OVERLAP, width=width)
    return replace(plan, mask_block=CUDNN_CAUSAL) if w.causal else replace(plan, mask_tile=CUDNN_PADDED * _ragged(w, plan))


def efficient(case: Case, device: Device) -> Plan:
    """PyTorch's memory-efficient kernels: queries x keys of the sm80 variants for two-byte elements (mem_eff_attention/).

    Blocks per multiprocessor by the registers profiled, which other architectures share. Over 128 O passes through memory.
    """
    w: Attention = case.workload
    widest = max(w.d, w.dv)
    if case.direction == BACKWARD:
        plan = Plan(64, 64, resident=3) if widest <= 64 else Plan(128, 128, threads=512)
        return replace(plan, interleaved=True, side_kernels=1, overlap=EFFICIENT_OVERLAP)
    plan = Plan(64, 64, resident=4) if widest <= 64 else Plan(64, 128, resident=2, threads=256)
    if widest > 128:
        plan = Plan(32, 128, resident=2, mask_tile=EFFICIENT_WIDE)
    return replace(plan, interleaved=True, overlap=EFFICIENT_OVERLAP)


def numba_mma(case: Case, device: Device) -> Plan:
    """This project's tensor-core kernel: FlashAttention-2's forward pass with the tile and the block that the launch names."""
    w: Attention = case.workload
    br, bc, threads = (case.launch.get(name, default) for name, default in (("br", 128), ("bc", 64), ("threads", 128)))
    resident, sram = resident_blocks(device, br, bc, threads, w), device.level("sram")
    if "shared_bytes" in case.launch and sram and sram.capacity:
        by_registers = resident_blocks(device, 0, 0, threads, w)
        resident = max(1, min(by_registers, int(sram.capacity.number) // (case.launch["shared_bytes"] + 1024)))
    plan = Plan(br, bc, max(16, 32 * br // threads), resident, feeding=FEEDING, overlap=IN_TURN, interleaved=True, threads=threads)
    return replace(plan, softmax_share=SOFTMAX_SHARE)
