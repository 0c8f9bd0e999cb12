"""The training loops by name, what they save on a GPU, and the moments of a step.

Each training loop is a recorder of the tensors that its operations save; a new one is added here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import accumulate

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.transformer.operation import EMBEDDING, HEAD
from perfmodel.transformer.spec import Layer, MoeMlp
from perfmodel.transformer.training.huggingface import HuggingFace
from perfmodel.transformer.training.matrices import Shape, chunks_of, holding, in_flight, runs_of, shape_of
from perfmodel.transformer.training.question import FULL, SELECTIVE, Recomputation, TrainingConfig
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import Tape, TapePass, added, backward, chained, forward

FUSED, HUGGINGFACE = "fused", "huggingface"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
LAYER = "layer"


Implementation = type[Recorder]
IMPLEMENTATIONS: dict[str, Implementation] = {FUSED: Recorder, HUGGINGFACE: HuggingFace}


def implementation_named(name: str) -> Implementation:
    """The implementation called ``name``; UsageError with the nearest names otherwise."""
    if name not in IMPLEMENTATIONS:
        raise UsageError(f"--model-code: unknown implementation {name!r}", suggest(name, list(IMPLEMENTATIONS)))
    return IMPLEMENTATIONS[name]


@lru_cache(maxsize=2048)
def tape_of(where: Layer | str, shape: Shape, implementation: str = FUSED, selective: bool = False) -> Tape:
    """The tape of a layer, of the embedding or of the head; ``selective``: the attention core runs again."""
    return implementation_named(implementation).tape_of(where, shape, selective=selective)


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that micro-batches keep on one GPU. ``where``: embedding, head, or the kind of layer; ``count``: number of such tensors.

    ``freed_by``: the operation whose backward pass frees it.
    """

    where: str
    part: str
    name: str
    bytes: Number
    count: int
    freed_by: str


def kind_titles(layers: Iterable[Layer]) -> dict[Layer, str]:
    """A title for each kind of layer; equal titles are numbered.

    >>> from perfmodel.transformer.spec import DenseMlp, GroupedAttention
    >>> windows = [Layer(GroupedAttention(8, 2, 64, window=4096), DenseMlp(width)) for width in (2048, 4096)]
    >>> list(kind_titles(windows).values())
    ['layer: GQA, window 4096, MLP', 'layer: GQA, window 4096, MLP (2)']
    """
    titles, alike = dict[Layer, str](), Counter[str]()
    for layer in dict.fromkeys(layers):
        window = "" if layer.attention.window is None else f", window {layer.attention.window}"
        title = f"layer: {layer.attention.kind}{window}, {'experts' if isinstance(layer.mlp, MoeMlp) else 'MLP'}"
        alike[title] += 1
        titles[layer] = title if alike[title] == 1 else f"{title} ({alike[title]})"
    return titles


def saved_tensors(training: TrainingConfig, stage: int = 0, implementation: str = FUSED) -> list[Kept]:
    """Tensors saved for backward on a GPU of pipeline stage ``stage``, in the order in which they are computed.

    Counts include all micro-batches in flight.
    """
    shape, parallel, recompute = shape_of(training), training.parallel, training.recompute
    micro_batches, chunks = in_flight(parallel, stage, training.micro_batches), chunks_of(training.model, parallel, stage)
    titles = kind_titles(layer for _, chunk in chunks for layer in chunk)
    counts = Counter[Layer | str]({EMBEDDING: micro_batches[0]} if stage == 0 else {})
    for (_, chunk), count in zip(chunks, micro_batches, strict=True):
        for layer in chunk[:: recompute.every]:  # of a segment that runs again only the first layer keeps something
            counts[layer] += count
    if stage == parallel.pp - 1:
        counts[HEAD] = micro_batches[-1]
    kept: list[Kept] = []
    for where, count in counts.items():
        tape = tape_of(where, shape, implementation, recompute.kind == SELECTIVE)
        freed_by = {tape.stream: "recomputation"} if recompute.of_layers and isinstance(where, Layer) else tape.saved()
        if where == HEAD:
            freed_by.setdefault(tape.out, tape.nodes[-1].name)  # the backward pass begins with the loss
        title = titles[where] if isinstance(where, Layer) else where
        for name, operation in freed_by.items():
            if tape.sizes[name]:
                kept.append(Kept(title, tape.parts[name], name, tape.sizes[name], count, operation))
    return kept


