"""A computation as a graph of any shape: values, what each is made of, and the order in which they are first made.

Backward is part of it: the gradient of a value is made of the gradients of its consumers and of the consumers' inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.core.files import read_json, read_yaml
from perfmodel.remat.chain import Chain
from perfmodel.remat.source import quantity

MAKE, FREE = "make", "free"


@dataclass(frozen=True, slots=True)
class GraphNode:
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
    """A graph of values. ``base``: size of what is always in memory: the inputs of the graph, weights."""

    nodes: tuple[GraphNode, ...]
    base: Number = 0

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def users(self) -> list[list[int]]:
        """Users of each node: the nodes that it is an input of."""
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
        nodes.append(GraphNode(f"d{node.name}", cost, node.size, tuple(sorted(sources or {value}))))
        if node.backward and not node.inputs:
            nodes.append(GraphNode(f"backward of {node.name}", node.backward, 0, (gradient[value],)))
    return Graph(tuple(nodes), forward.base)


def graph_of(chain: Chain) -> Graph:
    """The training graph of ``chain``. UnavailableError if layers have an interior: it comes with their output in one run."""
    if chain.taped:
        raise UnavailableError("layers whose runs leave an interior make no plain graph", "take --strategy optimal for such a chain")
    return linear_graph(chain)


def linear_graph(chain: Chain, relu: bool = False, weights: bool = False) -> Graph:
    """The training graph of linear layers: x_i, then their gradients; x_0 is always in memory.

    ``relu``: each layer but the last ends in one, z_i -> x_(i+1) at no cost, whose backward reads its result. ``weights``: they are in
    memory too, and their gradients are nodes, which a last one of no size keeps to the end.
    """
    nodes: list[GraphNode] = []
    places: dict[str, int] = {}
    end, inner = len(chain), len(chain) - 1 if relu else 0

    def add(name: str, cost: Number, size: Number, *inputs: str) -> None:
        places[name] = len(nodes)
        nodes.append(GraphNode(name, cost, size, tuple(places[source] for source in inputs if source in places)))

    for i, layer in enumerate(chain.layers):
        add(f"z{i}" if i < inner else f"x{i + 1}", layer.forward, layer.output, f"x{i}")
        if i < inner:
            add(f"x{i + 1}", 0, layer.output, f"z{i}")
    add(f"dx{end}", 0, chain.sizes[end], f"x{end}")
    for i, layer in reversed(list(enumerate(chain.layers))):
        if i < inner:
            add(f"dz{i}", 0, layer.output, f"x{i + 1}", f"dx{i + 1}")
        result = f"dz{i}" if i < inner else f"dx{i + 1}"
        if weights:
            add(f"dW{i}", 0, layer.weights, f"x{i}", result)
        add(f"dx{i}", layer.backward, chain.sizes[i], f"x{i}", result)
    if weights:
        add("end", 0, 0, "dx0", *(f"dW{i}" for i in range(end)))
    return Graph(tuple(nodes), chain.input + chain.weights * weights)


class GraphStep(NamedTuple):
    """``make`` or ``free`` node ``node``."""

    kind: str
    node: int


class GraphMoment(NamedTuple):
    """Memory while ``step`` runs, its end in cost."""

    step: GraphStep
    end: Number
    during: Number


@dataclass(frozen=True, slots=True)
class GraphRun:
    """Result of running a schedule: its cost, the times each node was made, memory at every moment."""

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


def run(graph: Graph, steps: Iterable[GraphStep]) -> GraphRun:
    """Run ``steps``; DataError if one is impossible or a node is never made."""
    held, times_made, moments = set[int](), [0] * len(graph), list[GraphMoment]()
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
        times_made[step.node] += 1
        memory, now = memory + node.size, now + node.cost
        moments.append(GraphMoment(step, now, memory))
    if not all(times_made):
        raise DataError(f"the schedule never makes {graph.nodes[times_made.index(0)].name}")
    return GraphRun(graph, moments, times_made)


def keep_all(graph: Graph) -> list[GraphStep]:
    """Schedule with each node made once, and freed after its last use."""
    last = [max(users, default=index) for index, users in enumerate(graph.users)]
    steps: list[GraphStep] = []
    for index in range(len(graph)):
        steps.append(GraphStep(MAKE, index))
        steps += [GraphStep(FREE, value) for value in {*graph.nodes[index].inputs, index} if last[value] == index]
    return steps


_FIELDS = {"name", "inputs", "size", "cost", "backward"}


def read_graph(path: Path) -> tuple[Graph, bool]:
    """The forward graph in ``path``, and whether its sizes are bytes. DataError names what is wrong with it and where."""
    raw = read_json(path) if path.suffix == ".json" else read_yaml(path)[0]
    try:
        return parse(raw)
    except DataError as error:
        raise DataError(f"{path}: {error.message}", error.fix) from None


def parse(raw: Any) -> tuple[Graph, bool]:
    """The graph that ``raw`` describes, and whether its sizes are bytes.

    >>> graph, sized = parse({"inputs": {"x": 1}, "nodes": [{"name": "a", "inputs": ["x"], "size": 2, "cost": 3}]})
    >>> graph.nodes, graph.base, sized
    ((GraphNode(name='a', cost=3, size=2, inputs=(), backward=6),), 1, False)
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("nodes"), list) or not raw["nodes"]:
        raise DataError("no list 'nodes' in it", 'such as {"inputs": {"x": "32 MB"}, "nodes": [{"name": "a", "inputs": ["x"], ...}]}')
    given = raw.get("inputs", {})
    if not isinstance(given, dict):
        raise DataError("'inputs' is no mapping of names to sizes")
    read = [(f"input {name}", quantity(size, "B", f"input {name}")) for name, size in given.items()]
    places: dict[str, int] = {}
    nodes: list[GraphNode] = []
    for index, entry in enumerate(raw["nodes"]):
        node, sized = _node(entry, index, places, given)
        read.append((f"node {node.name}", (node.size, sized)))
        places[node.name] = index
        nodes.append(node)
    units = {sized for _, (_, sized) in read}
    if len(units) > 1:
        odd = next(name for name, (_, sized) in read if sized != read[0][1][1])
        raise DataError(f"{odd}: some sizes have a unit and some have none", "write all of them in bytes, such as '32 MB', or none")
    return Graph(tuple(nodes), sum(size for name, (size, _) in read if name.startswith("input "))), units == {True}


