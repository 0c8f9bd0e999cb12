"""FlashAttention-3 on Hopper, and what vLLM calls over its paged cache from Hopper on.

A block keeps br queries and visits tiles of bc keys; warps that only load bring them by TMA, and two or three warpgroups multiply by wgmma,
whose matmuls run beside exponentials. One block fills a multiprocessor and is persistent: it takes the next tile of queries. Causal tiles
start longest first, over as many heads as fit 32 MB of L2. Query heads of a KV head are packed into one tile if queries are few. If there
are too few tiles, keys are split.

vLLM first copies K and V into its paged cache, which leaves them in the L2. On Blackwell it calls TensorRT-LLM's kernel, before Hopper
FlashAttention-2's (``fa2``).

Backward and in fp8, FlashAttention-3 is known only by a few rows, timed from the host, call after call: a kernel that is shorter than the
host's time per call (``host_us``) waits for the host, unless caches are flushed in between.

Source: Dao-AILab/flash-attention @0251105a hopper/ (tile_size.h, tile_scheduler.hpp, heuristics.h, flash_bwd_launch_template.h);
vllm-project/flash-attention @617264c1 (flash_prepare_scheduler.cu); vllm csrc/cache_kernels.cu; flashinfer-ai/flashinfer @3c40456ef.
Variants without pipelining or without specialized warps work in turn (arXiv:2407.08608, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from perfmodel.core.architectures import Traits
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import ALONE, Case, find_model
from perfmodel.timing.models._attention_grid import (
    ASYNCHRONOUS,
    IN_TURN,
    TCGEN05,
    WGMMA,
    AttentionLaunch,
    blackwell_launch,
    dense,
    matrix_rows,
    multiprocessors_of,
    padded,
    page,
)
from perfmodel.timing.models.decode import FA3 as DECODE
from perfmodel.timing.models.fa2 import takes_paged

VLLM = "vllm-flash-attn"
L2_BYTES = 32 << 20  # known
_IN_TURN = ("fa3-no-pipelining", "fa3-no-specialization")


def tile_of(w: Attention, paged: bool) -> tuple[int, int]:
    """(br, bc) of a tile for two-byte elements, from hopper/tile_size.h."""
    if w.d <= 64:
        return 192, 128 if w.causal else 160 if paged else 192
    if w.d <= 96:
        return 192, 128 if paged else 144
    if w.d <= 128:
        return 128, 128 if w.causal or paged else 176
    return 128, (96 if paged else 112) if w.d <= 192 else 80


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Launch of the kernel that FlashAttention-3 or vLLM calls; UnavailableError if there is none."""
    if case.implementation == VLLM:
        return _vllm(case, device)._replace(writes_cache=True)
    if matrix_rows(device) != WGMMA:
        raise UnavailableError(f"FlashAttention-3 has kernels for compute capability 9.0 alone, not for {device.id}")
    overlap = IN_TURN if case.implementation in _IN_TURN else ASYNCHRONOUS
    return (_backward if case.direction == BACKWARD else _fa3)(case.workload)._replace(overlap=overlap)


def _vllm(case: Case, device: Device) -> AttentionLaunch:
    if matrix_rows(device) == WGMMA:
        return _paged(case.workload, device)
    if matrix_rows(device) == TCGEN05:
        return blackwell_launch(case)
    raise UnavailableError(f"vLLM runs FlashAttention-2 on {device.id}")


def _fa3(w: Attention) -> AttentionLaunch:
    """FlashAttention-3's launch: heads are packed if that fills more rows of the tiles, and run in sections whose K and V fit the L2."""
    br, bc = tile_of(w, paged=False)
    filled = w.n / (ceil_div(w.n, br) * br)
    packed_rows = w.n * w.group
    packed = bool(filled < 0.9 * packed_rows / (ceil_div(packed_rows, br) * br))
    fitting = L2_BYTES // max(1, 2 * w.kv_len * (w.d + w.dv) * w.dtype.size)
    section = (1 << max(0, fitting.bit_length() - 1)) * (1 if packed else w.group)
    walks = w.stored_kv_heads if packed else w.query_heads
    return AttentionLaunch(br, bc, WGMMA, packed=packed, longest_first=w.causal, group=walks, section=min(section, walks))


