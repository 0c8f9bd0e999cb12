"""The language of derived axes and constraints: what it means, what it refuses, and that nothing in it is ever run as code."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.core.errors import UsageError
from perfmodel.sweep.expression import MAX_TOKENS, parse


@each(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 // 2 + 7 % 2", 4),
        ("-2 ** 2", -4),
        ("2 ** -1", 0.5),
        ("2 ** 3 ** 2", 512),
        ("10 - 3 - 2", 5),
        ("80 GB", 80e9),
        ("64KiB / 1 KiB", 64),
        ("1.5 ms * 2", 0.003),
        ("3.35 TB/s", 3.35e12),
        ("min(4, n, 9) + max(1, 2)", 5),
        ("ceil(n / 2) + floor(n / 2) + sqrt(16) + log2(8)", 10),
        ("1e3", 1000),
        ("1_000", 1000),
    ],
)
def test_arithmetic(text: str, value: float) -> None:
    assert float(parse(text, "--where").value({"n": 3})) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("1 < 2 < 3", True),
        ("1 < 3 < 2", False),
        ("1 < 2 and not 3 < 2", True),
        ("not not 1 < 2", True),
        ("1 > 2 or 2 > 1 and 1 > 2", False),
        ("name == 'h100'", True),
        ('name != "h100" or n == 3', True),
        ("5 and 3 > 4", False),
        ("n == 3 and n != 4 and n >= 3 and n <= 3", True),
    ],
)
def test_logic(text: str, holds: bool) -> None:
    assert bool(parse(text, "--where").value({"n": 3, "name": "h100"})) is holds


def test_arrays_are_element_wise_and_nothing_wraps() -> None:
    n = np.array([[1.0], [2.0**40]])
    found = parse("n * n * heads <= 1e30 and n > 1", "--where").value({"n": n, "heads": np.array([1.0, 2.0])})
    assert found.tolist() == [[False, False], [True, True]]


def test_names_and_aliases() -> None:
    assert parse("heads / 4 + heads - n", "x").names == ("heads", "n")
    assert parse(" heads ", "x").alias == "heads"
    assert parse("heads + 0", "x").alias is None
    assert parse("memory < 1", "x", {"memory": "memory_bytes"}).names == ("memory_bytes",)


@each(
    ("text", "words"),
    [
        ("", "missing"),
        ("n <", "missing"),
        ("n 3", "3.0 does not belong"),
        ("(n", "')' is missing"),
        ("n)", "')'"),
        ("n = 3", "'='"),
        ("n; n", "';'"),
        ("n.real", "'.'"),
        ("n[0]", "'['"),
        ("lambda: 1", "':'"),
        ("__import__('os')", "no function '__import__'"),
        ("exec('1')", "no function 'exec'"),
        ("(lambda x: x)(1)", "':'"),
        ("n if n else n", "'if'"),
        ("3 foo", "'foo' is no unit"),
        ("nn + 1", "no column 'nn'"),
        ("min(1)", "two numbers"),
        ("sqrt(1, 2)", "one number"),
        ("'a' + 1", "text 'a'"),
        ("(" * 60 + "1" + ")" * 60, "nested deeper"),
        ("-" * 100 + "1", "nested deeper"),
        ("2 ** " * 60 + "1", "nested deeper"),
        ("1+" * (MAX_TOKENS // 2 + 1) + "1", "more than"),
        ("1" + " " * 2000, "longer than"),
        ("'abc", "has no meaning"),
        ("n\x00", "meaning"),
    ],
)
def test_what_it_refuses_is_said(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "--where", {"n": "n"}).value({"n": 3.0})
    assert words in caught.value.message
    assert caught.value.fix


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text, "--where", {"n": "n"}).value({"n": np.array([1.0, 2.0])})


leaf = st.sampled_from(["n", "7", "3", "0.5", "1e3"])
trees = st.recursive(leaf, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner), max_leaves=12)


@given(text=trees, n=st.integers(1, 1000))
def test_it_reckons_as_python_does(text: str, n: int) -> None:
    assert float(parse(text, "x").value({"n": float(n)})) == eval(text, {"n": n})
