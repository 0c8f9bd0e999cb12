"""FLOP of a step as its kernels run it: what MFU and HFU count here.

Visible FLOP: matmuls, and of attention the scores that the mask leaves. Executed FLOP: with those too that kernels compute beyond, of
masked parts of tiles and of padding, and all that runs again. A kernel executes no less than is visible and takes no less time than
its unit at the datasheet's peak: MFU <= HFU <= 1. Conventions that count the masked half of a causal square can pass 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.arith import Number
from perfmodel.core.roofline import rates_of
from perfmodel.transformer.estimate import CONVENTION
from perfmodel.transformer.training.step.conventions import Counted
from perfmodel.transformer.training.step.estimate import repeated
from perfmodel.transformer.training.step.job import Job
from perfmodel.transformer.training.step.pieces import EMBEDDING, HEAD, end_piece, layer_piece
from perfmodel.transformer.training.step.row import StepOp

MEANING = f"MFU: {CONVENTION}; HFU: those that kernels execute"


def run(job: Job) -> Counted:
    """Visible and executed FLOP of the step of ``job``, over all GPUs and stages."""
    t, p = job.training, job.training.parallel
    layers = [(layer_piece(job.frame, layer, job.on).ops, count) for layer, count in job.layers.kinds]
    ends = [(end_piece(job.frame, where, job.on).ops, 1) for where in (EMBEDDING, HEAD)]
    once = [row.times(count) for ops, count in (*layers, *ends) for row in (*ops.forward, *ops.backward)]
    again = [row for ops, count in layers for row in repeated(ops, count, t)]
    times = t.batch * p.tp * p.cp / t.sequences  # GPUs of a replica divide a micro-batch; a last one may have fewer sequences
    return Counted(times * sum(row.op.count * row.op.kernel.flops for row in once), times * _executed((*once, *again)))


def _executed(rows: Iterable[StepOp]) -> Number:
    return sum(row.op.count * row.op.kernel.executed_flops for row in rows)


def utilization(job: Job, seconds: float) -> tuple[float, float]:
    """MFU and HFU of a step of ``seconds``."""
    rate = float(rates_of(job.on.device, job.frame.forward.dtype).matmul)
    return run(job).shares(seconds, job.training.parallel.gpus, rate)
