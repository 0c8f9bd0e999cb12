"""A step on many GPUs: micro-batches through pipeline stages, then what is done once per step.

Pipeline (1F1B, Narayanan et al. 2021): m micro-batches on the slowest of p stages, and the time of one micro-batch on all others to
fill and drain it, over v where each stage holds v chunks of layers in turns: for equal stages a bubble of (p - 1) / (v m). Stages wait
for the one that takes longest with what is done once per step, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.transformer.op import WEIGHTS, Op
from perfmodel.transformer.training.question import EVERY, FULL
from perfmodel.transformer.training.step.data_parallel import data_seconds
from perfmodel.transformer.training.step.host import host_phases, waiting
from perfmodel.transformer.training.step.job import Job, state_of
from perfmodel.transformer.training.step.micro_batch import MicroBatch, micro_batch
from perfmodel.transformer.training.step.pieces import EMBEDDING, HEAD, end_piece, layer_piece, rows_seconds
from perfmodel.transformer.training.step.update import clearing, optimizer

BUBBLE, HOST = "pipeline bubble", "waiting for the host"
OPTIMIZER, CLEARED, DATA_PARALLEL = "optimizer", "gradients cleared", "data parallel"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step on the GPUs of its slowest ``stage``, part by part; ``parts`` add up to ``seconds``.

    ``exchanged_s``: of all exchanges of the GPU that has the most, hidden or not; faster kernels would hide less of them.
    """

    stage: int
    micro_batches: int
    one: MicroBatch
    parts: dict[str, float]
    exchanged_s: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(self.parts.values())

    @property
    def bubble(self) -> float:
        """Share of the step in which the stage waits for others."""
        return self.parts[BUBBLE] / self.seconds


def step_time(job: Job) -> StepTime:
    """The step, by its slowest stage."""
    t, p = job.training, job.training.parallel
    stages = {stage: micro_batch(job, stage) for stage in job.layers.slow_stages(p.pp)}
    slowest = max(stages, key=lambda stage: stages[stage].seconds)
    one, often = stages[slowest], int(t.micro_batches)
    ends, hidden = {}, {}
    for stage, each in stages.items():
        ends[stage], hidden[stage] = _once(job, stage, each)
    later = max(sum(end.values()) for end in ends.values()) - sum(ends[slowest].values())
    exchanged = max(often * (each.exposed_s + each.hidden_s) + ends[at][DATA_PARALLEL] + hidden[at] for at, each in stages.items())
    parts = {
        "forward": often * one.forward_s,
        "recompute": often * one.again_s,
        "backward": often * one.backward_s,
        "gradients added up": often * one.added_s,
        OPTIMIZER: ends[slowest][OPTIMIZER],
        CLEARED: ends[slowest][CLEARED],
        BUBBLE: (_all_stages(stages, p.pp) - one.seconds) / p.interleave + later,
        "pipeline hand-over": often * one.handed_s,
        **{f"{group} parallel": often * seconds for group, seconds in one.passed.items()},
        DATA_PARALLEL: ends[slowest][DATA_PARALLEL],
    }
    parts[HOST] = host_seconds(job, one, parts[OPTIMIZER])
    return StepTime(slowest, often, one, parts, exchanged)


def _once(job: Job, stage: int, one: MicroBatch) -> tuple[dict[str, float], float]:
    """Seconds of what a GPU of ``stage`` does once per step, after or beside its micro-batches, and of exchanges that those hide."""
    t, step, state = job.training, job.frame.forward, state_of(job.training, job.layers, stage)
    exposed, hidden = data_seconds(job, one, state)
    return {
        OPTIMIZER: rows_seconds([optimizer(t, state, step)], job.on),
        CLEARED: rows_seconds(clearing(t, state, step), job.on),
        DATA_PARALLEL: exposed,
    }, hidden


def _all_stages(stages: dict[int, MicroBatch], pp: int) -> float:
    """Seconds of a micro-batch on all stages, one after the other; those between the ends alike if not each is known."""
    known = sum(one.seconds for one in stages.values())
    return known + (pp - len(stages)) * stages[1].seconds if pp > len(stages) else known


def host_seconds(job: Job, one: MicroBatch, optimizer_s: float) -> float:
    """By how much a step is longer because the host enqueues its kernels one by one."""
    within = job.on.within
    if not job.frame.eager or within is None:
        return 0.0
    host = host_phases(within.parameters, one.layers, tensors(job), again=job.training.recompute.kind in (FULL, EVERY))
    return waiting(host, one.before_head_s, one.kernels_s - one.before_head_s, int(job.training.micro_batches), optimizer_s)


def tensors(job: Job) -> int:
    """Parameter tensors of the model: each matrix, bias and norm's weights."""
    found = 0
    for layer, count in job.layers.kinds:
        rows = layer_piece(job.frame, layer, job.on).ops.forward
        found += count * sum(_learned(row.op) for row in rows)
    return found + sum(_learned(row.op) for where in (EMBEDDING, HEAD) for row in end_piece(job.frame, where, job.on).ops.forward)


def _learned(op: Op) -> int:
    """Tensors of weights that a forward row reads; a layer norm has two, told by one access."""
    count = sum(access.tensor == WEIGHTS for access in op.kernel.accesses)
    return 2 * count if op.timed is not None and op.timed.implementations == ("torch-layer-norm",) else count
