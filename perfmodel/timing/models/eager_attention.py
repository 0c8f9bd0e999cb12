"""Attention kernel by kernel, scores in memory, as PyTorch runs it without a fused kernel.

Forward: Q K^T, scale, additive mask, softmax, P V. Backward: P^T dO, dO V^T, a product by the scores, softmax's own backward,
scale, dS^T Q, dS K. A causal mask is an additive one here too, a tensor of the scores' dtype that ``torch-mask`` adds; ``masked_fill``
copies the scores, and the kernel that fills its boolean matrix in is fitted within the sequence. A kernel finds in L2 what the one
before has written as far as it fits, else lines that must be written first. Each kernel is predicted by the calibration of its own
implementation; parameters give the time saved by a kernel that follows another, and the rates of kernels that are never timed alone.
Source: the sequence that the profiler shows for torch.matmul, *, +, torch.softmax under autograd.

As the published comparisons with FlashAttention ran it, other kernels follow each other. FlashAttention's benchmark: copies of Q, K
and V by head, baddbmm, which scales by itself, a causal mask made and added, softmax, dropout, product; backward, softmax is a product
by the gradient and a pass of its own. Megatron's has one kernel for scale, mask and softmax. PyTorch's kernel for softmax over long rows
changed in 2.7, the first version that runs on Blackwell: earlier ones are fitted, as a multiple of what their bytes take. Where kernels
are short and called again and again, the host is late; not after a flush.
Source: Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py; Megatron-LM, fused_kernels; PyTorch, SoftMax.cu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import (
    ALONE,
    Case,
    Model,
    Parameter,
    PartTime,
    calibrations,
    dram_bandwidth,
    find_model,
    lost_share,
    once_per_case,
    plain_attention,
)
from perfmodel.timing.models.softmax import WARP_BYTES
from perfmodel.timing.models.streams import cycles_per_second
STREAM_SHARE=0.92

SHORT_ROW = 1024  # known
"""Longest row whose gradient a warp keeps in registers."""
WIDE_WARP_SHARE = 0.82  # tuned
"""Of a warp's bandwidth, what is left for rows longer than half of that: 96 registers a thread instead of 32 to 55."""
VECTOR_BYTES, UNALIGNED_SHARE = 16, 0.52  # known, tuned
"""Alignment of rows that a block reads in vectors and keeps in shared memory; bandwidth of other long rows, over that of those."""
WARP_MASKED, BLOCK_MASKED, STARTING_S = 0.32, 0.12, 3e-6  # tuned
"""More of softmax's time over rows with zeros, a warp or a block per row, and what of that time is the start of the kernel."""
SCORES_SURVIVE, SCORES_ARE_LOST, DELAY_SHARE = 0.25, 1.0, 0.3  # tuned
"""Scores over L2 up to which a kernel finds those that the one before has written, and from which it finds none; the L2's share of
lines that it waits for then, as they must be written first."""

HOST_S = 0.25e-3  # tuned
"""The host's time for a pass; chosen on the fitted rows of 256 queries and fewer, of one A100."""
WARP_COLUMNS, BLACKWELL = 1024, 10.0  # known
"""Longest row that a warp took in PyTorch 1 and 2.0 to 2.6; compute capability from which PyTorch is 2.7 or later."""
MEGATRON, FILLED = "megatron", "torch-eager-masked-fill"


Part = tuple[str, Case]
"""Workload name and case of a kernel that is also timed alone."""


def products(w: Attention, direction: str) -> list[Part]:
    """The matmuls of a pass: Q K^T and P V; P^T dO, dO V^T, dS^T Q and dS K."""
    sizes = [(w.n, w.kv_len, w.d), (w.n, w.dv, w.kv_len)]
    if direction != FORWARD:
        sizes = [(w.kv_len, w.dv, w.n), (w.n, w.kv_len, w.dv), (w.kv_len, w.d, w.n), (w.n, w.d, w.kv_len)]
    return [("matmul", Case(Matmul(*size, batch=w.query_heads, dtype=w.dtype), "torch-matmul")) for size in sizes]


def over_scores(w: Attention, implementation: str, inputs: int = 1, shared: int = 0, op: str = "scale") -> Part:
    """A kernel that passes over the scores."""
    return op, Case(Stream(op, w.query_heads * w.n, w.kv_len, inputs, shared=shared, dtype=w.dtype), implementation)


def added_mask(w: Attention) -> list[Part]:
    """The kernel that adds a mask of one head to all of them; none where nothing is masked."""
    if not (w.causal or w.mask):
        return []
    return [over_scores(w, "torch-add", 2) if w.query_heads == 1 else over_scores(w, "torch-mask", shared=w.n * w.kv_len)]


def parts(w: Attention, direction: str) -> list[Part]:
    """Each kernel that is also timed alone, in order."""
    first, *last = products(w, direction)
    if direction == FORWARD:
        return [first, over_scores(w, "torch-scale"), *added_mask(w), over_scores(w, "torch-softmax", op="softmax"), *last]
    return [first, last[0], over_scores(w, "torch-add", inputs=2), over_scores(w, "torch-scale"), *last[1:]]


