"""A chain of linear layers, its forward pass in checkpointed segments (torch.utils.checkpoint.checkpoint_sequential)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch, dtype_of
from tools.measure.training.meter import DEVICE, Bytes, Clock, Mark, nbytes, silent, sm_mhz
from tools.measure.training.result import Measured

RUNS = 4


def build(case: KernelCase, torch: Torch) -> Any:
    """nn.Linear(d, d) with a bias, ``layers`` of them, each followed by a ReLU if the shape says so: one function a layer."""
    d, nn = case.shape["d"], torch.nn
    with torch.device(DEVICE):
        layers = [nn.Linear(d, d, dtype=dtype_of(case, torch)) for _ in range(int(case.shape["layers"]))]
    return nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers) if case.shape["relu"] else layers)


def measure(case: KernelCase, torch: Torch) -> Measured:
    """Forward and backward. The input needs no gradient; the gradient of the output is there before; those of weights are made."""
    checkpointed = import_module("torch.utils.checkpoint").checkpoint_sequential
    chain, segments = build(case, torch), int(case.shape["segments"])
    size = (case.shape["batch"], case.shape["d"])
    x, gradient = (torch.randn(size, dtype=dtype_of(case, torch), device=DEVICE) for _ in range(2))

    def step(mark: Mark) -> None:
        chain.zero_grad(set_to_none=True)
        out = checkpointed(chain, segments, x, use_reentrant=False)
        mark("forward")
        out.backward(gradient)
        mark("backward")

    step(silent)
    chain.zero_grad(set_to_none=True)
    marked, clock = Bytes(torch), Clock(torch)
    marked.start()
    step(marked)
    held = {
        "before_bytes": marked.before,
        "weights_bytes": nbytes(chain.parameters()),
        "gradients_bytes": nbytes(each.grad for each in chain.parameters()),
        "inputs_bytes": nbytes([x, gradient]),
    }
    clock.measure(step, RUNS)
    parts = {part: float(f"{quantile(times, 0.5):.4g}") for part, times in clock.parts_s().items()}
    host = {"host_s": float(f"{quantile(clock.host_s, 0.5):.4g}")}
    return Measured(clock.step_s(), {**marked.above(marked.before), **held}, {"parts_s": parts, **host, **sm_mhz(torch)})
