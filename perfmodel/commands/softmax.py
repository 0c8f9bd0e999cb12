"""Softmax in three ways (safe, online, fused): reads per element, bytes, roofline."""

from __future__ import annotations

from perfmodel.commands._command import Explained, command, device_for
from perfmodel.kernels.question import SoftmaxQuestion


@command
def softmax(asked: SoftmaxQuestion, to: Explained) -> None:
    """Softmax in three ways (safe, online, fused): reads per element, bytes, roofline.

    Example: perfmodel softmax --rows 4096 --cols 32768
    """
    from perfmodel.kernels.softmax import evaluate
    from perfmodel.report.softmax import report

    device = device_for(asked.hardware)
    w = asked.workload(device)
    to.emit(report(w, device, evaluate(w, device), explained=to.explain))
