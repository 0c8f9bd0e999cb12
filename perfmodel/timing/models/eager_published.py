"""Attention kernel by kernel as the published comparisons with FlashAttention ran it: the sum of its kernels by one factor.

FlashAttention's benchmark: copies of Q, K and V by head, baddbmm, which scales by itself, the causal mask added, softmax, dropout,
product; backward, softmax is a product by the gradient and a pass of its own. Megatron's has one kernel for scale, mask and
softmax. The factor is what PyTorch of that time took over the kernels that are calibrated. Where kernels are short, the host is late.
Source: Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py; Megatron-LM, fused_kernels; PyTorch, SoftMax.cu.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.hardware import Device
from perfmodel.timing.base import Case, Model, Parameter
from perfmodel.timing.models.eager_attention import Part, added_mask, covers_plain, over_scores, part_seconds, products
from perfmodel.workload import FORWARD, Attention, Stream

PARAMETERS = (Parameter("factor", "time of the sequence over that of its kernels as they are calibrated", 1.0),)
HOST_S = 25e-6
"""The host's time for a kernel; chosen on the fitted rows of 256 queries and fewer, of one A100."""
MEGATRON = "megatron"


def parts(case: Case) -> list[Part]:
    """The kernels."""
    w: Attention = case.workload
    dropped = [over_scores(w, "torch-scale", shared=w.query_heads * w.n * w.kv_len // 2)] if w.dropout else []  # and a mask of bytes
    copies, listed = _copies(w, 3 if case.direction == FORWARD else 6), products(w, case.direction)
    if case.implementation == MEGATRON:
        return [*listed, *dropped, over_scores(w, "torch-scale") if case.direction == FORWARD else over_scores(w, "torch-add", 2)]
    if case.direction == FORWARD:
        return [*listed, *dropped, *copies, *added_mask(w), over_scores(w, "torch-softmax", op="softmax")]
    return [*listed, *dropped, *copies, over_scores(w, "torch-add", 2), over_scores(w, "torch-add", 2)]


def _copies(w: Attention, times: int) -> list[Part]:
    return times * [("scale", Case(Stream("scale", w.query_heads * w.n, w.d, dtype=w.dtype), "torch-scale"))]


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of the sequence."""
    listed = parts(case)
    return hypot(HOST_S * len(listed), p["factor"] * sum(part_seconds(name, part, device) for name, part in listed))


MODEL = Model("eager-published", PARAMETERS, covers_plain, seconds, "the sum of its kernels")
