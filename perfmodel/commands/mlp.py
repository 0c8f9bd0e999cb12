"""Two-layer MLP, forward and backward: FLOP, kernels, what is kept."""

from __future__ import annotations

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.kernels.question import MlpQuestion


@command
def mlp(options: MlpQuestion, to: ExplainedPicture) -> None:
    """Two-layer MLP, forward and backward: FLOP per layer, kernels, what must be kept.

    x W1, ReLU, W2. Example: perfmodel mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024
    """
    from perfmodel.kernels.mlp import evaluate
    from perfmodel.report.mlp import report

    passes, device = options.passes(), device_for(options.hardware)
    w = options.workload(device)
    to.emit(report(w, device, [evaluate(w, device, direction) for direction in passes], explained=to.explained, pictures=to.pictures))
