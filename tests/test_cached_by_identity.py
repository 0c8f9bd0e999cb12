"""The memo by identity: once per arguments, and never by a name."""

from __future__ import annotations

import pytest

from perfmodel.core.kept import cached_by_identity


def test_a_named_argument_is_refused() -> None:
    calls = []

    @cached_by_identity
    def whole(one: list[int], other: int = 1) -> int:
        calls.append(one)
        return sum(one) * other

    numbers = [1, 2]
    assert [whole(numbers), whole(numbers), whole(numbers, 2), whole([1, 2])] == [3, 3, 6, 3]
    assert len(calls) == 3
    with pytest.raises(TypeError, match="whole takes no argument by name: other"):
        whole(numbers, other=2)
