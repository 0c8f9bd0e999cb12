"""Attention kernel by kernel, scores in memory, as PyTorch runs it without a fused kernel.

Forward: Q K^T, scale, additive mask, softmax, P V. Backward: P^T dO, dO V^T, a product by the scores, softmax's own backward,
scale, dS^T Q, dS K. A causal mask is an additive one here too, a tensor of the scores' dtype that ``torch-mask`` adds; the boolean
matrix of ``masked_fill`` is another kernel, which was not timed. Each kernel is predicted by the calibration of its own
implementation; parameters say what a kernel costs less behind another one, and how fast the kernels run that are never timed alone.
Source: the sequence that the profiler shows for torch.matmul, *, +, torch.softmax under autograd.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.errors import UnavailableError
from perfmodel.hardware import Device
from perfmodel.ops.matmul import Matmul
from perfmodel.timing.base import ALONE, Case, Model, Parameter, calibrations, find_model
from perfmodel.timing.models.stream import dram_bandwidth
from perfmodel.workload import BACKWARD, FORWARD, Attention, Stream

SHORT_ROW = 1024
"""Longest row whose gradient a warp keeps in registers."""

PARAMETERS = (
    Parameter("overlap_us", "what a kernel costs less behind another one than alone", 2.0),
    Parameter("handoff_share", "of the time of bytes that the kernel before has left in L2", 0.6),
    Parameter("gradient_share", "of the DRAM bandwidth, softmax's backward, rows within registers", 0.7),
    Parameter("long_gradient_share", "of the DRAM bandwidth, softmax's backward, longer rows", 0.5),
)
KNOWN = ("SHORT_ROW",)
"""Given by hardware, by the source of a kernel, or by definition."""


def parts(w: Attention, direction: str) -> list[tuple[str, Case]]:
    """Workload name and case of each kernel that is also timed alone, in order."""
    heads, dtype = w.query_heads, w.dtype
    rows = heads * w.n

    def matmul(m: int, n: int, k: int) -> tuple[str, Case]:
        return "matmul", Case(Matmul(m, n, k, batch=heads, dtype=dtype), "torch-matmul")

    def stream(implementation: str, inputs: int = 1, shared: int = 0, op: str = "scale") -> tuple[str, Case]:
        return op, Case(Stream(op, rows, w.kv_len, inputs, shared=shared, dtype=dtype), implementation)

    if direction == FORWARD:
        mask = [stream("torch-add", inputs=2) if heads == 1 else stream("torch-mask", shared=w.n * w.kv_len)] if w.causal or w.mask else []
        softmax = stream("torch-softmax", op="softmax")
        return [matmul(w.n, w.kv_len, w.d), stream("torch-scale"), *mask, softmax, matmul(w.n, w.dv, w.kv_len)]
    return [
        matmul(w.kv_len, w.dv, w.n),
        matmul(w.n, w.kv_len, w.dv),
        stream("torch-add", inputs=2),
        stream("torch-scale"),
        matmul(w.kv_len, w.d, w.n),
        matmul(w.n, w.d, w.kv_len),
    ]


def part_seconds(workload: str, case: Case, device: Device) -> float:
    """Predicted seconds of one kernel alone; UnavailableError if its implementation is not calibrated."""
    blocks = calibrations(device, workload, case.workload.dtype.name, case)
    if not blocks:
        raise UnavailableError(f"{device.id} has no calibration of {workload}/{case.implementation}, a part of the sequence")
    return find_model(blocks[0].model).seconds(case, device, blocks[0].parameters)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of the sequence."""
    w: Attention = case.workload
    listed = parts(w, case.direction)
    alone = sum(part_seconds(name, part, device) for name, part in listed)
    scores = float(w.query_heads * w.n * w.kv_len * w.dtype.size)
    bandwidth = dram_bandwidth(device)
    kept = min(scores, (device.cache_bytes or 0) / 2) / bandwidth * (len(listed) - 1) * (1 - min(1.0, p["handoff_share"]))
    gradient = 0.0
    if case.direction != FORWARD:
        share = p["gradient_share"] if w.kv_len <= SHORT_ROW else p["long_gradient_share"]
        gradient = 3 * scores / (bandwidth * share) + p["overlap_us"] * 1e-6
    saved = p["overlap_us"] * 1e-6 * (len(listed) - 1)
    return max(alone - saved - kept, alone / (2 * len(listed))) + gradient


def covers(case: Case) -> bool:
    """Whole-sequence attention with as many KV heads as query heads, no window, dropout, blocks or masked_fill."""
    w = case.workload
    plain = isinstance(w, Attention) and w.window is None and w.sparsity is None and not (w.dropout or w.masked_fill)
    return plain and w.heads == w.kv_heads and case.direction in (FORWARD, BACKWARD)


MODEL = Model(
    "eager-attention",
    PARAMETERS,
    covers,
    seconds,
    "the sum of its kernels",
    assumes=f"{ALONE}; Q, K and V stored as [batch, heads, length, d], a causal mask added as a tensor",
)
