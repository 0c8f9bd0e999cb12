"""The language of derived axes and constraints: what it means, what it refuses, and that nothing in it is ever run as code."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.core.errors import UsageError
from perfmodel.sweep.expression import MAX_TOKENS, Expression, parse
from perfmodel.sweep.study import workload_named

ATTENTION = workload_named("attention")


def condition(text: str) -> Expression:
    return parse(text, "--where", ATTENTION, constraint=True)


def joined(inner: st.SearchStrategy[str], *signs: str) -> st.SearchStrategy[str]:
    return st.builds("({} {} {})".format, inner, st.sampled_from(signs), inner)


numbers = st.recursive(
    st.sampled_from(["n", "7", "3", "0.5", "1e3", "1_000", "heads"]),
    lambda inner: (
        joined(inner, "+", "-", "*")
        | st.builds("-{} // 3 + {} % 7 - {} - 1".format, inner, inner, inner)
        | st.builds("(2 ** {} ** 2 - -2 ** 2 ** -1)".format, st.sampled_from("12"))
        | st.builds("{}({}, 4, {})".format, st.sampled_from(["min", "max"]), inner, inner)
        | st.builds("{}({} / 4)".format, st.sampled_from(["floor", "ceil"]), inner)
        | st.builds("sqrt(max({}, 0)) + log2(max({}, 1))".format, inner, inner)
    ),
    max_leaves=12,
)
compared = joined(numbers, "<", "<=", ">", ">=", "==", "!=") | st.builds("{} < {} <= {} != {}".format, *[numbers] * 4)
conditions = st.recursive(
    compared | st.sampled_from(["hardware == 'h200'", 'not "l40s" != hardware', "causal"]),
    lambda inner: joined(inner, "and", "or") | st.builds("not {} or {} and {}".format, inner, inner, inner),
    max_leaves=4,
)


@given(number=numbers, logic=conditions, n=st.integers(1, 1000), heads=st.integers(1, 1000), causal=st.booleans())
def test_it_reckons_as_python_does(number: str, logic: str, n: int, heads: int, causal: bool) -> None:
    row = {"n": float(n), "heads": float(heads), "causal": causal, "hardware": "nvidia-h200-sxm"}
    functions = {"min": min, "max": max, "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt, "log2": math.log2}
    with contextlib.suppress(UsageError):  # of sizes beyond what float64 has, or too long
        wanted = eval(number, {**row, **functions})
        assert float(parse(number, "--n", ATTENTION).value(row)) == pytest.approx(wanted, rel=1e-12)
    with contextlib.suppress(UsageError):
        read = logic.replace("'h200'", "'nvidia-h200-sxm'").replace('"l40s"', '"nvidia-l40s"')
        assert bool(condition(f"{logic} or n < 0").value(row)) == bool(eval(read, {**row, **functions}))


def test_quantities_have_the_units_of_their_words() -> None:
    for text, value in (("80 GB", 80e9), ("64KiB / 1 KiB", 64), ("1.5 ms * 2", 0.003), ("3.35 TB/s", 3.35e12), ("8k", 8000)):
        assert float(parse(text, "--n", ATTENTION).value({})) == pytest.approx(value, rel=1e-15)


def test_arrays_are_element_wise_and_nothing_wraps() -> None:
    n = np.array([[1.0], [2.0**40]])
    found = condition("n * n * heads <= 1e30 and n > 1").value({"n": n, "heads": np.array([1.0, 2.0])})
    assert found.tolist() == [[False, False], [True, True]]


def test_names_and_aliases() -> None:
    assert parse("heads / 4 + heads - n", "x", ATTENTION).names == ("heads", "n")
    assert parse(" heads ", "x", ATTENTION).alias == "heads"
    assert parse("heads + 0", "x", ATTENTION).alias is None
    assert condition("memory < 1").names == ("memory_bytes",)


@each(
    ("text", "words"),
    [
        ("", "missing"),
        ("n <", "missing"),
        ("n 3", "3.0 does not belong"),
        ("(n", "')' is missing"),
        ("n)", "')'"),
        ("n = 3", "'='"),
        ("n.real", "'.'"),
        ("n[0]", "'['"),
        ("__import__('os')", "no function '__import__'"),
        ("(lambda x: x)(1)", "':'"),
        ("n if n else n", "'if'"),
        ("min(*n, n)", "'*' does not belong"),
        ("+n", "'+' does not belong"),
        ("3 foo", "'foo' is no unit"),
        ("nn + 1", "no column 'nn'"),
        ("min(1)", "two numbers"),
        ("sqrt(1, 2)", "one number"),
        ("'a' + 1", "text cannot be used in arithmetic"),
        ("1+" * (MAX_TOKENS // 2 + 1) + "1", "more than"),
        ("1" + " " * 2000, "longer than"),
        ("'abc", "has no meaning"),
        ("n\x00", "meaning"),
    ],
)
def test_what_it_refuses_is_said(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "--n", ATTENTION)
    assert words in caught.value.message
    assert caught.value.fix


@given(st.text(max_size=40) | st.text("n3()<-*+,' andort", max_size=40))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text, "--n", ATTENTION).value(dict.fromkeys(ATTENTION.named, np.array([1.0, 2.0])))


@pytest.mark.parametrize("nested", ["(" * 99 + "n" + ")" * 99, "-" * 199 + "n", "2 ** " * 99 + "n", "not " * 199 + "n"])
def test_depth_is_no_danger(nested: str) -> None:
    parse(nested, "--n", ATTENTION).value({"n": 1.0})
