"""Forward and backward over what is recomputed together: a layer, a segment of layers, or an end of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.core.arith import Number, ceil_div
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training.activations import HEAD, end_tape, layer_tape
from perfmodel.transformer.training.matrices import layer_holding, table_holding
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE, Recomputation
from perfmodel.transformer.training.shape import Shape
from perfmodel.transformer.training.stages import Run
from perfmodel.transformer.training.tape import Pass, Tape, backward, forward


@dataclass(frozen=True, slots=True)
class Block:
    """Both passes over ``layers`` layers, ``count`` times in a row. ``gradients``: bytes that stay of those of its weights."""

    forward: Pass
    backward: Pass
    gradients: Number
    layers: int = 1
    count: int = 1


def chunk_blocks(frame: ModelSpec, runs: Sequence[Run], shape: Shape, recompute: Recomputation, implementation: str) -> list[Block]:
    """The layers of ``runs`` in order, as blocks."""
    if recompute.kind != EVERY or recompute.every == 1:
        kind = FULL if recompute.kind == EVERY else recompute.kind
        return [_times(_segment(frame, (layer,), shape, kind, implementation), count) for layer, count in runs]
    layers = [layer for layer, count in runs for _ in range(count)]
    segments = [tuple(layers[start : start + recompute.every]) for start in range(0, len(layers), recompute.every)]
    found: list[Block] = []
    for segment in segments:
        block = _segment(frame, segment, shape, FULL, implementation)
        if found and found[-1].forward is block.forward:
            found[-1] = _times(block, found[-1].count + 1)
        else:
            found.append(block)
    return found


def _times(block: Block, count: int) -> Block:
    return Block(block.forward, block.backward, block.gradients, block.layers, count)


@lru_cache(maxsize=2048)
def _segment(frame: ModelSpec, layers: tuple[Layer, ...], shape: Shape, kind: str, implementation: str) -> Block:
    tapes = [layer_tape(frame, layer, shape, implementation, kind == SELECTIVE) for layer in layers]
    gradients = sum(node.gradients for tape in tapes for node in tape.nodes)
    gathered = max(_gathered(layer_holding(frame, layer, shape.parallel).parameters, shape) for layer in layers)
    forwards, backwards = (_kept(tapes[0]) if kind != FULL else _bare(tapes)), _backward(tapes, again=kind == FULL)
    return Block(_more(forwards, gathered), _more(backwards, gathered), gradients, len(layers))


def _kept(tape: Tape) -> Pass:
    return forward(tape)


def _bare(tapes: list[Tape]) -> Pass:
    """Forward without keeping more than what enters the first."""
    level: Number = 0
    high, at = level, ""
    for index, tape in enumerate(tapes):
        once = forward(tape, {tape.stream} if index == 0 else ())
        if level + once.high > high:
            high, at = level + once.high, once.at
        level += once.net
    return Pass(high, level, at)


def _backward(tapes: list[Tape], *, again: bool) -> Pass:
    """Backward, after all of it has run forward ``again`` if nothing was kept."""
    level: Number = 0
    high, at = level, ""
    for tape in tapes if again else ():
        once = forward(tape)
        if level + once.high > high:
            high, at = level + once.high, f"{once.at}, again"
        level += once.net
    if again:
        level -= tapes[-1].sizes[tapes[-1].out]  # the last output is needed no more
    for tape in reversed(tapes):
        once = backward(tape)
        if level + once.high > high:
            high, at = level + once.high, once.at
        level += once.net
    return Pass(high, level, at)


def _gathered(parameters: Number, shape: Shape) -> Number:
    """Bytes of the weights that ZeRO's third stage puts together for a while, beyond the GPU's own share."""
    p = shape.parallel
    copies = p.dp * p.cp
    return shape.size * (parameters - ceil_div(parameters, copies)) if p.zero == 3 else 0


def _more(once: Pass, scratch: Number) -> Pass:
    return Pass(once.high + scratch, once.net, once.at) if scratch else once


@lru_cache(maxsize=512)
def end_block(frame: ModelSpec, shape: Shape, implementation: str, where: str) -> Block:
    """The embedding or the head. A head starts its own backward pass, with a gradient of 1."""
    tape = end_tape(frame, shape, implementation, where)
    holding = table_holding(frame, shape.parallel, first=where != HEAD, last=where == HEAD)
    gathered = _gathered(holding.parameters, shape)
    gradients = sum(node.gradients for node in tape.nodes)
    return Block(_more(forward(tape), gathered), _more(backward(tape), gathered), gradients)
