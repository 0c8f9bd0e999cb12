"""Claims of the literature: every one is there, its verdict follows from its numbers, its numbers from the project's functions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import CodeType, FrameType

import pytest

from perfmodel.attention.algorithms import standard
from perfmodel.claims import all_claims, find_claims
from perfmodel.claims.base import (
    HOLDS,
    INCOMPLETE,
    NOT_CHECKABLE,
    PENDING,
    RELABELLED,
    VERDICTS,
    WRONG,
    Claim,
    Figure,
    Reading,
)

EXPECTED = json.loads((Path(__file__).parent / "data" / "claims_verdicts.json").read_text())
CLAIMS = all_claims()
FIGURES = [(claim, figure) for claim in CLAIMS for figure in claim.figures]

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
SIZELESS = {"S057", "S069"}
"""Counts of kernels and of passes, the same for every size."""


def by_id(claim: Claim) -> str:
    return claim.id


def test_every_claim_is_there():
    assert [claim.id for claim in CLAIMS] == [f"S{number:03}" for number in range(1, 92)] == list(EXPECTED)


@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_verdict(claim):
    row = EXPECTED[claim.id]
    assert claim.verdict == row["verdict"]
    assert (claim.verdict == VERDICT_OF[row["agrees"]]) == ("reason" not in row)


@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_text(claim):
    assert claim.verdict in VERDICTS
    assert claim.statement.endswith(".")
    assert claim.source
    if claim.verdict != HOLDS:
        assert claim.why
    assert claim.verdict != PENDING
    if any(figure.claimed is not None for figure in claim.figures):
        assert claim.declared != WRONG, "numbers decide what is wrong"


@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_numbers_are_those_of_the_review(claim):
    numbers = {number.what: number.value for number in claim.check()}
    assert len(numbers) == len(claim.figures)
    for key, rel in (("expected", 0.005), ("two_digits", 0.02)):
        for what, value in EXPECTED[claim.id].get(key, {}).items():
            assert numbers[what] == pytest.approx(value, rel=rel), what


@contextmanager
def recorded() -> Iterator[set[CodeType]]:
    """Code of every function called meanwhile."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.figures], ids=by_id)
def test_numbers_come_from_the_functions_named(claim):
    with recorded() as seen:
        claim.check()
    for function in claim.uses:
        assert function.__module__.startswith("perfmodel.")
        assert function.__code__ in seen, function.__qualname__
    given = [value for figure in claim.figures for value in claim.given(figure).values()]
    assert claim.uses or any(isinstance(value, Reading) for value in given)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.figures and claim.id not in SIZELESS], ids=by_id)
def test_no_number_is_typed_in(claim):
    """Twice as large an input changes what is computed."""
    for figure in claim.figures:
        values = claim.values(figure)
        usual = figure.check(values).value
        for name in signature(figure.compute).parameters:
            if name in values and figure.check({**values, name: 2 * values[name]}).value != usual:
                return
    pytest.fail("no input matters")


@pytest.mark.parametrize(("claim", "figure"), FIGURES, ids=lambda value: value.id if isinstance(value, Claim) else value.what)
def test_explanations_end_in_the_number(claim, figure):
    *_, last = claim.explain(figure)
    assert last.name == figure.what
    assert float(last.value) == pytest.approx(figure.check(claim.values(figure)).value, rel=1e-12)
    assert last.formula
    assert all(step.source for step in claim.explain(figure))


def test_a_changed_formula_changes_the_verdict(monkeypatch):
    claim = find_claims(["S068"])[0]
    assert claim.verdict == HOLDS
    kernels = standard.forward
    monkeypatch.setattr(standard, "forward", lambda w, tile: kernels(w, tile)[1:])
    assert claim.verdict == WRONG


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
    assert Figure("", lambda x: x, claimed, unit).check({"x": computed}).agrees is agrees


