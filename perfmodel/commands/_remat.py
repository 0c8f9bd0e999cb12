"""From the options of ``perfmodel remat`` to its report: a chain or a graph, then schedules, the exact solver, or autograd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.commands._shared import device_for

if TYPE_CHECKING:
    from perfmodel.core.arith import Number
    from perfmodel.remat.base import Plan
    from perfmodel.remat.source import Source
    from perfmodel.report import Report


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as given."""

    model: str | None
    layers: int | None
    checkpoints: str | None
    every: int | None
    slots: int | None
    memory: str | None
    strategies: tuple[str, ...]
    cost: str | None
    backward: str | None
    size: str | None
    interior: str | None
    width: str | None
    batch: int
    n: int | None
    dtype: str | None
    hardware: str | None
    graph: str | None
    exact: bool
    seconds: float
    autograd: bool
    relu: bool


def answer(asked: Asked, *, explained: bool) -> Report:
    """The report that the options ask for."""
    from perfmodel.core.errors import UsageError

    if asked.seconds <= 0:
        raise UsageError(f"--seconds is {asked.seconds:g}", "give a time above 0")
    if asked.graph is not None:
        return _graph(asked)
    source = _source(asked)
    memory = None if asked.memory is None else _memory(asked.memory, source.sized)
    if asked.exact:
        return _exact(asked, source, memory)
    return _autograd(asked, source) if asked.autograd else _schedules(asked, source, memory, explained)


def _source(asked: Asked) -> Source:
    from perfmodel.core.errors import UsageError
    from perfmodel.remat import source

    shapes = {"cost": asked.cost, "backward": asked.backward, "size": asked.size, "interior": asked.interior}
    given = [f"--{name}" for name, text in shapes.items() if text is not None]
    if asked.model is None and asked.width is None:
        if asked.hardware is not None or asked.dtype is not None or asked.n is not None or asked.batch != 1:
            raise UsageError("--hardware, --dtype, --batch and --n need layers of known shape", "give --width, or the name of a model")
        return source.listed(asked.layers, asked.cost, asked.backward, asked.size, asked.interior)
    if given or (asked.model is not None and (asked.width is not None or asked.layers is not None)):
        clash = given[0] if given else "--width or --layers"
        raise UsageError(f"{clash} does not go with {'a model' if asked.model else '--width'}, which has its own", "leave one of them out")
    from perfmodel.catalog import calibrated_devices, find_model
    from perfmodel.core.checks import dtype_on, whole

    device = device_for(asked.hardware)
    whole("batch", asked.batch)
    if asked.model is None:
        assert asked.width is not None
        return source.linear(asked.layers, asked.batch, asked.width, dtype_on(asked.dtype, device), device, calibrated_devices)
    model = find_model(asked.model)
    length = asked.n if asked.n is not None else min(2048, model.max_positions or 2048)
    return source.of_model(model, asked.batch, length, dtype_on(asked.dtype, device, "bf16"), device, calibrated_devices)


def _memory(text: str, sized: bool) -> Number:
    from perfmodel.core.errors import UsageError
    from perfmodel.remat.quantities import quantities

    [memory, *more], unit = quantities("memory", text, "B")
    if more or unit != sized:
        raise UsageError(
            f"--memory is {text!r}", f"give {'a size such as 40GB' if sized else 'a number of values, as the sizes have no unit'}"
        )
    return memory


def _plan(asked: Asked, memory: Number | None) -> Plan:
    from perfmodel.remat.base import Plan
    from perfmodel.remat.quantities import layer_numbers

    checkpoints = None if asked.checkpoints is None else layer_numbers("checkpoints", asked.checkpoints)
    return Plan(checkpoints, asked.every, asked.slots, memory)


def _schedules(asked: Asked, source: Source, memory: Number | None, explained: bool) -> Report:
    from perfmodel.remat.curve import curve
    from perfmodel.remat.evaluate import Question, evaluate
    from perfmodel.remat.tensors import choices
    from perfmodel.report.remat import report

    plan = _plan(asked, memory)
    question = Question(source.chain, plan, source.title, source.sized, source.timed, asked.strategies, source.device, source.basis).check()
    found = evaluate(question)
    points = curve(source.chain) if memory is not None else []
    ranked = choices(source.tensors, source.dtype, source.device) if source.dtype and source.device and not asked.strategies else []
    return report(found, points, ranked, explained=explained)


def _exact(asked: Asked, source: Source, memory: Number | None) -> Report:
    from perfmodel.core.checks import given
    from perfmodel.remat.graph import graph_of
    from perfmodel.remat.graph_answer import answer as solve
    from perfmodel.report.remat_graph import graph_report

    given("memory", memory, "remat --layers 8 --memory 6 --exact")
    return graph_report(solve(source.title, graph_of(source.chain), source.sized, memory, asked.seconds, source.timed))


def _graph(asked: Asked) -> Report:
    from perfmodel.remat.graph import training
    from perfmodel.remat.graph_answer import answer as solve
    from perfmodel.remat.graph_file import read_graph
    from perfmodel.report.remat_graph import graph_report

    forward, sized = read_graph(Path(str(asked.graph)))
    memory = None if asked.memory is None else _memory(asked.memory, sized)
    return graph_report(solve(f"graph of {len(forward)} values and their gradients", training(forward), sized, memory, asked.seconds))


def _autograd(asked: Asked, source: Source) -> Report:
    from perfmodel.remat.autograd import picture
    from perfmodel.remat.evaluate import Question
    from perfmodel.report.remat_graph import autograd_report

    question = Question(
        source.chain, _plan(asked, None), source.title, source.sized, source.timed, device=source.device, basis=source.basis
    )
    return autograd_report(picture(source.chain, asked.relu), question.check())
