"""The cheapest schedule of a chain by exhaustive search: Dijkstra's algorithm over what is in memory and what was ever made."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.remat.chain import Chain

LARGEST = 14
"""Values and gradients: there are n 2^n states."""


class Node(NamedTuple):
    """A value or a gradient of ``size``, which ``cost`` makes out of ``inputs``, nodes before it by number."""

    cost: Number
    size: Number
    inputs: tuple[int, ...]


def nodes_of(chain: Chain) -> list[Node]:
    """x_1 to x_n, then the gradients of x_n to x_0, each of the one after it and of the layer's input; x_0 is always in memory."""
    end = len(chain)
    values = [Node(layer.forward, layer.output, (i - 1,) if i else ()) for i, layer in enumerate(chain.layers)]
    loss = Node(0, chain.sizes[end], (end - 1,))
    backward = [Node(chain.layers[i].backward, chain.sizes[i], (*((i - 1,) if i else ()), 2 * end - i - 1)) for i in reversed(range(end))]
    return [*values, loss, *backward]


def cheapest(chain: Chain, memory: Number) -> Number:
    """Cost of the cheapest schedule in which nodes are first made in their order. UnavailableError if none fits.

    A state: how many nodes have been made, and the set of those in memory as bits.
    """
    assert not chain.taped
    nodes = nodes_of(chain)
    if len(nodes) > LARGEST:
        raise UnavailableError(f"{len(nodes)} nodes are too many to search through", f"at most {LARGEST}")
    needs = [sum(1 << source for source in node.inputs) for node in nodes]
    room, count = memory - chain.input, len(nodes)
    best: dict[tuple[int, int], Number] = {(0, 0): 0}
    queue: list[tuple[Number, int, int, Number]] = [(0, 0, 0, 0)]
    while queue:
        cost, done, held, used = heappop(queue)
        if cost > best[-done, held]:
            continue
        if -done == count:
            return cost
        for place in range(min(-done + 1, count)):
            node, bit = nodes[place], 1 << place
            if held & bit:
                after, total, taken = (-done, held ^ bit), cost, used - node.size
            elif needs[place] & ~held or used + node.size > room:
                continue
            else:
                after, total, taken = (max(-done, place + 1), held | bit), cost + node.cost, used + node.size
            if total < best.get(after, float("inf")):
                best[after] = total
                heappush(queue, (total, -after[0], after[1], taken))
    raise UnavailableError(f"no schedule fits the memory of {memory:g}", "give more memory")