def _node(entry: Any, index: int, places: Mapping[str, int], given: Mapping[str, Any]) -> tuple[GraphNode, bool]:
    """(node, whether its size is in bytes)."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise DataError(f"node {index}: no mapping with a name")
    name = entry["name"]
    unknown = sorted(set(entry) - _FIELDS)
    if unknown or "size" not in entry or "cost" not in entry:
        what = f"unknown field {unknown[0]!r}" if unknown else "size and cost are required"
        raise DataError(f"node {name}: {what}", f"fields: {', '.join(sorted(_FIELDS))}")
    if name in places or name in given:
        raise DataError(f"node {name}: the name is taken")
    sources = entry.get("inputs", [])
    if not isinstance(sources, list):
        raise DataError(f"node {name}: inputs is no list of names")
    for source in sources:
        if not isinstance(source, str) or (source not in places and source not in given):
            raise DataError(
                f"node {name}: no input or node before it is called {source!r}", "nodes stand in the order in which they are made"
            )
    cost: Number = quantity(entry["cost"], "", f"node {name}, cost")[0]
    backward: Number = quantity(entry.get("backward", 2 * cost), "", f"node {name}, backward")[0]
    size, sized = quantity(entry["size"], "B", f"node {name}, size")
    return GraphNode(name, cost, size, tuple(places[source] for source in sources if source in places), backward), sized
