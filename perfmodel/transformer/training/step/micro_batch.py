"""One micro-batch on one GPU of a pipeline stage: its kernels, what runs again, and exchanges that nothing hides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perfmodel.transformer.training.question import EVERY, FULL, NONE, SELECTIVE, Parallel, Training
from perfmodel.transformer.training.step import links
from perfmodel.transformer.training.step.exchange import Exchange
from perfmodel.transformer.training.step.job import Job, state_of
from perfmodel.transformer.training.step.pieces import EMBEDDING, HEAD, Machine, Piece, end_piece, layer_piece, rows_seconds
from perfmodel.transformer.training.step.system import System
from perfmodel.transformer.training.step.update import adding_up


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Seconds. ``added_s``: of adding its gradients to those before; ``handed_s``: to and from the stages beside.

    ``passed``: exchanges by group that nothing hides. ``head_s``: the forward pass from the last norm on, if it is here.
    """

    forward_s: float
    again_s: float
    backward_s: float
    added_s: float
    handed_s: float
    passed: dict[str, float]
    layers: int
    head_s: float

    @property
    def kernels_s(self) -> float:
        """Of its kernels."""
        return self.forward_s + self.again_s + self.backward_s + self.added_s

    @property
    def before_head_s(self) -> float:
        """Forward, up to the last norm."""
        return self.forward_s - self.head_s

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.kernels_s + self.handed_s + sum(self.passed.values())


def micro_batch(job: Job, stage: int) -> MicroBatch:
    """One micro-batch on a GPU of ``stage``."""
    t, p = job.training, job.training.parallel
    pieces = [(layer_piece(job.frame, layer, job.on), count) for layer, count in job.layers.of_stage(p.pp, p.interleave, stage)]
    here = {EMBEDDING: stage == 0, HEAD: stage == p.pp - 1}
    ends = {where: end_piece(job.frame, where, job.on) for where in here if here[where]}
    listed = [*pieces, *((piece, 1) for piece in ends.values())]
    return MicroBatch(
        forward_s=sum(piece.forward_s * count for piece, count in listed),
        again_s=sum(again_seconds(piece, t) * count for piece, count in pieces),
        backward_s=sum(piece.backward_s * count for piece, count in listed),
        added_s=rows_seconds(adding_up(t, state_of(t, job.layers, stage), job.frame.forward), job.on),
        handed_s=_handed(job),
        passed=_passed(job, pieces, list(ends.values())),
        layers=sum(count for _, count in pieces),
        head_s=ends[HEAD].forward_s if HEAD in ends else 0.0,
    )


def again_seconds(piece: Piece, training: Training) -> float:
    """What runs once more in the backward pass of a layer. Of a segment only the last layer can leave out its end."""
    recompute = training.recompute
    if recompute.kind == NONE:
        return 0.0
    if recompute.kind == SELECTIVE:
        return piece.core_s
    every = recompute.every if recompute.kind == EVERY else 1
    return piece.forward_s - (piece.forward_s - piece.full_s) / every


def _handed(job: Job) -> float:
    """Hidden states and their gradients, to and from the stages beside, for each chunk of layers."""
    p = job.training.parallel
    if p.pp == 1 or job.system is None:
        return 0.0
    size = job.frame.tokens * job.frame.hidden * job.frame.shape.size
    return 2 * p.interleave * links.stage_border(size, job.system, p, job.on.device)


def _passed(job: Job, layers: list[tuple[Piece, int]], ends: list[Piece]) -> dict[str, float]:
    p = job.training.parallel
    again = job.training.recompute.kind in (FULL, EVERY)
    near = Parallel(tp=p.tp, cp=p.cp, ep=p.ep, dp=p.ep)  # all that groups inside of a stage depend on
    found: dict[str, float] = {}
    for piece, count, repeats in (*((piece, count, again) for piece, count in layers), *((piece, 1, False) for piece in ends)):
        for group, seconds in _exposed(piece, job.system, near, job.on, repeats, job.overlap):
            found[group] = found.get(group, 0.0) + count * seconds
    return found


@lru_cache(maxsize=4096)
def _exposed(
    piece: Piece, system: System | None, near: Parallel, on: Machine, repeats: bool, overlap: bool
) -> tuple[tuple[str, float], ...]:
    """Seconds of a piece's exchanges by group, both passes; ``repeats``: forward ones run again before the backward pass."""
    if system is None:
        return ()
    found: dict[str, float] = {}
    for way, passed in (("forward", piece.ops.forward_exchanges), ("backward", piece.ops.backward_exchanges)):
        times = 2 if repeats and way == "forward" else 1
        for (group, behind), seconds in _gathered(passed, system, near, on).items():
            hidden = piece.cover.get((way, behind), 0.0) if behind and overlap else 0.0
            found[group] = found.get(group, 0.0) + times * max(seconds - hidden, 0.0)
    return tuple(found.items())


def _gathered(passed: list[Exchange], system: System, near: Parallel, on: Machine) -> dict[tuple[str, str], float]:
    """Seconds by group and by the rows that may hide them."""
    found: dict[tuple[str, str], float] = {}
    for exchange in passed:
        key = (exchange.group, exchange.behind)
        found[key] = found.get(key, 0.0) + links.seconds(exchange, system, near, on.device)
    return found
