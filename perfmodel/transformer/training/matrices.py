"""Sizes on one GPU: its micro-batch, the layers of its stage, their matrices and vectors, adapters.

Adapters, factored second moments and Muon all go by the shape of a matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import TypeVar

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.layer import operations_at
from perfmodel.transformer.operation import ATTENTION, EMBEDDING, EXPERTS, HEAD, HEAD_ROW, MLP, Matrix
from perfmodel.transformer.parallel import stages
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.step import share
from perfmodel.transformer.training.question import ALL, ATTENTION_ONLY, Parallel, TrainingConfig

Item = TypeVar("Item")
Places = tuple[tuple[Layer | str, int], ...]
"""The embedding, kinds of layers and the head, each with its number."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a layer on one GPU. ``model``: the model with its first layer alone.

    ``tokens``: tokens of a micro-batch; a sequence-parallel GPU holds ``tokens / sp``. ``length``: tokens of a sequence on one GPU;
    ``keys``: tokens of the whole sequence. ``size``: bytes of an activation element, and of a weight's gradient when it is computed.
    ``kept_gradient``: bytes of a gradient element after the layer's backward pass; 0 if it is added to a buffer or applied at once.
    ``rank``, ``targets``: of adapters. ``parallel``: how a layer is divided; in it ``dp`` is the number of GPUs that divide the gradients,
    and ``pp`` only says whether there are stages, so that layouts which differ in nothing else share their tapes.
    """

    model: ModelSpec
    tokens: Number
    length: Number
    keys: Number
    size: int
    flash: bool
    dropout: bool
    rank: int | None
    targets: str
    parallel: Parallel
    kept_gradient: int

    @property
    def hidden(self) -> Number:
        """Features of the residual stream."""
        return self.model.hidden

    @property
    def cp(self) -> Number:
        """GPUs that share each sequence."""
        return self.keys // self.length

    @property
    def sp(self) -> int:
        """GPUs that share the tokens outside of matrices."""
        return self.parallel.tp if self.parallel.sp else 1

    @property
    def local_tokens(self) -> Number:
        """Tokens outside of matrices on one GPU."""
        return share(self.tokens, self.sp)

    @property
    def sequences(self) -> Number:
        """Sequences of the micro-batch."""
        return self.tokens // self.length


def shape_of(training: TrainingConfig) -> Shape:
    """Sizes of a micro-batch of ``training``."""
    t, p = training, training.parallel
    shards = p.dp * p.cp if p.zero >= 2 else 1
    return Shape(
        model=replace(t.model, layers=t.model.layers[:1]),
        tokens=t.tokens,
        length=t.length,
        keys=t.n,
        size=t.size,
        flash=t.flash,
        dropout=t.dropout,
        rank=t.lora,
        targets=t.lora_targets,
        parallel=Parallel(p.tp, p.sp, min(p.pp, 2), ep=p.ep, dp=shards, zero=p.zero if shards > 1 else 0),
        kept_gradient=0 if t.buffers_gradients else sum(t.gradient_sizes.values()),
    )


@dataclass(frozen=True, slots=True)
class Holding:
    """Parameters on a GPU: matrices one by one, and the elements of all vectors. ``expert_vectors``: elements of experts' vectors.

    ``experts``: parameters that expert-parallel GPUs divide; ``parameters``: all parameters.
    """

    matrices: tuple[Matrix, ...]
    vectors: Number = 0
    expert_vectors: Number = 0
    experts: Number = field(init=False, compare=False)
    parameters: Number = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Computes the sums once, as a search reads them often."""
        in_experts = sum(matrix.elements for matrix in self.matrices if matrix.group == EXPERTS) + self.expert_vectors
        object.__setattr__(self, "experts", in_experts)
        object.__setattr__(self, "parameters", sum(matrix.elements for matrix in self.matrices) + self.vectors)


def stage_holding(model: ModelSpec, parallel: Parallel, stage: int) -> Holding:
    """Parameters that one GPU of ``stage`` holds."""
    return holding(replace(model, layers=model.layers[:1]), places_of(model, parallel, stage), parallel.tp, parallel.ep)


@lru_cache(maxsize=4096)
def holding(model: ModelSpec, places: Places, tp: int, ep: int) -> Holding:
    """Parameters on one GPU of ``places``, given with their numbers: layers, embedding and positions, last norm and head.

    A tied head has its own matrix only if the embedding is on another stage.
    """
    tied = model.tied_embeddings and (EMBEDDING, 1) in places
    operations = [(op, count) for where, count in places for op in operations_at(where, model, tp, ep)]
    if tied:
        operations = [(op, count) for op, count in operations if op.kernel != HEAD_ROW]
    matrices = tuple(replace(matrix, count=matrix.count * count) for op, count in operations for matrix in op.matrices)
    expert_vectors = sum(op.vectors * count for op, count in operations if op.part == EXPERTS)
    return Holding(matrices, sum(op.vectors * count for op, count in operations), expert_vectors)


