"""Claims of the literature: each quotes its source, and its verdict follows from what the package computes."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from inspect import isclass, isfunction, ismodule, unwrap
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from each import each
from tables import table

from perfmodel.catalog import data_folder
from perfmodel.claims import (
    BEYOND,
    HOLDS,
    INCOMPLETE,
    NOT_CHECKABLE,
    RELABEL,
    RELABELLED,
    STATED,
    VERDICTS,
    WRONG,
    Check,
    Claim,
    Computed,
    all_claims,
    find_claims,
    names,
    verdict_of,
)
from perfmodel.core import formula
from perfmodel.core.errors import DataError
from perfmodel.core.files import read_yaml
from perfmodel.core.formula import function, names_in, read
from perfmodel.kernels import matmul
from perfmodel.kernels.attention.algorithms import flash1, standard
from perfmodel.remat import autograd
from perfmodel.transformer import kv_cache

EXPECTED = json.loads((Path(__file__).parent / "data" / "claims_verdicts.json").read_text())
PATH = data_folder("configs") / "claims" / "claims.yaml"
FILE, CLAIMS_TEXT = read_yaml(PATH)[0], PATH.read_text().splitlines()
BODIES = {signature: row["is"] for section in FILE["functions"].values() for signature, row in section.items()}
CLAIMS = all_claims()
CHECKS = [(claim, check) for claim in CLAIMS for check in claim.checks]

# What the review of the sources said of each statement, as a verdict; ``reason`` in the table tells where ours differs.
VERDICT_OF = {
    "yes": HOLDS,
    "yes (explained)": HOLDS,
    "yes (fits)": HOLDS,
    "yes (from other listing)": HOLDS,
    "yes with 1.6 TB/s": HOLDS,
    "yes with relabelling": RELABELLED,
    "unit": RELABELLED,
    "roughly": HOLDS,
    "bracketed": INCOMPLETE,
    "comment": INCOMPLETE,
    "partly": INCOMPLETE,
    "no": WRONG,
    "no as worded": WRONG,
    "no with constants": WRONG,
    "ratio yes, absolute NO": WRONG,
    "30 yes; 75 is not the checkpointed cost": WRONG,
    "unverified": NOT_CHECKABLE,
}
IDENTITIES = {"S001", "S002", "S052", "S072", "S092"}
"""Derivatives and identities on fixed numbers, which no formula of the package is about."""


def test_every_claim_is_there():
    assert [claim.id for claim in CLAIMS] == [f"S{number:03}" for number in range(1, 116)] == list(EXPECTED)


@each("claim", CLAIMS)
def test_verdict(claim):
    row = EXPECTED[claim.id]
    assert claim.verdict == row["verdict"]
    if "agrees" in row:  # one that the review of the sources judged too
        assert (claim.verdict == VERDICT_OF[row["agrees"]]) == ("reason" not in row)


@each("claim", CLAIMS)
def test_numbers_are_those_of_the_review(claim):
    numbers = {number.what: number.value for number in claim.numbers}
    assert len(numbers) == len(claim.checks)
    for key, rel in (("expected", 0.005), ("two_digits", 0.02)):
        for what, value in EXPECTED[claim.id].get(key, {}).items():
            assert numbers[what] == pytest.approx(value, rel=rel), what


# Where a verdict comes from


def of_the_model(value: Any) -> bool:
    """Whether ``value`` is part of the package that computes something, and no claim."""
    name = value.__name__ if ismodule(value) else getattr(value, "__module__", "")
    plumbing = ("perfmodel.claims", "perfmodel.core.trace", "perfmodel.core.arith", "perfmodel.core.units", "perfmodel.core.dtypes")
    return name.startswith("perfmodel.") and not name.startswith(plumbing)


def reads(signature: str, body: str) -> set[str]:
    """What ``body`` names beside parameters and variables of its own."""
    nodes = list(ast.walk(read(f"lambda {signature.partition('(')[2][:-1]}: ({body})")))
    named = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)} | {node.id for node in named if isinstance(node.ctx, ast.Store)}
    return {node.id for node in named} - own


READS = {signature.partition("(")[0]: reads(signature, body) for signature, body in BODIES.items()}


def reaches_the_model(function: Any, seen: set[Any]) -> bool:
    """Whether ``function`` names a part of the package that computes something, itself or through functions of the claims."""
    function = unwrap(function)
    if function in seen or not isfunction(function):
        return False
    seen.add(function)
    if of_the_model(function):
        return True
    named = [names()[name] for name in READS.get(function.__name__, ())]
    callables = [value for value in named if isfunction(unwrap(value)) or isclass(value) or ismodule(value)]
    return any(of_the_model(value) or reaches_the_model(value, seen) for value in callables)


def computed_by_the_package(claim: Claim, check: Check) -> bool:
    measured = any(given.source != "given" for name, given in claim.inputs(check).items() if name in names_in(check.of))
    return measured or any(reaches_the_model(function, set()) for function in claim.functions_of(check))


@each(("claim", "check"), CHECKS)
def test_every_number_is_computed_by_the_package(claim, check):
    assert (claim.id in IDENTITIES) != computed_by_the_package(claim, check)


@pytest.mark.parametrize("of", ["before / after", "100 * (before / after - 1)", "8 * before", "ridge_point(before, after)"])
def test_a_quotient_of_given_numbers_is_no_computation(of):
    check = Check("ratio", of, "2 x")
    assert not computed_by_the_package(Claim("S", "", "", given={"before": 9.5, "after": 4.7}, checks=(check,)), check)


def number(agrees: bool | None, role: str = STATED) -> Computed:
    return Computed("", 1.0, "", None if agrees is None else 1.0, "=", 0.0, agrees, role=role)


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ([], NOT_CHECKABLE),
        ([number(None)], NOT_CHECKABLE),
        ([number(True), number(None)], HOLDS),
        ([number(True), number(True, BEYOND)], HOLDS),
        ([number(True), number(False, BEYOND)], INCOMPLETE),
        ([number(True), number(False)], WRONG),
        ([number(False), number(True, RELABEL)], RELABELLED),
        ([number(False), number(True, RELABEL), number(False, RELABEL)], WRONG),
        ([number(False), number(True, BEYOND)], WRONG),
    ],
)
def test_a_verdict_follows_from_numbers(numbers, verdict):
    assert verdict_of(numbers) == verdict


@each("claim", lambda: [claim for claim in CLAIMS if claim.verdict != NOT_CHECKABLE])
def test_other_numbers_give_another_verdict(claim):
    """With every comparison the other way round; of what is wrong, with all that disagree."""
    turn = {True: claim.verdict == WRONG, False: True, None: None}
    turned = [replace(one, agrees=turn[one.agrees]) for one in claim.numbers]
    assert verdict_of(turned) != claim.verdict


def twice(function: Any) -> Any:
    return lambda *args, **options: 2 * function(*args, **options)


@pytest.mark.parametrize(
    ("namespace", "name", "changed", "id"),
    [
        (vars(standard), "forward", lambda kernels: lambda w, tile: kernels(w, tile)[1:], "S068"),
        (vars(standard), "backward", lambda kernels: lambda w, tile: kernels(w, tile)[1:], "S073"),
        (vars(flash1), "forward", lambda kernels: lambda w, tile: kernels(w, tile) * 20, "S105"),
        (vars(matmul), "minimum_intensity", twice, "S021"),
        (vars(autograd), "lazy_bytes", twice, "S042"),
        (vars(kv_cache), "token_bytes", twice, "S106"),
        (names(), "_step_s", lambda step: lambda *asked: step(*asked) ** 2, "S032"),
    ],
)
def test_a_changed_formula_changes_the_verdict(monkeypatch, namespace: dict[str, Any], name, changed, id):
    claim = find_claims([id])[0]
    assert claim.verdict == HOLDS
    monkeypatch.setitem(namespace, name, changed(namespace[name]))
    assert replace(claim).verdict == WRONG


def test_figures_that_are_bracketed_alike_have_one_verdict():
    """S029 and S030: what is printed lies between Algorithms as listed and what they may have run besides, and is neither."""
    assert {claim.verdict for claim in find_claims(["S029", "S030"])} == {INCOMPLETE}


@each(("claim", "check"), CHECKS)
def test_explanations_end_in_the_number(claim, check):
    steps = claim.explain(check)
    last, number = steps[-1], claim.numbers[claim.checks.index(check)]
    assert last.name == check.what
    assert float(last.value) == pytest.approx(number.value, rel=1e-12)
    assert last.formula
    assert all(step.source for step in steps)


@pytest.mark.parametrize(
    ("claimed", "unit", "computed", "agrees"),
    [
        ("161 FLOP/B", "FLOP/B", 161.4, True),
        ("161 FLOP/B", "FLOP/B", 161.6, False),
        ("40.3 GB", "B", 40.265e9, True),
        ("40.3 GB", "B", 40.2e9, False),
        ("2.0 x", "x", 2.06, False),
        ("9 x", "x", 9.16, True),
        ("20 MiB", "B", 20.25 * 2**20, True),
        ("8000128 B", "B", 8000128, True),
        ("8000128 B", "B", 8000129, False),
    ],
)
def test_a_printed_number_agrees_to_half_its_last_digit(claimed, unit, computed, agrees):
    assert Check("", "x", claimed, unit=unit).run({"x": computed}).agrees is agrees


@pytest.mark.parametrize(("relation", "agrees"), [("<", False), ("<=", True), ("=", True), (">=", True), (">", False)])
def test_relations(relation, agrees):
    assert Check("", "x", "1 x", relation=relation).run({"x": 1}).agrees is agrees


def test_header_of_an_array():
    import numpy as np

    array, [data] = np.zeros((1000, 1000)), find_claims(["S038"])[0].numbers
    assert array.nbytes == data.value
    assert sys.getsizeof(array) == 8000128 == data.claimed_value


# Formulas


@each("path", FILE["names"].values())
def test_every_name_of_the_package_is_there(path):
    assert resolve_name(path) is not None


def test_functions_name_what_is_there_and_everything_is_used():
    rows = [row for claim in CLAIMS for row in (*claim.checks, claim)]
    given = [one for row in rows for one in (row.given if isinstance(row, Claim) else row.at).values()]
    written = [*given, *(text for check in rows if isinstance(check, Check) for text in (check.of, check.formula or "0"))]
    asked = {name for text in written if isinstance(text, str) for name in names_in(text)}
    assert set.union(*READS.values()) <= set(names())
    assert {*READS, *FILE["names"], *FILE["constants"]} <= asked.union(*READS.values())


VALUES = {"n": 7, "row": (3, 1, 2), "pairs": [(1, 2), (3, 4)], "high": max, "text": "a", "one": Check("what", "of")}


@each(
    "text",
    [
        *(
            "n + 1 - 2 * 3 / 4 // 1 ** 2",
            "-n",
            "n < 8",
            "n <= 6",
            "n > 7",
            "n >= 7",
            "n == 7",
            "n != 7",
            "n % 4 == 3",
            "1 if n > 3 else 2",
            "row[0]",
        ),
        *("row[:n // 7]", "row[1:]", "row[-1:] + (n, text)", "[n, 1]", "{text: n, 1: 2}[text]", 'f"x {n} [{text}]"', "one.what"),
        *("high(row)", "high([], default=n)", "[x * y for x, y in pairs]", "[x for x in row if x > 1 if x < 3]", "high(x for x in row)"),
        *("[x * y for x in row for y in [x, n]]", "[n for n in row]", "1 < n < 8", "not n > 8 and n < 3", "n < 3 or not not n"),
    ],
)
def test_a_formula_is_what_python_makes_of_it(text):
    assert formula.value(read(text), VALUES) == eval(text, dict(VALUES))


@each(
    "text",
    [
        *("lambda: n", "n.__class__", "one._private", "text.format(n)", "text.upper", "unknown", "__import__", "(n := 2)", "n @ n"),
        *("{**row}", "high(**row)", "high(*row)", "{x for x in row}", "n is n", "n in row", "row[::2]"),
        *('f"{n:2}"', 'f"{n!r}"', "~n", "await n", "import os", "n = 2", "n +", "json.decoder", "[*row]", "[x for x.y in row]"),
    ],
)
def test_what_a_formula_may_not_hold(text):
    """Nothing that is private, no module that another imports, no methods of texts, none of Python's other forms."""
    with pytest.raises(SyntaxError):
        formula.value(read(text), {**VALUES, "json": json})


