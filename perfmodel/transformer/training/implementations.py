"""Whose training loop is meant: each says what it records of every operation. To add one is to add its recorder here.

``LayerBlock``: forward and backward over what is recomputed together: a layer, a segment of layers, or an end of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.errors import UsageError, suggest
from perfmodel.transformer.layer import EMBEDDING, HEAD
from perfmodel.transformer.spec import Layer, ModelSpec, MoeMlp
from perfmodel.transformer.training.huggingface import HuggingFace
from perfmodel.transformer.training.matrices import Holding, Run, bare, chunks_of, in_flight, layer_holding, table_holding
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE, Recomputation, Shape, TrainingConfig, shape_of
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import Tape, TapePass, backward, forward

FUSED, HUGGINGFACE = "fused", "huggingface"


Implementation = type[Recorder]
IMPLEMENTATIONS: dict[str, Implementation] = {FUSED: Recorder, HUGGINGFACE: HuggingFace}


def implementation_named(name: str) -> Implementation:
    """The implementation called ``name``; UsageError with the nearest names otherwise."""
    if name not in IMPLEMENTATIONS:
        raise UsageError(f"--implementation: unknown implementation {name!r}", suggest(name, list(IMPLEMENTATIONS)))
    return IMPLEMENTATIONS[name]


@lru_cache(maxsize=2048)
def layer_tape(frame: ModelSpec, layer: Layer, shape: Shape, implementation: str = FUSED, selective: bool = False) -> Tape:
    """The tape of ``layer`` of the model ``frame``; ``selective``: the attention core runs again."""
    return implementation_named(implementation).layer(frame, layer, shape, selective=selective)


@lru_cache(maxsize=512)
def end_tape(frame: ModelSpec, shape: Shape, implementation: str, where: str) -> Tape:
    """The tape of the embedding or the head."""
    return implementation_named(implementation).end(frame, shape, where)


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


def kept(training: TrainingConfig, stage: int = 0, implementation: str = FUSED) -> list[Kept]:
    """Tensors that wait for their backward pass on a GPU of pipeline stage ``stage``, in the order in which they are made.

    Counts are over all micro-batches that are on their way through it.
    """
    shape, frame, parallel = shape_of(training), bare(training.model), training.parallel
    flight = in_flight(parallel, stage, training.micro_batches)
    found: list[Kept] = []

    def add(tape: Tape, where: str, count: int, names: dict[str, str]) -> None:
        sizes = {name: tape.sizes[name] for name in names if tape.sizes[name]}
        found.extend(Kept(where, tape.parts[name], name, size, count, names[name]) for name, size in sizes.items())

    if stage == 0:
        tape = end_tape(frame, shape, implementation, EMBEDDING)
        add(tape, EMBEDDING, flight[0], tape.saved())
    counts, chunks = dict[Layer, int](), [chunk for _, chunk in chunks_of(training.model, parallel, stage)]
    for chunk, times in zip(chunks, flight, strict=True):
        for layer in _whose(chunk, training.recompute):
            counts[layer] = counts.get(layer, 0) + times
    titles = kind_titles(layer for chunk in chunks for layer, _ in chunk)
    for layer, count in counts.items():
        tape = layer_tape(frame, layer, shape, implementation, training.recompute.kind == SELECTIVE)
        add(tape, titles[layer], count, {tape.stream: "recomputation"} if training.recompute.kind in (FULL, EVERY) else tape.saved())
    if stage == parallel.pp - 1:
        tape = end_tape(frame, shape, implementation, HEAD)
        names = tape.saved()
        names.setdefault(tape.out, tape.nodes[-1].name)  # the backward pass begins with the loss
        add(tape, HEAD, flight[-1], names)
    return found


def _whose(chunk: Sequence[Run], recompute: Recomputation) -> list[Layer]:
    """Layers of ``chunk`` that leave something: each, or the first of each segment."""
    layers = [layer for layer, count in chunk for _ in range(count)]
    return layers[:: recompute.every] if recompute.kind == EVERY else layers


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """Both passes over ``layers`` layers, ``count`` times in a row. ``gradients``: bytes that stay of those of its weights."""

    forward: TapePass
    backward: TapePass
    gradients: Number
    layers: int = 1
    count: int = 1


def chunk_blocks(frame: ModelSpec, runs: Sequence[Run], shape: Shape, recompute: Recomputation, implementation: str) -> list[LayerBlock]:
    """The layers of ``runs`` in order, as blocks."""
    if recompute.kind != EVERY or recompute.every == 1:
        kind = FULL if recompute.kind == EVERY else recompute.kind
        return [replace(_segment(frame, (layer,), shape, kind, implementation), count=count) for layer, count in runs]
    layers = [layer for layer, count in runs for _ in range(count)]
    segments = [tuple(layers[start : start + recompute.every]) for start in range(0, len(layers), recompute.every)]
    found: list[LayerBlock] = []
    for segment in segments:
        block = _segment(frame, segment, shape, FULL, implementation)
        if found and found[-1].forward is block.forward:
            found[-1] = replace(block, count=found[-1].count + 1)
        else:
            found.append(block)
    return found


@lru_cache(maxsize=2048)
def _segment(frame: ModelSpec, layers: tuple[Layer, ...], shape: Shape, kind: str, implementation: str) -> LayerBlock:
    tapes = [layer_tape(frame, layer, shape, implementation, kind == SELECTIVE) for layer in layers]
    holdings = [layer_holding(frame, layer, shape.parallel) for layer in layers]
    forwards, backwards = forward(tapes[0]), [backward(tape) for tape in reversed(tapes)]
    if kind == FULL:  # forward keeps no more than what enters the first; all of it runs once more before the backward pass
        forwards = _chained(forward(tape, {tape.stream} if index == 0 else ()) for index, tape in enumerate(tapes))
        again = [replace(once, at=f"{once.at}, again") for once in map(forward, tapes)]
        needless = TapePass(0, -tapes[-1].sizes[tapes[-1].out], "")  # the last output
        backwards = [*again, needless, *backwards]
    return _block(tapes, holdings, forwards, _chained(backwards), shape)


def _chained(passes: Iterable[TapePass]) -> TapePass:
    """Passes one after the other."""
    level: Number = 0
    high, at = level, ""
    for once in passes:
        if level + once.high > high:
            high, at = level + once.high, once.at
        level += once.net
    return TapePass(high, level, at)


def _block(tapes: Sequence[Tape], holdings: Sequence[Holding], forwards: TapePass, backwards: TapePass, shape: Shape) -> LayerBlock:
    """Both passes, beside the weights that ZeRO's third stage puts together for a while, beyond the GPU's own share."""
    copies = shape.parallel.dp * shape.parallel.cp
    elements = [holding.parameters - ceil_div(holding.parameters, copies) for holding in holdings if shape.parallel.zero == 3]
    gathered = shape.size * max(elements, default=0)
    forwards, backwards = (replace(once, high=once.high + gathered) for once in (forwards, backwards))
    return LayerBlock(forwards, backwards, sum(node.gradients for tape in tapes for node in tape.nodes), len(holdings))


@lru_cache(maxsize=512)
def end_block(frame: ModelSpec, shape: Shape, implementation: str, where: str) -> LayerBlock:
    """The embedding or the head. A head starts its own backward pass, with a gradient of 1."""
    tape = end_tape(frame, shape, implementation, where)
    holding = table_holding(frame, shape.parallel, first=where != HEAD, last=where == HEAD)
    return _block([tape], [holding], forward(tape), backward(tape), shape)
