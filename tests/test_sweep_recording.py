"""Formulas recorded and replayed on arrays give what they give on plain numbers, and refuse to branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.core.arith import ceil_div, clip, clipped_floor_sum, deferrable, floor, floor_sum, largest, maximum, minimum, power
from perfmodel.sweep.recording import Recording, Replay

NAMES = ("a", "b", "c")
Formula = Callable[[Any, Any, Any], Any]


def on_arrays(formula: Formula, values: dict[str, list[int]]) -> Any:
    """The formula over the grid of all values, each name along an axis of its own."""
    recording = Recording()
    replay = Replay({"out": formula(*map(recording.leaf, NAMES))})
    out = np.empty(tuple(len(values[name]) for name in NAMES))
    leaves = {name: np.array(values[name], float).reshape([-1 if i == axis else 1 for i in range(3)]) for axis, name in enumerate(NAMES)}
    replay.run(leaves, {"out": out})
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


def test_what_changes_nothing_is_no_step() -> None:
    a, b = map(Recording().leaf, "ab")
    assert a + 0 is a is 0 + a
    assert a * 1 is a is 1 * a
    assert a / 1 is a is a - 0
    assert a * 0 == 0 == a - a
    assert a * b is a * b
    assert (0 - a) is not a
    assert 1 / a is not a


def test_a_formula_that_branches_is_an_error() -> None:
    a = Recording().leaf("a")
    for branch in (lambda: bool(a), lambda: a < 3, lambda: max(a, 3), lambda: a**3):
        with pytest.raises(TypeError):
            branch()


def test_each_step_is_computed_once_on_as_few_elements_as_it_depends_on() -> None:
    """And what no column needs, or only a later one, not at all."""
    shapes: list[tuple[int, ...]] = []

    def counted(x: Any) -> Any:
        shapes.append(np.shape(x))
        return x * 3

    recording = Recording()
    a, b, c = map(recording.leaf, NAMES)
    few, small = deferrable(counted, a), deferrable(counted, b * b)
    deferrable(counted, a * b * c)
    replay = Replay({"out": few * small * c + few, "small": small + 1, "plain": 7})
    outs = {name: np.empty((2, 3, 100)) for name in ("out", "small", "plain")}
    leaves = {"a": np.array([1.0, 2.0]).reshape(2, 1, 1), "b": np.arange(3.0).reshape(1, 3, 1), "c": np.arange(100.0).reshape(1, 1, -1)}
    for _ in range(2):
        replay.run(leaves, outs)
    assert sorted(shapes) == 2 * [(1, 3, 1)] + 2 * [(2, 1, 1)]
    assert outs["out"][1, 2, 7] == 6 * 12 * 7 + 6
    assert (outs["small"][0, 2, 0], outs["plain"].min()) == (13, 7)
