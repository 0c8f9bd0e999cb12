"""A question about rematerialization and its answer: what each strategy makes of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.remat.base import Plan, Strategy
from perfmodel.remat.chain import Chain
from perfmodel.remat.simulate import Run, simulate
from perfmodel.remat.strategies import find, names

_FEATURED = ("optimal", "segments", "every-k", "sqrt-n")
"""Whose timeline is drawn where nobody says: the first of those that apply."""


@dataclass(frozen=True, slots=True)
class Question:
    """``sized``: sizes are bytes, else values; ``timed``: costs are seconds, else forward steps.

    ``title``: the chain in words; ``basis``: where costs and sizes are from. ``strategies``: by name; none for all that apply.
    """

    chain: Chain
    plan: Plan
    title: str
    sized: bool = False
    timed: bool = False
    strategies: tuple[str, ...] = ()
    device: Device | None = None
    basis: tuple[str, ...] = ()

    def check(self) -> Question:
        """This question, if it has a meaning; else UsageError names the option and the fix."""
        self.plan.check(self.chain)
        for name in self.strategies:
            if not find(name).applies(self.chain, self.plan):
                raise UsageError(f"--strategy {name} lacks an option, or the chain is too long for it", _needs(name))
        return self


def _needs(name: str) -> str:
    return {"every-k": "give --every", "optimal": "give --memory, and at most 128 layers"}.get(name, "give --checkpoints")


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy and what its schedule took; None if there is none, and ``missing`` says why."""

    strategy: Strategy
    run: Run | None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """``featured``: the row whose timeline is drawn."""

    question: Question
    rows: Sequence[Row]
    featured: Row | None = None

    def of(self, name: str) -> Run | None:
        """The run of the strategy called ``name``; None if it was not asked for or there is none."""
        return next((row.run for row in self.rows if row.strategy.name == name), None)

    @property
    def fitting(self) -> list[tuple[Strategy, Run]]:
        """Strategies within the memory asked for, the cheapest first."""
        memory = self.question.plan.memory
        done = [(row.strategy, row.run) for row in self.rows if row.run is not None and (memory is None or row.run.peak <= memory)]
        return sorted(done, key=lambda found: found[1].cost)


def evaluate(question: Question) -> Answer:
    """Every strategy asked for, or all that apply, simulated."""
    chain, plan = question.chain, question.plan
    chosen = [find(name) for name in question.strategies or names()]
    rows = [_row(strategy, question) for strategy in chosen if strategy.applies(chain, plan)]
    done = {row.strategy.name: row for row in rows if row.run is not None}
    wanted = [*question.strategies, *_FEATURED]
    featured = next((done[name] for name in wanted if name in done), next(iter(done.values()), None))
    return Answer(question, rows, featured)


def _row(strategy: Strategy, question: Question) -> Row:
    try:
        return Row(strategy, simulate(question.chain, strategy.schedule(question.chain, question.plan)))
    except UnavailableError as error:
        return Row(strategy, None, error.message)
