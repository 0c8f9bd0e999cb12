"""A training step on a device: every kernel of its slowest GPU with bound, roof and prediction, and the step that they make.

Lower bound: the larger of the needed work of the kernels, without what runs again, and of weights and optimizer state once through DRAM;
what GPUs exchange and wait adds nothing to it, as another schedule may hide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, total
from perfmodel.timing.predict import Lenders, Prediction
from perfmodel.transformer.op import WEIGHTS
from perfmodel.transformer.op_time import busy_s, op_estimate, scaled
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.question import EVERY, NONE, SELECTIVE, Training
from perfmodel.transformer.training.step.job import Job, job_of, state_of
from perfmodel.transformer.training.step.layer import LayerOps
from perfmodel.transformer.training.step.parallel_time import StepTime, step_time
from perfmodel.transformer.training.step.pieces import EMBEDDING, HEAD, Machine, end_piece, known, layer_piece, machine
from perfmodel.transformer.training.step.row import StepOp, again, joined
from perfmodel.transformer.training.step.system import System, over_network
from perfmodel.transformer.training.step.update import adding_up, clearing, least_bytes, optimizer

FORWARD, RECOMPUTE, BACKWARD, UPDATE = "forward", "recompute", "backward", "optimizer"
IN_PLACE = 2
"""Passes through DRAM that a byte in the caches saves between two steps: updated weights are read again, and written again."""


@dataclass(frozen=True, slots=True)
class Line:
    """All runs of one kernel in a step on one GPU. ``cost`` is a sum over them, as are ``times``: predicted seconds, low and high."""

    part: str
    row: StepOp
    cost: Estimate
    prediction: Prediction | None
    times: tuple[float, float, float] | None
    missing: str = ""

    @property
    def seconds(self) -> float:
        """Predicted, else at the roof."""
        return float(self.cost.roofline_s) if self.times is None else self.times[0]


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """One step. ``lines``: kernels of a GPU of the slowest stage; ``time``: with what passes between GPUs and waits."""

    job: Job
    implementation: str
    time: StepTime
    lines: Sequence[Line]

    @property
    def training(self) -> Training:
        """What was asked."""
        return self.job.training

    @property
    def device(self) -> Device:
        """Each of the GPUs."""
        return self.job.on.device

    @property
    def cost(self) -> Estimate:
        """The sum of all lines, with the bound of the whole step."""
        alone = sum((line.cost.needs for line in self.lines), Needs())
        forward = sum(line.row.op.count * line.row.op.bytes_of(WEIGHTS) for line in self.lines if line.part == FORWARD)
        state = state_of(self.training, self.job.layers, self.time.stage)
        tensors = least_bytes(self.training, state, forward / self.time.micro_batches)
        held = None if alone.held is None else IN_PLACE * alone.held
        return replace(total(line.cost for line in self.lines), needs=replace(alone, tensors=tensors, held=held))

    @property
    def seconds(self) -> float:
        """The step; where a kernel has no prediction, with its roof."""
        return self.time.seconds

    @property
    def prediction(self) -> tuple[float, float, float] | None:
        """Seconds with the ends of the interval; None if a kernel has no prediction.

        The interval of whole steps where those were calibrated; else as if the errors of all kernels went together, and exchanges,
        bubble and host were known: none takes less because kernels do.
        """
        if any(line.times is None for line in self.lines):
            return None
        cost, within, seconds = self.cost, self.job.on.within, self.seconds
        lower = max(float(cost.lower_warm_s), busy_s(cost, self.device))
        if self.job.frame.eager and within is not None and within.own and within.block is not None and self.training.parallel.gpus == 1:
            return seconds, max(lower, min(seconds, seconds * within.block.low)), max(seconds, seconds * within.block.high)
        rest = seconds - sum(line.seconds for line in self.lines)
        low, high = (sum(line.times[index] for line in self.lines if line.times is not None) + rest for index in (1, 2))
        return seconds, max(lower, min(seconds, max(low, self.time.exchanged_s))), max(seconds, high)

    @property
    def validated(self) -> bool:
        """Whether its kind of layout was ever held against measured steps: ZeRO's stages 2 and 3 over a network were not."""
        return self.job.system is None or not over_network(self.job.system, self.training.parallel)

    @property
    def tokens_per_s(self) -> float:
        """Over all sequences."""
        return float(self.training.batch * self.training.n / self.seconds)


def estimate(
    training: Training,
    device: Device,
    lenders: Lenders = tuple,
    system: System | None = None,
    implementation: str = FUSED,
    *,
    half: str = "bf16",
    overlap: bool = True,
    attention: str | None = None,
) -> TrainingEstimate:
    """``training`` on GPUs like ``device``, joined by ``system``."""
    job = job_of(training, machine(device, lenders, attention), system, implementation, half=half, overlap=overlap)
    time = step_time(job)
    lines = [_line(part, row, job.on) for part, rows in stage_rows(job, time.stage) for row in joined(rows)]
    return TrainingEstimate(job, implementation, time, lines)


def stage_rows(job: Job, stage: int) -> Iterator[tuple[str, list[StepOp]]]:
    """Kernels of a step on a GPU of ``stage``, part by part."""
    t, p = job.training, job.training.parallel
    often, step, state = int(t.micro_batches), job.frame.forward, state_of(t, job.layers, stage)
    layers = [(layer_piece(job.frame, layer, job.on).ops, count) for layer, count in job.layers.of_stage(p.pp, p.interleave, stage)]
    first = [(end_piece(job.frame, EMBEDDING, job.on).ops, 1)] if stage == 0 else []
    last = [(end_piece(job.frame, HEAD, job.on).ops, 1)] if stage == p.pp - 1 else []
    yield FORWARD, [row.times(count * often) for ops, count in (*first, *layers, *last) for row in ops.forward]
    yield RECOMPUTE, [row.times(often) for ops, count in layers for row in repeated(ops, count, t)]
    yield BACKWARD, [row.times(count * often) for ops, count in (*last, *reversed(layers), *first) for row in ops.backward]
    yield UPDATE, [*(row.times(often) for row in adding_up(t, state, step)), optimizer(t, state, step), *clearing(t, state, step)]


def repeated(ops: LayerOps, count: int, training: Training) -> list[StepOp]:
    """Forward rows of ``count`` layers that run again for one micro-batch. Of a segment only the last layer can leave out its end."""
    kind = training.recompute.kind
    if kind == NONE:
        return []
    if kind == SELECTIVE:
        return [row.times(count) for row in ops.core]
    kept = len(ops.forward) - ops.unused
    whole = count - count / training.recompute.every if kind == EVERY else 0
    return [*(row.times(count) for row in ops.forward[:kept]), *(row.times(whole) for row in ops.forward[kept:] if whole)]


def _line(part: str, row: StepOp, on: Machine) -> Line:
    count, once = row.op.count, replace(row, op=replace(row.op, count=1))
    cost, one, missing = known(once, on)
    if part == RECOMPUTE:  # takes as long as the first time, but is not needed
        row, cost = again(row), op_estimate(again(once).op, on.device)
    times = None if one is None else (float(one.seconds * count), float(one.low * count), float(one.high * count))
    return Line(part, row, scaled(cost, count), one, times, missing)
