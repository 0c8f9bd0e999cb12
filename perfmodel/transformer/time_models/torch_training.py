"""A training step of huggingface/transformers in PyTorch: GPU kernels that run one after the other, and the host that enqueues them.

Each kernel takes the time that its calibration predicts, or its bytes over the DRAM bandwidth. The parameters correct these times for
kernels inside a step, and give the host's time to enqueue the kernels of a layer from Python. The step takes the critical path through
host and GPU. Source: the sequence of kernels that the profiler shows, and the events of measured steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import Case, Model
from perfmodel.transformer.estimate import KnownDevice
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.step.estimate import TrainingStep
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.layer_time import MODEL as NAME
from perfmodel.transformer.training.step.layer_time import Machine, exposed_host_s, host_time
from perfmodel.transformer.training.step.step_time import step_time, tensors


@lru_cache(maxsize=16)
def _machine(known: KnownDevice, strided_factor: float, attention: str | None) -> Machine:
    parameters = MODEL.starts() | {"strided_factor": strided_factor}
    return Machine(known.device, tuple, attention, parameters)


@dataclass(frozen=True, slots=True)
class StepKernels:
    """Seconds of the kernels of one micro-batch, up to the head and from the head on; ``optimizer_s``: seconds of the update."""

    before_head_s: float
    from_head_s: float
    optimizer_s: float
    layers: int
    parameter_tensors: int


@lru_cache(maxsize=1024)
def _kernels(w: TrainingStep, known: KnownDevice, strided_factor: float) -> StepKernels:
    """Kernels of a step, with ``strided_factor`` on those that read or write another order of dimensions."""
    assert w.training is not None
    job = job_of(w.training, _machine(known, strided_factor, w.attention), None, w.implementation, half=w.step.dtype.name)
    time = step_time(job)
    batch = time.micro_batch
    from_head_s = batch.kernels_s - batch.before_head_s
    return StepKernels(batch.before_head_s, from_head_s, time.parts["optimizer"], batch.layers, tensors(job))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds of a step; UnavailableError names a kernel without a calibration."""
    w: TrainingStep = case.workload
    assert w.training is not None
    at_one, at_two = (_kernels(w, KnownDevice(device), factor) for factor in (1.0, 2.0))

    def at_factor(name: str) -> float:
        """The seconds ``name`` at the factor of ``p``: kernels scale with it, so their sum is linear and two points give it."""
        one = float(getattr(at_one, name))
        return one + (p["strided_factor"] - 1.0) * (float(getattr(at_two, name)) - one)

    forward_s, backward_s, optimizer_s = map(at_factor, ("before_head_s", "from_head_s", "optimizer_s"))
    micro_batches = int(w.training.micro_batches)
    host = host_time(p, at_one.layers, at_one.parameter_tensors, recomputes=w.training.recompute.of_layers)
    exposed_s = exposed_host_s(host, forward_s, backward_s, micro_batches=micro_batches, optimizer_s=optimizer_s)
    return float(micro_batches * (forward_s + backward_s) + optimizer_s + exposed_s)


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
