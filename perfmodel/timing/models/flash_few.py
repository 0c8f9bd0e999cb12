"""Time of fused attention of which a few published rows are known: ``flash-prefill`` with two parameters instead of seven.

The others stay at the values from which fits of ``flash-prefill`` start. Such rows were timed from the host, call after call: a
kernel that takes less than the host needs for a call waits for it. After a flush of the caches the host is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.base import Case, Model, Parameter
from perfmodel.timing.models import flash_prefill

_MATMUL = next(parameter for parameter in flash_prefill.PARAMETERS if parameter.name == "matmul")
PARAMETERS = (Parameter("host_us", "the host's time for a call, hidden behind a longer kernel", 20.0), _MATMUL)


def seconds(case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError as in ``flash_prefill``."""
    known = {**flash_prefill.MODEL.starts(), "matmul": parameters["matmul"]}
    kernel = flash_prefill.seconds(case, device, known)
    return kernel if case.cold else hypot(parameters["host_us"] * 1e-6, kernel)


def covers(case: Case) -> bool:
    """Dense attention with or without dropout by FlashAttention 1; FlashAttention-3 backward and in fp8."""
    w = case.workload
    plain = isinstance(w, Attention) and flash_prefill.rarely_timed(case) and case.direction in (FORWARD, BACKWARD)
    return plain and not (w.mask or w.window or w.sparsity) and w.d == w.dv and w.n > 1


MODEL = Model(
    "flash-few",
    PARAMETERS,
    covers,
    seconds,
    flash_prefill.MODEL.source,
    implementations=("fa1", "fa1-triton", "fa3"),
)