def test_a_function_has_parameters_with_defaults():
    area = function("area(a, b=2)", "a * b * unit", {"unit": 10}, "line 1")
    assert (area(3), area(3, 4), area(b=5, a=1), area.__name__) == (60, 120, 50, "area")
    for given, options in (((), {}), ((1, 2, 3), {}), ((1,), {"c": 3})):
        with pytest.raises(DataError, match="line 1: "):
            area(*given, **options)


@pytest.mark.parametrize(("of", "problem"), table("a_broken_expression_is_told_with_claim_and_line"))
def test_a_broken_expression_is_told_with_claim_and_line(of, problem):
    claim = find_claims(["S013"])[0]
    line = CLAIMS_TEXT.index("S013:") + 8
    broken = replace(claim, given={"n": 1}, checks=(replace(claim.checks[0], of=of),))
    with pytest.raises(DataError, match=rf"claims\.yaml, line {line}, S013: {problem}"):
        _ = broken.numbers


def test_a_broken_input_is_told_with_claim_and_line():
    claim = find_claims(["S013"])[0]
    line = CLAIMS_TEXT.index("S013:") + 6
    with pytest.raises(DataError, match=rf"claims\.yaml, line {line}, S013: there is no 'PCIE' in a formula"):
        _ = replace(claim, given={**claim.given, "bandwidth": "bandwidth(PCIE)"}).numbers


