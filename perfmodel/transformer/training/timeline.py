"""Bytes over one step: forward, backward, optimizer; the worst moment and what is allocated then.

Moments follow each other on one GPU. With several micro-batches the worst is one of the later ones: gradients of the earlier ones
are there, and in a pipeline the activations of those that are on their way (1F1B).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.transformer.layer import EMBEDDING, HEAD
from perfmodel.transformer.training.blocks import Block, chunk_blocks, end_block
from perfmodel.transformer.training.implementations import FUSED, implementation_named
from perfmodel.transformer.training.matrices import bare, candidates, chunks_of, in_flight
from perfmodel.transformer.training.question import FREED, Training
from perfmodel.transformer.training.recorder import TOKEN_SIZE
from perfmodel.transformer.training.shape import Shape, shape_of
from perfmodel.transformer.training.state import State, state_bytes
from perfmodel.transformer.training.tape import Pass

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
LAYER = "layer"


@dataclass(frozen=True, slots=True)
class Moment:
    """A part of the step: ``start`` and ``bytes`` at its two ends, ``high`` at the most in it, reached in operation ``at``.

    ``gradients``: of weights, bytes that are there when the block with the most begins. ``count``: equal blocks of layers in it.
    """

    phase: str
    where: str
    start: Number
    bytes: Number
    high: Number
    at: str
    gradients: Number = 0
    count: int = 1

    def highs(self) -> list[Number]:
        """The most of each block; bytes change by as much from one to the next."""
        step = (self.bytes - self.start) / self.count
        worst = self.count - 1 if step > 0 else 0
        return [self.high - step * (worst - index) for index in range(self.count)]

    @property
    def title(self) -> str:
        """Phase, place and operation in words."""
        return ", ".join(filter(None, (self.phase, self.at or self.where)))


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that is allocated on the fullest GPU, and when. ``moments``: the timeline of its step.

    ``gradients``, ``activations``: what the peak holds besides the weights and the optimizer's part of ``state``; ``stored``: bytes
    of activations that wait for their backward pass when a forward pass ends.
    """

    bytes: Number
    moment: Moment
    stage: int
    state: State
    gradients: Number
    activations: Number
    stored: Number
    moments: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """Blocks in a row: embedding, head, or layers from number ``first`` on."""

    name: str
    first: int
    block: Block

    def number(self, index: int) -> str:
        """Which block is meant by the ``index``-th of them."""
        if self.name != LAYER:
            return self.name
        begin = self.first + index * self.block.layers
        return f"layer {begin + 1}" if self.block.layers == 1 else f"layers {begin + 1} to {begin + self.block.layers}"

    @property
    def title(self) -> str:
        """All of them."""
        end = self.first + self.block.count * self.block.layers
        return self.number(0) if self.name != LAYER or end == self.first + 1 else f"layers {self.first + 1} to {end}"

    def run(self, phase: str, level: Number, gradients: Number) -> Moment:
        """One pass over them, from ``level`` on. Bytes change by as much in each, so that the worst is the first or the last.

        ``gradients``: bytes of those of weights that are there before it.
        """
        once: Pass = self.block.forward if phase == FORWARD else self.block.backward
        last = self.block.count - 1
        end = last if once.net > 0 else 0
        worst = end if phase == FORWARD else last - end
        return Moment(
            phase=phase,
            where=self.title,
            start=level,
            bytes=level + once.net * (last + 1),
            high=level + once.net * end + once.high,
            at=f"{self.number(worst)}, {once.at}" if once.at else self.number(worst),
            gradients=gradients + (end * self.block.gradients if phase == BACKWARD else 0),
            count=last + 1,
        )