def _backward(w: Attention) -> AttentionLaunch:
    by_width = {64: (128, 128), 96: (64, 128), 128: (64 if w.causal else 80, 128), 192: (64, 96), 256: (64, 80)}
    br, bc = by_width.get(max(64, padded(w.d)), by_width[128])
    return AttentionLaunch(br, bc, WGMMA)


def _paged(w: Attention, device: Device) -> AttentionLaunch:
    """vLLM's launch: query heads packed, batch after batch, each in sections of heads."""
    br, bc = tile_of(w, paged=True)
    if padded(w.d) in (64, 128) and w.n * w.group <= 64:
        br = 64
    halvings = min(4, (w.group - 1).bit_length())
    fitting = (L2_BYTES >> halvings) // (bc * (w.d + w.dv) * w.dtype.size * ceil_div(w.kv_len, bc))
    section = max(1, min(16, 1 << max(0, fitting.bit_length() - 1), w.kv_heads))
    plan = AttentionLaunch(br, bc, WGMMA, ASYNCHRONOUS, packed=True, longest_first=w.causal, group=w.kv_heads, section=section)
    return plan._replace(splits=_fa3_splits(w, br, bc, device))


def _fa3_splits(w: Attention, br: int, bc: int, device: Device) -> int:
    """Number of splits: at most as hopper/heuristics.h says for a batch of one, and as flash_prepare_scheduler.cu finds worthwhile."""
    sms, row_tiles, key_tiles = multiprocessors_of(device), ceil_div(w.n * w.group, br), ceil_div(w.kv_len, bc)
    blocks = w.kv_heads * row_tiles
    if blocks >= 0.8 * sms or key_tiles <= 4:
        return 1
    filled = [blocks * s / sms / ceil(blocks * s / sms) for s in range(1, min(128, sms, key_tiles) + 1)]
    most = next(i for i, share in enumerate(filled, 1) if share >= 0.85 * max(filled))
    tiles_per_sm = ceil(1.1 * w.batch * blocks * key_tiles / sms)
    return int(max(1, min(ceil_div(key_tiles, tiles_per_sm), most)))


def known(case: Case, p: Mapping[str, float]) -> Mapping[str, float]:
    """Parameters that few rows do not tell are those of the other forward passes."""
    return {**find_model("fa3").starts(), "matmul": p["matmul"]}


def _has_few_rows(case: Case) -> bool:
    return case.implementation.startswith("fa3") and (case.direction == BACKWARD or case.workload.dtype.size < 2)


def covers(case: Case) -> bool:
    """Forward over several queries, more than decoding takes, dense, with d = d_v of at most 256; FlashAttention-3 in two-byte elements."""
    return dense(case, FORWARD) and case.workload.n > 1 and not _has_few_rows(case) and not DECODE.covers(case)


def runs_on(implementation: str, traits: Traits) -> bool:
    """Whether ``implementation`` takes these kernels: vLLM from Hopper on."""
    return implementation != VLLM or not takes_paged(implementation, traits)


def covers_few(case: Case) -> bool:
    """FlashAttention-3 backward and in fp8, dense, no window, with d = d_v."""
    return (dense(case, FORWARD) or dense(case, BACKWARD)) and case.workload.n > 1 and _has_few_rows(case) and not case.workload.window


_SOURCE = "FlashAttention-3 (Shah et al. 2024) and its kernels' source; list scheduling, Graham 1966"
_LISTED = (
    page("fa3", launch, covers, _SOURCE, (VLLM, "fa3", *_IN_TURN), runs_on=runs_on),
    page("fa3-few", launch, covers_few, _SOURCE, ("fa3",), known=known, assumes=ALONE, from_tables=True),
)
MODELS = {model.name: model for model in _LISTED}
