"""What one GPU holds: the layers of its pipeline stage, their matrices one by one, and all else that is learned as vectors.

Adapters, factored second moments and Muon all go by the shape of a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

from perfmodel.core.arith import Number
from perfmodel.transformer.layer import EXPERTS, Matrix, Operation, first_operations, last_operations, operations
from perfmodel.transformer.parallel import stages
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


def _learned(found: Sequence[Operation]) -> Holding:
    """What operations learn."""
    in_experts = sum(op.vectors for op in found if op.part == EXPERTS)
    return Holding(tuple(matrix for op in found for matrix in op.matrices), sum(op.vectors for op in found), in_experts)


def layer_holding(model: ModelSpec, layer: Layer, parallel: Parallel) -> Holding:
    """All parameters of ``layer`` on one GPU."""
    return _learned(operations(model, layer, parallel.tp, parallel.ep))


def table_holding(model: ModelSpec, parallel: Parallel, *, first: bool, last: bool) -> Holding:
    """Embedding and positions of the first stage, last norm and head of the last; a tied head has a copy where stages differ."""
    found = first_operations(model, parallel.tp) if first else []
    if last:
        tied = model.tied_embeddings and first
        found += [op for op in last_operations(model, parallel.tp) if not (tied and op.matrices)]
    return _learned(found)


Run = tuple[Layer, int]


def runs_of(layers: Sequence[Layer]) -> list[Run]:
    """Equal layers in a row, with their number.

    >>> from perfmodel.transformer.spec import DenseMlp, GroupedAttention
    >>> one, other = Layer(GroupedAttention(8, 8, 64), DenseMlp(2048)), Layer(GroupedAttention(8, 2, 64), DenseMlp(2048))
    >>> [count for _, count in runs_of([one, one, other, one])]
    [2, 1, 1]
    """
    found: list[Run] = []
    for layer in layers:
        if found and (layer is found[-1][0] or layer == found[-1][0]):
            found[-1] = (layer, found[-1][1] + 1)
        else:
            found.append((layer, 1))
    return found


def chunks_of(model: ModelSpec, parallel: Parallel, stage: int) -> list[tuple[int, list[Run]]]:
    """The consecutive layers that ``stage`` holds, with the index of the first: one chunk, or every ``pp``-th of several."""
    if parallel.pp == 1:
        return [(0, runs_of(model.layers))]
    chunks = stages(model, parallel.pp * parallel.interleave)
    starts = [0, *accumulate(len(chunk) for chunk in chunks)]
    return [(starts[index], runs_of(chunks[index])) for index in range(stage, len(chunks), parallel.pp)]


def candidates(model: ModelSpec, parallel: Parallel) -> list[int]:
    """Stages among which is the fullest: of equal layers the first holds the most micro-batches, and the last the head."""
    if parallel.pp == 1:
        return [0]
    return [0, parallel.pp - 1] if len(runs_of(model.layers)) == 1 else list(range(parallel.pp))


def in_flight(parallel: Parallel, stage: int, micro_batches: Number) -> list[int]:
    """Micro-batches whose activations a stage holds at most, for each of its chunks (1F1B; Narayanan et al. 2021, section 2.2).

    Without interleaving stage i of p holds p - i; with m chunks each, the warm-up is 2 (p - i - 1) + (m - 1) p chunks, and one more.

    >>> in_flight(Parallel(pp=4), 0, 8), in_flight(Parallel(pp=4), 3, 8), in_flight(Parallel(pp=4), 0, 2)
    ([4], [1], [2])
    >>> in_flight(Parallel(pp=4, interleave=2), 0, 8)
    [7, 4]
    """
    pp, turns = parallel.pp, parallel.interleave
    if turns == 1:
        return [int(min(pp - stage, micro_batches))]
    started = int(min(2 * (pp - stage - 1) + (turns - 1) * pp + 1, micro_batches * turns))
    rounds, rest = divmod(started, pp * turns)
    return [rounds * pp + min(max(rest - turn * pp, 0), pp) for turn in range(turns)]


def bare(model: ModelSpec) -> ModelSpec:
    """``model`` with its first layer only: what a layer needs to know of it, quick to compare."""
    return replace(model, layers=model.layers[:1])


def stage_holding(model: ModelSpec, parallel: Parallel, stage: int) -> Holding:
    """Parameters that one GPU of ``stage`` holds."""
    runs = tuple(run for _, chunk in chunks_of(model, parallel, stage) for run in chunk)
    return _holding(bare(model), runs, parallel.tp, parallel.ep, stage == 0, stage == parallel.pp - 1)


@lru_cache(maxsize=4096)
def _holding(frame: ModelSpec, runs: tuple[Run, ...], tp: int, ep: int, first: bool, last: bool) -> Holding:
    parallel = Parallel(tp=tp, ep=ep)
    counts: dict[Layer, int] = {}
    for layer, count in runs:
        counts[layer] = counts.get(layer, 0) + count
    ends = table_holding(frame, parallel, first=first, last=last)
    held = [(ends, 1), *((layer_holding(frame, layer, parallel), count) for layer, count in counts.items())]
    matrices = tuple(replace(matrix, count=matrix.count * times) for each, times in held for matrix in each.matrices)
    vectors, in_experts = (sum(getattr(each, name) * times for each, times in held) for name in ("vectors", "expert_vectors"))
    return Holding(matrices, vectors, in_experts)
