"""The cheapest schedule of a graph within a memory budget, by Checkmate's program and HiGHS through scipy.optimize.milp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.remat.graph import FREE, MAKE, Graph, GraphRun, Step, keep_all, run

LARGEST = 64
"""Nodes of a graph: the program has the square of it in binary variables, twice."""
SECONDS = 60.0
INFEASIBLE = 2


@dataclass(frozen=True, slots=True)
class Solution:
    """``proved``: nothing is cheaper; else ``bound`` says below what no schedule's cost lies."""

    steps: list[Step]
    proved: bool
    bound: float


def solve(graph: Graph, memory: Number, seconds: float = SECONDS) -> Solution | None:
    """The cheapest schedule within ``memory``; None if none fits.

    UnavailableError without SciPy, for a large graph, or if none is found in time.
    """
    program = _program(graph)
    weights = {number: float(graph.nodes[node].cost) for (_, node), number in program.made.items()}
    found = program.solve(weights, float(memory - graph.base), seconds)
    if found.status == INFEASIBLE:
        return None
    if found.x is None:
        raise UnavailableError(f"no schedule was found in {seconds:g} s", "give more --seconds, or another --memory")
    return Solution(list(program.steps(found.x)), found.status == 0, float(found.mip_dual_bound))


def least_memory(graph: Graph, seconds: float = SECONDS) -> float | None:
    """The least memory that any schedule needs, whatever it costs; None if it was not found in time."""
    program = _program(graph)
    found = program.solve({program.budget: 1.0}, float("inf"), seconds)
    return float(found.fun) * program.unit + float(graph.base) if found.status == 0 else None


def _program(graph: Graph) -> GraphProgram:
    try:
        import_module("scipy.optimize")
    except ImportError:
        raise UnavailableError("the exact solver needs SciPy 1.9 or later", "pip install 'perfmodel[solver]'") from None
    if len(graph) > LARGEST:
        raise UnavailableError(f"{len(graph)} values and gradients are too many for the exact solver", f"it takes {LARGEST}")
    return GraphProgram(graph)


@dataclass(slots=True)
class Rows:
    """Constraints low <= sum of coefficients x variables <= high, as they are collected."""

    entries: tuple[list[int], list[int], list[float]] = field(default_factory=lambda: ([], [], []))
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: dict[int, float], low: float, high: float) -> None:
        """One more: coefficients by variable."""
        rows, columns, values = self.entries
        rows += [len(self.low)] * len(terms)
        columns += terms
        values += terms.values()
        self.low.append(low)
        self.high.append(high)


