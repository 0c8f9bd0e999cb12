"""The report of schedules that rebuild values of a chain: steps, memory, when it peaks, and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel import __version__
from perfmodel.core.arith import Number
from perfmodel.remat.curve import Point
from perfmodel.remat.evaluate import Answer, Question, Row
from perfmodel.remat.explain import explain
from perfmodel.remat.schedule import LOSS
from perfmodel.remat.simulate import Run
from perfmodel.remat.tensors import Choice
from perfmodel.remat.timeline import columns
from perfmodel.report.document import Report, Table
from perfmodel.report.op_common import with_steps
from perfmodel.report.remat_extra import TENSOR_NOTE, curve_data, curve_table, tensor_data, tensor_table
from perfmodel.report.remat_verdict import verdict
from perfmodel.report.remat_words import Words
from perfmodel.report.timeline import axis, chart, sparkline

SPARK, WIDTH, HEIGHT, MOST_ROWS = 54, 60, 8, 12
"""Columns of a line of bars; columns of the chart, its rows, and rows up to which each is one value. All fit 80 columns."""
POINTS = 200
"""Points of the timeline in the JSON object, and the most actions of a schedule that it lists."""


def report(answer: Answer, points: Sequence[Point] = (), ranked: Sequence[Choice] = (), *, explained: bool = False) -> Report:
    """``answer`` as a Report; its data follows the schema perfmodel.remat/1. ``explained``: with every closed form.

    ``points``: what memory buys; ``ranked``: tensors to keep or compute again.
    """
    question, words = answer.question, Words(answer.question)
    tables = [_strategies(answer, words), _sparklines(answer), *_chart(answer, words)]
    tables += [curve_table(points, words)] if points else []
    tables += [tensor_table(ranked)] if ranked else []
    found = {**data(answer), "curve": curve_data(points), "tensors": tensor_data(ranked)}
    notes = words.notes(answer) + ([TENSOR_NOTE] if ranked else [])
    plain = Report(f"Rematerialization: {question.title}", verdict(answer, words), tables, notes, found)
    return with_steps(plain, explain(answer)) if explained else plain


# The JSON object


def data(answer: Answer) -> dict[str, Any]:
    """The object of schema perfmodel.remat/1."""
    question, plan = answer.question, answer.question.plan
    device = question.device
    chosen = answer.featured
    return {
        "schema": "perfmodel.remat/1",
        "version": __version__,
        "inputs": {
            "layers": len(question.chain),
            "checkpoints": None if plan.checkpoints is None else list(plan.checkpoints),
            "every": plan.every,
            "slots": plan.slots,
            "memory": plan.memory,
            "uniform": question.chain.uniform,
        },
        "hardware": None if device is None else {"id": device.id, "name": device.name},
        "units": {"cost": "s" if question.timed else "forward steps", "size": "B" if question.sized else "values"},
        "results": [_entry(row, question) for row in answer.rows],
        "timeline": None if chosen is None or chosen.run is None else _timeline(chosen, chosen.run),
    }


def _entry(row: Row, question: Question) -> dict[str, Any]:
    strategy, run, memory = row.strategy, row.run, question.plan.memory
    named = {"strategy": strategy.name, "source": strategy.source}
    if run is None:
        return {**named, "fits": False, "missing": row.missing}
    return {
        **named,
        "forward_steps": run.forward_steps,
        "extra_steps": run.extra_steps,
        "forward_cost": run.forward_cost,
        "backward_cost": run.chain.backward_cost,
        "cost": run.cost,
        "values": run.values,
        "peak": run.peak,
        "peak_without_gradients_and_weights": run.kept_peak,
        "peak_at": str(run.worst.action),
        "fits": None if memory is None else bool(run.peak <= memory),
    }


def _timeline(row: Row, run: Run) -> dict[str, Any]:
    binned = columns([(moment.end, moment.during) for moment in run.moments], POINTS)
    listed = [str(moment.action) for moment in run.moments] if len(run.moments) <= POINTS else None
    return {"strategy": row.strategy.name, "cost": run.cost, "memory": binned, "actions": listed}


# Tables


def _strategies(answer: Answer, words: Words) -> Table:
    timed, memory = answer.question.timed, answer.question.plan.memory
    header = ["strategy", *(["time"] if timed else []), "forward", "rebuilt", *([] if timed else ["steps"]), "values", "peak"]
    rows = []
    for row in answer.rows:
        run = row.run
        if run is None:
            rows.append([row.strategy.name, *["-"] * (len(header) - 1), row.missing])
            continue
        cells = [words.cost(run.cost)] if timed else []
        cells += [f"{run.forward_steps:,}", f"{run.extra_steps:,}", *([] if timed else [words.cost(run.cost)]), f"{run.values:,}"]
        peak = words.size(run.peak) + ("" if memory is None or run.peak <= memory else " (too much)")
        rows.append([row.strategy.name, *cells, peak, row.strategy.summary])
    return Table("", [*header, "kept; rebuilt"], rows, "l" + "r" * (len(header) - 1) + "l")


def _sparklines(answer: Answer) -> Table:
    runs = [(row.strategy.name, row.run) for row in answer.rows if row.run is not None]
    lines = [[name, sparkline(_columns(run, SPARK), run.peak)] for name, run in runs]
    return Table("memory, each schedule over its own time and up to its own peak", ["strategy", "first to last step"], lines, "ll")


def _columns(run: Run, width: int, *, whole_steps: bool = False) -> list[Number]:
    return columns([(moment.end, moment.during) for moment in run.moments], width, whole_steps=whole_steps)


def _chart(answer: Answer, words: Words) -> list[Table]:
    row = answer.featured
    if row is None or row.run is None:
        return []
    run = row.run
    bars = _columns(run, WIDTH, whole_steps=True)
    loss = next(moment.end for moment in run.moments if moment.action.kind == LOSS)
    ahead = round(len(bars) * float(loss / run.cost)) if run.cost else 0
    parts = axis([(ahead, "forward"), (len(bars) - ahead, "backward, rebuilding" if run.extra_steps else "backward")])
    few = isinstance(run.peak, int) and not answer.question.sized and run.peak <= MOST_ROWS
    lines = [*chart(bars, run.peak, run.peak if few else HEIGHT, words.size), *(["", line] for line in parts)]
    title = f"{row.strategy.name}: memory over time, at most {words.size(run.peak)} at {run.worst.action}"
    return [Table(title, ["memory", ""], lines, "rl")]
