"""The report of schedules that rebuild values of a chain: steps, memory, when it peaks, and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.remat.device_chain import Choice
from perfmodel.remat.evaluate import CurvePoint, ScheduleAnswer, ScheduleRow, explain
from perfmodel.remat.graph import GraphRun
from perfmodel.remat.schedule import LOSS
from perfmodel.remat.simulate import Run
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import WIDTH, columns, head, memory_chart, sparkline, with_steps
from perfmodel.report.remat_first import charts, figures, listed, meters, verdict
from perfmodel.report.remat_notes import Units, notes, summary

SPARK = 54
"""Columns of a line of bars, which fits 80 with its name."""
POINTS = 200
"""Points of the timeline in the JSON object, and the most actions of a schedule that it lists."""
STEPS = 1000
"""Most actions of a schedule whose memory is told one by one."""
TENSOR_NOTE = (
    "At the roofline: what perfmodel recompute says of keeping against computing again, inputs at hand. Frees: bytes per second of the "
    "kernel's roofline time; where memory is short, give up the uppermost first."
)


def report(
    answer: ScheduleAnswer,
    points: Sequence[CurvePoint] = (),
    ranked: Sequence[Choice] = (),
    *,
    explained: bool = False,
    pictures: bool = False,
) -> Report:
    """``answer`` as a Report; its data follows the schema perfmodel.remat/1. ``explained``: with every closed form.

    ``points``: what memory buys; ``ranked``: tensors to keep or compute again. ``pictures``: with memory over time and against cost.
    """
    source, units = answer.source, Units(answer.source.timed, answer.source.sized)
    curve, tensors = [_point(point, units) for point in points], list(map(_tensor, ranked))
    tables = _tables(answer, units)
    tables += [replace(as_rows("what memory buys: the cheapest schedule within it", curve), align="rrr")] if curve else []
    tables += [as_rows("keep it or compute it again, tensor by tensor", tensors)] if tensors else []
    found = {**data(answer, units), "curve": list(map(as_json, curve)), "tensors": list(map(as_json, tensors))}
    words = notes(answer) + [TENSOR_NOTE] * bool(ranked)
    brief, reasons = _brief(answer, units), summary(answer, units)
    plain = Report(f"Rematerialization: {source.title}", [], tables, words, found, brief=brief, reasons=reasons)
    plain = _first(plain, answer, units, pictures)
    return with_steps(plain, explain(answer)) if explained else plain


def _brief(answer: ScheduleAnswer, units: Units) -> list[Table]:
    """Costs and peaks alone."""
    heads = {"strategy": "strategy", "cost": "time" if units.timed else "steps"}
    heads |= {"extra_steps": "rebuilt", "values": "values", "peak": "peak"}
    return [as_rows("", [_metrics(row, answer.plan.memory, units) for row in answer.rows], labels=heads)]


def _first(plain: Report, answer: ScheduleAnswer, units: Units, pictures: bool) -> Report:
    """``plain`` with what it says first, and its ``pictures``."""
    memory, form = answer.plan.memory, (units.timed, units.sized)
    runs = listed(answer.rows, answer.featured, memory)
    metered, found = meters(runs, memory, *form)
    drawn = charts(answer.rows, runs, memory, *form) if pictures else []
    said = verdict(answer.rows, answer.featured, memory, *form)
    said = said or [f"No schedule: {row.missing}." for row in answer.rows if row.missing][:1]
    return replace(plain, verdict=said, meters=found, metered=metered, figures=figures(runs, *form), charts=drawn)


def data(answer: ScheduleAnswer, units: Units) -> dict[str, Any]:
    """The object of schema perfmodel.remat/1."""
    source, plan, row = answer.source, answer.plan, answer.featured
    inputs: dict[str, Any] = {"layers": len(source.chain), "checkpoints": None if plan.checkpoints is None else list(plan.checkpoints)}
    inputs |= {name: getattr(plan, name) for name in ("every", "slots", "memory")} | {"uniform": source.chain.uniform}
    first = head("remat", inputs, source.device)
    return {
        **first,
        "hardware": first.get("hardware"),
        "units": {"cost": "s" if source.timed else "forward steps", "size": "B" if source.sized else "values"},
        "results": [as_json(_metrics(row, plan.memory, units)) for row in answer.rows],
        "timeline": None if row is None or row.run is None else _timeline(row, row.run, units),
    }


def _timeline(row: ScheduleRow, run: Run, units: Units) -> dict[str, Any]:
    listed = [str(moment.action) for moment in run.moments] if len(run.moments) <= POINTS else None
    found = [Metric("cost", run.cost, unit=units.cost_unit), Metric("memory", bars(run, POINTS), unit=units.size_unit)]
    return {"strategy": row.strategy.name, **as_json(found), "actions": listed, "steps": steps_of(run, units)}


def steps_of(run: Run, units: Units) -> list[dict[str, Any]] | None:
    """Memory step by step: each action, the cost when it ends, and what is in memory while it runs; None for more than ``STEPS``."""
    if len(run.moments) > STEPS:
        return None
    ends = ((moment, Metric("end", moment.end, unit=units.cost_unit)) for moment in run.moments)
    return [{"action": str(moment.action), **as_json([end, Metric("memory", moment.during, unit=units.size_unit)])} for moment, end in ends]


def bars(run: Run | GraphRun, width: int, *, whole_steps: bool = False) -> list[Number]:
    """Memory over the time of ``run``, in ``width`` columns."""
    return columns([(moment.end, moment.during) for moment in run.moments], width, whole_steps=whole_steps)


def _metrics(row: ScheduleRow, memory: Number | None, units: Units) -> list[Metric]:
    run = row.run
    named = [Metric("strategy", row.strategy.name, unit="text"), Metric("source", row.strategy.source)]
    if run is None:
        return [*named, Metric("fits", False), Metric("missing", row.missing), Metric("", row.missing, "summary", "text")]
    fits = None if memory is None else bool(run.peak <= memory)
    return [
        *named,
        Metric("forward_steps", run.forward_steps),
        Metric("extra_steps", run.extra_steps),
        Metric("forward_cost", run.forward_cost, unit=units.cost_unit),
        Metric("backward_cost", run.chain.backward_cost, unit=units.cost_unit),
        Metric("cost", run.cost, unit=units.cost_unit),
        Metric("values", run.values),
        Metric("peak", run.peak, unit=units.size_unit, after=" (too much)" if fits is False else ""),
        Metric("peak_without_gradients_and_weights", run.kept_peak, unit=units.size_unit),
        Metric("peak_at", str(run.worst.action)),
        Metric("fits", fits),
        Metric("", row.strategy.summary, "summary", "text"),
    ]


def _point(point: CurvePoint, units: Units) -> list[Metric]:
    return [
        Metric("memory", point.memory, "memory", units.size_unit),
        Metric("cost", point.cost, "time" if units.timed else "steps", units.cost_unit),
        Metric("overhead", point.overhead, "more than with everything kept", "share"),
    ]


def _tensor(choice: Choice) -> list[Metric]:
    tensor, result = choice.tensor, choice.result
    return [
        Metric("tensor", tensor.name, "tensor", "text"),
        Metric("count", tensor.count, "number"),
        Metric("bytes", tensor.size, "size", "B"),
        Metric("flop_per_byte", result.intensity, "FLOP/B"),
        Metric("recompute_s", result.recompute_s),
        Metric("store_s", result.best.store_s),
        Metric("kernel_s", tensor.seconds, "to make again", "s"),
        Metric("freed_bytes_per_s", choice.freed_bytes_per_s, "frees", "B/s"),
        Metric("verdict", "recompute" if result.recomputes else "store", "at the roofline", "text"),
    ]


def _tables(answer: ScheduleAnswer, units: Units) -> list[Table]:
    before, behind = ({"cost": "time"}, {}) if units.timed else ({}, {"cost": "steps"})
    labels = {"strategy": "strategy", **before, "forward_steps": "forward", "extra_steps": "rebuilt", **behind}
    labels |= {"values": "values", "peak": "peak", "summary": "kept; rebuilt"}
    runs = [(row.strategy.name, row.run) for row in answer.rows if row.run is not None]
    lines = [[name, sparkline(bars(run, SPARK), run.peak)] for name, run in runs]
    found = [
        as_rows("", [_metrics(row, answer.plan.memory, units) for row in answer.rows], labels=labels),
        Table(
            "memory, each schedule over its own time and up to its own peak", ["strategy", "first to last step"], lines, "ll", drawn=True
        ),
    ]
    row = answer.featured
    if row is None or row.run is None:
        return found
    lines = [
        [str(place), one["action"], units.cost(one["end"]), units.size(one["memory"])]
        for place, one in enumerate(steps_of(row.run, units) or [], 1)
    ]
    head = ["step", "action", "time at its end" if units.timed else "steps at its end", "in memory"]
    trace = [Table(f"{row.strategy.name}: memory step by step", head, lines, "rlrr")] if lines else []
    return [*found, _chart(row.strategy.name, row.run, units), *trace]


def _chart(name: str, run: Run, units: Units) -> Table:
    heights = bars(run, WIDTH, whole_steps=True)
    loss = next(moment.end for moment in run.moments if moment.action.kind == LOSS)
    ahead = round(len(heights) * float(loss / run.cost)) if run.cost else 0
    parts = [(ahead, "forward"), (len(heights) - ahead, "backward, rebuilding" if run.extra_steps else "backward")]
    title = f"{name}: memory over time, at most {units.size(run.peak)} at {run.worst.action}"
    return memory_chart(title, heights, run.peak, parts, units.size, units.rows(run.peak))