class GraphProgram:
    """Numbers of the variables, and the constraints over them."""

    def __init__(self, graph: Graph) -> None:
        self.graph, count = graph, len(graph)
        self.unit = float(max(node.size for node in graph.nodes)) or 1.0  # sizes near 1 keep the program well conditioned
        self.sizes = [float(node.size) / self.unit for node in graph.nodes]
        self.made = self._numbers((t, i) for t in range(count) for i in range(t + 1))
        self.carried = self._numbers(((t, i) for t in range(count) for i in range(t)), len(self.made))
        binary = len(self.made) + len(self.carried)
        uses = [(i, k) for k, node in enumerate(graph.nodes) for i in (*node.inputs, k)]
        self.freed = self._numbers(((t, i, k) for t in range(count) for i, k in uses if k <= t), binary)
        self.memory = self._numbers(((t, k) for t in range(count) for k in range(t + 1)), binary + len(self.freed))
        self.budget = binary + len(self.freed) + len(self.memory)
        self.binary, self.size = binary, self.budget + 1
        self.rows = Rows()
        for stage in range(count):
            self._dependencies(stage)
            self._frees(stage)
            self._memory(stage)

    @staticmethod
    def _numbers(keys: Iterator[Any], start: int = 0) -> dict[Any, int]:
        return {key: start + number for number, key in enumerate(keys)}

    def _dependencies(self, stage: int) -> None:
        """What is made needs its inputs made or carried; what is carried was made or carried the stage before."""
        for made in range(stage + 1):
            for source in self.graph.nodes[made].inputs:
                terms = {self.made[stage, made]: 1.0, self.made[stage, source]: -1.0}
                if source < stage:
                    terms[self.carried[stage, source]] = -1.0
                self.rows.add(terms, -2, 0)
        for value in range(stage):
            terms = {self.carried[stage, value]: 1.0, self.made[stage - 1, value]: -1.0}
            if value < stage - 1:
                terms[self.carried[stage - 1, value]] = -1.0
            self.rows.add(terms, -2, 0)
        self.rows.add({self.made[stage, stage]: 1.0}, 1, 1)

    def _frees(self, stage: int) -> None:
        """Node i is freed after k only if k is made, i is not carried on, and no later node of the stage needs it."""
        for (at, value, after), freed in self.freed.items():
            if at != stage:
                continue
            self.rows.add({freed: 1.0, self.made[stage, after]: -1.0}, -1, 0)
            if stage + 1 < len(self.graph):
                self.rows.add({freed: 1.0, self.carried[stage + 1, value]: 1.0}, 0, 1)
            for user in self.graph.users[value]:
                if after < user <= stage:
                    self.rows.add({freed: 1.0, self.made[stage, user]: 1.0}, 0, 1)

    def _memory(self, stage: int) -> None:
        """Memory after each making: what it was, less what the making before freed, and the new value; never above the budget."""
        nodes = self.graph.nodes
        for made in range(stage + 1):
            terms = {self.memory[stage, made]: 1.0, self.made[stage, made]: -self.sizes[made]}
            if made == 0:
                terms |= {self.carried[stage, value]: -self.sizes[value] for value in range(stage)}
            else:
                terms[self.memory[stage, made - 1]] = -1.0
                terms |= {self.freed[stage, i, made - 1]: self.sizes[i] for i in (*nodes[made - 1].inputs, made - 1)}
            self.rows.add(terms, 0, 0)
            self.rows.add({self.memory[stage, made]: 1.0, self.budget: -1.0}, -float("inf"), 0)

    def solve(self, weights: dict[int, float], budget: float, seconds: float) -> Any:
        """Least sum of ``weights`` x variables with at most ``budget`` of memory."""
        import numpy as np

        optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
        rows, columns, values = self.rows.entries
        matrix = sparse.csr_array((values, (rows, columns)), shape=(len(self.rows.low), self.size))
        upper = np.full(self.size, np.inf)
        upper[: self.binary + len(self.freed)] = 1
        upper[self.budget] = budget / self.unit
        cost = np.zeros(self.size)
        cost[list(weights)] = list(weights.values())
        return optimize.milp(
            cost,
            integrality=(np.arange(self.size) < self.binary).astype(int),
            bounds=optimize.Bounds(0, upper),
            constraints=optimize.LinearConstraint(matrix, self.rows.low, self.rows.high),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )

    def steps(self, x: Any) -> Iterator[Step]:
        """The schedule that the values ``x`` of the variables mean; what nobody needs any more goes at once."""
        nodes, count = self.graph.nodes, len(self.graph)

        def on(number: int) -> bool:
            return bool(x[number] > 0.5)

        held: set[int] = set()
        for stage in range(count):
            made = [i for i in range(stage + 1) if on(self.made[stage, i]) and i not in held]
            later = {i for i in range(stage + 1) if stage + 1 < count and on(self.carried[stage + 1, i])}
            for place, node in enumerate(made):
                held.add(node)
                yield Step(MAKE, node)
                still = later.union(*(nodes[other].inputs for other in made[place + 1 :]))
                gone = sorted(held - still)
                yield from (Step(FREE, value) for value in gone)
                held -= set(gone)


@dataclass(frozen=True, slots=True)
class GraphAnswer:
    """``graph``: forward and backward. ``proved``: nothing is cheaper than ``best``; ``bound``: no schedule costs less.

    ``best`` is None without a budget, and where nothing fits it; ``least``: memory that would do, if that was found in time.
    ``timed``: costs are seconds.
    """

    title: str
    graph: Graph
    sized: bool
    memory: Number | None
    kept: GraphRun
    best: GraphRun | None = None
    proved: bool = False
    bound: float | None = None
    least: float | None = None
    timed: bool = False


def answer(title: str, graph: Graph, sized: bool, memory: Number | None, seconds: float = SECONDS, timed: bool = False) -> GraphAnswer:
    """Simulate ``graph`` with everything kept, and within ``memory`` if given. UnavailableError without the solver."""
    kept = run(graph, keep_all(graph))
    if memory is None or kept.peak <= memory:
        within = None if memory is None else kept
        return GraphAnswer(
            title, graph, sized, memory, kept, within, within is not None, None if within is None else float(kept.cost), timed=timed
        )
    found = solve(graph, memory, seconds)
    if found is None:
        return GraphAnswer(title, graph, sized, memory, kept, least=least_memory(graph, seconds), timed=timed)
    return GraphAnswer(title, graph, sized, memory, kept, run(graph, found.steps), found.proved, found.bound, timed=timed)
