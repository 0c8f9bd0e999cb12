"""What one GPU of a tensor- and expert-parallel group holds: matrices one by one, and all else that is learned as vectors.

Adapters, factored second moments and Muon all go by the shape of a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number
from perfmodel.transformer.layer import EXPERTS, Matrix, Operation, first_operations, last_operations, operations
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training.question import Parallel


@dataclass(frozen=True, slots=True)
class Holding:
    """What a GPU holds: matrices one by one, and the elements of all vectors. ``expert_vectors``: those that belong to experts.

    ``experts``: parameters that expert-parallel GPUs divide; ``dense``: those of which every data-parallel GPU has a copy.
    """

    matrices: tuple[Matrix, ...]
    vectors: Number = 0
    expert_vectors: Number = 0
    experts: Number = field(init=False, compare=False)
    dense: Number = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Sums, taken once: a search asks for them often."""
        in_experts = sum(matrix.elements for matrix in self.matrices if matrix.group == EXPERTS) + self.expert_vectors
        every = sum(matrix.elements for matrix in self.matrices) + self.vectors
        object.__setattr__(self, "experts", in_experts)
        object.__setattr__(self, "dense", every - in_experts)

    @property
    def parameters(self) -> Number:
        """All of them."""
        return self.dense + self.experts


def _holding(found: Sequence[Operation]) -> Holding:
    """What operations learn."""
    in_experts = sum(op.vectors for op in found if op.part == EXPERTS)
    return Holding(tuple(matrix for op in found for matrix in op.matrices), sum(op.vectors for op in found), in_experts)


def layer_holding(model: ModelSpec, layer: Layer, parallel: Parallel) -> Holding:
    """All parameters of ``layer`` on one GPU."""
    return _holding(operations(model, layer, parallel.tp, parallel.ep))


def table_holding(model: ModelSpec, parallel: Parallel, *, first: bool, last: bool) -> Holding:
    """Embedding and positions of the first stage, last norm and head of the last; a tied head has a copy where stages differ."""
    found = first_operations(model, parallel.tp) if first else []
    if last:
        tied = model.tied_embeddings and first
        found += [op for op in last_operations(model, parallel.tp) if not (tied and op.matrices)]
    return _holding(found)


def together(holdings: Sequence[tuple[Holding, Number]]) -> Holding:
    """Holdings, each so many times."""
    matrices = [replace(matrix, count=matrix.count * times) for holding, times in holdings for matrix in holding.matrices]
    vectors = sum(holding.vectors * times for holding, times in holdings)
    return Holding(tuple(matrices), vectors, sum(holding.expert_vectors * times for holding, times in holdings))
