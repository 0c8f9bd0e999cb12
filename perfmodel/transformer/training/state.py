"""What a GPU holds from step to step: weights, gradients, the optimizer's state; whole, or divided by ZeRO.

Mixed precision: 2 B weights, 2 B gradients, 4 B master weights, 8 B of Adam's moments: 16 B per parameter. With gradients added up
in fp32 instead 18 B, with both 20 B. Sources: Micikevicius et al. 2018 (mixed precision); Rajbhandari et al. 2020, arXiv
1910.02054, section 3.1 (16 B) and section 5 (stages); Megatron-LM, docs of the distributed optimizer (18 B).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number, ceil_div
from perfmodel.transformer.layer import EXPERTS
from perfmodel.transformer.training.lora import adapters
from perfmodel.transformer.training.matrices import Holding, stage_holding
from perfmodel.transformer.training.optimizers import optimizer_named, state_size
from perfmodel.transformer.training.question import APPLIED, BF16, BOTH_GRADIENTS, FP32, FULL_GRADIENTS, MIXED, Parallel, Training

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the table of state. ``group``: weights, gradients or optimizer; ``shards``: GPUs that divide the ``elements``."""

    name: str
    group: str
    elements: Number
    bytes: Number
    shards: int = 1


@dataclass(frozen=True, slots=True)
class State:
    """Bytes on one GPU; ``optimizer`` with the master weights. ``parameters``: those it has a copy or a share of, before ZeRO.

    ``temporary``: bytes that the optimizer needs while it steps.
    """

    weights: Number
    gradients: Number
    optimizer: Number
    temporary: Number
    parameters: Number
    trained: Number
    parts: tuple[Part, ...]

    @property
    def total(self) -> Number:
        """All of it."""
        return self.weights + self.gradients + self.optimizer


def weight_size(training: Training) -> int:
    """Bytes of a weight that a matmul reads."""
    return 4 if training.precision == FP32 else 2


def gradient_sizes(training: Training) -> list[tuple[str, int]]:
    """What is kept per gradient: name and bytes."""
    if training.precision != MIXED:
        return [("gradients", weight_size(training))]
    low = [] if training.gradients == FULL_GRADIENTS else [("gradients", 2)]
    return low + ([("fp32 gradients", 4)] if training.gradients in (FULL_GRADIENTS, BOTH_GRADIENTS) else [])


def state_bytes(training: Training, stage: int = 0) -> State:
    """Weights, gradients and optimizer state of a GPU of pipeline stage ``stage``."""
    parallel = training.parallel
    holding = stage_holding(training.model, parallel, stage)
    trained = holding if training.lora is None else adapters(holding, training.lora, training.lora_targets)
    size = weight_size(training)
    parts = []
    if training.lora is not None:
        parts += _divided("frozen weights", WEIGHTS, holding, parallel, parallel.zero == 3, size)
    parts += _divided("weights" if training.lora is None else "adapters", WEIGHTS, trained, parallel, parallel.zero == 3, size)
    for name, gradient_size in [] if training.gradient_life == APPLIED else gradient_sizes(training):
        parts += _divided(name, GRADIENTS, trained, parallel, parallel.zero >= 2, gradient_size)
    if training.precision == MIXED:
        parts += _divided("fp32 master weights", OPTIMIZER, trained, parallel, parallel.zero >= 1, 4)
    parts += _optimizer_parts(training, trained)
    sums = {group: sum(part.bytes for part in parts if part.group == group) for group in (WEIGHTS, GRADIENTS, OPTIMIZER)}
    count = holding.parameters + (0 if training.lora is None else trained.parameters)
    return State(
        weights=sums[WEIGHTS],
        gradients=sums[GRADIENTS],
        optimizer=sums[OPTIMIZER],
        temporary=_temporary(training, trained),
        parameters=count,
        trained=trained.parameters,
        parts=tuple(part for part in parts if part.bytes),
    )


def _temporary(training: Training, trained: Holding) -> Number:
    """Bytes of the optimizer's copies while it steps; 0 for a fused kernel."""
    if training.fused_optimizer:
        return 0
    numbers = optimizer_named(training.optimizer).temporary * (2 if training.precision == BF16 else 4)
    zero = training.parallel.zero >= 1
    shares = [ceil_div(half.parameters, _copies(training.parallel, bool(name)) if zero else 1) for name, half in _split(trained)]
    return numbers * sum(shares)


def _split(holding: Holding) -> list[tuple[str, Holding]]:
    """What all data-parallel GPUs share, and what belongs to experts."""
    if not holding.experts:
        return [("", holding)]
    inside = tuple(matrix for matrix in holding.matrices if matrix.group == EXPERTS)
    outside = tuple(matrix for matrix in holding.matrices if matrix.group != EXPERTS)
    dense = Holding(outside, holding.vectors - holding.expert_vectors)
    return [("", dense), (" of experts", Holding(inside, holding.expert_vectors, holding.expert_vectors))]


def _copies(parallel: Parallel, of_experts: bool) -> int:
    """GPUs that hold the same parameters: the data- and context-parallel ones, for experts those of other expert-parallel groups."""
    return parallel.dp * parallel.cp // (parallel.ep if of_experts else 1)


def _divided(name: str, group: str, holding: Holding, parallel: Parallel, divide: bool, size: int) -> list[Part]:
    found = []
    for suffix, half in _split(holding):
        shards = _copies(parallel, bool(suffix)) if divide else 1
        found.append(Part(name + suffix, group, half.parameters, size * ceil_div(half.parameters, shards), shards))
    return found


def _optimizer_parts(training: Training, trained: Holding) -> list[Part]:
    optimizer, parallel = optimizer_named(training.optimizer), training.parallel
    size = 2 if training.precision == BF16 else 4
    found = []
    for suffix, half in _split(trained):
        shards = _copies(parallel, bool(suffix)) if parallel.zero >= 1 else 1
        whole = state_size(optimizer, half, size)
        found.append(Part(f"{optimizer.title}{suffix}", OPTIMIZER, half.parameters, ceil_div(whole, shards), shards))
    return found
