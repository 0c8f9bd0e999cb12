"""A training step as it is timed: the job with its layers by stage, and the work outside forward and backward passes.

Between GPUs with the same weights, ZeRO stages 1 and 2 scatter the sum of the gradients and gather the updated weights, which together are
the bytes of an all-reduce. Stage 2 scatters after each micro-batch, as it keeps only its share; stage 3 gathers weights for each pass.
Source: Rajbhandari et al. 2020, section 7.
"""

from __future__ import annotations

from dataclasses import field, replace

from perfmodel.core.arith import Number, ceil_div, maximum, minimum
from perfmodel.core.cost import READ, WRITE, Access, stored
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.frozen import dataclass
from perfmodel.kernels.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.transformer.estimate import on_device
from perfmodel.transformer.op import Op
from perfmodel.transformer.step import ModelPass
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.matrices import places_of
from perfmodel.transformer.training.question import FP32, FULL_GRADIENTS, MIXED, TrainingConfig
from perfmodel.transformer.training.state import FROZEN, GRADIENTS, OPTIMIZER, WEIGHTS, State, StatePart, copies, state_bytes
from perfmodel.transformer.training.step.layer_time import LayerTime, Machine, layer_time
from perfmodel.transformer.training.step.row import OTHERS, MicroBatch, micro_batch_of, priced
from perfmodel.transformer.training.step.system import DATA, EXPERT_DATA, Exchange, System


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """``training`` on GPUs of ``machine``, joined by ``system`` (None: one GPU). ``overlap``: exchanges run beside kernels where they can.

    ``states``: cache of states by stage.
    """

    training: TrainingConfig
    micro_batch: MicroBatch
    machine: Machine
    system: System | None
    overlap: bool = True
    states: dict[int, State] = field(default_factory=dict, compare=False)

    def times(self, stage: int | None = None) -> list[tuple[LayerTime, int]]:
        """Times of the layers and ends of the model in ``stage``, or in the whole model; each with how many are alike."""
        t = self.training
        return [(layer_time(self.micro_batch, where, self.machine), count) for where, count in places_of(t.model, t.parallel, stage)]

    def repeated_ops(self, times: list[tuple[LayerTime, int]]) -> list[Op]:
        """Kernels of ``times`` that the backward pass runs again, with the number of their runs."""
        return [
            op.times(repeated.share * count)
            for place, count in times
            for repeated in place.repeated(self.training.recompute)
            for op in repeated.ops
        ]

    def state(self, stage: int) -> State:
        """Weights, gradients and optimizer state of a stage."""
        if stage not in self.states:
            self.states[stage] = state_bytes(self.training, stage)
        return self.states[stage]


def dtype_of(training: TrainingConfig, half: str) -> Dtype:
    """Format of activations and arithmetic; ``half``: the 16-bit format."""
    return DTYPES["fp32" if training.precision == FP32 else half]


def job_of(
    training: TrainingConfig,
    machine: Machine,
    system: System | None = None,
    implementation: str = FUSED,
    *,
    half: str = "bf16",
    overlap: bool = True,
) -> TrainingJob:
    """The job of ``training`` on GPUs of ``machine``; ``half``: the 16-bit format."""
    batch = micro_batch_of(training, implementation, dtype_of(training, half))
    return TrainingJob(training, replace(batch, forward=on_device(batch.forward, machine.device)), machine, system, overlap)


UPDATE_VECTOR = 12
"""Vector operations of Adam per parameter: two moments, their corrections, root, quotient, decay, step."""


def updated_bytes(training: TrainingConfig, state: State) -> dict[str, Number]:
    """Bytes that one GPU's optimizer works on, by group: gradients, optimizer state, and trained weights.

    Under ZeRO these are only the GPU's share, although it may hold more.
    """
    p, sizes = training.parallel, dict[str, Number](dict.fromkeys((GRADIENTS, OPTIMIZER, WEIGHTS), 0))
    for part in state.parts:
        if not part.name.startswith(FROZEN):
            is_its_share = p.zero == 0 or part.shards > 1
            sizes[part.group] += part.bytes if is_its_share else ceil_div(part.bytes, copies(p, part.of_experts))
    return sizes