@dataclass(frozen=True, slots=True)
class StepMoment:
    """A part of the step: the pass ``once`` over each of ``count`` equal blocks, which begins with ``start`` bytes allocated.

    ``at``: operation with the most bytes. ``gradients``: bytes of gradients of weights when the fullest block begins. ``saved``: bytes of
    tensors saved for the backward pass at the start of this part, by name.
    """

    phase: str
    where: str
    start: Number
    once: TapePass
    at: str = ""
    gradients: Number = 0
    count: int = 1
    saved: Mapping[str, Number] = field(default_factory=dict)

    @property
    def bytes(self) -> Number:
        """Bytes allocated at its end."""
        return self.start + self.once.net * self.count

    @property
    def high(self) -> Number:
        """Most bytes in it. Bytes change by the same amount from block to block, so the first or the last has the most."""
        return max(self.highs())

    def highs(self) -> list[Number]:
        """Most bytes of each block."""
        return [self.start + self.once.net * index + self.once.high for index in range(self.count)]

    def saved_in(self, index: int) -> dict[str, Number]:
        """Bytes of tensors saved for the backward pass, by name, at the peak of the ``index``-th block."""
        return added(added(self.saved, self.once.net_saved, index), self.once.high_saved)

    @property
    def title(self) -> str:
        """Phase, place and operation in words."""
        return ", ".join(filter(None, (self.phase, self.at or self.where)))


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """Both passes over a unit of recomputation: ``layers`` consecutive layers, the embedding or the head.

    ``count``: number of equal blocks in a row, from layer number ``first`` on. ``gradients``: bytes of a block's weight gradients that
    stay.
    """

    name: str
    forward: TapePass
    backward: TapePass
    gradients: Number
    layers: int = 1
    count: int = 1
    first: int = 0

    def number(self, index: int) -> str:
        """Phrase that distinguishes the ``index``-th block from its repetitions."""
        if self.name != LAYER:
            return self.name
        begin = self.first + index * self.layers
        return f"layer {begin + 1}" if self.layers == 1 else f"layers {begin + 1} to {begin + self.layers}"

    @property
    def title(self) -> str:
        """Title of all the layers of the block."""
        end = self.first + self.count * self.layers
        return self.number(0) if self.name != LAYER or end == self.first + 1 else f"layers {self.first + 1} to {end}"

    def run(self, phase: str, level: Number, gradients: Number, saved: Mapping[str, Number]) -> StepMoment:
        """Moment of one pass over the blocks. At its start, ``level`` bytes are allocated.

        ``gradients``: bytes of these that are gradients of weights; ``saved``: those saved for the backward pass, by name.
        """
        once = self.forward if phase == FORWARD else self.backward
        last = self.count - 1
        fullest = last if once.net > 0 else 0  # bytes change by the same amount in each block
        title = self.number(fullest if phase == FORWARD else last - fullest)
        if phase == BACKWARD:
            gradients += fullest * self.gradients
        return StepMoment(phase, self.title, level, once, f"{title}, {once.at}" if once.at else title, gradients, self.count, saved)


def chunk_blocks(first: int, layers: tuple[Layer, ...], shape: Shape, recompute: Recomputation, implementation: str) -> list[LayerBlock]:
    """``layers`` in order, from layer number ``first`` on, as blocks."""
    kind, size = FULL if recompute.of_layers else recompute.kind, recompute.every
    segments = runs_of([layers[start : start + size] for start in range(0, len(layers), size)])
    blocks = [replace(block_of(segment, shape, kind, implementation), count=count) for segment, count in segments]
    firsts = accumulate((block.count * block.layers for block in blocks), initial=first)
    return [replace(block, first=first_of_block) for block, first_of_block in zip(blocks, firsts, strict=False)]


@lru_cache(maxsize=2048)
def block_of(places: tuple[Layer | str, ...], shape: Shape, kind: str, implementation: str) -> LayerBlock:
    """The block of consecutive layers with ``kind`` of recomputation, or of the embedding or the head.

    A head starts its own backward pass, with a gradient of 1. The third stage of ZeRO gathers weights for a while, beyond the GPU's own
    share.
    """
    tapes = [tape_of(where, shape, implementation, kind == SELECTIVE) for where in places]
    if kind == FULL:
        passes, backward_passes = _recomputed(tapes)
    else:
        passes, backward_passes = forward(tapes[0]), [backward(tape) for tape in reversed(tapes)]
    gathered, p = 0, shape.parallel
    if p.zero == 3:
        elements = [holding(shape.model, ((where, 1),), p.tp, p.ep).parameters for where in places]
        gathered = shape.size * max(count - ceil_div(count, p.dp * p.cp) for count in elements)
    forwards, backwards = (replace(whole, high=whole.high + gathered) for whole in (passes, chained(backward_passes)))
    gradients = sum(node.gradients for tape in tapes for node in tape.nodes)
    return LayerBlock(LAYER if isinstance(places[0], Layer) else places[0], forwards, backwards, gradients, len(places))


def _recomputed(tapes: list[Tape]) -> tuple[TapePass, list[TapePass]]:
    """Forward pass and backward passes of a segment that keeps no more than what enters it and runs again before its backward pass."""
    entering, leaving = tapes[0].stream, tapes[-1].out
    forward_pass = chained([forward(tapes[0], {entering}), *(forward(tape, ()) for tape in tapes[1:])])
    release = TapePass(0, 0, "", net_saved={entering: -tapes[0].sizes[entering]})  # the runs that follow count it again
    again = [replace(once, at=f"{once.at}, again") for once in map(forward, tapes)]
    drop_output = TapePass(0, -tapes[-1].sizes[leaving], "")
    return forward_pass, [release, *again, drop_output, *(backward(tape) for tape in reversed(tapes))]