@pytest.mark.parametrize(("relation", "agrees"), [("<", False), ("<=", True), ("=", True), (">=", True), (">", False)])
def test_relations(relation, agrees):
    assert Figure("", lambda x: x, "1 x", "x", relation=relation).check({"x": 1}).agrees is agrees


def test_header_of_an_array():
    import numpy as np

    assert sys.getsizeof(np.zeros((1000, 1000))) == find_claims(["S038"])[0].check()[0].value


# The command


def test_command_lists_every_claim_with_counts(run):
    outcome = run("claims")
    assert outcome.code == 0
    counts = {verdict: sum(row["verdict"] == verdict for row in EXPECTED.values()) for verdict in VERDICTS}
    summary = outcome.out.splitlines()[1]
    assert summary.startswith(f"91 claims: {counts[HOLDS]} hold, {counts[RELABELLED]} hold with relabelling, ")
    assert f"{counts[WRONG]} are wrong" in summary
    lines = outcome.out.splitlines()
    for claim in CLAIMS:
        assert sum(line.startswith(f"{claim.id}  {claim.statement}") for line in lines) == 1
    for word in ("OCR", "seed file", ".txt"):
        assert word not in outcome.out


def test_one_claim(run):
    outcome = run("claims s028")
    assert "1 claim: 1 is wrong." in outcome.out
    assert "824.6 GFLOP" in outcome.out
    assert "66.6 GFLOP" in outcome.out
    assert "S029" not in outcome.out


def test_ids_and_verdicts_narrow(run):
    assert [c["id"] for c in run("claims S030 S012 S012 --json").json["claims"]] == ["S012", "S030"]
    wrong = run("claims --verdict wrong --json").json
    assert {c["id"] for c in wrong["claims"]} == {name for name, row in EXPECTED.items() if row["verdict"] == WRONG}
    assert wrong["counts"][WRONG] == len(wrong["claims"])
    assert run("claims S012 --verdict holds").out.splitlines()[1] == "0 claims."


def test_json(run):
    data = run("claims --json").json
    assert data["schema"] == "perfmodel.claims/1"
    assert sum(data["counts"].values()) == len(data["claims"]) == 91
    fields = {"id", "source", "statement", "claimed", "verdict", "why", "inputs", "figures", "functions"}
    assert all(set(claim) == fields for claim in data["claims"])
    ridge = next(claim for claim in data["claims"] if claim["id"] == "S013")
    first = ridge["figures"][0]
    assert (first["claimed_value"], first["unit"], first["relation"], first["agrees"]) == (161, "FLOP/B", "=", True)
    assert first["value"] == pytest.approx(161.2, abs=0.05)
    assert first["tolerance"] == pytest.approx(0.5)
    assert ridge["inputs"][1]["value"] == 1935.36e9
    assert "nvidia-a100-pcie-80gb" in ridge["inputs"][1]["source"]
    assert ridge["functions"] == ["perfmodel.claims.formulas.ridge_point"]


def test_explain(run):
    text = run("claims S013 --explain").out
    assert "C / W = " in text
    assert "Williams, Waterman & Patterson 2009" in text
    steps = run("claims S029 --explain --json").json["explanation"]
    assert {entry["what"] for entry in steps} == {"with mask and dropout", "algorithms alone"}
    assert steps[0]["steps"][-1]["value"] == 40267415552
    assert run("claims S002 --explain --json").json["explanation"] == []


def test_file(run, tmp_path):
    target = tmp_path / "claims.md"
    assert run("claims --verdict incomplete", "-o", str(target)).code == 0
    assert "S007" in target.read_text()


def test_unknown_id_and_verdict(run):
    outcome = run("claims S092")
    assert outcome.code == 2
    assert "no claim is called 'S092'" in outcome.err
    assert "did you mean" in outcome.err
    assert "ids run from S001 to S091" in run("claims zzz").err
    outcome = run("claims --verdict wrnog")
    assert outcome.code == 2
    assert "did you mean wrong" in outcome.err


def test_starts_without_numpy():
    code = "import sys; from perfmodel.cli import main; main(['claims', '--json']); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