@dataclass(frozen=True, slots=True)
class _Stage:
    """One GPU's part of the work on a micro-batch: ``chunks`` of parts, of which so many micro-batches are in ``flight``.

    ``held``: bytes that are there all the time, ``gradients`` those of gradients among them; ``stream``: of what passes between stages;
    ``waiting``: those of a micro-batch from after the embedding until before its backward pass, besides what the tapes say.
    """

    state: State
    held: Number
    waiting: Number
    gradients: Number
    stream: Number
    chunks: list[list[_Part]]
    flight: list[int]

    def unit(self, chunk: int) -> Number:
        """Bytes that a micro-batch leaves between its two passes through a chunk; what was sent on is freed."""
        first, last = self.chunks[chunk][0], self.chunks[chunk][-1]
        received = 0 if first.name == EMBEDDING else self.stream
        sent = 0 if last.name == HEAD else self.stream
        return received + sum(part.block.forward.net * part.block.count for part in self.chunks[chunk]) - sent

    @property
    def stored(self) -> Number:
        """All that waits for its backward pass."""
        return sum(count * self.unit(chunk) for chunk, count in enumerate(self.flight))

    def walk(self, chunk: int) -> Iterator[Moment]:
        """Forward and backward of one micro-batch through ``chunk``, the other ones waiting."""
        parts = self.chunks[chunk]
        received = 0 if parts[0].name == EMBEDDING else self.stream
        level = self.held + self.stored - self.unit(chunk) + received
        gradients = self.gradients
        for part in parts:
            moment = part.run(FORWARD, level, gradients)
            yield moment
            level = moment.bytes + (self.waiting if part.name == EMBEDDING else 0)
        for part in reversed(parts):
            level -= self.waiting if part.name == EMBEDDING else 0
            moment = part.run(BACKWARD, level, gradients)
            yield moment
            level = moment.bytes
            gradients += part.block.gradients * part.block.count


def _stage(training: Training, shape: Shape, stage: int, implementation: str) -> _Stage:
    model, parallel = training.model, training.parallel
    frame, made = bare(model), implementation_named(implementation)
    state = state_bytes(training, stage)
    stays = training.gradient_life != FREED or training.micro_batches > 1
    buffers = state.gradients if stays else 0
    chunks: list[list[_Part]] = []
    for first, runs in chunks_of(model, parallel, stage):
        parts, begin = [], first
        for block in chunk_blocks(frame, runs, shape, training.recompute, implementation):
            parts.append(_Part(LAYER, begin, block))
            begin += block.count * block.layers
        chunks.append(parts)
    if stage == 0:
        chunks[0].insert(0, _Part(EMBEDDING, 0, end_block(frame, shape, implementation, EMBEDDING)))
    if stage == parallel.pp - 1:
        chunks[-1].append(_Part(HEAD, 0, end_block(frame, shape, implementation, HEAD)))
    tokens = 0 if stage else TOKEN_SIZE * shape.tokens
    held = state.weights + state.optimizer + buffers + tokens + made.constant(frame, shape)
    waiting = made.waiting(frame, shape, training.recompute)
    stream = shape.own_tokens * shape.hidden * shape.size
    return _Stage(state, held, waiting, buffers, stream, chunks, in_flight(parallel, stage, training.micro_batches))


def _optimizer(part: _Stage) -> Moment:
    """The optimizer's step: no activations, all gradients."""
    level = part.held - part.gradients + part.state.gradients
    return Moment(OPTIMIZER, "", level, level, level + part.state.temporary, "", part.state.gradients)


def _moments(part: _Stage) -> tuple[Moment, ...]:
    walks = [tuple(part.walk(chunk)) for chunk, count in enumerate(part.flight) if count]
    return (*max(walks, key=lambda walk: max(moment.high for moment in walk)), _optimizer(part))


def peak(training: Training, implementation: str = FUSED) -> Peak:
    """The worst moment on the fullest GPU: all bytes allocated then, weights and optimizer included."""
    shape, found = shape_of(training), []
    for stage in candidates(training.model, training.parallel):
        part = _stage(training, shape, stage, implementation)
        moments = _moments(part)
        worst = max(moments, key=lambda moment: moment.high)
        found.append((worst.high, -stage, worst, part, moments))
    bytes_, stage, worst, part, moments = max(found, key=lambda row: row[:2])
    return Peak(
        bytes=bytes_,
        moment=worst,
        stage=-stage,
        state=part.state,
        gradients=worst.gradients,
        activations=bytes_ - part.state.weights - part.state.optimizer - worst.gradients,
        stored=part.stored,
        moments=moments,
    )