def least_bytes(training: TrainingConfig, state: State, weights_read: Number) -> dict[tuple[str, str], Number]:
    """Bytes read from and written to DRAM that no schedule of a step saves: weights and optimizer state.

    ``weights_read``: bytes that the forward pass reads.

    Activations can stay in the caches, a part of the batch at a time, and a gradient can be applied as soon as it is whole.
    """
    size = updated_bytes(training, state)
    weights = minimum(weights_read, state.weights)  # under ZeRO 3 the shares of other GPUs come over links
    read = weights if training.precision == MIXED else maximum(weights, size[WEIGHTS])
    return {(READ, WEIGHTS): read + size[OPTIMIZER], (WRITE, WEIGHTS): size[WEIGHTS] + size[OPTIMIZER]}


def optimizer(training: TrainingConfig, state: State, step: ModelPass) -> Op:
    """Kernel that reads gradients and state, and weights if there are no fp32 ones, and writes state and weights."""
    size = updated_bytes(training, state)
    weights = size[WEIGHTS]
    reads = size[GRADIENTS] + size[OPTIMIZER] + (0 if training.precision == MIXED else weights)
    accesses = (stored(WEIGHTS, READ, reads, 8), stored(WEIGHTS, WRITE, size[OPTIMIZER] + weights, 8))
    return priced("optimizer", step, OTHERS, accesses, UPDATE_VECTOR * weights // training.size)


def clearing(training: TrainingConfig, state: State, step: ModelPass) -> list[Op]:
    """Kernel that zeroes gradients for the next step, if they keep their buffers."""
    if not training.buffers_gradients:
        return []
    return [priced("gradients cleared", step, OTHERS, (stored(WEIGHTS, WRITE, state.gradients, 8),))]


def accumulated(state: State) -> Number:
    """Gradient elements that one GPU accumulates: its share, each counted once."""
    parts = {part.of_experts: part for part in state.parts if part.group == GRADIENTS}  # of several formats the last
    return sum(ceil_div(part.elements, part.shards) for part in parts.values())


def adding_up(training: TrainingConfig, state: State, step: ModelPass) -> list[Op]:
    """Kernel that adds a micro-batch's gradients to the sum, in the format in which they are kept; under ZeRO 2 only a share."""
    in_fp32 = training.sums_in_fp32
    if training.micro_batches == 1 and not in_fp32:
        return []
    trained = accumulated(state)
    sum_bytes = trained * (4 if in_fp32 else training.size)
    accesses: tuple[Access, ...] = (stored(WEIGHTS, READ, sum_bytes, 8), stored(WEIGHTS, WRITE, sum_bytes, 8))
    if not in_fp32 or training.gradients != FULL_GRADIENTS:
        accesses = (stored(WEIGHTS, READ, trained * training.size, 8), *accesses)
    return [priced("gradients added up", step, OTHERS, accesses, trained)]


def shared_gradients(training: TrainingConfig, state: State) -> list[Exchange]:
    """Exchanges that sum gradients, in the format in which they are kept longest."""
    zero = training.parallel.zero
    parts = [part for part in state.parts if part.group == GRADIENTS]
    if training.sums_in_fp32:
        parts = [part for part in parts if part.name.startswith("fp32")]
    times = training.micro_batches if zero >= 2 else 1
    return _exchanges(training, parts, REDUCE_SCATTER if zero else ALL_REDUCE, int(times))


def shared_weights(training: TrainingConfig, state: State) -> list[Exchange]:
    """Exchanges that gather weights from the GPUs that hold or have updated them."""
    zero = training.parallel.zero
    if zero == 0:
        return []
    parts = [part for part in state.parts if part.group == WEIGHTS]
    if zero == 3:  # for the forward and the backward pass of each micro-batch
        return _exchanges(training, parts, ALL_GATHER, int(2 * training.micro_batches))
    return _exchanges(training, [part for part in parts if not part.name.startswith(FROZEN)], ALL_GATHER, 1)


def _exchanges(training: TrainingConfig, parts: list[StatePart], op: str, times: int) -> list[Exchange]:
    """An exchange for each part that several GPUs hold."""
    shared = [part for part in parts if copies(training.parallel, part.of_experts) > 1]
    return [Exchange(EXPERT_DATA if part.of_experts else DATA, op, part.bytes * part.shards, times) for part in shared]
