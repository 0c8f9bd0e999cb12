"""Attention forward and backward: what it allocates beyond Q, K, V and the gradient of its output, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from perfmodel.core.workload import BACKWARD
from perfmodel.validation.cases import SDPA_BACKENDS, KernelCase
from perfmodel.validation.libraries import Torch
from perfmodel.validation.libraries.kernels import operands
from perfmodel.validation.libraries.measure import TorchTimer
from perfmodel.validation.statistics import StoppingRule
from tools.measure.training.meter import Bytes, nbytes, sm_mhz
from tools.measure.training.result import Measured

EAGER = "torch-eager"
STOPPING = StoppingRule(least_runs=5, runs=10, budget_s=0.05)

Forward = Callable[[], Any]


def eager(q: Any, k: Any, v: Any, causal: bool, torch: Torch) -> tuple[Forward, list[Any]]:
    """The forward pass of ``libraries.attention``, kernel by kernel with an additive mask, and that mask."""
    scale = 1 / math.sqrt(q.shape[-1])
    mask = torch.full((q.shape[2], k.shape[2]), -math.inf, dtype=q.dtype, device=q.device).triu(1) if causal else None

    def run() -> Any:
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        if mask is not None:
            scores = scores + mask
        return torch.matmul(torch.softmax(scores, -1), v)

    return run, [] if mask is None else [mask]


def fused(q: Any, k: Any, v: Any, causal: bool, torch: Torch, implementation: str) -> Forward:
    """The forward pass of ``libraries.attention``: one backend allowed."""
    module = import_module("torch.nn.attention")
    backend = getattr(module.SDPBackend, SDPA_BACKENDS[implementation])

    def run() -> Any:
        with module.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def measure(case: KernelCase, torch: Torch) -> Measured:
    """Both passes in one run; the gradients of Q, K and V are alive at its end."""
    causal, is_eager = bool(case.shape["causal"]), case.implementation == EAGER
    q, k, v = operands(replace(case, direction=BACKWARD), torch, length_first=not is_eager)
    forward, more = eager(q, k, v, causal, torch) if is_eager else (fused(q, k, v, causal, torch, case.implementation), [])
    gradient = torch.randn_like(q)

    def both_passes() -> Any:
        return torch.autograd.grad(forward(), (q, k, v), gradient)

    both_passes()
    marked = Bytes(torch)
    marked.start()
    out = forward()
    marked("forward")
    gradients = torch.autograd.grad(out, (q, k, v), gradient)
    marked("backward")
    held = {"inputs_bytes": nbytes([q, k, v, gradient, *more]), "gradients_bytes": nbytes(gradients), "output_bytes": nbytes([out])}
    del out, gradients
    times = TorchTimer(torch, STOPPING).times(both_passes, case.cache)
    return Measured(times, {**marked.above(marked.before), "before_bytes": marked.before, **held}, sm_mhz(torch))
