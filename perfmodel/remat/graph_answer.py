"""A graph's question and answer: everything kept, and the cheapest schedule within a memory budget."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.remat.checkmate import SECONDS, least_memory, solve
from perfmodel.remat.graph import Graph, GraphRun, keep_all, run


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
