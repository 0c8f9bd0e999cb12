"""The dynamic program for chains against a search through all states, and what memory buys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remat_search import cheapest

from perfmodel.core.errors import UnavailableError
from perfmodel.remat.chain import Chain, ChainLayer, uniform
from perfmodel.remat.evaluate import curve
from perfmodel.remat.optimal_dp import Program
from perfmodel.remat.simulate import simulate

whole = st.integers(1, 4)
chains = st.builds(
    lambda found, first: Chain(tuple(found), first), st.lists(st.builds(ChainLayer, whole, whole, whole), min_size=1, max_size=5), whole
)


@given(chains, st.booleans(), st.integers(2, 30))
@settings(max_examples=80, deadline=None)
def test_search_and_program_on_chains(chain, equal, memory):
    """The program keeps a stored value until its backward step: that costs nothing among equal sizes, and memory never."""
    if equal:
        chain, memory = Chain(tuple(replace(layer, output=1) for layer in chain.layers), 1), min(memory, len(chain) + 2)
    try:
        cost = cheapest(chain, memory)
    except UnavailableError:
        with pytest.raises(UnavailableError, match="no schedule"):
            list(Program(chain, memory).schedule())
        return
    run = simulate(chain, Program(chain, memory).schedule())
    assert run.peak <= memory
    assert run.cost == cost if equal else run.cost >= cost


@given(chains)
@settings(max_examples=40, deadline=None)
def test_with_memory_for_everything_nothing_is_made_twice(chain):
    memory = sum(chain.sizes) + 2 * max(chain.sizes)
    run = simulate(chain, Program(chain, memory).schedule())
    assert run.cost == cheapest(chain, memory) == sum(layer.forward + layer.backward for layer in chain.layers)


def test_too_many_values_to_search_through():
    with pytest.raises(UnavailableError, match="too many to search"):
        cheapest(uniform(10), 5)


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
