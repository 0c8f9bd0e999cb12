"""Blocks and warps of a multiprocessor, and what limits them."""

from __future__ import annotations

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.kernels.question import OccupancyQuestion


@command
def occupancy(options: OccupancyQuestion, to: ExplainedPicture) -> None:
    """Occupancy: blocks and threads per multiprocessor, what limits them, and the sectors of a strided load.

    Example: perfmodel occupancy --threads 256 --registers 64 --sram 48KiB --stride 2
    """
    from perfmodel.kernels.occupancy import evaluate
    from perfmodel.report.occupancy import report

    block, access = options.block(), options.access()
    to.emit(report(evaluate(block, device_for(options.hardware), access), explained=to.explained, pictures=to.pictures))
