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
    """A chain, the inputs of its strategies, and their rows. ``featured``: the row whose timeline is drawn."""

    source: Source
    plan: Plan
    rows: Sequence[ScheduleRow]
    featured: ScheduleRow | None = None

    def of(self, name: str) -> Run | None:
        """The run of the strategy called ``name``; None if it was not asked for or there is none."""
        return next((row.run for row in self.rows if row.strategy.name == name), None)

    @property
    def fitting(self) -> list[tuple[Strategy, Run]]:
        """Strategies within the memory asked for, the cheapest first."""
        memory = self.plan.memory
        done = [(row.strategy, row.run) for row in self.rows if row.run is not None and (memory is None or row.run.peak <= memory)]
        return sorted(done, key=lambda found: found[1].cost)


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
    done = {row.strategy.name: row for row in rows if row.run is not None}
    featured = next((done[name] for name in [*strategies, *_FEATURED] if name in done), next(iter(done.values()), None))
    return ScheduleAnswer(source, plan, rows, featured)


def _row(strategy: Strategy, chain: Chain, plan: Plan) -> ScheduleRow:
    try:
        return ScheduleRow(strategy, simulate(chain, strategy.schedule(chain, plan)))
    except UnavailableError as error:
        return ScheduleRow(strategy, None, error.message)


# What memory buys


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The least ``memory`` for a schedule of ``cost``, forward and backward; ``overhead``: relative to everything kept."""

    memory: Number
    cost: Number
    overhead: float


def curve(chain: Chain, stops: int = 8) -> list[CurvePoint]:
    """Costs from the least possible memory to that of keeping everything, in about ``stops`` steps; empty for a long chain."""
    if len(chain) > LARGEST:
        return []
    whole = simulate(chain, find("keep-all").schedule(chain, Plan()))
    program = Program(chain, whole.peak)
    if not program.exact:  # sizes are rounded up: only with more than it takes is keeping everything among the schedules
        program = Program(chain, 1.1 * whole.peak)
    corners = program.curve
    least, most = corners[0][0], corners[-1][0]
    targets = [least * (most / least) ** (stop / (stops - 1)) for stop in range(stops)]
    chosen = dict.fromkeys(
        max((point for point in corners if point[0] <= target * (1 + 1e-12)), key=lambda point: point[0]) for target in targets
    )
    return [CurvePoint(memory, cost + chain.backward_cost, (cost + chain.backward_cost) / whole.cost - 1) for memory, cost in chosen]


# Closed forms behind the counts of equal layers


def explain(answer: ScheduleAnswer) -> list[tuple[str, dict[str, Any], list[FormulaStep]]]:
    """Steps, one part per strategy: its counts in closed form if the layers are equal, else from the simulation."""
    return [(row.strategy.name, {"strategy": row.strategy.name}, _steps(row, answer)) for row in answer.rows if row.run is not None]


def _steps(row: ScheduleRow, answer: ScheduleAnswer) -> list[FormulaStep]:
    assert row.run is not None
    trace, run, strategy = Trace(), row.run, row.strategy
    chain, plan = answer.source.chain, answer.plan
    length = len(chain)
    n = trace.symbol("n", length, "layers", "given")
    if strategy.name == "every-k" and plan.every is not None:
        plan = replace(plan, every=trace.symbol("k", min(plan.every, length), "layers per segment", "given"))
    if strategy.name == "revolve":
        plan = replace(plan, slots=trace.symbol("s", slots_of(length, plan), "values stored, x_0 among them", "given, or the default"))
    extra = values = None
    if chain.uniform:
        extra, values = (strategy.taped_steps, None) if chain.taped else (strategy.extra_steps, strategy.values)
    for name, meaning, closed_form, counted in (
        ("extra steps", "forward steps beyond one per layer", extra, run.extra_steps),
        ("values", "the most at once, x_0 and working ones included", values, run.values),
        ("peak", "with gradients and weights", None, run.peak),
        ("cost", "forward and backward", None, run.cost),
    ):
        source = strategy.source if closed_form else "counted by running the schedule"
        if closed_form:
            trace.define(name, meaning, closed_form(n, plan), source)
        if name not in trace.steps:
            trace.steps[name] = FormulaStep(name, meaning, "", "", counted, source)
    return list(trace.steps.values())
