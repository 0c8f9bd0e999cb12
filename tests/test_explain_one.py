"""One number at a time: ``--explain NAME``."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.core.errors import UsageError

LINES = {
    "attention --n 4096 --d 64 --hardware h200": ["attention 4096", {"n": 4096, "d": 64, "hardware": "h200"}],
    "matmul -m 4096 -n 4096 -k 4096 --hardware h200": ["matmul", {"m": 4096, "n": 4096, "k": 4096, "hardware": "h200"}],
    "matmul -m 512 -n 512 -k 512": ["matmul", {"m": 512, "n": 512, "k": 512}],
}


@pytest.mark.parametrize("line", [*LINES, "model llama-3-8b --phase decode", "attention --n 64 --d 64 --pass both --algorithm all"])
def test_a_predicted_time_is_the_sum_of_its_terms(run, line: str) -> None:
    """With the parameters of its time model, and where they were fitted."""
    outcome = run(f"{line} --explain predicted --json")
    assert outcome.err == ""
    found = outcome.json
    for group in found["explanation"]:
        steps = {step["name"]: step for step in group["steps"]}
        whole = next(step for name, step in steps.items() if name in ("predicted", "total predicted"))
        parts = [step["value"] for name, step in steps.items() if name.startswith(("time ", "[")) and step is not whole]
        assert sum(parts) == pytest.approx(whole["value"], rel=1e-6)
        assert all(step["source"] for step in steps.values())
    if line.startswith("attention --n 4096"):
        shown = [result["time_s"]["predicted"] for result in found["results"]]
        assert [group["steps"][0]["value"] for group in found["explanation"]] == shown
        text = run(f"{line} --explain predicted").out
        assert "time of matmul = " in text
        assert "cycles of a tile's matmuls" in text
        assert "calibrated here" in text


@pytest.mark.parametrize("line", LINES)
def test_every_row_of_the_first_screen_can_be_explained(run, line: str) -> None:
    """By its label; a ratio and a share are of two numbers that are rows too."""
    labels = [row[0].strip() for table in _brief(run, line) for row in table if not row[1].startswith("0 ")]
    asked = [label for label in labels if label and not label.startswith(("of the peak", "standard / ", "tile", "waves"))]
    assert len(asked) >= 5
    for label in asked:
        outcome = run(line, "--explain", label)
        assert outcome.code == 0, (label, outcome.err)
        assert " = " in outcome.out.splitlines()[1]


def _brief(run, line: str) -> list[list[list[str]]]:
    from perfmodel.commands import _command

    made = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_command.Explained, "emit", lambda self, report: made.append(report))
        run(line)
    return [table.rows for table in made[0].brief or made[0].tables[:1]]


def test_only_that_number_is_shown(run) -> None:
    text = run("attention --n 4096 --d 64 --explain roofline").out
    assert "flash2 forward: roofline = " in text
    assert "term dram" in text
    assert "FLOP, visible" not in text
    assert len(text.splitlines()) < 50 < len(run("attention --n 4096 --d 64 --explain all").out.splitlines())


def test_a_name_that_is_not_there(run) -> None:
    for name, nearest in (("rooflin", "roofline"), ("predictd", "predicted"), ("DRAM trafic", "dram traffic")):
        outcome = run("attention --n 64 --d 64", "--explain", name)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"no number here is called {name!r}" in outcome.err
        assert nearest in outcome.err
    assert "--explain all" in run("attention --n 64 --d 64 --explain qqqqqqq").err


@pytest.mark.parametrize("line", ["matmul -m 64 -n 64 -k 64 --explain --json", "matmul --explain -m 64 -n 64 -k 64 --json"])
def test_without_a_name_it_is_all_with_a_note(run, line: str) -> None:
    """As older versions took it."""
    old, new = run(line), run("matmul -m 64 -n 64 -k 64 --explain all --json")
    assert old.out == new.out
    assert new.err == ""
    assert old.err.startswith("note: --explain takes a name now")


def test_from_python() -> None:
    every = perfmodel.matmul(m=64, n=64, k=64, explain=True)["explanation"][0]["steps"]
    one = perfmodel.matmul(m=64, n=64, k=64, explain="roofline")["explanation"][0]["steps"]
    assert one[0]["name"] == "roofline"
    assert len(one) < len(every)
    assert "explanation" not in perfmodel.matmul(m=64, n=64, k=64, explain=False)
    with pytest.raises(UsageError):
        perfmodel.matmul(m=64, n=64, k=64, explain="nothing")
