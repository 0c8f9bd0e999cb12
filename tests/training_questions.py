"""Random training questions: models, layouts, formats, recomputation, devices and systems."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

import perfmodel.transformer.training.step.estimate as estimating
from perfmodel.catalog import calibrated_devices, device_ids, find_device, find_model, find_system, model_names, system_names
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.transformer.training.question import (
    EVERY,
    FULL,
    GRADIENTS,
    NONE,
    PRECISIONS,
    SELECTIVE,
    Parallel,
    Recomputation,
    TrainingConfig,
    timed,
)
from perfmodel.transformer.training.step.job import dtype_of
from perfmodel.transformer.training.step.layer_time import Machine, machine_of
from perfmodel.transformer.training.step.system import System

FEW_MODELS = ("gpt2-medium", "llama-3-8b", "mixtral-8x7b")
FEW_DEVICES = ("nvidia-h200-sxm", "nvidia-a100-sxm-80gb", "nvidia-rtx-3090", "nvidia-l4", "amd-mi300x")


@dataclass(frozen=True)
class Question:
    """A step of ``training`` on GPUs like ``device``."""

    training: TrainingConfig
    device: Device
    system: System | None
    implementation: str
    overlap: bool


@cache
def fallbacks() -> list[Device]:
    return calibrated_devices()


@cache
def on(device: str) -> Machine:
    """One machine per device: what was worked out for one question serves the next."""
    return machine_of(find_device(device), fallbacks)


def answered(question: Question, monkeypatch: pytest.MonkeyPatch) -> estimating.TrainingEstimate:
    monkeypatch.setattr(estimating, "machine_of", lambda device, *_: on(device.id))
    q = question
    return estimating.estimate(q.training, q.device, fallbacks, q.system, q.implementation, overlap=q.overlap)


def questions(count: int, seed: int = 0) -> Iterator[Question]:
    """``count`` that have an answer; few of them are of few models and devices."""
    rng, found = random.Random(seed), 0
    wide = count > 1000
    while found < count:
        question = _drawn(rng, model_names() if wide else FEW_MODELS, device_ids() if wide else FEW_DEVICES)
        try:
            timed(question.training)
            rates_of(question.device, dtype_of(question.training, "bf16"))
            if question.system is not None:
                question.system.holds(question.training.parallel.gpus)
        except PerfmodelError:
            continue
        found += 1
        yield question


def _drawn(rng: random.Random, models: list[str] | tuple[str, ...], devices: list[str] | tuple[str, ...]) -> Question:
    pick = rng.choice
    system = find_system(pick(system_names())) if rng.random() < 0.8 else None
    device = find_device(pick(devices) if system is None else system.device)
    p = Parallel() if system is None else layout(rng)
    recompute = Recomputation(pick([NONE, NONE, SELECTIVE, FULL])) if rng.random() < 0.8 else Recomputation(EVERY, pick([1, 2, 3]))
    micro_batch, times = pick([1, 1, 2, 8]), pick([1, 1, 2, 5]) * (p.pp if p.interleave > 1 else 1)
    training = TrainingConfig(
        find_model(pick(models)),
        p.dp * micro_batch * times,
        p.cp * pick([2, 64, 1000, 2048, 4096, 8192, 131072]),
        micro_batch,
        precision=pick(PRECISIONS),
        recompute=recompute,
        flash=rng.random() < 0.7,
        lora=8 if rng.random() < 0.1 else None,
        dropout=rng.random() < 0.3,
        parallel=p,
        gradients=pick(GRADIENTS) if rng.random() < 0.3 else GRADIENTS[0],
    )
    return Question(training, device, system, pick(["fused", "fused", "huggingface"]), rng.random() < 0.8)


def layout(rng: random.Random) -> Parallel:
    pick = rng.choice
    tp, pp = pick([1, 1, 2, 4, 8]), pick([1, 1, 2, 4])
    dp, interleave = pick([1, 2, 3, 8, 32, 64]), pick([1, 2]) if pp > 1 else 1
    ep = pick([size for size in (1, 2, 4, 8) if dp % size == 0]) if rng.random() < 0.3 else 1
    return Parallel(tp, tp > 1 and rng.random() < 0.5, pp, interleave, pick([1, 1, 2, 4]), ep, dp, pick([0, 1, 2, 3, 3, 3]))
