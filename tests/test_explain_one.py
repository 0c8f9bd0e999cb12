"""One number at a time: ``--explain NAME``."""

from __future__ import annotations

from functools import cache

import pytest
from sampled import sampled

import perfmodel
from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import UsageError
from perfmodel.timing.base import find_model
from perfmodel.timing.explain import explain_time
from perfmodel.validation.compare import compare
from perfmodel.validation.records import profiled, raw_of

LINES = {
    "attention --n 4096 --d 64 --hardware h200": ["attention 4096", {"n": 4096, "d": 64, "hardware": "h200"}],
    "matmul -m 4096 -n 4096 -k 4096 --hardware h200": ["matmul", {"m": 4096, "n": 4096, "k": 4096, "hardware": "h200"}],
    "matmul -m 512 -n 512 -k 512": ["matmul", {"m": 512, "n": 512, "k": 512}],
}
MORE = [
    *("model llama-3-8b --phase decode", "batch llama-3-8b --kv-len 2048", "attention --n 64 --d 64 --pass both --algorithm all"),
    "softmax --rows 64 --cols 4096 --hardware h200 --implementation torch-softmax",
]


@pytest.mark.parametrize("line", [*LINES, *MORE])
def test_a_predicted_time_is_the_sum_of_its_terms(run, line: str) -> None:
    """Of the seconds that go with each resource of the device, and where its model was fitted."""
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
        assert "time of tensor unit = " in text
        assert "matrix products" in text
        assert "calibrated here" in text


@pytest.mark.parametrize("line", LINES)
def test_every_row_of_the_first_screen_can_be_explained(run, line: str) -> None:
    """By its label; a ratio and a share are of two numbers that are rows too."""
    labels = [row[0].strip() for table in _brief(run, line) for row in table if not row[1].startswith("0 ")]
    asked = [label for label in labels if label and not label.startswith(("of the peak", "speedup", "tile", "waves"))]
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


def test_seconds_that_go_with_resources_add_up_for_every_family() -> None:
    """One record of each family of kernels: the parts are the whole, and little of it is left to other rules."""
    records = {record.group: record for record in sampled(50) if not profiled(record)}
    others, seen = cache(calibrated_devices), set()
    for record in records.values():
        found = compare(raw_of(record), record, find_device(record.hardware), others).prediction
        if found is None or found.case is None or found.power is not None:  # of a run for seconds, what hides behind the same call
            continue
        if find_model(found.calibration.model).from_tables:  # the host of whose runs is a constant
            continue
        steps = {step.name: float(step.value) for step in explain_time(found)}
        parts = {name: value for name, value in steps.items() if name.startswith("time of ")}
        assert sum(parts.values()) == pytest.approx(found.seconds, rel=1e-6)
        rules = parts.pop("time of other rules", 0.0)
        assert abs(rules) < 0.25 * found.seconds or found.seconds == pytest.approx(found.low), (record.group, rules / found.seconds)
        seen.add(found.calibration.model)
    assert len(seen) > 25
