"""A training step as it is timed: what is trained, on which GPUs, and what each pipeline stage holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.transformer.estimate import on_device
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.question import FP32, Parallel, Training
from perfmodel.transformer.training.state import State, state_bytes
from perfmodel.transformer.training.step.frame import Frame, frame_of
from perfmodel.transformer.training.step.pieces import Machine
from perfmodel.transformer.training.step.shares import Layers, layers_of
from perfmodel.transformer.training.step.system import System


@dataclass(frozen=True, slots=True)
class Job:
    """``training`` on GPUs of ``on``, joined by ``system`` (None: one GPU). ``overlap``: exchanges run beside kernels where they can."""

    training: Training
    frame: Frame
    layers: Layers
    on: Machine
    system: System | None
    overlap: bool = True


def dtype_of(training: Training, half: str) -> Dtype:
    """Format of activations and arithmetic; ``half``: which 16-bit one."""
    return DTYPES["fp32" if training.precision == FP32 else half]


def job_of(
    training: Training,
    on: Machine,
    system: System | None = None,
    implementation: str = FUSED,
    *,
    half: str = "bf16",
    overlap: bool = True,
    layers: Layers | None = None,
) -> Job:
    """The job that ``training`` is on ``on``. ``layers``: those of its model, if they are known already."""
    frame = frame_of(training, implementation, dtype_of(training, half))
    frame = replace(frame, forward=on_device(frame.forward, on.device))
    return Job(training, frame, layers_of(training.model) if layers is None else layers, on, system, overlap)


def state_of(training: Training, layers: Layers, stage: int) -> State:
    """Weights, gradients and optimizer state of a stage; worked out once for layouts that hold the same."""
    t = training
    return _state(layers, t.parallel, stage, t.precision, t.optimizer, t.gradients, t.lora, t.lora_targets)


@lru_cache(maxsize=4096)
def _state(
    layers: Layers, parallel: Parallel, stage: int, precision: str, optimizer: str, gradients: str, lora: int | None, targets: str
) -> State:
    training = Training(
        model=layers.model,
        batch=parallel.dp,
        n=parallel.cp,
        precision=precision,
        optimizer=optimizer,
        gradients=gradients,
        lora=lora,
        lora_targets=targets,
        parallel=parallel,
    )
    return state_bytes(training, stage)
