"""A training step as it is timed: what is trained, which GPUs and layers each stage has, and what is done besides the passes.

Between GPUs with the same weights, stage 1 and 2 of ZeRO scatter the sum of the gradients and gather the updated weights, the bytes of
an all-reduce in all; stage 2 scatters after each micro-batch, as it keeps no more than its share; stage 3 gathers weights for each
pass. Source: Rajbhandari et al. 2020, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.core.arith import Number, ceil_div, maximum, minimum
from perfmodel.core.cost import READ, WRITE, Access, stored
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.transformer.estimate import on_device
from perfmodel.transformer.op import WEIGHTS
from perfmodel.transformer.parallel import stages
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.step import ModelPass
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.question import FP32, FREED, FULL_GRADIENTS, MIXED, SIXTEEN_BIT, Parallel, TrainingConfig
from perfmodel.transformer.training.state import FROZEN, GRADIENTS, OF_EXPERTS, OPTIMIZER, State, StatePart, state_bytes, weight_size
from perfmodel.transformer.training.state import WEIGHTS as HELD
from perfmodel.transformer.training.step.layer_time import EMBEDDING, HEAD, LayerTime, Machine, end_time, layer_time
from perfmodel.transformer.training.step.micro_batch import DATA, EXPERT_DATA, Exchange, MicroBatch, micro_batch_of
from perfmodel.transformer.training.step.row import OTHERS, StepOp, priced
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


UPDATE_VECTOR = 12
"""Vector operations of Adam per parameter: two moments, their corrections, root, quotient, decay, step."""


def updated(part: StatePart, training: TrainingConfig) -> Number:
    """Bytes of ``part`` that one GPU's optimizer touches: under ZeRO its share, although it may hold more."""
    p = training.parallel
    return part.bytes if p.zero == 0 or part.shards > 1 else ceil_div(part.bytes, part.copies(p))


def touched(training: TrainingConfig, state: State) -> dict[str, Number]:
    """Bytes that one GPU's optimizer touches of gradients, of its own state, and of the weights that it trains."""
    found = {group: [part for part in state.parts if part.group == group] for group in (GRADIENTS, OPTIMIZER, HELD)}
    found[HELD] = [part for part in found[HELD] if not part.name.startswith(FROZEN)]
    return {group: sum(updated(part, training) for part in parts) for group, parts in found.items()}


def least_bytes(training: TrainingConfig, state: State, weights_read: Number) -> dict[tuple[str, str], Number]:
    """DRAM bytes, read and written, that no schedule of a step saves: weights and optimizer state. ``weights_read`` by the forward pass.

    Activations can stay in the caches, a part of the batch at a time, and a gradient can be applied as soon as it is whole.
    """
    size = touched(training, state)
    weights = minimum(weights_read, state.weights)  # under ZeRO 3 others' share comes over links
    read = weights if training.precision == MIXED else maximum(weights, size[HELD])
    return {(READ, WEIGHTS): read + size[OPTIMIZER], (WRITE, WEIGHTS): size[HELD] + size[OPTIMIZER]}


def optimizer(training: TrainingConfig, state: State, step: ModelPass) -> StepOp:
    """Reads gradients and state, and weights where there are no fp32 ones; writes state and weights."""
    size = touched(training, state)
    weights = size[HELD]
    reads = size[GRADIENTS] + size[OPTIMIZER] + (0 if training.precision == MIXED else weights)
    accesses = (stored(WEIGHTS, READ, reads, 8), stored(WEIGHTS, WRITE, size[OPTIMIZER] + weights, 8))
    return priced("optimizer", step, OTHERS, accesses, UPDATE_VECTOR * weights // weight_size(training))


def clearing(training: TrainingConfig, state: State, step: ModelPass) -> list[StepOp]:
    """Zeros for the next step, where gradients keep their buffers."""
    if training.gradient_life == FREED and training.micro_batches == 1:
        return []
    return [priced("gradients cleared", step, OTHERS, (stored(WEIGHTS, WRITE, state.gradients, 8),))]


def accumulated(state: State) -> Number:
    """Gradients that one GPU adds to: those of its share, once each however many formats they are kept in."""
    parts = {part.name.endswith(OF_EXPERTS): part for part in state.parts if part.group == GRADIENTS}
    return sum(ceil_div(part.elements, part.shards) for part in parts.values())


def adding_up(training: TrainingConfig, state: State, step: ModelPass) -> list[StepOp]:
    """A micro-batch's gradients, added to those of the ones before it, in the format that they are kept in: under ZeRO 2 its share."""
    in_fp32 = sums_in_fp32(training)
    if training.micro_batches == 1 and not in_fp32:
        return []
    size, trained = 4 if in_fp32 else weight_size(training), accumulated(state)
    accesses: tuple[Access, ...] = (stored(WEIGHTS, READ, trained * size, 8), stored(WEIGHTS, WRITE, trained * size, 8))
    if not in_fp32 or training.gradients != FULL_GRADIENTS:
        accesses = (stored(WEIGHTS, READ, trained * weight_size(training), 8), *accesses)
    return [priced("gradients added up", step, OTHERS, accesses, trained)]


def sums_in_fp32(training: TrainingConfig) -> bool:
    """Whether gradients are added up in fp32."""
    return training.precision == MIXED and training.gradients != SIXTEEN_BIT


def shared_gradients(training: TrainingConfig, state: State) -> list[Exchange]:
    """Sums of gradients, in the format in which they are kept longest."""
    zero, wide = training.parallel.zero, sums_in_fp32(training)
    parts = [part for part in state.parts if part.group == GRADIENTS and (not wide or part.name.startswith("fp32"))]
    times = training.micro_batches if zero >= 2 else 1
    return _exchanges(training, parts, REDUCE_SCATTER if zero else ALL_REDUCE, int(times))


def shared_weights(training: TrainingConfig, state: State) -> list[Exchange]:
    """Weights gathered from the GPUs that hold or have updated them."""
    zero = training.parallel.zero
    if zero == 0:
        return []
    parts = [part for part in state.parts if part.group == HELD and (zero == 3 or not part.name.startswith(FROZEN))]
    return _exchanges(training, parts, ALL_GATHER, int(2 * training.micro_batches) if zero == 3 else 1)


def _exchanges(training: TrainingConfig, parts: list[StatePart], op: str, times: int) -> list[Exchange]:
    """One of each part that several GPUs have."""
    groups = [(EXPERT_DATA if part.name.endswith(OF_EXPERTS) else DATA, part) for part in parts if part.copies(training.parallel) > 1]
    return [Exchange(group, op, part.bytes * part.shards, times) for group, part in groups]
