"""What two commands can both answer, they answer with the same number: 3 questions of each kind here, more with ``pytest -m slow``."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from agreement import KINDS, Pair
from fuzzing import read_once


@pytest.fixture(autouse=True)
def _asked_again_and_again(monkeypatch):
    read_once(monkeypatch)


def same(pair: Pair) -> bool:
    """Whether both numbers are equal but for rounding, or both are unknown."""
    if pair.first is None or pair.second is None:
        return pair.first is pair.second
    return math.isclose(pair.first, pair.second, rel_tol=1e-9)


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_two_commands_give_one_number(kind: str, count: int) -> None:
    r, counted, wrong = Random(f"{kind} {count}"), Counter[str](), []
    while counted["questions"] < count:
        pairs = list(KINDS[kind](r))
        counted.update({"questions": bool(pairs), "numbers": len(pairs)})
        wrong += [pair for pair in pairs if not same(pair)]
    print(f"{kind}: {dict(counted)}")
    assert not wrong, "\n".join(f"{pair.first} and {pair.second}: {pair.what}" for pair in wrong[:10])
