"""The exact solver, the search through all states and the program for chains agree; a graph's schedules run on real numbers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import prod

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st
from remat_search import LARGEST, cheapest

from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.remat import checkmate
from perfmodel.remat.chain import Chain, ChainLayer, uniform
from perfmodel.remat.evaluate import curve
from perfmodel.remat.graph import FREE, MAKE, Graph, GraphNode, GraphStep, graph_of, keep_all, parse, read_graph, run, training
from perfmodel.remat.optimal_dp import Program
from perfmodel.remat.simulate import simulate

whole = st.integers(1, 4)
chains = st.builds(
    lambda found, first: Chain(tuple(found), first), st.lists(st.builds(ChainLayer, whole, whole, whole), min_size=1, max_size=5), whole
)


def with_solver() -> None:
    pytest.importorskip("scipy.optimize", reason="the exact solver needs SciPy")


def random_graph(seed: int, count: int = 5) -> Graph:
    rng = random.Random(seed)
    nodes = [
        GraphNode(
            f"n{i}",
            rng.randint(1, 5),
            rng.randint(1, 6),
            tuple(sorted(rng.sample(range(i), min(i, rng.randint(0 if i < 2 else 1, 2))))),
            rng.randint(1, 5),
        )
        for i in range(count)
    ]
    return Graph(tuple(nodes), rng.randint(0, 3))


def execute(forward: Graph, steps: list[GraphStep]) -> None:
    """Run a training graph on numbers, with nothing but what is in memory: a value is the product of its inputs and one more."""
    full = training(forward)
    values: list[float] = []
    for i, node in enumerate(forward.nodes):
        values.append((1 + 0.1 * i) * prod(values[source] for source in node.inputs))
    names = {node.name: index for index, node in enumerate(full.nodes)}
    expected: dict[int, float] = {}
    for value in reversed(range(len(forward))):
        users = forward.users[value]
        expected[value] = sum(expected[user] * values[user] / values[value] for user in users) if users else values[value]
    held: dict[int, float] = {}
    for kind, index in steps:
        if kind == FREE:
            del held[index]
            continue
        node = full.nodes[index]
        assert set(node.inputs) <= set(held)
        if index < len(forward):
            held[index] = (1 + 0.1 * index) * prod(held[source] for source in node.inputs)
            continue
        if node.name.startswith("backward of"):
            held[index] = 0.0
            continue
        value = names[node.name[1:]]
        users = forward.users[value]
        total = 0.0 if users else held[value]
        for user in users:
            others = [held[source] for source in forward.nodes[user].inputs if source != value]
            total += held[names[f"d{forward.nodes[user].name}"]] * (1 + 0.1 * user) * prod(others)
        held[index] = total
        assert total == pytest.approx(expected[value])


@given(chains, st.booleans(), st.integers(2, 30))
@settings(max_examples=80, deadline=None)
def test_search_and_program_on_chains(chain, equal, memory):
    """The program keeps a stored value until its backward step: that costs nothing among equal sizes, and memory never."""
    if equal:
        chain, memory = Chain(tuple(replace(layer, output=1) for layer in chain.layers), 1), min(memory, len(chain) + 2)
    try:
        cost, steps = cheapest(graph_of(chain), memory)
    except UnavailableError:
        with pytest.raises(UnavailableError, match="no schedule"):
            list(Program(chain, memory).schedule())
        return
    found = run(graph_of(chain), steps)
    assert (found.cost, found.peak <= memory) == (cost, True)
    program = simulate(chain, Program(chain, memory).schedule()).cost
    assert program == cost if equal else program >= cost


@pytest.mark.parametrize("interior", [0, 3])
def test_equal_stretches_are_priced_once(interior):
    """The short way for equal layers finds what the long way finds."""
    one, other = uniform(9, interior=interior), uniform(9, interior=interior)
    other.__dict__["uniform"] = False
    for memory in range(5, 12 + 9 * interior):
        assert Program(one, memory).least_cost == Program(other, memory).least_cost
        if Program(one, memory).least_cost is not None:
            run_of_one = simulate(one, Program(one, memory).schedule())
            assert (run_of_one.forward_cost, run_of_one.peak <= memory) == (Program(one, memory).least_cost, True)


@pytest.mark.parametrize("seed", range(6))
def test_solver_and_search_agree_on_chains(seed):
    with_solver()
    rng = random.Random(seed)
    chain = Chain(tuple(ChainLayer(rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 4)) for _ in range(4)), rng.randint(1, 4))
    graph = graph_of(chain)
    kept = run(graph, keep_all(graph))
    for memory in range(4, kept.peak + 1):
        found = checkmate.solve(graph, memory)
        if found is None:
            with pytest.raises(UnavailableError, match="no schedule fits"):
                cheapest(graph, memory)
            continue
        ran = run(graph, found.steps)
        assert found.proved
        assert ran.peak <= memory
        assert ran.cost == cheapest(graph, memory)[0] == pytest.approx(found.bound)


def test_the_solver_finds_the_optimum_of_a_longer_chain():
    with_solver()
    chain = uniform(8)
    for memory in (6, 8):
        found = checkmate.solve(graph_of(chain), memory)
        assert found is not None
        assert run(graph_of(chain), found.steps).cost == simulate(chain, Program(chain, memory).schedule()).cost


@pytest.mark.parametrize("seed", range(8))
def test_solver_and_search_on_graphs(seed):
    """Within a stage the solver makes a value once at most, the search as often as it likes: it is never dearer."""
    with_solver()
    forward = random_graph(seed)
    graph = training(forward)
    everything = keep_all(graph)
    kept = run(graph, everything)
    execute(forward, everything)
    least = checkmate.least_memory(graph)
    assert least is not None
    assert checkmate.solve(graph, round(least) - 1) is None
    for memory in sorted({round(least), (round(least) + kept.peak) // 2, kept.peak}):
        found = checkmate.solve(graph, memory)
        assert found is not None
        execute(forward, found.steps)
        ran = run(graph, found.steps)
        assert ran.peak <= memory
        assert kept.cost <= ran.cost == pytest.approx(found.bound)
        if len(graph) <= LARGEST:
            cost, steps = cheapest(graph, memory)
            execute(forward, steps)
            assert cost <= ran.cost
            assert run(graph, steps).peak <= memory
    assert ran.cost == kept.cost, "with the memory of everything kept nothing is made twice"


def as_file(forward: Graph, rng: random.Random) -> dict[str, object]:
    """``forward`` as its file says it, some inputs named several times, in any order."""
    nodes = []
    for node in forward.nodes:
        named = [forward.nodes[source].name for source in node.inputs] * rng.randint(1, 6) + ["x"] * rng.randint(0, 2)
        rng.shuffle(named)
        nodes.append({"name": node.name, "cost": node.cost, "size": node.size, "inputs": named, "backward": node.backward})
    return {"inputs": {"x": forward.base}, "nodes": nodes}


@pytest.mark.parametrize("seed", range(3))
def test_an_input_used_several_times_is_one_input(seed):
    """Against what is known without the reader: costs are charged once, and the search through all states fits every budget."""
    with_solver()
    forward = random_graph(seed, 4)
    read, _ = parse(as_file(forward, random.Random(seed)))
    graph, plain = training(read), training(forward)
    assert graph.cost == sum(node.cost + node.backward for node in forward.nodes)
    assert [set(node.inputs) for node in graph.nodes] == [set(node.inputs) for node in plain.nodes]
    kept = run(graph, keep_all(graph))
    assert (kept.cost, kept.peak) == (graph.cost, run(plain, keep_all(plain)).peak)
    for memory in range(kept.peak - 2, kept.peak + 1):
        found = checkmate.solve(graph, memory)
        if found is not None:
            execute(forward, found.steps)
            assert cheapest(graph, memory)[0] == cheapest(plain, memory)[0] <= run(graph, found.steps).cost
        assert (found is None) is (checkmate.solve(plain, memory) is None)
    assert found is not None


def test_a_sum_of_a_value_with_itself():
    """By hand: 1 + 2 forward, 2 + 4 backward; at most three of the two values and their gradients are there at once."""
    for times in (1, 2, 6):
        nodes = [{"name": "a", "size": 1, "cost": 1}, {"name": "b", "inputs": ["a"] * times, "size": 1, "cost": 2}]
        graph = training(parse({"nodes": nodes})[0])
        kept = run(graph, keep_all(graph))
        assert (kept.cost, kept.peak) == (9, 3)


@given(chains)
@settings(max_examples=40, deadline=None)
def test_a_chain_as_a_graph_costs_and_takes_the_same(chain):
    graph = graph_of(chain)
    kept, memory = run(graph, keep_all(graph)), sum(chain.sizes) + 2 * max(chain.sizes)
    again = simulate(chain, Program(chain, memory).schedule())
    assert kept.cost == again.cost == sum(layer.forward + layer.backward for layer in chain.layers)


def test_training_charges_every_backward_once():
    for seed in range(20):
        forward = random_graph(seed, 7)
        assert training(forward).cost == forward.cost + sum(node.backward for node in forward.nodes)


def test_what_memory_buys():
    points = curve(uniform(10))
    assert (points[0].memory, points[0].cost) == (4, 66)
    assert (points[-1].memory, points[-1].cost, points[-1].overhead) == (12, 30, 0)
    for point in points:
        assert simulate(uniform(10), Program(uniform(10), point.memory).schedule()).cost == point.cost
    rounded = curve(uniform(20, output=1.3, interior=7.7))
    assert rounded[-1].overhead == 0
    assert [point.cost for point in rounded] == sorted((point.cost for point in rounded), reverse=True)
    assert curve(uniform(129)) == []


# Refused


def test_what_the_solver_does_not_take(monkeypatch):
    with pytest.raises(UnavailableError, match="no plain graph"):
        graph_of(uniform(3, interior=1))
    with pytest.raises(UnavailableError, match="too many to search"):
        cheapest(graph_of(uniform(10)), 5)
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    with pytest.raises(UnavailableError, match=r"needs SciPy(.|\n)*perfmodel\[solver\]"):
        checkmate.solve(graph_of(uniform(3)), 4)


def test_a_large_graph_is_refused_before_it_is_built():
    with_solver()
    with pytest.raises(UnavailableError, match="too many for the exact solver"):
        checkmate.solve(graph_of(uniform(40)), 5)


def test_no_schedule_in_time_is_said():
    with_solver()
    with pytest.raises(UnavailableError, match="more --seconds"):
        checkmate.solve(graph_of(uniform(20)), 5, 1e-3)


def test_an_impossible_schedule_is_an_error():
    graph = graph_of(uniform(2))
    for steps in ([GraphStep(MAKE, 1)], [GraphStep(MAKE, 0), GraphStep(MAKE, 0)], [GraphStep(FREE, 0)], [GraphStep(MAKE, 0)]):
        with pytest.raises(DataError, match="schedule"):
            run(graph, steps)


GRAPH = {
    "inputs": {"x": 1},
    "nodes": [{"name": "a", "inputs": ["x"], "size": 2, "cost": 3}, {"name": "b", "inputs": ["a"], "size": 1, "cost": 1}],
}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_graph_files(tmp_path, suffix):
    path = tmp_path / f"graph{suffix}"
    path.write_text(json.dumps(GRAPH))
    graph, sized = read_graph(path)
    assert (graph.base, sized, [node.backward for node in graph.nodes], graph.nodes[1].inputs) == (1, False, [6, 2], (0,))


def changed(place: str, value: object) -> dict[str, object]:
    nodes = [{**GRAPH["nodes"][0], place: value}, GRAPH["nodes"][1]]  # type: ignore[index]
    return {**GRAPH, "nodes": nodes}


@each(
    ("raw", "message"),
    [
        ([], "no list 'nodes'"),
        ({"nodes": []}, "no list 'nodes'"),
        ({**GRAPH, "inputs": 3}, "'inputs' is no mapping"),
        ({"nodes": [3]}, "node 0: no mapping with a name"),
        (changed("weight", 3), "node a: unknown field 'weight'"),
        ({"nodes": [{"name": "a", "size": 1}]}, "size and cost are required"),
        (changed("name", "b"), "node b: the name is taken"),
        (changed("inputs", "x"), "inputs is no list"),
        (changed("inputs", ["b"]), "no input or node before it is called 'b'"),
        (changed("size", "2 MB"), "some sizes have a unit and some have none"),
        (changed("cost", "2 s"), "has a unit"),
        (changed("cost", True), "is no number"),
        (changed("size", -1), "out of range"),
        (changed("size", "2 XB"), "is not in B"),
    ],
)
def test_a_bad_graph_is_named(raw, message):
    with pytest.raises(DataError, match=message):
        parse(raw)
