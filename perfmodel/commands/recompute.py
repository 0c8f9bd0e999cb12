"""Store a tensor or compute it again: which is faster."""

from __future__ import annotations

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.kernels.question import RecomputeQuestion


@command
def recompute(options: RecomputeQuestion, to: ExplainedPicture) -> None:
    """Recompute a tensor or store it: times at the roof, break-even FLOP/B, verdict.

    Example: perfmodel recompute --bytes 64MiB --flops 10GFLOP
    """
    from perfmodel.kernels.recompute import evaluate
    from perfmodel.report.recompute import report

    device = device_for(options.hardware)
    to.emit(report(evaluate(options.workload(device), device), explained=to.explained, pictures=to.pictures))
