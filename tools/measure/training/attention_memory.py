"""Attention forward and backward: what it allocates beyond Q, K, V and the gradient of its output, and how long it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.workload import BACKWARD
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch
from perfmodel.validation.libraries.kernels import eager, fused, operands
from perfmodel.validation.libraries.measure import TorchTimer
from perfmodel.validation.statistics import StoppingRule
from tools.measure.training.meter import Bytes, nbytes, sm_mhz
from tools.measure.training.result import Measured

EAGER = "torch-eager"
STOPPING = StoppingRule(least_runs=5, runs=10, budget_s=0.05)


def measure(case: KernelCase, torch: Torch) -> Measured:
    """Both passes in one run; the gradients of Q, K and V are alive at its end."""
    causal, is_eager = bool(case.shape["causal"]), case.implementation == EAGER
    q, k, v = operands(replace(case, direction=BACKWARD), torch, length_first=not is_eager)
    forward, more = eager(torch, q, k, v, causal) if is_eager else (fused(case.implementation, torch, q, k, v, causal), [])
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
