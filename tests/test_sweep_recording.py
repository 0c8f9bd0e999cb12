"""Formulas recorded and replayed on arrays give what they give on plain numbers, and refuse to branch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.core.arith import ceil_div, clip, clipped_floor_sum, deferrable, floor, floor_sum, largest, maximum, minimum, power
from perfmodel.sweep.recording import Recording, Replay

NAMES = ("a", "b", "c")
WHOLE: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    minimum,
    maximum,
    lambda x, y: ceil_div(x, maximum(y, 1)),
    lambda x, y: x // maximum(y, 1),
    lambda x, y: 2 * x - x + y - y,
    lambda x, y: floor(x / maximum(y, 1) * 3),
    lambda x, y: clip(x, 3, y),
    lambda x, y: 3 - (-x) + 0 * y,
    lambda x, y: maximum(x * y - minimum(x, 7) * minimum(y, x), 0),
    lambda x, y: minimum(x, floor(clip(y / 7 - 1, 0, 1) * x)),
    lambda x, y: floor_sum(maximum(x, 0), maximum(y, 0), 3, 7),
    lambda x, y: clipped_floor_sum(maximum(x, 0), maximum(y, 1), x - 20, 5, 1, 9),
    lambda x, y: deferrable(lambda x, y: x * 2 + y, x, y),
]
REAL: list[Callable[[Any, Any], Any]] = [
    lambda x, y: largest([x / 3, y / 7, 2]),
    lambda x, y: power(x / 7, 3) + power(y / 3, 2),
    lambda x, y: floor(maximum(x * y + x, 0) ** 0.5),
    lambda x, y: x / 1 * 2.5,
]


@settings(max_examples=200, deadline=None)
@given(
    picks=st.lists(st.tuples(st.sampled_from(WHOLE), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    last=st.sampled_from(REAL),
    values=st.fixed_dictionaries({name: st.lists(st.integers(1, 40), min_size=1, max_size=3) for name in NAMES}),
)
def test_a_deferred_formula_is_the_plain_one(picks: Any, last: Any, values: dict[str, list[int]]) -> None:
    def formula(*numbers: Any) -> list[Any]:
        known = [*numbers, 2, 5]
        for operation, first, second in picks:
            known.append(operation(known[first % len(known)], known[second % len(known)]))
        return [*known, last(known[-1], known[0])]

    replay = Replay(dict(enumerate(formula(*map(Recording().leaf, NAMES)))))  # type: ignore[arg-type]
    leaves = {name: np.array(values[name], float).reshape([-1 if i == axis else 1 for i in range(3)]) for axis, name in enumerate(NAMES)}
    found = {
        name: np.broadcast_to(column, [len(values[name]) for name in NAMES]).reshape(-1) for name, column in replay.run(leaves).items()
    }
    for row, numbers in enumerate(product(*(values[name] for name in NAMES))):
        wanted = formula(*numbers)
        if all(abs(number) < 2**50 for number in wanted):
            assert [column[row] for column in found.values()] == wanted


def test_what_changes_nothing_is_no_step() -> None:
    recording = Recording()
    a, b = map(recording.leaf, "ab")
    assert a + 0 is a is 0 + a
    assert a * 1 is a is 1 * a
    assert a / 1 is a is a - 0
    assert a * 0 == 0 == a - a
    assert len(recording.steps) == 2
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

    a, b, c = map(Recording().leaf, NAMES)
    few, small = deferrable(counted, a), deferrable(counted, b * b)
    deferrable(counted, a * b * c)
    replay = Replay({"out": few * small * c + few, "small": small + 1, "plain": 7})
    leaves = {"a": np.array([1.0, 2.0]).reshape(2, 1, 1), "b": np.arange(3.0).reshape(1, 3, 1), "c": np.arange(100.0).reshape(1, 1, -1)}
    for _ in range(2):
        found = replay.run(leaves)
    assert sorted(shapes) == 2 * [(1, 3, 1)] + 2 * [(2, 1, 1)]
    assert found["out"][1, 2, 7] == 6 * 12 * 7 + 6
    assert (found["small"][0, 2, 0], found["plain"]) == (13, 7)
