"""The cheapest schedule of a graph within a memory budget: Checkmate's mixed-integer program, solved by HiGHS through SciPy.

Stage t ends with the first making of node t. In it any node before t may be made again, in their order. Binary variables: is node
i made in stage t (``made``), and is it carried into stage t (``carried``). What a node's making leaves without further use in the
stage is freed (``freed``), which is continuous: its upper bounds are all 0 or 1, and less memory is never worse.

Source: Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica & Gonzalez 2020, Checkmate, arXiv 1910.02653, sections 4.2 to 4.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.remat.graph import FREE, MAKE, Graph, GraphRun, GraphStep, keep_all, run

LARGEST = 64
"""Nodes of a graph: the program has the square of it in binary variables, twice."""
SECONDS = 60.0
INFEASIBLE = 2


@dataclass(frozen=True, slots=True)
class GraphAnswer:
    """Answer for a graph. ``graph``: forward and backward. ``proved``: nothing is cheaper than ``best``; ``bound``: no schedule costs less.

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
    plain = GraphAnswer(title, graph, sized, memory, kept, timed=timed)
    if memory is None:
        return plain
    if kept.peak <= memory:
        return replace(plain, best=kept, proved=True, bound=float(kept.cost))
    solution = solve(graph, memory, seconds)
    if solution is None:
        return replace(plain, least=least_memory(graph, seconds))
    return replace(plain, best=run(graph, solution.steps), proved=solution.proved, bound=solution.bound)


@dataclass(frozen=True, slots=True)
class Solution:
    """A schedule. ``proved``: nothing is cheaper; else ``bound`` says below what no schedule's cost lies."""

    steps: list[GraphStep]
    proved: bool
    bound: float


def solve(graph: Graph, memory: Number, seconds: float = SECONDS) -> Solution | None:
    """The cheapest schedule within ``memory``; None if none fits.

    UnavailableError without SciPy, for a large graph, or if none is found in time.
    """
    program = _Program(graph)
    weights = {number: float(graph.nodes[node].cost) for (_, node), number in program.made.items()}
    result = program.solve(weights, float(memory - graph.base), seconds)
    if result.status == INFEASIBLE:
        return None
    if result.x is None:
        raise UnavailableError(f"no schedule was found in {seconds:g} s", "give more --seconds, or another --budget")
    return Solution(list(program.steps(result.x)), result.status == 0, float(result.mip_dual_bound))


def least_memory(graph: Graph, seconds: float = SECONDS) -> float | None:
    """The least memory that any schedule needs, whatever it costs; None if it was not found in time."""
    program = _Program(graph)
    found = program.solve({program.budget: 1.0}, float("inf"), seconds)
    return float(found.fun) * program.unit + float(graph.base) if found.status == 0 else None