def timed_part(workload: str, case: Case, device: Device) -> PartTime:
    """One kernel alone, by the calibration of its implementation; calls of cuBLAS stand for PyTorch's where those are not calibrated.

    UnavailableError if its implementation is not calibrated.
    """
    name = case.workload.dtype.name
    asked = [(case, name), (replace(case, implementation="cublas"), name)] if workload == "matmul" else [(case, name), (case, "bf16")]
    for one, dtype in asked:  # what passes over memory takes the time of its bytes in any format
        for block in calibrations(device, workload, dtype, one)[:1]:
            seconds = find_model(block.model).seconds(one, device, block.parameters)
            return PartTime(f"{case.implementation} ({workload})", seconds, block)
    raise UnavailableError(f"{device.id} has no calibration of {workload}/{case.implementation}, a part of the sequence")


@once_per_case
def _alone(case: Case, device: Device) -> tuple[int, float]:
    """Number of the kernels that are also timed alone, and their seconds: no parameter of the sequence is in them."""
    listed = _each(case, device)
    return len(listed), sum(part.seconds for part in listed)


def _each(case: Case, device: Device) -> list[PartTime]:
    """Each kernel that is also timed alone, a softmax over masked scores with what the mask adds."""
    w: Attention = case.workload
    listed = parts(w, case.direction)
    if case.implementation == FILLED:
        copied = "copy", Case(Stream("copy", w.query_heads * w.n, w.kv_len, dtype=w.dtype), "torch-copy")
        listed = [copied if part[1].implementation in ("torch-mask", "torch-add") else part for part in listed]
    found = [timed_part(name, part, device) for name, part in listed]
    return [replace(one, seconds=one.seconds + masked_s(w, one.seconds)) if one.block.workload == "softmax" else one for one in found]


def masked_s(w: Attention, softmax_s: float) -> float:
    """Seconds more of softmax where a causal mask leaves zeros: the division takes another way for a numerator of 0.

    Source: what nvcc makes of a division in fp32, a fast path and a subroutine for zeros, infinities and denormals.
    """
    slower = WARP_MASKED if w.kv_len * w.dtype.size <= WARP_BYTES else BLOCK_MASKED
    return slower * max(softmax_s - STARTING_S, 0.0) if w.causal else 0.0


def handed_on_s(case: Case, device: Device, handoff_share: float) -> float:
    """Seconds that a kernel saves on what the one before has left in L2, less what it waits for lines that are to be written.

    ``handoff_share``: of the time of those bytes, what they still take.
    """
    w: Attention = case.workload
    scores = float(w.query_heads * w.n * w.kv_len * w.dtype.size)
    size = device.cache_bytes
    if not size:
        return 0.0
    lost = lost_share(scores / size, SCORES_SURVIVE, SCORES_ARE_LOST)
    kept_s = (1 - lost) * scores / dram_bandwidth(device) * (1 - min(1.0, handoff_share))
    return kept_s - lost * DELAY_SHARE * size / dram_bandwidth(device)


