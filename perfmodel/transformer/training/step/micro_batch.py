"""One micro-batch on one GPU of a pipeline stage: its kernels, what runs again, and exchanges that nothing hides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.transformer.training.question import EVERY, FULL, NONE, SELECTIVE, Parallel, Training
from perfmodel.transformer.training.step import links
from perfmodel.transformer.training.step.job import Job, state_of
from perfmodel.transformer.training.step.pieces import (
    BACKWARD,
    EMBEDDING,
    FORWARD,
    HEAD,
    Machine,
    Piece,
    end_piece,
    layer_piece,
    rows_seconds,
)
from perfmodel.transformer.training.step.system import System
from perfmodel.transformer.training.step.update import adding_up
from perfmodel.transformer.training.step.window import Window, joined


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Seconds. ``added_s``: of adding its gradients to those before; ``handed_s``: to and from the stages beside.

    ``forward``, ``backward``: kernels of each pass, the second with the ``again_s`` of those that run again, and what of each resource
    they and their exchanges take. ``passed``: exchanges by group that nothing hides. ``head_s``: the forward pass from the last norm
    on, if it is here. ``hidden_s``: exchanges inside of the stage that run beside kernels.
    """

    forward: Window
    backward: Window
    again_s: float
    added_s: float
    handed_s: float
    passed: dict[str, float]
    hidden_s: float
    layers: int
    head_s: float

    @property
    def forward_s(self) -> float:
        """Of the kernels of the forward pass."""
        return self.forward.seconds

    @property
    def backward_s(self) -> float:
        """Of those of the backward pass, without what runs again."""
        return self.backward.seconds - self.again_s

    @property
    def kernels_s(self) -> float:
        """Of its kernels."""
        return self.forward.seconds + self.backward.seconds + self.added_s

    @property
    def before_head_s(self) -> float:
        """Forward, up to the last norm."""
        return self.forward_s - self.head_s

    @property
    def exposed_s(self) -> float:
        """Of exchanges that nothing hides."""
        return self.handed_s + sum(self.passed.values())

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.kernels_s + self.exposed_s


def micro_batch(job: Job, stage: int) -> MicroBatch:
    """One micro-batch on a GPU of ``stage``."""
    t, p = job.training, job.training.parallel
    pieces = [(layer_piece(job.frame, layer, job.on), count) for layer, count in job.layers.of_stage(p.pp, p.interleave, stage)]
    here = {EMBEDDING: stage == 0, HEAD: stage == p.pp - 1}
    ends = {where: end_piece(job.frame, where, job.on) for where in here if here[where]}
    listed = [*pieces, *((piece, 1) for piece in ends.values())]
    again = joined((window, share * count) for piece, count in pieces for window, share in repeated(piece, t))
    forward = joined((piece.forward, count) for piece, count in listed)
    backward = joined([*((piece.backward, count) for piece, count in listed), (again, 1)])
    passed, hidden = _passed(job, pieces, list(ends.values()), forward, backward)
    return MicroBatch(
        forward=forward,
        backward=backward,
        again_s=again.seconds,
        added_s=rows_seconds(adding_up(t, state_of(t, job.layers, stage), job.frame.forward), job.on),
        handed_s=_handed(job),
        passed=passed,
        hidden_s=hidden,
        layers=sum(count for _, count in pieces),
        head_s=ends[HEAD].forward.seconds if HEAD in ends else 0.0,
    )


def repeated(piece: Piece, training: Training) -> list[tuple[Window, float]]:
    """What runs once more in the backward pass of a layer. Of a segment only the last layer can leave out its end."""
    recompute = training.recompute
    if recompute.kind == NONE:
        return []
    if recompute.kind == SELECTIVE:
        return [(piece.core, 1.0)]
    last = 1 / recompute.every if recompute.kind == EVERY else 1.0
    return [(piece.full, last), (piece.forward, 1 - last)]


def _handed(job: Job) -> float:
    """Hidden states and their gradients, to and from the stages beside, for each chunk of layers."""
    p = job.training.parallel
    if p.pp == 1 or job.system is None:
        return 0.0
    size = job.frame.tokens * job.frame.hidden * job.frame.shape.size
    return 2 * p.interleave * links.stage_border(size, job.system, p, job.on.device)


def _passed(
    job: Job, layers: list[tuple[Piece, int]], ends: list[Piece], forward: Window, backward: Window
) -> tuple[dict[str, float], float]:
    """Seconds of exchanges by group that nothing hides, and those of the hidden ones, which are booked in the windows of the passes."""
    p = job.training.parallel
    near = Parallel(tp=p.tp, cp=p.cp, ep=p.ep, dp=p.ep)  # all that groups inside of a stage depend on
    passes = [(FORWARD, forward), (BACKWARD, backward)]
    again = [*passes, (FORWARD, backward)] if job.training.recompute.kind in (FULL, EVERY) else passes
    found, beside = dict[str, float](), 0.0
    for piece, count, ways in (*((piece, count, again) for piece, count in layers), *((piece, 1, passes) for piece in ends)):
        for way, window in ways if job.system is not None else ():
            exposed, hidden, taken = _exchanged(piece, way, job.system, near, job.on, job.overlap)
            window.book(taken, count)
            beside += count * hidden
            for group, seconds in exposed.items():
                found[group] = found.get(group, 0.0) + count * seconds
    return found, beside


@lru_cache(maxsize=8192)
def _exchanged(
    piece: Piece, way: str, system: System, near: Parallel, on: Machine, overlap: bool
) -> tuple[dict[str, float], float, dict[str, float]]:
    """Of a piece's exchanges in one pass, seconds by group that nothing hides, hidden ones, and those of each resource that these take."""
    passed, kernels = (piece.ops.forward_exchanges, piece.forward) if way == FORWARD else (piece.ops.backward_exchanges, piece.backward)
    outer, exposed, beside = joined([(kernels, 1)]), dict[str, float](), 0.0
    cover = {word: replace(window, busy=dict(window.busy), outer=outer) for (at, word), window in piece.cover.items() if at == way}
    for exchange in passed:
        seconds = links.seconds(exchange, system, near, on.device)
        if exchange.behind and overlap:
            hidden = cover[exchange.behind].hide(seconds, links.needs(exchange, seconds, system, near, on.device))
            seconds, beside = seconds - hidden, beside + hidden
        exposed[exchange.group] = exposed.get(exchange.group, 0.0) + seconds
    return exposed, beside, {name: busy - kernels.busy.get(name, 0.0) for name, busy in outer.busy.items()}
