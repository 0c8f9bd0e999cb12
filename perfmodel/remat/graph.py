"""A computation as a graph of any shape: values, what each is made of, and the order in which they are first made.

Backward is part of it: the gradient of a value is made of the gradients of its consumers and of the consumers' inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.remat.chain import Chain

MAKE, FREE = "make", "free"


@dataclass(frozen=True, slots=True)
class Node:
    """A value of ``size`` that ``cost`` makes out of the nodes ``inputs``, given by number, all before it; one used twice is one input.

    ``backward``: cost of the gradients of its inputs, and of weights, once its own gradient is there.
    """

    name: str
    cost: Number
    size: Number
    inputs: tuple[int, ...] = ()
    backward: Number = 0

    def __post_init__(self) -> None:
        if len(set(self.inputs)) < len(self.inputs):
            object.__setattr__(self, "inputs", tuple(dict.fromkeys(self.inputs)))


@dataclass(frozen=True)
class Graph:
    """``base``: size of what is always in memory: the inputs of the graph, weights."""

    nodes: tuple[Node, ...]
    base: Number = 0

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def users(self) -> list[list[int]]:
        """Nodes that each node is an input of."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source].append(index)
        return found

    @property
    def cost(self) -> Number:
        """Cost of making each node once."""
        return sum(node.cost for node in self.nodes)


def training(forward: Graph) -> Graph:
    """``forward`` followed by the gradient of each of its values, last first.

    The gradient of a value without consumers is that of a loss, and is made of the value. Any other one takes the gradients of its
    consumers and all their inputs, at the consumers' backward cost; a consumer of several values is charged once, with the gradient
    that comes first. One made of the graph's inputs alone has its backward, of weights, right after its own gradient.
    """
    nodes = list(forward.nodes)
    gradient: dict[int, int] = {}
    charged: set[int] = set()
    for value in reversed(range(len(forward))):
        users, node = forward.users[value], forward.nodes[value]
        sources = {gradient[user] for user in users} | {source for user in users for source in forward.nodes[user].inputs}
        cost = sum(forward.nodes[user].backward for user in users if user not in charged)
        charged |= set(users)
        gradient[value] = len(nodes)
        nodes.append(Node(f"d{node.name}", cost, node.size, tuple(sorted(sources or {value}))))
        if node.backward and not node.inputs:
            nodes.append(Node(f"backward of {node.name}", node.backward, 0, (gradient[value],)))
    return Graph(tuple(nodes), forward.base)


def graph_of(chain: Chain) -> Graph:
    """The training graph of ``chain``. UnavailableError if layers have an interior: it comes with their output in one run."""
    if chain.taped:
        raise UnavailableError("layers whose runs leave an interior make no plain graph", "take --strategy optimal for such a chain")
    count = len(chain)
    values = [Node(f"x{i + 1}", layer.forward, layer.output, (i - 1,) if i else ()) for i, layer in enumerate(chain.layers)]
    gradients = [Node(f"dx{count}", 0, chain.sizes[count], (count - 1,))]
    for layer in reversed(range(count)):
        value = (layer - 1,) if layer else ()
        gradients.append(Node(f"dx{layer}", chain.layers[layer].backward, chain.sizes[layer], (*value, count + len(gradients) - 1)))
    return Graph((*values, *gradients), chain.input)


class Step(NamedTuple):
    """``make`` or ``free`` node ``node``."""

    kind: str
    node: int


class GraphMoment(NamedTuple):
    """Memory while ``step`` runs, its end in cost."""

    step: Step
    end: Number
    during: Number


@dataclass(frozen=True, slots=True)
class GraphRun:
    """What a schedule took: its cost, the times each node was made, memory at every moment."""

    graph: Graph
    moments: Sequence[GraphMoment]
    made: Sequence[int]

    @property
    def cost(self) -> Number:
        """Cost of all that was made."""
        return self.moments[-1].end

    @property
    def peak(self) -> Number:
        """The most memory at any moment."""
        return max(moment.during for moment in self.moments)


def run(graph: Graph, steps: Iterable[Step]) -> GraphRun:
    """Run ``steps``; DataError if one is impossible or a node is never made."""
    held, made, moments = set[int](), [0] * len(graph), list[GraphMoment]()
    memory, now = graph.base, 0
    for step in steps:
        node = graph.nodes[step.node]
        if step.kind == FREE:
            if step.node not in held:
                raise DataError(f"the schedule frees {node.name}, which is not in memory")
            held.remove(step.node)
            memory -= node.size
            continue
        if step.node in held or not held.issuperset(node.inputs):
            raise DataError(f"the schedule makes {node.name} without its inputs, or twice")
        held.add(step.node)
        made[step.node] += 1
        memory, now = memory + node.size, now + node.cost
        moments.append(GraphMoment(step, now, memory))
    if not all(made):
        raise DataError(f"the schedule never makes {graph.nodes[made.index(0)].name}")
    return GraphRun(graph, moments, made)


def keep_all(graph: Graph) -> list[Step]:
    """Each node made once, and freed after its last use."""
    last = [max(users, default=index) for index, users in enumerate(graph.users)]
    steps: list[Step] = []
    for index in range(len(graph)):
        steps.append(Step(MAKE, index))
        steps += [Step(FREE, value) for value in {*graph.nodes[index].inputs, index} if last[value] == index]
    return steps
