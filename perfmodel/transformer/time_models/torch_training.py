"""A training step as the modules of huggingface/transformers run it in PyTorch: its kernels, one after the other, and its host.

Kernels are predicted by the calibrations of their own implementations or by their bytes; the parameters say in what a step differs
from them, and how long the host takes to enqueue a layer's kernels from Python. The step is the longest way through both.
Source: the sequence of kernels that the profiler shows, and the events of measured steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import Case, Model
from perfmodel.transformer.estimate import KnownDevice
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.step.estimate import TrainingStep
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.layer_time import MODEL as NAME
from perfmodel.transformer.training.step.layer_time import PARAMETERS, Machine, host_phases, waiting
from perfmodel.transformer.training.step.step_time import step_time, tensors


@lru_cache(maxsize=16)
def _machine(known: KnownDevice, strided_factor: float, attention: str | None) -> Machine:
    parameters = {parameter.name: parameter.start for parameter in PARAMETERS} | {"strided_factor": strided_factor}
    return Machine(known.device, tuple, attention, parameters)


@lru_cache(maxsize=1024)
def _kernels(w: TrainingStep, known: KnownDevice, strided_factor: float) -> tuple[tuple[float, float, float], int, int]:
    """Seconds of a micro-batch before its head and after, and of the optimizer; layers and parameter tensors."""
    assert w.training is not None
    job = job_of(w.training, _machine(known, strided_factor, w.attention), None, w.implementation, half=w.step.dtype.name)
    time = step_time(job)
    one = time.micro_batch
    return (one.before_head_s, one.kernels_s - one.before_head_s, time.parts["optimizer"]), one.layers, tensors(job)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError names a kernel that is not calibrated."""
    w: TrainingStep = case.workload
    assert w.training is not None
    (plain, layers, learned), (twice, _, _) = (_kernels(w, KnownDevice(device), factor) for factor in (1.0, 2.0))
    more = p["strided_factor"] - 1.0  # times are linear in it
    before, after, update = (one + more * (other - one) for one, other in zip(plain, twice, strict=True))
    often = int(w.training.micro_batches)
    host = host_phases(p, layers, learned, again=w.training.recompute.of_layers)
    return float(often * (before + after) + update + waiting(host, before, after, often, update))


def covers(case: Case) -> bool:
    """Steps on one GPU, their kernels launched one by one."""
    w = case.workload
    alone = isinstance(w, TrainingStep) and w.training is not None and w.training.parallel.gpus == 1
    return alone and w.implementation == HUGGINGFACE and case.direction == FORWARD


MODEL = Model(
    NAME,
    PARAMETERS,
    covers,
    seconds,
    "the sum of its kernels, and the host that enqueues them",
    assumes="the same batch again and again, kernels enqueued one by one from Python, on one GPU",
    implementations=("huggingface",),
    composite=True,
)
