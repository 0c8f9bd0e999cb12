"""What is kept from the forward to the backward pass, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.arith import Number
from perfmodel.transformer.spec import Layer, ModelSpec, MoeMlp
from perfmodel.transformer.training.implementations import FUSED, implementation_named
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE, Training
from perfmodel.transformer.training.shape import Shape, shape_of
from perfmodel.transformer.training.stages import bare, chunks_of
from perfmodel.transformer.training.tape import Tape

EMBEDDING, HEAD = "embedding", "head"


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that one micro-batch leaves on one GPU. ``where``: embedding, head, or the kind of layer; ``count``: how many there are.

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


def kept(training: Training, stage: int = 0, implementation: str = FUSED) -> list[Kept]:
    """Tensors that a micro-batch leaves on a GPU of pipeline stage ``stage``, in the order in which they are made."""
    shape, frame, last = shape_of(training), bare(training.model), training.parallel.pp - 1
    found = _of(end_tape(frame, shape, implementation, EMBEDDING), EMBEDDING, 1) if stage == 0 else []
    counts: dict[Layer, int] = {}
    for _, chunk in chunks_of(training.model, training.parallel, stage):
        for layer, count in chunk:
            counts[layer] = counts.get(layer, 0) + count
    recompute, titles = training.recompute, kind_titles(counts)
    for layer, count in counts.items():
        tape = layer_tape(frame, layer, shape, implementation, recompute.kind == SELECTIVE)
        if recompute.kind in (FULL, EVERY):
            found.append(_input(tape, titles[layer], -(-count // (recompute.every if recompute.kind == EVERY else 1))))
        else:
            found += _of(tape, titles[layer], count)
    return found + (_of(end_tape(frame, shape, implementation, HEAD), HEAD, 1) if stage == last else [])


def _of(tape: Tape, where: str, count: int) -> list[Kept]:
    return [
        Kept(where, tape.parts[name], name, tape.sizes[name], count, freed_by)
        for name, freed_by in tape.saved().items()
        if tape.sizes[name]
    ]


def _input(tape: Tape, where: str, count: int) -> Kept:
    return Kept(where, tape.parts[tape.stream], tape.stream, tape.sizes[tape.stream], count, "recomputation")
