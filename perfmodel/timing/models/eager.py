"""Attention kernel by kernel, scores in memory, as PyTorch runs it without a fused kernel.

Kernels of PyTorch's sequence, forward: Q K^T, scale, additive mask, softmax, P V. Backward: P^T dO, dO V^T, a product by the scores,
softmax's own backward, scale, dS^T Q, dS K. A causal mask is additive too, a tensor of the scores' dtype that ``torch-mask`` adds;
``masked_fill`` copies the scores and fills them by a kernel that broadcasts likewise.

The published comparisons with FlashAttention ran other sequences. FlashAttention's benchmark: copies of Q, K and V by head, baddbmm (which
scales), a causal mask made and added, softmax, dropout, product; backward, softmax is a product by the gradient and a pass of its own.
Megatron's has one kernel for scale, mask and softmax. PyTorch's kernel for softmax over long rows changed in 2.7, the first version that
runs on Blackwell.

Each kernel takes its time alone, by the calibration of its own implementation, less the launch that hides behind the kernel before. Scores
that exceed the L2 leave dirty lines, which each later kernel has to write back (``cache_state``). Softmax divides more slowly where a
causal mask has left zeros. Kernels that are never timed alone (softmax's backward, softmax of older PyTorch, Megatron's) take the time of
their bytes at a share of the bandwidth. If kernels are short and called repeatedly, the host limits. Sources: the sequence that the
profiler shows for torch.matmul, *, +, torch.softmax under autograd; what nvcc makes of a division in fp32, a fast path and a subroutine for
zeros; Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py; Megatron-LM, fused_kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot
from typing import NamedTuple

from perfmodel.core.cache import scan_limits
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.workload import FORWARD, Attention, Stream
from perfmodel.kernels.attention.algorithms.standard import PRODUCTS, product
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import (
    ALONE,
    Case,
    Model,
    PartTime,
    always,
    calibrations,
    dram_bandwidth,
    find_model,
    lost_share,
    never,
    plain_attention,
)
from perfmodel.timing.cache_state import write_back_s

WARP_COLUMNS, BLACKWELL = 1024, 10.0  # known
"""Longest row that a warp took in PyTorch 1 and 2.0 to 2.6; compute capability from which PyTorch is 2.7 or later."""
EAGER, FILLED = "torch-eager", "torch-eager-masked-fill"
STANDARD, MEGATRON = PUBLISHED = ("torch-standard", "megatron")
"""Implementations of the published comparisons: FlashAttention's benchmark, and Megatron's."""
Part = tuple[str, Case]
"""Workload name and case of a kernel that is also timed alone."""


BACKWARD_READERS = 4  # known
"""Kernels of the backward pass that first read an operand of the forward pass, its probabilities or a gradient."""


def products(w: Attention, direction: str) -> list[Part]:
    """The matmuls of a pass. Forward: Q K^T and P V. Backward: P^T dO, dO V^T, dS^T Q and dS K."""
    forward_names, backward_names = list(PRODUCTS)[:2], list(PRODUCTS)[2:]
    names = forward_names if direction == FORWARD else backward_names
    return [("matmul", Case(product(w, name), "torch-matmul")) for name in names]


def over_scores(w: Attention, implementation: str, inputs: int = 1, shared: int = 0, op: str = "scale") -> Part:
    """A kernel that passes over the scores."""
    return op, Case(Stream(op, w.query_heads * w.n, w.kv_len, inputs, shared=shared, dtype=w.dtype), implementation)


def added_mask(w: Attention) -> list[Part]:
    """The kernel that adds a mask of one head to all of them; none if nothing is masked."""
    if not (w.causal or w.mask):
        return []
    return [over_scores(w, "torch-add", 2) if w.query_heads == 1 else over_scores(w, "torch-mask", shared=w.n * w.kv_len)]


def parts(case: Case, device: Device) -> list[Part]:
    """Kernels that are also timed alone, in order."""
    w: Attention = case.workload
    if case.implementation in PUBLISHED:
        return published_parts(case, device)
    if case.direction != FORWARD:
        value_gradient, score_gradient, key_gradient, query_gradient = products(w, case.direction)
        product_by_scores, scale = over_scores(w, "torch-add", inputs=2), over_scores(w, "torch-scale")
        return [value_gradient, score_gradient, product_by_scores, scale, key_gradient, query_gradient]
    scores, output = products(w, case.direction)
    mask = added_mask(w)
    if case.implementation == FILLED:
        mask = [over_scores(w, "torch-copy", op="copy"), over_scores(w, "torch-mask", shared=w.n * w.kv_len)]
    return [scores, over_scores(w, "torch-scale"), *mask, over_scores(w, "torch-softmax", op="softmax"), output]


def published_parts(case: Case, device: Device) -> list[Part]:
    """The kernels of the published comparisons, without softmax and its gradient if these are separate passes."""
    w: Attention = case.workload
    dropout = [over_scores(w, "torch-scale", shared=w.query_heads * w.n * w.kv_len // 2)] if w.dropout else []  # and a mask of bytes
    products_and_dropout = [*products(w, case.direction), *dropout]
    if case.implementation == MEGATRON:
        return products_and_dropout
    copy = ("scale", Case(Stream("scale", w.query_heads * w.n, w.d, dtype=w.dtype), "torch-scale"))
    if case.direction != FORWARD:
        return [*products_and_dropout, *6 * [copy]]
    # a mask is filled, cut to a triangle, and converted: 8 B read and 10 B written an element
    causal_mask = ("scale", Case(Stream("scale", w.n, w.kv_len, inputs=4, outputs=5, dtype=w.dtype), "torch-scale"))
    softmax = [] if own_passes(case, device) else [over_scores(w, "torch-softmax", op="softmax")]
    return [*products_and_dropout, *3 * [copy], *w.causal * [causal_mask], *added_mask(w), *softmax]


def own_passes(case: Case, device: Device) -> int:
    """Number of times that the scores are read or written by kernels that are never timed alone: softmax (2), or its gradient (3)."""
    w: Attention = case.workload
    if case.direction != FORWARD:
        return 6 if case.implementation == STANDARD else 3
    older_softmax = case.implementation == STANDARD and w.kv_len > WARP_COLUMNS and device.capability < BLACKWELL
    return 2 if older_softmax or case.implementation == MEGATRON else 0


def timed_part(workload: str, case: Case, device: Device) -> PartTime:
    """Seconds of one kernel alone, by its own calibration; UnavailableError if its implementation is not calibrated.

    cuBLAS replaces PyTorch's products if these are not calibrated. A pass over memory takes the time of its bytes in any format.
    """
    dtype = case.workload.dtype.name
    substitute = (replace(case, implementation="cublas"), dtype) if workload == "matmul" else (case, "bf16")
    for candidate, candidate_dtype in ((case, dtype), substitute):
        blocks = calibrations(device, workload, candidate_dtype, candidate)
        if blocks:
            seconds = find_model(blocks[0].model).seconds(candidate, device, blocks[0].parameters)
            return PartTime(f"{case.implementation} ({workload})", seconds, blocks[0])
    raise UnavailableError(f"{device.id} has no calibration of {workload}/{case.implementation}, a part of the sequence")


def timed_parts(case: Case, device: Device) -> list[PartTime]:
    """Kernels that are also timed alone, each with its seconds by itself."""
    return [timed_part(name, part, device) for name, part in parts(case, device)]


class _PartTotals(NamedTuple):
    """What the kernels that are also timed alone take together, before any parameter of the sequence.

    ``kernels``: their number. ``alone_s``: seconds of all, one by one. ``softmax_s``: seconds of softmax. ``write_backs_s``: seconds in
    which dirty lines are written back, as far as scores exceed the L2.
    """

    kernels: int
    alone_s: float
    softmax_s: float
    write_backs_s: float


@cached_by_identity
def _part_totals(case: Case, device: Device) -> _PartTotals:
    timed = timed_parts(case, device)
    write_backs_s = 0.0
    for part_time, (_, part) in list(zip(timed, parts(case, device), strict=True))[1:]:
        write_backs_s += write_back_s(part_time.seconds, *moved_bytes(part.workload), device)
    size = device.cache_bytes
    lost = lost_share(scores_bytes(case.workload) / size, *scan_limits(device)) if size else 0.0
    return _PartTotals(
        kernels=len(timed),
        alone_s=sum(part_time.seconds for part_time in timed),
        softmax_s=sum(part_time.seconds for part_time in timed if part_time.block.workload == "softmax"),
        write_backs_s=lost * write_backs_s,
    )


def moved_bytes(w: Stream | Matmul) -> tuple[float, float]:
    """Bytes that a kernel reads and writes at least."""
    if isinstance(w, Stream):
        return float(w.read_bytes), float(w.write_bytes)
    return float(w.batch * (w.m + w.n) * w.k * w.dtype.size), float(w.batch * w.m * w.n * w.dtype.size)


def scores_bytes(w: Attention) -> float:
    """Bytes of the matrix of scores."""
    return float(w.query_heads * w.n * w.kv_len * w.dtype.size)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of the sequence; UnavailableError if a kernel of it is not calibrated."""
    w: Attention = case.workload
    totals = _part_totals(case, device)
    masked_s = p["masked_share"] * totals.softmax_s if w.causal else 0.0
    hidden_s = (totals.kernels - 1) * p["overlap_us"] * 1e-6
    parts_s = max(totals.alone_s + masked_s + totals.write_backs_s - hidden_s, totals.alone_s / (2 * totals.kernels))
    own_s = own_passes(case, device) * scores_bytes(w) / (dram_bandwidth(device) * p["scores_share"])
    kernels_s = parts_s + own_s
    timed_from_host = case.implementation in PUBLISHED and not case.cache
    return hypot(p["host_us"] * 1e-6, kernels_s) if timed_from_host else kernels_s


