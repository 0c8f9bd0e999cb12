"""Elementwise operations: unfused, in a CUDA graph, fused."""

from __future__ import annotations

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.kernels.question import FuseQuestion


@command
def fuse(options: FuseQuestion, to: ExplainedPicture) -> None:
    """Fuse a chain of elementwise operations: bytes, launches and time unfused, in a CUDA graph, fused.

    Example: perfmodel fuse --elements 1048576 --ops 30
    """
    from perfmodel.kernels.fuse import evaluate
    from perfmodel.report.fuse import report

    device = device_for(options.hardware)
    chain, published = options.workload(device)
    to.emit(report(chain, device, evaluate(chain, device), published=published, explained=to.explained, pictures=to.pictures))
