"""Recompute a tensor or store it: times at the roof, break-even FLOP/B, verdict."""

from __future__ import annotations

from perfmodel.commands._command import Explained, command, device_for
from perfmodel.kernels.question import RecomputeQuestion


@command
def recompute(asked: RecomputeQuestion, to: Explained) -> None:
    """Recompute a tensor or store it: times at the roof, break-even FLOP/B, verdict.

    Example: perfmodel recompute --bytes 64MiB --flops 10GFLOP
    """
    from perfmodel.kernels.recompute import evaluate
    from perfmodel.report.ops import recompute_report

    device = device_for(asked.hardware)
    to.emit(recompute_report(evaluate(asked.workload(device), device), explained=to.explain))
