"""Kernels of a TPU: matrix products by XLA, and paged attention by Pallas.

**Matrix products as XLA compiles them for a TPU**: y[m, n] = x[m, k] W[k, n].

The rows of x come into VMEM first. Then slices of W stream from HBM through the systolic units, and slices of y go back, both behind the
multiplication: what takes longer counts. A unit multiplies whole squares of its edge, and rows in groups of eight. All TensorCores of the
chip share the work, the peak and the bandwidth.
Sources: jax-ml/scaling-book, roofline.md and tpus.md (streamed weights, padding to the edge, registers of 8 x 128); jax-ml/jax,
docs/pallas/tpu/matmul.md (pipeline of blocks).

In a step that is compiled as a whole, XLA loads some weights into VMEM while the kernel before still runs, or loads the next kernel's
weights during this one. The shape of a product does not tell which: such kernels take from a fifth to twice the time predicted here.

**Ragged paged attention on a TPU**, the Pallas kernel that vLLM and JAX serve models with: decode and prefill alike.

One TensorCore walks the queries in blocks of 32 tokens, whatever sequences those belong to. For each sequence in a block it walks that
sequence's keys up to the last one that the block may see, and computes scores of all 32 x group query rows of each KV head, those of other
sequences masked: a decode of one token pays for 32. The vector unit is the limit: scale, mask, maximum, exponential and sum take some
cycles per register of 8 x 128 scores, fewer for keys that came with the queries than for those that pages bring by DMA. Each visit of a
sequence costs a latency per KV head, as product, softmax and product wait for each other.
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
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import ALONE, Case, Model, dram_bandwidth, never, numbers_of, plain_attention

LANES, SUBLANES = 128, 8  # known
"""Of a vector register, and of the unit that works on it."""

# Matrix products

XLA = "xla"


def padded_flops(w: Matmul, edge: int) -> int:
    """FLOP of whole squares of ``edge`` and groups of ``SUBLANES`` rows.

    >>> padded_flops(Matmul(1, 4096, 100), 256) == 2 * 8 * 4096 * 256
    True
    """
    m, n, k = ceil_div(w.m, SUBLANES) * SUBLANES, ceil_div(w.n, edge) * edge, ceil_div(w.k, edge) * edge
    return int(2 * w.batch * m * n * k)


def matmul_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a DRAM bandwidth, a matrix edge or a peak of the format in the profile."""
    w: Matmul = case.workload
    (edge,), bandwidth = numbers_of(device, "matrix edge"), dram_bandwidth(device)
    size = w.dtype.size * w.batch
    rows_s = size * w.m * w.k / (bandwidth * p["rows_share"])
    streamed_s = size * (w.k * w.n + w.m * w.n) / (bandwidth * p["hbm_share"])
    multiplied_s = padded_flops(w, int(edge)) / (device.matmul_peak(w.dtype.name, "tensor").number * p["peak_share"])
    return float(p["launch_us"] * 1e-6 + rows_s + max(streamed_s, multiplied_s))


def covers_matmul(case: Case) -> bool:
    """Products C[m, n] = A[m, k] B[k, n] by XLA, batched or not, forward, without split k."""
    w = case.workload
    return isinstance(w, Matmul) and w.split_k == 1 and case.direction == FORWARD and case.implementation == XLA


_MATMUL = Model(
    "xla-matmul",
    "xla-matmul",
    covers_matmul,
    matmul_seconds,
    "pipeline of blocks: jax-ml/scaling-book, roofline.md; jax-ml/jax, docs/pallas/tpu/matmul.md",
    assumes=f"{ALONE}; W and x in HBM when the kernel starts",
    implementations=(XLA,),
    knows_warm=never,
)


# Attention

RAGGED_PAGED = "tpu-ragged-paged-attention"
QUERY_BLOCK = 32  # known


def visits(w: Attention) -> tuple[int, int, int]:
    """(query blocks, keys from the cache, keys of tokens that came with the queries), walked in all blocks of one sequence.

    >>> visits(Attention(1, 1000, 128, 128, causal=True)), visits(Attention(64, 96, 128, 128, causal=True))
    ((1, 999, 1), (2, 64, 96))
    """
    blocks = int(ceil_div(w.n, QUERY_BLOCK))
    if not w.causal:
        return blocks, int(blocks * w.kv_len), 0
    before, came = max(w.kv_len - w.n, 0), QUERY_BLOCK * (blocks - 1) * blocks // 2 + min(w.n, w.kv_len)
    return blocks, int(blocks * before), int(came)


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


def attention_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a DRAM bandwidth, a clock or VMEM in the profile."""
    w: Attention = case.workload
    (clock,), bandwidth = numbers_of(device, "tensor clock"), dram_bandwidth(device)
    blocks, cached, came = visits(w)
    keys, size = cached + came, cache_bytes(w)
    registers = w.batch * (cached + came * p.get("came_share", 1.0)) * ceil_div(QUERY_BLOCK * w.group, SUBLANES) * w.kv_heads / LANES
    vector_s = registers * p["score_cycles"] / clock
    pages_s = size / w.kv_len * keys / bandwidth
    visits_s = w.stored_kv_heads * blocks * p["visit_cycles"] / clock
    moved_s = size / (bandwidth * p["moved_share"]) if size <= p["vmem_share"] * vmem_bytes(device) else 0.0
    return float(p["launch_us"] * 1e-6 + moved_s + visits_s + max(vector_s, pages_s))


def covers_prefill(case: Case) -> bool:
    """Forward attention of several tokens over a paged cache in 16 bits: no mask beside a causal one, no window, dropout or blocks."""
    return covers_attention(case) and case.workload.n > 1


def covers_decode(case: Case) -> bool:
    """Forward attention of one token over a paged cache in 16 bits: no mask beside a causal one, no window, dropout or blocks."""
    return covers_attention(case) and case.workload.n == 1


def covers_attention(case: Case) -> bool:
    """Forward attention over a paged cache in 16 bits: no mask beside a causal one, no window, dropout or blocks."""
    w = case.workload
    if (
        case.implementation != RAGGED_PAGED
        or case.direction != FORWARD
        or not plain_attention(case, "mask", "window", "dropout", "sparsity")
    ):
        return False
    return bool(w.d == w.dv and w.dtype.size == 2)


_ATTENTION = Model(
    "tpu-attention",
    "tpu-attention",
    covers_prefill,
    attention_seconds,
    "jax-ml/jax, jax/experimental/pallas/ops/tpu/ragged_paged_attention; vllm-project/tpu-inference",
    assumes=f"{ALONE}; a cache of its own in pages, moved to VMEM first where it fits a fifth of it",
    implementations=(RAGGED_PAGED,),
    knows_warm=never,
)
_DECODE = _ATTENTION._replace(name="tpu-decode", covers=covers_decode)
MODELS = {model.name: model for model in (_MATMUL, _ATTENTION, _DECODE)}
