"""Formulas noted down and computed on arrays give what they give on plain numbers, and refuse to branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.core.arith import ceil_div, clip, clipped_floor_sum, deferrable, floor, floor_sum, largest, maximum, minimum, power
from perfmodel.sweep.bound import Bound
from perfmodel.sweep.graph import Graph, Node, at_most
from perfmodel.sweep.program import compiled

NAMES = ("a", "b", "c")
Formula = Callable[[Any, Any, Any], Any]


def on_arrays(formula: Formula, values: dict[str, list[int]], *, loose: bool = False) -> Any:
    """The formula over the grid of all values, each name along an axis of its own."""
    graph = Graph()
    number = formula(*(graph.leaf(name) for name in NAMES))
    lengths = tuple(len(values[name]) for name in NAMES)
    loose_columns = ["out"] if loose else []
    program = compiled({"out": number}, {name: 1 << axis for axis, name in enumerate(NAMES)}, lengths, loose_columns)
    bound, out = Bound(program, lengths), np.empty(lengths)
    leaves = {name: np.array(values[name], float).reshape([-1 if i == axis else 1 for i in range(3)]) for axis, name in enumerate(NAMES)}
    bound.run(leaves, {"out": out})
    return out


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: maximum(x - y, 0),
    minimum,
    maximum,
    lambda x, y: ceil_div(x, maximum(y, 1)),
    lambda x, y: x // maximum(y, 1),
    lambda x, y: x * y + x,
    lambda x, y: 2 * x - x + y - y,
    lambda x, y: floor(x / maximum(y, 1) * 3),
    lambda x, y: clip(x, 3, y),
    lambda x, y: 3 - (-x) + 0 * y,
    lambda x, y: maximum(x * y - minimum(x, 7) * minimum(y, x), 0),
    lambda x, y: maximum(4 * x - 8 * y, 0),
    lambda x, y: minimum(x, floor(clip(y / 7 - 1, 0, 1) * x)),
]


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    """Random trees of those operations, over a, b, c and constants, of bounded size; every number on the way, the result last."""
    picks = draw(st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))

    def formula(a: Any, b: Any, c: Any) -> Any:
        known = [a, b, c, 2, 5]
        for operation, first, second in picks:
            known.append(OPERATIONS[operation](known[first % len(known)], known[second % len(known)]))
        return known

    return formula


@settings(max_examples=150, deadline=None)
@given(formula=formulas(), values=st.fixed_dictionaries({name: st.lists(st.integers(1, 40), min_size=1, max_size=3) for name in NAMES}))
def test_a_deferred_formula_is_the_plain_one(formula: Formula, values: dict[str, list[int]]) -> None:
    found = on_arrays(lambda a, b, c: formula(a, b, c)[-1] + 0 * a, values)
    for i, a in enumerate(values["a"]):
        for j, b in enumerate(values["b"]):
            for k, c in enumerate(values["c"]):
                known = formula(a, b, c)
                if all(abs(number) < 2**50 for number in known):
                    assert found[i, j, k] == known[-1]


@settings(max_examples=150, deadline=None)
@given(formula=formulas(), values=st.fixed_dictionaries({name: st.lists(st.integers(1, 40), min_size=1, max_size=3) for name in NAMES}))
def test_a_loose_formula_differs_in_the_last_digits(formula: Formula, values: dict[str, list[int]]) -> None:
    """Sums and maxima of real multiples of what random formulas give, as times of kernels are."""

    def time(a: Any, b: Any, c: Any) -> Any:
        *_, x, y = formula(a, b, c)
        kernels = [maximum(x / 3e3 * a, maximum(y * b / 7, a * b * c / 11)), maximum(a * b / 5, maximum(x * a / 9, 0)), x * a / 3e3 + y / 2]
        return kernels[0] + (kernels[1] + (kernels[0] + kernels[2])) + minimum(a * b / 3, a * c / 7)

    found = on_arrays(time, values, loose=True)
    for i, a in enumerate(values["a"]):
        for j, b in enumerate(values["b"]):
            for k, c in enumerate(values["c"]):
                if all(abs(number) < 2**40 for number in formula(a, b, c)):
                    parts = abs(formula(a, b, c)[-1]) * a + abs(formula(a, b, c)[-2]) * b + a * b * c
                    assert found[i, j, k] == pytest.approx(time(a, b, c), rel=1e-13, abs=1e-13 * parts)


@settings(max_examples=200, deadline=None)
@given(formula=formulas(), a=st.integers(1, 40), b=st.integers(1, 40), c=st.integers(1, 40))
def test_what_is_known_of_a_number_holds(formula: Formula, a: int, b: int, c: int) -> None:
    """No value is below its node's ``low``, and ``at_most`` is right wherever it claims to know."""
    graph = Graph()
    nodes, values = formula(*(graph.leaf(name) for name in NAMES)), formula(a, b, c)
    for node, value in zip(nodes, values, strict=True):
        assert not isinstance(node, Node) or value >= node.low
        assert all(value <= other for more, other in zip(nodes, values, strict=True) if at_most(node, more))


