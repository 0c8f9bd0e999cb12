"""A graph from a JSON or YAML file.

{"inputs": {"x": "32 MB"}, "nodes": [{"name": "a", "inputs": ["x"], "size": "32 MB", "cost": 1, "backward": 2}, ...]}

Nodes stand in the order in which they are first made; ``backward`` is twice the cost unless given. Sizes are all with a unit, in
bytes, or all plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.catalog import read_json, read_yaml
from perfmodel.core.arith import Number
from perfmodel.core.errors import DataError
from perfmodel.remat.graph import Graph, Node
from perfmodel.remat.quantities import quantity

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
    ((Node(name='a', cost=3, size=2, inputs=(), backward=6),), 1, False)
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("nodes"), list) or not raw["nodes"]:
        raise DataError("no list 'nodes' in it", 'such as {"inputs": {"x": "32 MB"}, "nodes": [{"name": "a", "inputs": ["x"], ...}]}')
    given = raw.get("inputs", {})
    if not isinstance(given, dict):
        raise DataError("'inputs' is no mapping of names to sizes")
    read = [(f"input {name}", quantity(size, "B", f"input {name}")) for name, size in given.items()]
    places: dict[str, int] = {}
    nodes: list[Node] = []
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


def _node(entry: Any, index: int, places: Mapping[str, int], given: Mapping[str, Any]) -> tuple[Node, bool]:
    """One node, and whether its size is in bytes."""
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
    return Node(name, cost, size, tuple(places[source] for source in sources if source in places), backward), sized
