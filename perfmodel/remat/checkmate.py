"""The cheapest schedule of a graph within a memory budget, by Checkmate's program and HiGHS through scipy.optimize.milp."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.remat.graph import Graph, Step
from perfmodel.remat.graph_program import GraphProgram

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
