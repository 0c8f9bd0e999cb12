"""Attention kernel by kernel as the published comparisons with FlashAttention ran it: the sum of its kernels.

FlashAttention's benchmark: copies of Q, K and V by head, baddbmm, which scales by itself, a causal mask made and added, softmax,
dropout, product; backward, softmax is a product by the gradient and a pass of its own. Megatron's has one kernel for scale, mask
and softmax. PyTorch's kernels for softmax changed with its versions, other than those that are calibrated one by one: their time is
fitted, as a multiple of what their bytes take. Where kernels are short and called again and again, the host is late; not after a flush.
Source: Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py; Megatron-LM, fused_kernels; PyTorch, SoftMax.cu.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention, Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth
from perfmodel.timing.models.eager_attention import Part, added_mask, covers_plain, over_scores, part_seconds, products
from perfmodel.timing.models.stream import STREAM_SHARE

PARAMETERS = (Parameter("softmax", "softmax over rows longer than a warp takes, or its gradient, over the time of its bytes", 1.5),)
HOST_S = 0.25e-3
"""The host's time for a pass; chosen on the fitted rows of 256 queries and fewer, of one A100."""
WARP_COLUMNS = 1024
"""Longest row that a warp took in PyTorch 1 and 2.0 to 2.6."""
MEGATRON = "megatron"
TUNED = ("HOST_S",)
KNOWN = ("WARP_COLUMNS",)


def parts(case: Case) -> list[Part]:
    """The kernels, but for softmax or its gradient where they are fitted."""
    w: Attention = case.workload
    dropped = [over_scores(w, "torch-scale", shared=w.query_heads * w.n * w.kv_len // 2)] if w.dropout else []  # and a mask of bytes
    listed = [*products(w, case.direction), *dropped]
    if case.implementation == MEGATRON:
        return listed
    if case.direction != FORWARD:
        return [*listed, *_copies(w, 6)]
    short = [over_scores(w, "torch-softmax", op="softmax")] if w.kv_len <= WARP_COLUMNS else []
    return [*listed, *_copies(w, 3), *(_made_mask(w) if w.causal else []), *added_mask(w), *short]


def _copies(w: Attention, times: int) -> list[Part]:
    return times * [("scale", Case(Stream("scale", w.query_heads * w.n, w.d, dtype=w.dtype), "torch-scale"))]


def _made_mask(w: Attention) -> list[Part]:
    """Filled, cut to a triangle, converted: 8 B read and 10 B written an element."""
    return [("scale", Case(Stream("scale", w.n, w.kv_len, inputs=4, outputs=5, dtype=w.dtype), "torch-scale"))]


def softmax_bytes(case: Case) -> float:
    """Bytes of softmax where its time is fitted: once through the scores; backward a product and a pass, or Megatron's one pass."""
    w: Attention = case.workload
    scores = float(w.query_heads * w.n * w.kv_len * w.dtype.size)
    if case.direction != FORWARD:
        return scores * (3 if case.implementation == MEGATRON else 6)
    return 2 * scores * (case.implementation == MEGATRON or w.kv_len > WARP_COLUMNS)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of the sequence; UnavailableError if a kernel of it is not calibrated."""
    softmax = p["softmax"] * softmax_bytes(case) / (dram_bandwidth(device) * STREAM_SHARE)
    kernels = softmax + sum(part_seconds(name, part, device) for name, part in parts(case))
    return kernels if case.cold else hypot(HOST_S, kernels)


def covers(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, no window, blocks or masked_fill; Megatron's with no mask to read."""
    return covers_plain(case) and not (case.implementation == MEGATRON and case.workload.mask)


MODEL = Model(
    "eager-published",
    PARAMETERS,
    covers,
    seconds,
    "the sum of its kernels",
    implementations=("torch-standard", "megatron"),
    composite=True,
)