def test_times_of_one_shape_are_computed_on_few_elements() -> None:
    graph = Graph()
    a, b, c = (graph.leaf(name) for name in NAMES)
    time = maximum(a * b * c / 3e12, maximum(2 * a * b / 7e12, 5 * a * b / 9e12)) + a * b * c * c / 1e12
    for loose, most in (((), 6), (("out",), 1)):
        program = compiled({"out": time}, {"a": 1, "b": 2, "c": 4}, (4, 8, 1000), loose)
        assert sum(program.axes[step.out] == 7 for step in program.steps) == most


@pytest.mark.parametrize(
    "formula",
    [
        lambda a, b, c: floor_sum(a, b, c, 7),
        lambda a, b, c: clipped_floor_sum(a, b, c - 20, 5, 1, 9),
        lambda a, b, c: largest([a / 3, b / 7, c / 11]),
        lambda a, b, c: power(a / 7, 3) + power(b / 3, 2) * c,
        lambda a, b, c: floor((a * b + c) ** 0.5),
        lambda a, b, c: (a * b * c + a * b) / (a * b) * 2.5,
        lambda a, b, c: minimum(a * b, a * c) + maximum(a * b * 2, a * c * 2),
        lambda a, b, c: deferrable(lambda x, y: x * 2 + y, a, b) + c,
    ],
)
def test_functions(formula: Formula) -> None:
    values = {"a": [1, 5, 30], "b": [2, 3], "c": [1, 19, 20, 41]}
    found = on_arrays(formula, values)
    for i, a in enumerate(values["a"]):
        for j, b in enumerate(values["b"]):
            for k, c in enumerate(values["c"]):
                assert found[i, j, k] == formula(a, b, c)


def test_common_factors_are_taken_out_and_cancelled() -> None:
    graph = Graph()
    a, b, c = (graph.leaf(name) for name in NAMES)
    assert (a * b + a * c) / a is b + c
    assert a * b - b * a == 0
    assert ceil_div(a * b, a) is b
    assert minimum(a * b, a * b) is a * b
    assert maximum(a + b, 0) is a + b
    assert (a + b) + c is a + (b + c)
    assert (2 * a + 4 * b) // 2 is a + 2 * b
    assert a * 0 == 0


def test_a_formula_that_branches_is_an_error() -> None:
    a = Graph().leaf("a")
    for branch in (lambda: bool(a), lambda: a < 3, lambda: max(a, 3)):
        with pytest.raises(TypeError):
            branch()


def test_what_depends_on_few_axes_is_computed_on_few_elements() -> None:
    graph = Graph()
    a, b, c = (graph.leaf(name) for name in NAMES)
    program = compiled({"out": a * b * c + a * b * a}, {"a": 1, "b": 2, "c": 4}, (4, 8, 1000))
    full = [step for step in program.steps if program.axes[step.out] == 7]
    assert len(full) == 1
    assert all(isinstance(node, Node) for node in graph.known.values())


def test_only_what_changed_is_computed_again() -> None:
    graph = Graph()
    a, b, c = (graph.leaf(name) for name in NAMES)
    calls: list[int] = []

    def counted(x: Any) -> Any:
        calls.append(1)
        return x * 3

    lengths = (1, 2, 100)
    program = compiled({"out": deferrable(counted, a) * b * c}, {"a": 1, "b": 2, "c": 4}, lengths)
    bound, out = Bound(program, lengths), np.empty(lengths)
    leaves = {"a": np.full((1, 1, 1), 2.0), "b": np.array([1.0, 2.0]).reshape(1, 2, 1), "c": np.arange(100.0).reshape(1, 1, -1)}
    bound.run(leaves, {"out": out})
    leaves["b"] = leaves["b"] * 10
    bound.run(leaves, {"out": out}, changed=2)
    assert len(calls) == 1
    assert out[0, 1, 7] == 6 * 20 * 7