def warm_kernels(case: Case) -> int:
    """Kernels that read Q, K, V, a mask, or what the forward pass left."""
    return BACKWARD_READERS if case.direction != FORWARD else 2 + int(bool(case.workload.causal))


def covers_plain(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, without window, blocks or masked_fill."""
    return plain_attention(case, "window", "sparsity", "masked_fill") and case.workload.heads == case.workload.kv_heads


def covers(case: Case) -> bool:
    """The same without dropout, in 16 bits, or forward in fp32; a mask that is filled in is causal and forward."""
    if not covers_plain(case) or case.workload.dropout:
        return False
    forward, dtype = case.direction == FORWARD, case.workload.dtype
    if case.implementation == FILLED:
        return forward and bool(case.workload.causal)
    return dtype.size == 2 or (forward and dtype.name == "fp32")


def covers_published(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, no window, blocks or masked_fill; Megatron's without a mask."""
    return covers_plain(case) and not (case.implementation == MEGATRON and case.workload.mask)


_EAGER = Model(
    "eager-attention",
    "eager",
    covers,
    seconds,
    "the sum of its kernels",
    assumes=f"{ALONE}; Q, K and V stored as [batch, heads, length, d], a causal mask added as a tensor unless it is filled in",
    knows_warm=never,
    warm_kernels=warm_kernels,
    implementations=(EAGER, FILLED),
    composite=True,
    parts=timed_parts,
    part_workloads=("matmul", "scale", "softmax", "copy"),
)
_PUBLISHED = _EAGER._replace(
    name="eager-published",
    covers=covers_published,
    assumes=ALONE,
    knows_warm=always,
    implementations=PUBLISHED,
    part_workloads=("matmul", "scale", "softmax"),
    from_tables=True,
)
MODELS = {model.name: model for model in (_EAGER, _PUBLISHED)}
