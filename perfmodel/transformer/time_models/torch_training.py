"""A training step of huggingface/transformers in PyTorch: GPU kernels that run one after the other, and the host that enqueues them.

Each kernel takes the time that its calibration predicts, or its bytes over the DRAM bandwidth. The parameters correct these times for
kernels inside a step, and give the host's time to enqueue the kernels of a layer from Python. The step takes the critical path through
host and GPU. Source: the sequence of kernels that the profiler shows, and the events of measured steps.
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
from perfmodel.transformer.training.step.layer_time import Machine, exposed_host_s, host_phases
from perfmodel.transformer.training.step.step_time import step_time, tensors


@lru_cache(maxsize=16)
def _machine(known: KnownDevice, strided_factor: float, attention: str | None) -> Machine:
    parameters = MODEL.starts() | {"strided_factor": strided_factor}
    return Machine(known.device, tuple, attention, parameters)


@lru_cache(maxsize=1024)
def _kernels(w: TrainingStep, costs: KnownDevice, strided_factor: float) -> tuple[tuple[float, float, float], int, int]:
    """((seconds up to the head, seconds from the head on, optimizer seconds), layers, parameter tensors) of one micro-batch."""
    assert w.training is not None
    job = job_of(w.training, _machine(costs, strided_factor, w.attention), None, w.implementation, half=w.step.dtype.name)
    time = step_time(job)
    one = time.micro_batch
    return (one.before_head_s, one.kernels_s - one.before_head_s, time.parts["optimizer"]), one.layers, tensors(job)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of a step; UnavailableError names a kernel without a calibration."""
    w: TrainingStep = case.workload
    assert w.training is not None
    (plain, layers, learned), (twice, _, _) = (_kernels(w, KnownDevice(device), factor) for factor in (1.0, 2.0))
    more = p["strided_factor"] - 1.0  # times are linear in it
    before, after, update = (one + more * (other - one) for one, other in zip(plain, twice, strict=True))
    often = int(w.training.micro_batches)
    host = host_phases(p, layers, learned, again=w.training.recompute.of_layers)
    return float(often * (before + after) + update + exposed_host_s(host, before, after, often, update))


def covers(case: Case) -> bool:
    """Training steps on one GPU whose kernels Python launches one by one."""
    w = case.workload
    alone = isinstance(w, TrainingStep) and w.training is not None and w.training.parallel.gpus == 1
    return alone and w.implementation == HUGGINGFACE and case.direction == FORWARD


MODEL = Model(
    NAME,
    "steps",
    covers,
    seconds,
    "the sum of its kernels, and the host that enqueues them",
    assumes="the same batch again and again, kernels enqueued one by one from Python, on one GPU",
    implementations=("huggingface",),
    composite=True,
)
