"""The cheapest schedule of a small graph by exhaustive search: Dijkstra's algorithm over what is in memory and what was ever made."""

from __future__ import annotations

from heapq import heappop, heappush

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.remat.graph import FREE, MAKE, Graph, GraphStep

LARGEST = 14
"""Nodes: there are n 2^n states."""


def cheapest(graph: Graph, memory: Number) -> tuple[Number, list[GraphStep]]:
    """Cost and steps of the cheapest schedule in which nodes are first made in their order. UnavailableError if none fits.

    A state: how many nodes have been made, and the set of those in memory as bits.
    """
    if len(graph) > LARGEST:
        raise UnavailableError(f"{len(graph)} nodes are too many to search through", f"at most {LARGEST}")
    needs = [sum(1 << source for source in node.inputs) for node in graph.nodes]
    sizes, room, count = [node.size for node in graph.nodes], memory - graph.base, len(graph)
    best: dict[tuple[int, int], Number] = {(0, 0): 0}
    came: dict[tuple[int, int], tuple[tuple[int, int], GraphStep]] = {}
    queue: list[tuple[Number, int, int, Number]] = [(0, 0, 0, 0)]
    while queue:
        cost, done, held, used = heappop(queue)
        state = (-done, held)
        if cost > best[state]:
            continue
        if -done == count:
            return cost, _path(came, state)
        for node in range(min(-done + 1, count)):
            bit = 1 << node
            if held & bit:
                step, after, total, taken = GraphStep(FREE, node), (-done, held ^ bit), cost, used - sizes[node]
            elif needs[node] & ~held or used + sizes[node] > room:
                continue
            else:
                after = (max(-done, node + 1), held | bit)
                step, total, taken = GraphStep(MAKE, node), cost + graph.nodes[node].cost, used + sizes[node]
            if total < best.get(after, float("inf")):
                best[after], came[after] = total, (state, step)
                heappush(queue, (total, -after[0], after[1], taken))
    raise UnavailableError(f"no schedule fits the memory of {memory:g}", "give more --memory")


def _path(came: dict[tuple[int, int], tuple[tuple[int, int], GraphStep]], state: tuple[int, int]) -> list[GraphStep]:
    steps: list[GraphStep] = []
    while state in came:
        state, step = came[state]
        steps.append(step)
    return steps[::-1]
