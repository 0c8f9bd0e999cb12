"""Bytes that a GPU holds from step to step: weights, gradients, the optimizer's state; whole, or divided by ZeRO.

Mixed precision: 2 B weights, 2 B gradients, 4 B master weights, 8 B of Adam's moments: 16 B per parameter. With gradients added up
in fp32 instead 18 B, with both 20 B. Sources: Micikevicius et al. 2018 (mixed precision); Rajbhandari et al. 2020, arXiv
1910.02054, section 3.1 (16 B) and section 5 (stages); Megatron-LM, docs of the distributed optimizer (18 B).
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.operation import EXPERTS, TABLE
from perfmodel.transformer.training.matrices import Holding, adapters, stage_holding
from perfmodel.transformer.training.question import APPLIED, BF16, MIXED, Optimizer, Parallel, TrainingConfig, optimizer_named

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
FROZEN = "frozen weights"
OF_EXPERTS = " of experts"
BLOCK = 256
"""Elements of 8-bit state that share an fp32 scale. Source: bitsandbytes, blockwise optimizers."""


def state_elements(optimizer: Optimizer, holding: Holding) -> Number:
    """Count of numbers that ``optimizer`` keeps for ``holding``, without the scales of 8-bit blocks."""
    if optimizer.factored:
        return sum(matrix.count * (matrix.inputs + matrix.outputs) for matrix in holding.matrices) + holding.vectors
    if optimizer.matrix_moments is None:
        return optimizer.moments * holding.parameters
    tables_and_vectors = sum(matrix.elements for matrix in holding.matrices if matrix.group == TABLE) + holding.vectors
    return optimizer.matrix_moments * (holding.parameters - tables_and_vectors) + optimizer.moments * tables_and_vectors


def state_size(optimizer: Optimizer, holding: Holding, element_size: int) -> Number:
    """Bytes of the state, with ``element_size`` bytes per number that is not stored in 8 bits.

    >>> from perfmodel.transformer.training.matrices import Matrix
    >>> square = Holding((Matrix("Q", "attention", 1024, 1024),))
    >>> from perfmodel.transformer.training.question import OPTIMIZERS
    >>> [state_size(OPTIMIZERS[name], square, 4) // 1024 for name in ("adam", "momentum", "adafactor", "adam8bit", "muon")]
    [8192, 4096, 8, 2080, 4096]
    """
    elements = state_elements(optimizer, holding)
    return elements + 4 * ceil_div(elements, BLOCK) if optimizer.eight_bit else element_size * elements


@dataclass(frozen=True, slots=True)
class StatePart:
    """One row of the table of state. ``group``: weights, gradients or optimizer; ``shards``: GPUs that divide the ``elements``."""

    name: str
    group: str
    elements: Number
    bytes: Number
    shards: int = 1

    @property
    def of_experts(self) -> bool:
        """Whether expert-parallel GPUs divide its parameters."""
        return self.name.endswith(OF_EXPERTS)


@dataclass(frozen=True, slots=True)
class State:
    """Bytes on one GPU; ``optimizer`` includes the master weights; ``temporary``: bytes that the optimizer needs during its step.

    ``parameters``, ``trained``: numbers of all and of trained parameters on this GPU, before ZeRO divides them.
    """

    weights: Number
    gradients: Number
    optimizer: Number
    temporary: Number
    parameters: Number
    trained: Number
    parts: tuple[StatePart, ...]

    @property
    def total(self) -> Number:
        """Sum of all parts, in bytes."""
        return self.weights + self.gradients + self.optimizer


def copies(parallel: Parallel, of_experts: bool) -> int:
    """Number of GPUs with the same parameters: data- and context-parallel GPUs, for experts divided by the expert-parallel ones."""
    return parallel.dp * parallel.cp // (parallel.ep if of_experts else 1)


class _StateRow(NamedTuple):
    """Weights or gradients of ``holding``, of ``size`` bytes per parameter; ZeRO divides them from stage ``zero`` on."""

    name: str
    group: str
    holding: Holding
    zero: int
    size: int


def state_bytes(training: TrainingConfig, stage: int = 0) -> State:
    """Weights, gradients and optimizer state, in bytes, of a GPU of pipeline stage ``stage``."""
    parallel, optimizer = training.parallel, optimizer_named(training.optimizer)
    holding = stage_holding(training.model, parallel, stage)
    trained = holding if training.lora is None else adapters(holding, training.lora, training.lora_targets)
    parts = []
    for row in _rows(training, holding, trained):
        for suffix, half in _dense_and_experts(row.holding).items():
            shards = _shards(parallel, suffix, row.zero)
            size = row.size * ceil_div(half.parameters, shards)
            parts.append(StatePart(row.name + suffix, row.group, half.parameters, size, shards))
    number_size = 2 if training.precision == BF16 else 4
    temporary: Number = 0
    for suffix, half in _dense_and_experts(trained).items():
        shards = _shards(parallel, suffix, 1)
        size = ceil_div(state_size(optimizer, half, number_size), shards)
        parts.append(StatePart(f"{optimizer.title}{suffix}", OPTIMIZER, half.parameters, size, shards))
        if not training.fused_optimizer:
            temporary += optimizer.temporary * number_size * ceil_div(half.parameters, shards)
    weights, gradients, optimizer_bytes = (
        sum(part.bytes for part in parts if part.group == group) for group in (WEIGHTS, GRADIENTS, OPTIMIZER)
    )
    parameters = holding.parameters if training.lora is None else holding.parameters + trained.parameters
    kept_parts = tuple(part for part in parts if part.bytes)
    return State(weights, gradients, optimizer_bytes, temporary, parameters, trained.parameters, kept_parts)


def _rows(training: TrainingConfig, holding: Holding, trained: Holding) -> list[_StateRow]:
    """Weights, frozen ones first, then gradients, then master weights."""
    rows = []
    if training.lora is not None:
        rows.append(_StateRow(FROZEN, WEIGHTS, holding, 3, training.size))
    rows.append(_StateRow("weights" if training.lora is None else "adapters", WEIGHTS, trained, 3, training.size))
    if training.gradient_life != APPLIED:
        rows += [_StateRow(name, GRADIENTS, trained, 2, size) for name, size in training.gradient_sizes.items()]
    if training.precision == MIXED:
        rows.append(_StateRow("fp32 master weights", OPTIMIZER, trained, 1, 4))
    return rows


def _dense_and_experts(holding: Holding) -> dict[str, Holding]:
    """Dense parameters and, if there are any, experts' parameters, by the suffix of their names."""
    if not holding.experts:
        return {"": holding}
    dense = tuple(matrix for matrix in holding.matrices if matrix.group != EXPERTS)
    in_experts = tuple(matrix for matrix in holding.matrices if matrix.group == EXPERTS)
    vectors = holding.expert_vectors
    return {"": Holding(dense, holding.vectors - vectors), OF_EXPERTS: Holding(in_experts, vectors, vectors)}


def _shards(parallel: Parallel, suffix: str, zero: int) -> int:
    """GPUs that divide the parameters named with ``suffix``, if ZeRO is at least ``zero``."""
    return copies(parallel, suffix == OF_EXPERTS) if parallel.zero >= zero else 1
