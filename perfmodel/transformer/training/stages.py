"""Which layers a pipeline stage holds, and how many micro-batches are on their way through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from perfmodel.core.arith import Number
from perfmodel.transformer.parallel import stages
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training.matrices import Holding, layer_holding, table_holding, together
from perfmodel.transformer.training.question import Parallel

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
    layers = [(layer_holding(frame, layer, parallel), count) for layer, count in counts.items()]
    return together([*layers, (table_holding(frame, parallel, first=first, last=last), 1)])
