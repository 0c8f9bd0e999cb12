"""Decode attention of vLLM over a cache of 8 bits: the plan of ``flash_decode``, half the bytes, and work on every tile.

FlashAttention-3 multiplies in fp8 and has to transpose V in SRAM first, which the matrix instruction takes only one way round in
8 bits: a tile's work shows beside its streaming.
Source: Shah et al. 2024, FlashAttention-3, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing.base import Case, Model, Parameter, numbers_of, once_per_case
from perfmodel.timing.models import flash_decode

LIKE = "vllm-flash-attn"
"""Implementation whose blocks and splits the kernel shares."""
PARAMETERS = (
    *flash_decode.PARAMETERS,
    Parameter("element_cycles", "work on a thousand elements of the cache that one block streams", 10.0),
)


@once_per_case
def _work(case: Case, device: Device) -> tuple[Case, float]:
    """The call over a cache in the kernel's own format, and the elements of it that one multiprocessor streams block by block."""
    w = case.workload
    plain = Attention(w.n, w.kv_len, w.d, w.dv, w.batch, w.heads, w.kv_heads, DTYPES["fp8"], packed=True)
    plan, [sms] = flash_decode.planned(plain, LIKE, device), numbers_of(device, "multiprocessors")
    elements = plain.stored_kv_heads * w.kv_len * (w.d + w.dv) / plan.blocks * ceil(plan.blocks / (int(sms) * plan.resident))
    return replace(case, workload=plain, implementation=LIKE), elements


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call, with the append of the new token to the cache; UnavailableError as in ``flash_decode``."""
    plain, elements = _work(case, device)
    [clock] = numbers_of(device, "highest clock")
    return float(flash_decode.seconds(plain, device, p) + elements * 1e-3 * p["element_cycles"] / clock)


def covers(case: Case) -> bool:
    """A single query over a cache of 8 bits."""
    w = case.workload
    if not isinstance(w, NarrowCacheAttention) or case.direction != FORWARD:
        return False
    return (
        w.n == 1 and w.kv_bits == 8 and w.dtype.size == 2 and max(w.d, w.dv) <= 256 and not (w.mask or w.dropout or w.sparsity or w.window)
    )


MODEL = Model(
    "flash-decode-narrow",
    PARAMETERS,
    covers,
    seconds,
    flash_decode.MODEL.source,
    assumes=flash_decode.MODEL.assumes,
    implementations=("vllm-flash-attn-fp8-cache",),
)
