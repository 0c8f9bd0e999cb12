"""Forward and backward over what is recomputed together: a layer, a segment of layers, or an end of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.core.arith import Number, ceil_div
from perfmodel.transformer.layer import HEAD
from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.training.implementations import end_tape, layer_tape
from perfmodel.transformer.training.matrices import Holding, Run, layer_holding, table_holding
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE, Recomputation, Shape
from perfmodel.transformer.training.tape import Tape, TapePass, backward, forward


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