# Adapters


QV_NAMES = ("Q", "V")
"""Names of the matrices that the paper adapts; in latent attention these are up projections."""


def is_targeted(matrix: Matrix, targets: str) -> bool:
    """Whether ``matrix`` has an adapter. Experts, routers and tables have none."""
    if targets == ALL:
        return matrix.group in (ATTENTION, MLP)
    return matrix.group == ATTENTION and (targets == ATTENTION_ONLY or matrix.name in QV_NAMES)


def adapters(holding: Holding, rank: int, targets: str) -> Holding:
    """LoRA's adapters: trained matrices a -> ``rank`` -> b beside each frozen one a -> b of ``holding``; ``targets``: qv, attention, all.

    Source: Hu et al. 2021, arXiv 2106.09685.

    >>> adapters(Holding((Matrix("Q", "attention", 4096, 4096, 32),)), 8, "qv").parameters
    2097152
    """
    matrices = []
    for matrix in holding.matrices:
        if is_targeted(matrix, targets):
            matrices.append(Matrix(f"{matrix.name}, A", matrix.group, matrix.inputs, rank, matrix.count))
            matrices.append(Matrix(f"{matrix.name}, B", matrix.group, rank, matrix.outputs, matrix.count))
    return Holding(tuple(matrices))


# Pipeline stages


def runs_of(items: Sequence[Item]) -> list[tuple[Item, int]]:
    """Consecutive equal items, each with its number.

    >>> runs_of("aaba")
    [('a', 2), ('b', 1), ('a', 1)]
    """
    return [(item, len(list(alike))) for item, alike in groupby(items)]


def chunks_of(model: ModelSpec, parallel: Parallel, stage: int) -> list[tuple[int, tuple[Layer, ...]]]:
    """The consecutive layers that ``stage`` holds, with the index of the first: one chunk, or every ``pp``-th of several."""
    chunks = stages(model, parallel.pp * parallel.interleave)
    starts = [0, *accumulate(len(chunk) for chunk in chunks)]
    return list(zip(starts, chunks, strict=False))[stage :: parallel.pp]


def stage_layers(model: ModelSpec, parallel: Parallel, stage: int | None = None) -> dict[Layer, int]:
    """The different layers of ``stage``, or of the whole model, each with its number."""
    if stage is None:
        return dict(model.layer_kinds)
    counts = Counter[Layer]()
    for _, layers in chunks_of(model, parallel, stage):
        for layer, count in runs_of(layers):
            counts[layer] += count
    return counts


def places_of(model: ModelSpec, parallel: Parallel, stage: int | None = None) -> Places:
    """The embedding, layers and head of ``stage``, or of the whole model, in order."""
    places: list[tuple[Layer | str, int]] = [*stage_layers(model, parallel, stage).items()]
    if stage in (None, 0):
        places.insert(0, (EMBEDDING, 1))
    if stage in (None, parallel.pp - 1):
        places.append((HEAD, 1))
    return tuple(places)


def fullest_stages(model: ModelSpec, pp: int) -> list[int]:
    """Candidates for the fullest stage: of equal layers the first (most micro-batches) and the last (the head)."""
    return sorted({0, pp - 1}) if len(model.layer_kinds) == 1 else list(range(pp))


def slowest_stages(model: ModelSpec, pp: int) -> list[int]:
    """Candidates for the slowest stage: with equal layers the first, the last, and one between."""
    return sorted({*fullest_stages(model, pp), min(1, pp - 1)})


def in_flight(parallel: Parallel, stage: int, micro_batches: Number) -> list[int]:
    """Most micro-batches whose activations a stage holds, for each of its chunks (1F1B; Narayanan et al. 2021, section 2.2).

    Without interleaving stage i of p holds p - i. With m chunks each, it has begun 2 (p - i - 1) + (m - 1) p + 1 chunks before the first
    ends; micro-batches pass the chunks in groups of p.

    >>> in_flight(Parallel(pp=4), 0, 8), in_flight(Parallel(pp=4), 3, 8), in_flight(Parallel(pp=4), 0, 2)
    ([4], [1], [2])
    >>> in_flight(Parallel(pp=4, interleave=2), 0, 8)
    [7, 4]
    """
    pp, chunks = parallel.pp, parallel.interleave
    if chunks == 1:
        return [int(min(pp - stage, micro_batches))]
    begun = int(min(2 * (pp - stage - 1) + (chunks - 1) * pp + 1, micro_batches * chunks))
    whole_groups, begun_of_group = divmod(begun, pp * chunks)
    return [whole_groups * pp + min(max(begun_of_group - chunk * pp, 0), pp) for chunk in range(chunks)]
