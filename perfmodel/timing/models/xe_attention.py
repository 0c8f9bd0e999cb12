"""Attention of vLLM on Intel's Arc GPUs, FlashAttention-2 in SYCL by CUTLASS, as published tables time it: prefill, and decode over pages.

Prefill, a work-group keeps 128 queries of a head and walks tiles of 64 keys, masked ones in full. Matmuls take their share of the matrix
engines' peak, scores a number of cycles of an Xe core, both of all cores together. A work-group alone on its core takes longer, as nothing
hides its latency: the longest walk is a time of its own. Decode reads whole pages of 64 tokens. The host's call is hidden behind the kernel
as far as the norm tells, or the other way round.

Source: vllm-project/vllm-xpu-kernels and intel/sycl-tla (CUTLASS), flash attention for Xe. Tile and page are what the published times show:
those of 256 queries fit as well, pages of 16, 32 and 128 tokens worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.walk import key_tiles, visited_tiles
from perfmodel.timing.base import ALONE, Case, Model, dram_bandwidth, numbers_of, plain_attention
from perfmodel.timing.engine import joined

VLLM_XPU = "vllm-xpu-flash-attn"
QUERIES, KEYS = 128, 64  # known
"""Queries of a work-group, and keys of a tile and of a page."""


def score_tiles(w: Attention) -> tuple[int, int]:
    """(tiles of all work-groups of one head, tiles of the longest walk).

    >>> score_tiles(Attention(256, 256, 64, 64, causal=True)), score_tiles(Attention(256, 256, 64, 64))
    ((6, 4), (8, 4))
    """
    walk = replace(w, packed=False)
    return int(visited_tiles(walk, QUERIES, KEYS)), int(key_tiles(walk, KEYS))


def prefill_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without multiprocessors, a clock, a peak or a DRAM bandwidth in the profile."""
    w: Attention = case.workload
    cores, clock = numbers_of(device, "multiprocessors", "highest clock")
    tiles, longest = score_tiles(w)
    scores = w.query_heads * tiles * QUERIES * KEYS
    multiplied_s = 2 * scores * (w.d + w.dv) / (device.matmul_peak(w.dtype.name, "tensor").number * p["multiply_share"])
    busy_s = multiplied_s + scores * p["score_cycles"] / (cores * clock)
    rows = w.query_heads * w.n + w.stored_kv_heads * w.kv_len
    moved_s = rows * (w.d + w.dv) * w.dtype.size / (dram_bandwidth(device) * p["dram_share"])
    return joined(p["overlap"], p["launch_us"] * 1e-6, busy_s, moved_s, longest * p["alone_us"] * 1e-6)


def decode_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a DRAM bandwidth in the profile."""
    w: Attention = case.workload
    keys = ceil_div(w.kv_len, KEYS) * KEYS
    pages_s = w.stored_kv_heads * keys * (w.d + w.dv) * w.dtype.size / (dram_bandwidth(device) * p["dram_share"])
    return joined(p["overlap"], p["launch_us"] * 1e-6, pages_s)


def covers_prefill(case: Case) -> bool:
    """Forward attention of several queries in 16 bits: no mask beside a causal one, no window, dropout or blocks."""
    return covers(case) and case.workload.n > 1


def covers_decode(case: Case) -> bool:
    """Forward attention of one query in 16 bits over a paged cache: no mask, window, dropout or blocks."""
    return covers(case) and case.workload.n == 1


def covers(case: Case) -> bool:
    """Forward attention in 16 bits: no mask beside a causal one, no window, dropout or blocks."""
    plain = case.direction == FORWARD and plain_attention(case, "mask", "window", "dropout", "sparsity")
    return plain and case.workload.dtype.size == 2 and case.workload.n <= case.workload.kv_len


_PREFILL = Model(
    "xe-attention",
    "xe-attention",
    covers_prefill,
    prefill_seconds,
    "FlashAttention-2 (Dao 2023, Alg. 1) in tiles of 128 queries by 64 keys: intel/sycl-tla",
    assumes=f"{ALONE}; called by a host that takes longer than a short kernel",
    implementations=(VLLM_XPU,),
)
_DECODE = _PREFILL._replace(name="xe-decode", covers=covers_decode, seconds=decode_seconds, source="whole pages stream from DRAM")
MODELS = {model.name: model for model in (_PREFILL, _DECODE)}
