"""Time of fused attention as published benchmarks ran it: ``flash-prefill`` with fewer of its seven parameters.

flash-published has four. Those benchmarks time few shapes, nearly all of the same size, which do not tell what a launch costs: that
and the cycles of side kernels stay at the values from which fits of ``flash-prefill`` start. They time the same buffers again and
again, mostly some hundred MB: what exceeds the caches comes from DRAM each time, and blocks wait for their first loads as after a
flush.

flash-few has two, for kernels of which a few rows are known. Those were timed from the host, call after call: a kernel that takes
less than the host needs for a call waits for it. Where the state of the caches is said, it is of a kernel alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot

from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, Attention
from perfmodel.timing.base import CLEAN, WARM, Case, Model, Parameter, once_per_case, plain_attention
from perfmodel.timing.models import flash_prefill
from perfmodel.timing.models._flash_plans import PUBLISHED

_FITTED = ("block_cycles", "matmul", "softmax", "dram")
LEAST_MATMUL = 1.0  # known
"""``matmul`` of a kernel that multiplies at the peak. Published shapes are nearly all of one head dim: they do not tell a tile's two
parts apart, and fits charge to one what the other takes; devices whose rates differ take a wrong share of it."""
WIDEST = 256  # known
"""Largest head dim that any of the kernels has."""


@once_per_case
def _as_run(case: Case, device: Device) -> Case:
    w: Attention = case.workload
    moved = (w.query_heads * w.n + w.stored_kv_heads * w.kv_len) * (w.d + w.dv) * w.dtype.size
    flushed = case.flushed or bool(moved > (device.cache_bytes or 0))
    return replace(case, cache=CLEAN if flushed else WARM)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError as in ``flash_prefill``. No tile's matmuls take less than their instruction needs."""
    possible = {**parameters, "matmul": max(LEAST_MATMUL, parameters["matmul"])}
    return flash_prefill.seconds(_as_run(case, device), device, {**flash_prefill.MODEL.starts(), **possible})


def covers(case: Case) -> bool:
    """One pass of dense fused attention over several queries. Only cuDNN was timed with heads of V narrower than those of K.

    Not the windowed backward pass in fp8: its times (cuDNN 9.22 on a GB200) are those of all causal tiles, in or out of the window.
    """
    w = case.workload
    if not plain_attention(case, "sparsity", "dropout", "mask") or case.implementation not in PUBLISHED:
        return False
    if w.n == 1 or max(w.d, w.dv) > WIDEST:
        return False
    if w.d != w.dv and not case.implementation.startswith("cudnn"):
        return False
    return not (case.direction == BACKWARD and w.window is not None and w.dtype.size == 1)


def few_seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError as in ``flash_prefill``."""
    known = {**flash_prefill.MODEL.starts(), "matmul": parameters["matmul"]}
    kernel = flash_prefill.seconds(case, device, known)
    return kernel if case.cache else hypot(parameters["host_us"] * 1e-6, kernel)


def covers_few(case: Case) -> bool:
    """Dense attention with or without dropout by FlashAttention 1; FlashAttention-3 backward and in fp8."""
    w = case.workload
    return plain_attention(case, "mask", "window", "sparsity") and flash_prefill.rarely_timed(case) and w.d == w.dv and w.n > 1


_PREFILL = flash_prefill.MODEL
_LISTED = (
    Model(
        "flash-published",
        tuple(parameter for parameter in _PREFILL.parameters if parameter.name in _FITTED),
        covers,
        seconds,
        _PREFILL.source,
        assumes="the same buffers again and again, beyond the caches from DRAM each time; Q, K and V stored as [batch, length, heads, d]",
        implementations=tuple(PUBLISHED),
        from_tables=True,
    ),
    Model(
        "flash-few",
        (
            Parameter("host_us", "the host's time for a call, hidden behind a longer kernel"),
            next(parameter for parameter in _PREFILL.parameters if parameter.name == "matmul"),
        ),
        covers_few,
        few_seconds,
        _PREFILL.source,
        implementations=("fa1", "fa1-triton", "fa3"),
        from_tables=True,
    ),
)
MODELS = {model.name: model for model in _LISTED}
