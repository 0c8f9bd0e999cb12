"""Closed forms behind the counts of equal layers, as formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.trace import Step, Trace
from perfmodel.remat.evaluate import Answer, Row
from perfmodel.remat.strategies.revolve import slots_of


def explain(answer: Answer) -> list[tuple[str, dict[str, Any], list[Step]]]:
    """One part per strategy: its counts in closed form where the layers are equal, else as the simulation counted them."""
    return [(row.strategy.name, {"strategy": row.strategy.name}, _steps(row, answer)) for row in answer.rows if row.run is not None]


def _steps(row: Row, answer: Answer) -> list[Step]:
    assert row.run is not None
    trace, run, strategy = Trace(), row.run, row.strategy
    question = answer.question
    length = len(question.chain)
    n = trace.symbol("n", length, "layers", "given")
    taped = question.chain.taped and all(layer.interior for layer in question.chain.layers)
    equal = question.chain.uniform
    plan = question.plan
    if strategy.name == "every-k" and plan.every is not None:
        plan = replace(plan, every=trace.symbol("k", min(plan.every, length), "layers per segment", "given"))
    if strategy.name == "revolve":
        plan = replace(plan, slots=trace.symbol("s", slots_of(length, plan), "values stored, x_0 among them", "given, or the default"))
    extra = (strategy.taped_steps if taped else strategy.extra_steps) if equal and (taped or not question.chain.taped) else None
    counted = "counted by running the schedule"
    _define(
        trace,
        "extra steps",
        "forward steps beyond one per layer",
        extra and extra(n, plan),
        run.extra_steps,
        strategy.source if extra else counted,
    )
    values = strategy.values if equal and not question.chain.taped else None
    _define(
        trace,
        "values",
        "the most at once, x_0 and working ones included",
        values and values(n, plan),
        run.values,
        strategy.source if values else counted,
    )
    _define(trace, "peak", "with gradients and weights", None, run.peak, counted)
    _define(trace, "cost", "forward and backward", None, run.cost, counted)
    return list(trace.steps.values())


def _define(trace: Trace, name: str, meaning: str, formula: Any, value: Any, source: str) -> None:
    """``name`` by its formula, whose value is that of the simulation, or by that value alone."""
    defined = None if formula is None else trace.define(name, meaning, formula, source)
    if name not in trace.steps or defined is None:
        trace.steps[name] = Step(name, meaning, "", "", value, source)
