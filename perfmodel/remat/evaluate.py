"""Schedules of a chain by all strategies, the cost over memory, and closed forms of the counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.trace import FormulaStep, Trace
from perfmodel.remat.chain import Chain
from perfmodel.remat.optimal_dp import LARGEST, Program
from perfmodel.remat.schedule import Plan, Strategy
from perfmodel.remat.simulate import Run, simulate
from perfmodel.remat.source import Source
from perfmodel.remat.strategies import find, names
from perfmodel.remat.strategies.revolve import slots_of

_FEATURED = ("optimal", "segments", "every-k", "sqrt-n")
"""Strategies whose timeline is drawn by default: the first of these that applies."""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One strategy and the run of its schedule; without a run, ``missing`` says why."""

    strategy: Strategy
    run: Run | None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleAnswer:
    """A chain, the inputs of its strategies, and a row for each strategy. ``featured``: the row whose timeline is drawn."""

    source: Source
    plan: Plan
    rows: Sequence[ScheduleRow]
    featured: ScheduleRow | None = None

    def run_of(self, name: str) -> Run | None:
        """The run of the strategy called ``name``; None if it was not asked for or there is none."""
        return next((row.run for row in self.rows if row.strategy.name == name), None)

    @property
    def fitting(self) -> list[tuple[Strategy, Run]]:
        """Strategies within the memory asked for, the cheapest first."""
        runs = [(row.strategy, row.run) for row in self.rows if row.run is not None]
        if self.plan.memory is not None:
            runs = [(strategy, run) for strategy, run in runs if run.peak <= self.plan.memory]
        return sorted(runs, key=lambda strategy_and_run: strategy_and_run[1].cost)


def evaluate(source: Source, plan: Plan, strategies: Sequence[str] = ()) -> ScheduleAnswer:
    """Runs of every one of ``strategies``, or all that apply. UsageError for a plan or a strategy without a meaning for the chain."""
    chain = source.chain
    plan.check(chain)
    chosen = [find(name) for name in strategies or names()]
    for strategy in chosen:
        if strategies and not strategy.applies(chain, plan):
            fixes = {"every-k": "give --every", "optimal": "give --budget, and at most 128 layers"}
            fix = fixes.get(strategy.name, "give --checkpoints")
            raise UsageError(f"--strategy {strategy.name} lacks an option, or the chain is too long for it", fix)
    rows = [_row(strategy, chain, plan) for strategy in chosen if strategy.applies(chain, plan)]
    row_of = {row.strategy.name: row for row in rows if row.run is not None}
    by_preference = [row_of[name] for name in (*strategies, *_FEATURED, *row_of) if name in row_of]
    return ScheduleAnswer(source, plan, rows, by_preference[0] if by_preference else None)


def _row(strategy: Strategy, chain: Chain, plan: Plan) -> ScheduleRow:
    """The run of ``strategy``, or why there is none."""
    try:
        return ScheduleRow(strategy, simulate(chain, strategy.schedule(chain, plan)))
    except UnavailableError as error:
        return ScheduleRow(strategy, None, error.message)


# What memory buys


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The least ``memory`` for a schedule of ``cost``, forward and backward; ``overhead``: extra cost as a share of keeping everything."""

    memory: Number
    cost: Number
    overhead: float


def curve(chain: Chain, stops: int = 8) -> list[CurvePoint]:
    """Costs from the least possible memory to that of keeping everything, in about ``stops`` steps; empty for a long chain."""
    if len(chain) > LARGEST:
        return []
    everything = simulate(chain, find("keep-all").schedule(chain, Plan()))
    program = Program(chain, everything.peak)
    if not program.exact:  # sizes are rounded up to parts of the memory, so that keeping everything needs more than its peak
        program = Program(chain, 1.1 * everything.peak)
    forward_costs = dict(program.curve)  # by memory, which rises
    least, most = min(forward_costs), max(forward_costs)
    targets = [least * (most / least) ** (stop / (stops - 1)) for stop in range(stops)]  # evenly spaced on a logarithmic scale
    points: dict[Number, CurvePoint] = {}
    for target in targets:
        memory = max(memory for memory in forward_costs if memory <= target * (1 + 1e-12))
        cost = forward_costs[memory] + chain.backward_cost
        points[memory] = CurvePoint(memory, cost, cost / everything.cost - 1)
    return list(points.values())


# Closed forms behind the counts of equal layers


def explain(answer: ScheduleAnswer) -> list[tuple[str, dict[str, Any], list[FormulaStep]]]:
    """Formula steps of the counts of each strategy, with its name and a dict that says which one it is.

    Counts are in closed form if the layers are equal, else from the simulation.
    """
    parts = []
    for row in answer.rows:
        if row.run is not None:
            name = row.strategy.name
            parts.append((name, {"strategy": name}, _steps(row.strategy, row.run, answer.source.chain, answer.plan)))
    return parts


def _steps(strategy: Strategy, run: Run, chain: Chain, plan: Plan) -> list[FormulaStep]:
    """Formula steps of the counts of one strategy."""
    trace, length = Trace(), len(chain)
    n = trace.symbol("n", length, "layers", "given")
    if strategy.name == "every-k" and plan.every is not None:
        plan = replace(plan, every=trace.symbol("k", min(plan.every, length), "layers per segment", "given"))
    if strategy.name == "revolve":
        plan = replace(plan, slots=trace.symbol("s", slots_of(length, plan), "values stored, x_0 among them", "given, or the default"))
    extra_steps = values = None  # closed forms
    if chain.uniform and chain.taped:
        extra_steps = strategy.taped_steps
    elif chain.uniform:
        extra_steps, values = strategy.extra_steps, strategy.values
    for name, meaning, closed_form, counted in (
        ("extra steps", "forward steps beyond one per layer", extra_steps, run.extra_steps),
        ("values", "the most at once, x_0 and working ones included", values, run.values),
        ("peak", "with gradients and weights", None, run.peak),
        ("cost", "forward and backward", None, run.cost),
    ):
        source = "counted by running the schedule"
        if closed_form is not None:
            source = strategy.source
            trace.define(name, meaning, closed_form(n, plan), source)
        if name not in trace.steps:  # a closed form without symbols leaves no step
            trace.steps[name] = FormulaStep(name, meaning, "", "", counted, source)
    return list(trace.steps.values())