def gradient_s(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of softmax's own backward, which reads two matrices of scores and writes one."""
    w: Attention = case.workload
    share = p["gradient_share"] if w.kv_len <= SHORT_ROW else p["long_gradient_share"]
    if w.kv_len <= SHORT_ROW:
        share *= WIDE_WARP_SHARE if w.kv_len > SHORT_ROW / 2 else 1.0
    elif w.kv_len * w.dtype.size % VECTOR_BYTES:
        share *= UNALIGNED_SHARE
    scores = float(w.query_heads * w.n * w.kv_len * w.dtype.size)
    return 3 * scores / (dram_bandwidth(device) * share) + p["overlap_us"] * 1e-6


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of the sequence; UnavailableError if a kernel of it is not calibrated."""
    kernels, alone = _alone(case, device)
    saved = (p["overlap_us"] * 1e-6 + handed_on_s(case, device, p["handoff_share"])) * (kernels - 1)
    gradient = 0.0 if case.direction == FORWARD else gradient_s(case, device, p)
    return max(alone - saved, alone / (2 * kernels)) + gradient


def filled_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds with a mask that is filled into a copy; UnavailableError if a kernel is not calibrated."""
    w: Attention = case.workload
    scores = w.query_heads * w.n * w.kv_len
    moved = 2 * scores * w.dtype.size / (dram_bandwidth(device) * STREAM_SHARE)
    filling = p["mask_us"] * 1e-6 + max(moved, scores * p["element_cycles"] / cycles_per_second(device))
    return seconds(case, device, p) + float(filling)


def covers_filled(case: Case) -> bool:
    """Causal forward passes with as many KV heads as query heads, no window, blocks or dropout."""
    return covers(case) and case.direction == FORWARD and case.workload.causal


def covers_half(case: Case) -> bool:
    """Whole-sequence attention in 16 bits with as many KV heads as query heads, no window, blocks, masked_fill or dropout."""
    return covers(case) and case.workload.dtype.size == 2


def covers_fp32(case: Case) -> bool:
    """The same in fp32, forward."""
    return covers(case) and case.workload.dtype.name == "fp32" and case.direction == FORWARD


def covers_plain(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, no window, blocks or masked_fill."""
    return plain_attention(case, "window", "sparsity", "masked_fill") and case.workload.heads == case.workload.kv_heads


def covers(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, no window, blocks, masked_fill or dropout."""
    return covers_plain(case) and not case.workload.dropout


# As published


def softmax_fitted(case: Case, device: Device) -> bool:
    """Whether the time of softmax is a multiple of that of its bytes; else it is a kernel that is also timed alone."""
    alone = case.workload.kv_len <= WARP_COLUMNS or device.capability >= BLACKWELL
    return case.direction != FORWARD or case.implementation == MEGATRON or not alone


def published_parts(case: Case, device: Device) -> list[Part]:
    """The kernels, but for softmax or its gradient where they are fitted."""
    w: Attention = case.workload
    copied = ("scale", Case(Stream("scale", w.query_heads * w.n, w.d, dtype=w.dtype), "torch-scale"))
    # filled, cut to a triangle, converted: 8 B read and 10 B written an element
    made_mask = ("scale", Case(Stream("scale", w.n, w.kv_len, inputs=4, outputs=5, dtype=w.dtype), "torch-scale"))
    dropped = [over_scores(w, "torch-scale", shared=w.query_heads * w.n * w.kv_len // 2)] if w.dropout else []  # and a mask of bytes
    listed = [*products(w, case.direction), *dropped]
    if case.implementation == MEGATRON:
        return listed
    if case.direction != FORWARD:
        return [*listed, *6 * [copied]]
    softmax = [] if softmax_fitted(case, device) else [over_scores(w, "torch-softmax", op="softmax")]
    return [*listed, *3 * [copied], *w.causal * [made_mask], *added_mask(w), *softmax]


def softmax_bytes(case: Case, device: Device) -> float:
    """Bytes of softmax where its time is fitted: once through the scores; backward a product and a pass, or Megatron's one pass."""
    w: Attention = case.workload
    scores = float(w.query_heads * w.n * w.kv_len * w.dtype.size)
    if case.direction != FORWARD:
        return scores * (3 if case.implementation == MEGATRON else 6)
    return 2 * scores * softmax_fitted(case, device)


def _each_published(case: Case, device: Device) -> list[PartTime]:
    """The kernels, but for a softmax that is fitted."""
    return [timed_part(name, part, device) for name, part in published_parts(case, device)]


def published_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of the sequence; UnavailableError if a kernel of it is not calibrated."""
    softmax = p["softmax"] * softmax_bytes(case, device) / (dram_bandwidth(device) * STREAM_SHARE)
    kernels = softmax + sum(part.seconds for part in _each_published(case, device))
    return kernels if case.flushed else hypot(HOST_S, kernels)


def covers_published(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, no window, blocks or masked_fill; Megatron's without a mask."""
    return covers_plain(case) and not (case.implementation == MEGATRON and case.workload.mask)


_OVERLAP, _HANDOFF = (
    Parameter("overlap_us", "what a kernel costs less behind another one than alone"),
    Parameter("handoff_share", "of the time of bytes that the kernel before has left in L2"),
)
_EAGER = Model(
    "eager-attention",
    (
        _OVERLAP,
        _HANDOFF,
        Parameter("gradient_share", "of the DRAM bandwidth, softmax's backward, rows within registers"),
        Parameter("long_gradient_share", "of the DRAM bandwidth, softmax's backward, longer rows"),
    ),
    covers_half,
    seconds,
    "the sum of its kernels",
    assumes=f"{ALONE}; Q, K and V stored as [batch, heads, length, d], a causal mask added as a tensor",
    knows_warm=False,
    implementations=("torch-eager",),
    composite=True,
    parts=_each,
)
_LISTED = (
    _EAGER,
    replace(_EAGER, name="eager-fp32", parameters=(_OVERLAP, _HANDOFF), covers=covers_fp32),
    replace(
        _EAGER,
        name="eager-masked-fill",
        parameters=(
            _OVERLAP,
            _HANDOFF,
            Parameter("mask_us", "of the kernel that fills the mask in, alone"),
            Parameter("element_cycles", "of a multiprocessor, per element that it passes"),
        ),
        covers=covers_filled,
        seconds=filled_seconds,
        assumes=f"{ALONE}; Q, K and V stored as [batch, heads, length, d]",
        implementations=(FILLED,),
    ),
    Model(
        "eager-published",
        (Parameter("softmax", "softmax over rows longer than a warp takes, or its gradient, over the time of its bytes"),),
        covers_published,
        published_seconds,
        "the sum of its kernels",
        implementations=("torch-standard", "megatron"),
        composite=True,
        parts=_each_published,
    ),
)
MODELS = {model.name: model for model in _LISTED}
