"""A training step as it is timed: what is trained, on which GPUs, and which layers each pipeline stage holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.transformer.estimate import on_device
from perfmodel.transformer.parallel import stages
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.question import FP32, Parallel, TrainingConfig
from perfmodel.transformer.training.state import State, state_bytes
from perfmodel.transformer.training.step.layer_time import EMBEDDING, HEAD, LayerTime, Machine, end_time, layer_time
from perfmodel.transformer.training.step.micro_batch import MicroBatch, micro_batch_of
from perfmodel.transformer.training.step.system import System

Counts = tuple[tuple[Layer, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StageLayers:
    """The layers of a model, each different one with its number, by stage; equal only to itself, which is quick to tell."""

    model: ModelSpec
    kinds: Counts

    def of_stage(self, pp: int, interleave: int, stage: int) -> Counts:
        """Layers of one stage: a chunk, or every ``pp``-th of several."""
        if len(self.kinds) == 1:
            size, longer = divmod(len(self.model.layers), pp * interleave)
            held = sum(size + (chunk < longer) for chunk in range(stage, pp * interleave, pp))
            return ((self.kinds[0][0], held),)
        counts: dict[Layer, int] = {}
        for chunk in stages(self.model, pp * interleave)[stage::pp]:
            for layer in chunk:
                counts[layer] = counts.get(layer, 0) + 1
        return tuple(counts.items())

    def slow_stages(self, pp: int) -> list[int]:
        """Stages among which is the slowest: of equal layers the first, the last, or one between."""
        return sorted({0, min(1, pp - 1), pp - 1}) if len(self.kinds) == 1 else list(range(pp))


def stage_layers(model: ModelSpec) -> StageLayers:
    """The layers of ``model``."""
    return StageLayers(model, tuple(model.layer_kinds))


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """``training`` on GPUs of ``on``, joined by ``system`` (None: one GPU). ``overlap``: exchanges run beside kernels where they can."""

    training: TrainingConfig
    frame: MicroBatch
    layers: StageLayers
    on: Machine
    system: System | None
    overlap: bool = True

    def layer_times(self, stage: int | None = None) -> list[tuple[LayerTime, int]]:
        """Each kind of layer of ``stage``, or of the model, with its number."""
        p = self.training.parallel
        counts = self.layers.kinds if stage is None else self.layers.of_stage(p.pp, p.interleave, stage)
        return [(layer_time(self.frame, layer, self.on), count) for layer, count in counts]

    def end_times(self, stage: int | None = None) -> dict[str, LayerTime]:
        """The embedding and the head, as far as ``stage`` has them."""
        last = self.training.parallel.pp - 1
        here = {EMBEDDING: stage in (None, 0), HEAD: stage in (None, last)}
        return {where: end_time(self.frame, where, self.on) for where in here if here[where]}

    def state(self, stage: int) -> State:
        """Weights, gradients and optimizer state of a stage; worked out once for layouts that hold the same."""
        t = self.training
        return _state(self.layers, t.parallel, stage, t.precision, t.optimizer, t.gradients, t.lora, t.lora_targets)


def dtype_of(training: TrainingConfig, half: str) -> Dtype:
    """Format of activations and arithmetic; ``half``: which 16-bit one."""
    return DTYPES["fp32" if training.precision == FP32 else half]


def job_of(
    training: TrainingConfig,
    on: Machine,
    system: System | None = None,
    implementation: str = FUSED,
    *,
    half: str = "bf16",
    overlap: bool = True,
    layers: StageLayers | None = None,
) -> TrainingJob:
    """The job that ``training`` is on ``on``. ``layers``: those of its model, if they are known already."""
    frame = micro_batch_of(training, implementation, dtype_of(training, half))
    frame = replace(frame, forward=on_device(frame.forward, on.device))
    return TrainingJob(training, frame, stage_layers(training.model) if layers is None else layers, on, system, overlap)


@lru_cache(maxsize=4096)
def _state(
    layers: StageLayers, parallel: Parallel, stage: int, precision: str, optimizer: str, gradients: str, lora: int | None, targets: str
) -> State:
    known = TrainingConfig(layers.model, parallel.dp, parallel.cp, precision=precision, optimizer=optimizer, lora=lora, parallel=parallel)
    return state_bytes(replace(known, gradients=gradients, lora_targets=targets), stage)
