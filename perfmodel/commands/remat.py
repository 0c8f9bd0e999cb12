"""Rematerialization: what backward keeps or builds again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.commands._command import ExplainedPicture, command
from perfmodel.core.errors import UsageError
from perfmodel.remat.question import AUTOGRAD, EXACT, GRAPH, IN_SCHEDULES, RematQuestion

if TYPE_CHECKING:
    from perfmodel.report import Report


@command
def remat(options: RematQuestion, to: ExplainedPicture) -> None:
    """Rematerialization: what backward needs kept or built again, schedules, steps against memory, their timelines.

    Example: perfmodel remat --layers 10 --checkpoints 5
    """
    if to.explained:
        IN_SCHEDULES.check("--explain", options)
    if options.seconds <= 0:
        raise UsageError(f"--seconds is {options.seconds:g}", "give a time above 0")
    if options.mode in (GRAPH, EXACT):
        to.emit(_solved(options, to.pictures))
    elif options.mode == AUTOGRAD:
        from perfmodel.remat.autograd import picture
        from perfmodel.report.remat_graph import autograd_report

        source = options.source()
        to.emit(autograd_report(picture(source.chain, options.relu), source, to.pictures))
    else:
        to.emit(_schedules(options, to.explained, to.pictures))


def _schedules(options: RematQuestion, explained: bool, pictures: bool) -> Report:
    from perfmodel.remat.device_chain import choices
    from perfmodel.remat.evaluate import curve, evaluate
    from perfmodel.report.remat import report

    source, named = options.source(), tuple(options.strategy or ())
    memory = options.budget(source.sized)
    found = evaluate(source, options.plan(memory), named)
    points = curve(source.chain) if memory is not None else []
    ranked = choices(source.tensors, source.dtype, source.device) if source.dtype and source.device and not named else []
    return report(found, points, ranked, explained=explained, pictures=pictures)


def _solved(options: RematQuestion, pictures: bool) -> Report:
    """The cheapest schedule of a graph, or of a chain as a graph."""
    from perfmodel.remat.checkmate import answer
    from perfmodel.remat.graph import graph_of, read_graph, training
    from perfmodel.report.remat_graph import graph_report

    if options.graph is not None:
        forward, sized = read_graph(Path(options.graph))
        title, graph, timed = f"graph of {len(forward)} values and their gradients", training(forward), False
    else:
        source = options.source()
        title, graph, sized, timed = source.title, graph_of(source.chain), source.sized, source.timed
    memory = options.budget(sized)
    if options.mode == EXACT:
        options.require("remat --layers 8 --budget 6 --exact", "memory")
    return graph_report(answer(title, graph, sized, memory, options.seconds, timed), pictures)
