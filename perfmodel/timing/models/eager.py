"""Attention kernel by kernel, scores in memory, as PyTorch runs it without a fused kernel.

Forward: Q K^T, scale, additive mask, softmax, P V. Backward: P^T dO, dO V^T, a product by the scores, softmax's own backward, scale, dS^T
Q, dS K. A causal mask is an additive one here too, a tensor of the scores' dtype that ``torch-mask`` adds; ``masked_fill`` copies the
scores and fills them by a kernel that broadcasts likewise. The published comparisons with FlashAttention ran other sequences.
FlashAttention's benchmark: copies of Q, K and V by head, baddbmm, which scales by itself, a causal mask made and added, softmax, dropout,
product; backward, softmax is a product by the gradient and a pass of its own. Megatron's has one kernel for scale, mask and softmax.
PyTorch's kernel for softmax over long rows changed in 2.7, the first version that runs on Blackwell.

Each kernel takes its time alone, by the calibration of its own implementation, less the launch that hides behind the kernel before. Scores
that exceed the L2 leave dirty lines, which each later kernel has to write back (``cache_state``). Softmax takes another path for division
where a causal mask has left zeros. Kernels that are never timed alone (softmax's backward, softmax of older PyTorch, Megatron's) take the
time of their bytes at a share of the bandwidth. If kernels are short and called repeatedly, the host limits. Sources: the sequence that the
profiler shows for torch.matmul, *, +, torch.softmax under autograd; what nvcc makes of a division in fp32, a fast path and a subroutine for
zeros; Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py; Megatron-LM, fused_kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot

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
STANDARD, MEGATRON, EAGER, FILLED = "torch-standard", "megatron", "torch-eager", "torch-eager-masked-fill"
PUBLISHED = (STANDARD, MEGATRON)


Part = tuple[str, Case]
"""Workload name and case of a kernel that is also timed alone."""


BACKWARD_READERS = 4  # known
"""Kernels of the backward pass that first read an operand of the forward pass, its probabilities or a gradient."""


def products(w: Attention, direction: str) -> list[Part]:
    """The matmuls of a pass: Q K^T and P V; P^T dO, dO V^T, dS^T Q and dS K."""
    names = list(PRODUCTS)
    run = names[:2] if direction == FORWARD else names[2:]
    return [("matmul", Case(product(w, name), "torch-matmul")) for name in run]


def over_scores(w: Attention, implementation: str, inputs: int = 1, shared: int = 0, op: str = "scale") -> Part:
    """A kernel that passes over the scores."""
    return op, Case(Stream(op, w.query_heads * w.n, w.kv_len, inputs, shared=shared, dtype=w.dtype), implementation)


def added_mask(w: Attention) -> list[Part]:
    """The kernel that adds a mask of one head to all of them; none where nothing is masked."""
    if not (w.causal or w.mask):
        return []
    return [over_scores(w, "torch-add", 2) if w.query_heads == 1 else over_scores(w, "torch-mask", shared=w.n * w.kv_len)]


def parts(case: Case, device: Device) -> list[Part]:
    """Kernels that are also timed alone, in order."""
    w: Attention = case.workload
    if case.implementation in PUBLISHED:
        return published_parts(case, device)
    first, *last = products(w, case.direction)
    if case.direction != FORWARD:
        return [first, last[0], over_scores(w, "torch-add", inputs=2), over_scores(w, "torch-scale"), *last[1:]]
    filled = [over_scores(w, "torch-copy", op="copy"), over_scores(w, "torch-mask", shared=w.n * w.kv_len)]
    masked = filled if case.implementation == FILLED else added_mask(w)
    return [first, over_scores(w, "torch-scale"), *masked, over_scores(w, "torch-softmax", op="softmax"), *last]


def published_parts(case: Case, device: Device) -> list[Part]:
    """The kernels of the published comparisons, without softmax and its gradient if these are separate passes."""
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
    softmax = [] if own_passes(case, device) else [over_scores(w, "torch-softmax", op="softmax")]
    return [*listed, *3 * [copied], *w.causal * [made_mask], *added_mask(w), *softmax]


def own_passes(case: Case, device: Device) -> int:
    """Passes over the scores by kernels that are never timed alone: softmax, or its gradient, which reads two and writes one."""
    w: Attention = case.workload
    if case.direction != FORWARD:
        return 6 if case.implementation == STANDARD else 3
    older = case.implementation == STANDARD and w.kv_len > WARP_COLUMNS and device.capability < BLACKWELL
    return 2 if older or case.implementation == MEGATRON else 0


def timed_part(workload: str, case: Case, device: Device) -> PartTime:
    """Seconds of one kernel alone, by its own calibration; cuBLAS replaces PyTorch's products if these are not calibrated.

    UnavailableError if its implementation is not calibrated.
    """
    name = case.workload.dtype.name
    candidates = [(case, name), (replace(case, implementation="cublas"), name)] if workload == "matmul" else [(case, name), (case, "bf16")]
    for candidate, dtype in candidates:  # what passes over memory takes the time of its bytes in any format
        for block in calibrations(device, workload, dtype, candidate)[:1]:
            seconds = find_model(block.model).seconds(candidate, device, block.parameters)
            return PartTime(f"{case.implementation} ({workload})", seconds, block)
    raise UnavailableError(f"{device.id} has no calibration of {workload}/{case.implementation}, a part of the sequence")


def timed_parts(case: Case, device: Device) -> list[PartTime]:
    """Kernels that are also timed alone, each with its seconds by itself."""
    return [timed_part(name, part, device) for name, part in parts(case, device)]


@cached_by_identity
def _part_totals(case: Case, device: Device) -> tuple[int, float, float, float]:
    """Number of the kernels that are also timed alone; seconds of all, of softmax, and of write-backs if scores exceed the L2.

    They depend on no parameter of the sequence.
    """
    timed = timed_parts(case, device)
    softmax_s = sum(part_time.seconds for part_time in timed if part_time.block.workload == "softmax")
    later = zip(timed[1:], parts(case, device)[1:], strict=True)
    write_backs_s = sum(write_back_s(part_time.seconds, *moved_bytes(part.workload), device) for part_time, (_, part) in later)
    size = device.cache_bytes
    lost = lost_share(scores_bytes(case.workload) / size, *scan_limits(device)) if size else 0.0
    return len(timed), sum(part_time.seconds for part_time in timed), softmax_s, lost * write_backs_s


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
    kernels, alone_s, softmax_s, write_backs_s = _part_totals(case, device)
    masked_s = p["masked_share"] * softmax_s if w.causal else 0.0
    together_s = alone_s + masked_s + write_backs_s - (kernels - 1) * p["overlap_us"] * 1e-6
    own_s = own_passes(case, device) * scores_bytes(w) / (dram_bandwidth(device) * p["scores_share"])
    kernels_s = max(together_s, alone_s / (2 * kernels)) + own_s
    waits = case.implementation in PUBLISHED and not case.cache
    return hypot(p["host_us"] * 1e-6, kernels_s) if waits else kernels_s


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