# The command


def test_command_lists_every_claim_with_counts(run):
    outcome = run("claims --full")
    assert outcome.code == 0
    counts = {verdict: sum(row["verdict"] == verdict for row in EXPECTED.values()) for verdict in VERDICTS}
    summary = outcome.out.splitlines()[1]
    assert summary.startswith(f"115 claims: {counts[HOLDS]} hold, {counts[RELABELLED]} hold with relabelling, ")
    assert f"{counts[WRONG]} are wrong" in summary
    lines = outcome.out.splitlines()
    for claim in CLAIMS:
        assert sum(line.startswith(f"{claim.id}  {claim.statement}") for line in lines) == 1
    for word in ("OCR", "seed file", ".txt"):
        assert word not in outcome.out


def test_ids_and_verdicts_narrow(run):
    assert [c["id"] for c in run("claims S030 S012 S012 --json").json["claims"]] == ["S012", "S030"]
    wrong = run("claims --verdict wrong --json").json
    assert {c["id"] for c in wrong["claims"]} == {name for name, row in EXPECTED.items() if row["verdict"] == WRONG}
    assert wrong["counts"][WRONG] == len(wrong["claims"])
    assert run("claims S012 --verdict holds").out.splitlines()[1] == "0 claims."


def test_unknown_id_and_verdict(run):
    outcome = run("claims S999")
    assert outcome.code == 2
    assert "no claim is called 'S999'" in outcome.err
    assert "did you mean" in outcome.err
    assert "ids run from S001 to S115" in run("claims zzz").err
    outcome = run("claims --verdict wrnog")
    assert outcome.code == 2
    assert "did you mean wrong" in outcome.err
