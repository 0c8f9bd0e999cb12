"""Rematerialization: what backward keeps or builds again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.commands._command import ExplainedPicture, command
from perfmodel.remat.question import IN_SCHEDULES, RematQuestion

if TYPE_CHECKING:
    from perfmodel.report import Report


@command
def remat(options: RematQuestion, to: ExplainedPicture) -> None:
    """Rematerialization: what backward needs kept or built again, schedules, steps against memory, their timelines.

    Example: perfmodel remat --layers 10 --checkpoints 5
    """
    if to.explained:
        IN_SCHEDULES.check("--explain", options)
    if options.autograd:
        from perfmodel.remat.autograd import picture
        from perfmodel.report.remat_autograd import autograd_report

        source = options.source()
        to.emit(autograd_report(picture(source.chain, options.relu), source, to.pictures))
    else:
        to.emit(_schedules(options, to.explained, to.pictures))


def _schedules(options: RematQuestion, explained: bool, pictures: bool) -> Report:
    from perfmodel.remat.device_chain import choices
    from perfmodel.remat.evaluate import curve, evaluate
    from perfmodel.report.remat import report

    source = options.source()
    strategies = tuple(options.strategy or ())
    memory = options.budget(source.sized)
    result = evaluate(source, options.plan(memory), strategies)
    points = curve(source.chain) if memory is not None else []
    ranked = []
    if source.dtype and source.device and not strategies:
        ranked = choices(source.tensors, source.dtype, source.device)
    return report(result, points, ranked, explained=explained, pictures=pictures)
