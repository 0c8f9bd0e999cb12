"""Rematerialization: what backward keeps or builds again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.commands._command import ExplainedPicture, command
from perfmodel.remat.question import AUTOGRAD, EXACT, GRAPH, IN_SCHEDULES, RematQuestion

if TYPE_CHECKING:
    from perfmodel.report import Report


@command
def remat(options: RematQuestion, to: ExplainedPicture) -> None:
    """Rematerialization: what backward needs kept or built again, schedules, steps against memory, their timelines.

    Example: perfmodel remat --layers 10 --checkpoints 5
    """
    from perfmodel.core.errors import UsageError

    if to.explain:
        IN_SCHEDULES.check("--explain", options)
    if options.seconds <= 0:
        raise UsageError(f"--seconds is {options.seconds:g}", "give a time above 0")
    answers = {GRAPH: _graph, EXACT: _exact, AUTOGRAD: _autograd}
    to.emit(answers[options.mode](options, to.pictures) if options.mode in answers else _schedules(options, to.explain, to.pictures))


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


def _exact(options: RematQuestion, pictures: bool) -> Report:
    from perfmodel.remat.checkmate import answer
    from perfmodel.remat.graph import graph_of
    from perfmodel.report.remat_graph import graph_report

    source = options.source()
    memory = options.budget(source.sized)
    options.require("remat --layers 8 --budget 6 --exact", "memory")
    return graph_report(answer(source.title, graph_of(source.chain), source.sized, memory, options.seconds, source.timed), pictures)


def _graph(options: RematQuestion, pictures: bool) -> Report:
    from pathlib import Path

    from perfmodel.remat.checkmate import answer
    from perfmodel.remat.graph import read_graph, training
    from perfmodel.report.remat_graph import graph_report

    forward, sized = read_graph(Path(str(options.graph)))
    title = f"graph of {len(forward)} values and their gradients"
    return graph_report(answer(title, training(forward), sized, options.budget(sized), options.seconds), pictures)


def _autograd(options: RematQuestion, pictures: bool) -> Report:
    from perfmodel.remat.autograd import picture
    from perfmodel.report.remat_graph import autograd_report

    source = options.source()
    return autograd_report(picture(source.chain, options.relu), source, pictures)