class _Program:
    """Numbers of the variables, and constraints low <= sum of coefficients x variables <= high over them."""

    def __init__(self, graph: Graph) -> None:
        try:
            import_module("scipy.optimize")
        except ImportError:
            raise UnavailableError("the exact solver needs SciPy 1.9 or later", "pip install 'perfmodel[solver]'") from None
        if len(graph) > LARGEST:
            raise UnavailableError(f"{len(graph)} values and gradients are too many for the exact solver", f"it takes {LARGEST}")
        self.graph, stages, numbers = graph, range(len(graph)), count()
        self.unit = float(max(node.size for node in graph.nodes)) or 1.0  # sizes near 1 keep the program well conditioned
        self.sizes = [float(node.size) / self.unit for node in graph.nodes]
        self.made = {(t, i): next(numbers) for t in stages for i in range(t + 1)}
        self.carried = {(t, i): next(numbers) for t in stages for i in range(t)}
        self.binary = len(self.made) + len(self.carried)
        uses = [(i, k) for k, node in enumerate(graph.nodes) for i in (*node.inputs, k)]
        self.freed = {(t, i, k): next(numbers) for t in stages for i, k in uses if k <= t}
        self.memory = {(t, k): next(numbers) for t in stages for k in range(t + 1)}
        self.budget = next(numbers)
        self.constraints = [row for t in stages for rows in (self._dependencies, self._frees, self._memory) for row in rows(t)]

    def _dependencies(self, stage: int) -> Iterator[tuple[dict[int, float], float, float]]:
        """Constraints: what is made needs its inputs made or carried; what is carried was made or carried the stage before."""
        for node in range(stage + 1):
            for source in self.graph.nodes[node].inputs:
                terms = {self.made[stage, node]: 1.0, self.made[stage, source]: -1.0}
                if source < stage:
                    terms[self.carried[stage, source]] = -1.0
                yield terms, -2, 0
        for value in range(stage):
            terms = {self.carried[stage, value]: 1.0, self.made[stage - 1, value]: -1.0}
            if value < stage - 1:
                terms[self.carried[stage - 1, value]] = -1.0
            yield terms, -2, 0
        yield {self.made[stage, stage]: 1.0}, 1, 1

    def _frees(self, stage: int) -> Iterator[tuple[dict[int, float], float, float]]:
        """Constraints: node i is freed after k only if k is made, i is not carried on, and no later node of the stage needs it."""
        for (at, value, after), freed in self.freed.items():
            if at != stage:
                continue
            yield {freed: 1.0, self.made[stage, after]: -1.0}, -1, 0
            if stage + 1 < len(self.graph):
                yield {freed: 1.0, self.carried[stage + 1, value]: 1.0}, 0, 1
            for user in self.graph.users[value]:
                if after < user <= stage:
                    yield {freed: 1.0, self.made[stage, user]: 1.0}, 0, 1

    def _memory(self, stage: int) -> Iterator[tuple[dict[int, float], float, float]]:
        """Constraints on memory after each making: as it was, less what the making before freed, plus the new value; within the budget."""
        nodes = self.graph.nodes
        for node in range(stage + 1):
            terms = {self.memory[stage, node]: 1.0, self.made[stage, node]: -self.sizes[node]}
            if node == 0:
                terms |= {self.carried[stage, value]: -self.sizes[value] for value in range(stage)}
            else:
                terms[self.memory[stage, node - 1]] = -1.0
                terms |= {self.freed[stage, i, node - 1]: self.sizes[i] for i in (*nodes[node - 1].inputs, node - 1)}
            yield terms, 0, 0
            yield {self.memory[stage, node]: 1.0, self.budget: -1.0}, -float("inf"), 0

    def solve(self, weights: dict[int, float], budget: float, seconds: float) -> Any:
        """SciPy's result for the least sum of ``weights`` x variables with at most ``budget`` of memory."""
        import numpy as np

        optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
        terms, low, high = zip(*self.constraints, strict=True)
        rows = [row for row, coefficients in enumerate(terms) for _ in coefficients]
        columns = [column for coefficients in terms for column in coefficients]
        values = [value for coefficients in terms for value in coefficients.values()]
        matrix = sparse.csr_array((values, (rows, columns)), shape=(len(terms), self.budget + 1))
        upper, cost = np.full(self.budget + 1, np.inf), np.zeros(self.budget + 1)
        upper[: self.binary + len(self.freed)] = 1
        upper[self.budget] = budget / self.unit
        cost[list(weights)] = list(weights.values())
        return optimize.milp(
            cost,
            integrality=(np.arange(self.budget + 1) < self.binary).astype(int),
            bounds=optimize.Bounds(0, upper),
            constraints=optimize.LinearConstraint(matrix, low, high),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )

    def steps(self, x: Any) -> Iterator[GraphStep]:
        """The schedule that the values ``x`` of the variables mean; what nobody needs any more goes at once."""
        nodes, stages, held = self.graph.nodes, len(self.graph), set[int]()
        for stage in range(stages):
            makes = [i for i in range(stage + 1) if x[self.made[stage, i]] > 0.5 and i not in held]
            later = {i for i in range(stage + 1) if stage + 1 < stages and x[self.carried[stage + 1, i]] > 0.5}
            for place, node in enumerate(makes):
                held.add(node)
                yield GraphStep(MAKE, node)
                gone = held - later.union(*(nodes[other].inputs for other in makes[place + 1 :]))
                yield from (GraphStep(FREE, value) for value in sorted(gone))
                held -= gone
