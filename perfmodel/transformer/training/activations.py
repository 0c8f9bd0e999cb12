"""What is kept from the forward to the backward pass, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.core.arith import Number
from perfmodel.transformer.spec import Layer, ModelSpec, MoeMlp
from perfmodel.transformer.training.implementations import FUSED, implementation_named
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE, Recomputation, TrainingConfig
from perfmodel.transformer.training.shape import Shape, shape_of
from perfmodel.transformer.training.stages import Run, bare, chunks_of, in_flight
from perfmodel.transformer.training.tape import Tape

EMBEDDING, HEAD = "embedding", "head"


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that micro-batches leave on one GPU. ``where``: embedding, head, or the kind of layer; ``count``: how many there are.

    ``freed_by``: the operation whose backward pass is the last to need it.
    """

    where: str
    part: str
    name: str
    bytes: Number
    count: int
    freed_by: str


def kind_title(layer: Layer) -> str:
    """What tells a kind of layer from another.

    >>> from perfmodel.transformer.spec import DenseMlp, GroupedAttention
    >>> kind_title(Layer(GroupedAttention(8, 2, 64, window=4096), DenseMlp(2048)))
    'layer: GQA, window 4096, MLP'
    """
    window = "" if layer.attention.window is None else f", window {layer.attention.window}"
    return f"layer: {layer.attention.kind}{window}, {'experts' if isinstance(layer.mlp, MoeMlp) else 'MLP'}"


def kind_titles(layers: Iterable[Layer]) -> dict[Layer, str]:
    """A title for each kind of layer; those of equal words are numbered."""
    found: dict[Layer, str] = {}
    for layer in layers:
        if layer not in found:
            title, number = kind_title(layer), 1
            while title in found.values():
                number += 1
                title = f"{kind_title(layer)} ({number})"
            found[layer] = title
    return found


@lru_cache(maxsize=2048)
def layer_tape(frame: ModelSpec, layer: Layer, shape: Shape, implementation: str = FUSED, selective: bool = False) -> Tape:
    """The tape of ``layer`` of the model ``frame``; ``selective``: the attention core runs again."""
    made = implementation_named(implementation)
    tape = made.layer(frame, layer, shape)
    return replace(tape, again=made.core & {node.name for node in tape.nodes}) if selective else tape


@lru_cache(maxsize=512)
def end_tape(frame: ModelSpec, shape: Shape, implementation: str, where: str) -> Tape:
    """The tape of the embedding or the head."""
    made = implementation_named(implementation)
    return made.head(frame, shape) if where == HEAD else made.embedding(frame, shape)


def kept(training: TrainingConfig, stage: int = 0, implementation: str = FUSED) -> list[Kept]:
    """Tensors that wait for their backward pass on a GPU of pipeline stage ``stage``, in the order in which they are made.

    Counts are over all micro-batches that are on their way through it.
    """
    shape, frame, parallel = shape_of(training), bare(training.model), training.parallel
    flight = in_flight(parallel, stage, training.micro_batches)
    found = _of(end_tape(frame, shape, implementation, EMBEDDING), EMBEDDING, flight[0]) if stage == 0 else []
    counts, chunks = dict[Layer, int](), [chunk for _, chunk in chunks_of(training.model, parallel, stage)]
    for chunk, times in zip(chunks, flight, strict=True):
        for layer in _whose(chunk, training.recompute):
            counts[layer] = counts.get(layer, 0) + times
    titles = kind_titles(layer for chunk in chunks for layer, _ in chunk)
    for layer, count in counts.items():
        tape = layer_tape(frame, layer, shape, implementation, training.recompute.kind == SELECTIVE)
        found += [_input(tape, titles[layer], count)] if training.recompute.kind in (FULL, EVERY) else _of(tape, titles[layer], count)
    return found + (_of_head(end_tape(frame, shape, implementation, HEAD), flight[-1]) if stage == parallel.pp - 1 else [])


def _whose(chunk: Sequence[Run], recompute: Recomputation) -> list[Layer]:
    """Layers of ``chunk`` that leave something: each, or the first of each segment."""
    layers = [layer for layer, count in chunk for _ in range(count)]
    return layers[:: recompute.every] if recompute.kind == EVERY else layers


def _of(tape: Tape, where: str, count: int) -> list[Kept]:
    return [
        Kept(where, tape.parts[name], name, tape.sizes[name], count, freed_by)
        for name, freed_by in tape.saved().items()
        if tape.sizes[name]
    ]


def _of_head(tape: Tape, count: int) -> list[Kept]:
    """What the head keeps, and the loss, with which the backward pass begins."""
    loss = tape.out
    found = _of(tape, HEAD, count)
    return found if loss in tape.saved() else [*found, Kept(HEAD, tape.parts[loss], loss, tape.sizes[loss], count, tape.nodes[-1].name)]


def _input(tape: Tape, where: str, count: int) -> Kept:
    return Kept(where, tape.parts[tape.stream], tape.stream, tape.sizes[tape.stream], count, "recomputation")
