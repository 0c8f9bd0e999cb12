"""Ragged paged attention on a TPU, the Pallas kernel that vLLM and JAX serve models with: decode and prefill alike.

One TensorCore walks the queries in blocks of 32 tokens, whatever sequences those belong to. For each sequence in a block it walks
that sequence's keys up to the last one that the block may see, and computes scores of all 32 x group query rows of each KV head, those of
other sequences masked: a decode of one token pays for 32. The vector unit is the limit: scale, mask, maximum, exponential and sum take
some cycles per register of 8 x 128 scores. Pages arrive by DMA behind that. Each visit of a sequence costs a latency per KV head, as
product, softmax and product wait for each other.
Sources: jax-ml/jax, jax/experimental/pallas/ops/tpu/ragged_paged_attention, kernel.py (blocks of several sequences, masks) and
tuned_block_sizes.py (32 queries per block for most shapes); vllm-project/tpu-inference, kernels/ragged_paged_attention, v3/kernel.py (no
keys beyond those that a block may see). Pallas splits only axes marked parallel over TensorCores: jax-ml/jax, docs/pallas/tpu/details.rst.

A cache that fits a share of VMEM costs an additional copy, and measured times fall where it gets longer than that: XLA moves operands that
fit into VMEM before it starts a kernel, and nothing hides the copy. A server's pool of pages is longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.timing.base import ALONE, Case, Model, dram_bandwidth, never, numbers_of, plain_attention

RAGGED_PAGED = "tpu-ragged-paged-attention"
QUERY_BLOCK = 32  # known
LANES, SUBLANES = 128, 8  # known
"""Lanes and sublanes of a vector register and of the vector unit."""


def visits(w: Attention) -> tuple[int, int]:
    """(query blocks, keys walked in all of them together) of one sequence.

    >>> visits(Attention(1, 1000, 128, 128, causal=True)), visits(Attention(64, 64, 128, 128, causal=True))
    ((1, 1000), (2, 96))
    """
    blocks = int(ceil_div(w.n, QUERY_BLOCK))
    if not w.causal:
        return blocks, int(blocks * w.kv_len)
    before = max(w.kv_len - w.n, 0)
    return blocks, int(blocks * before + QUERY_BLOCK * (blocks - 1) * blocks // 2 + min(w.n, w.kv_len))


def cache_bytes(w: Attention) -> int:
    """Bytes of the keys and values of all sequences; heads are stored in whole lanes.

    >>> cache_bytes(Attention(1, 1024, 64, 64, batch=2, heads=32, kv_heads=8)) == 2 * 1024 * 8 * 2 * 128 * 2
    True
    """
    return int(w.stored_kv_heads * w.kv_len * 2 * ceil_div(w.d, LANES) * LANES * w.dtype.size)


def vmem_bytes(device: Device) -> float:
    """Bytes of VMEM; UnavailableError without it in the profile."""
    vmem = device.level("sram")
    if vmem is None or vmem.capacity is None:
        raise UnavailableError(f"{device.id} has no VMEM in its profile", "add the capacity of its sram level")
    return float(vmem.capacity.number)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a DRAM bandwidth, a clock or VMEM in the profile."""
    w: Attention = case.workload
    (clock,), bandwidth = numbers_of(device, "tensor clock"), dram_bandwidth(device)
    blocks, keys = visits(w)
    size = cache_bytes(w)
    registers = w.batch * keys * ceil_div(QUERY_BLOCK * w.group, SUBLANES) * w.kv_heads / LANES
    vector_s = registers * p["score_cycles"] / clock
    pages_s = size / w.kv_len * keys / bandwidth
    visits_s = w.stored_kv_heads * blocks * p["visit_cycles"] / clock
    moved_s = size / (bandwidth * p["moved_share"]) if size <= p["vmem_share"] * vmem_bytes(device) else 0.0
    return float(p["launch_us"] * 1e-6 + moved_s + visits_s + max(vector_s, pages_s))


def covers(case: Case) -> bool:
    """Forward attention over a paged cache in 16 bits: no mask beside a causal one, no window, dropout or blocks."""
    w = case.workload
    if (
        case.implementation != RAGGED_PAGED
        or case.direction != FORWARD
        or not plain_attention(case, "mask", "window", "dropout", "sparsity")
    ):
        return False
    return bool(w.d == w.dv and w.dtype.size == 2)


MODEL = Model(
    "tpu-attention",
    "tpu-attention",
    covers,
    seconds,
    "jax-ml/jax, jax/experimental/pallas/ops/tpu/ragged_paged_attention; vllm-project/tpu-inference",
    assumes=f"{ALONE}; a cache of its own in pages, moved to VMEM first where it fits a fifth of it",
    implementations=(RAGGED_PAGED,),
    knows_warm=never,
)
