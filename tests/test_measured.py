"""``--measured``: a time of the user's against the roof and the best library kernel."""

from __future__ import annotations

import pytest
from each import each

LINES = [
    "attention --n 4096 --d 64 --heads 16 --batch 8 --hardware h200",
    "matmul -m 4096 -n 4096 -k 4096 --dtype bf16 --hardware h200",
    "softmax --rows 4096 --cols 32768 --hardware h200",
    "model llama-3-8b --phase decode --batch 8 --kv-len 2048 --hardware h200",
]


@each("line", LINES)
def test_a_time_is_a_share_of_the_roof_and_a_speedup(run, line):
    plain = run(f"{line} --json").json
    for factor in (0.5, 2.0):
        fastest = _predicted(run(f"{line} --measured 1s --json").json)
        found = run(f"{line} --measured {fastest / factor}s --json").json
        measured, said = found["measured"], found["verdict"][0]
        assert measured["speedup"] == pytest.approx(factor)
        assert ("2x faster" if factor > 1 else "2x slower") in said or measured["of_bound"] > 1
        assert measured["of_roof"] >= measured["of_bound"]
        assert found["verdict"][1:] == plain["verdict"] or line.startswith("softmax")  # which predicts a kernel besides


def _predicted(found):
    return found["measured"]["speedup"] * found["measured"]["time_s"]


def test_a_time_below_the_bound_is_said_to_be_no_time_of_this_work(run):
    assert "less than any kernel takes here" in run(f"{LINES[0]} --measured 1us").out


@each("text", ["3", "0s", "-1ms", "fast"])
def test_what_is_no_time_is_refused(run, text):
    found = run(f"{LINES[1]} --measured={text}")
    assert found.code == 2
    assert "3.2ms" in found.err


def test_a_training_step_takes_none(run):
    assert "option of inference" in run("model llama-3-8b --phase train --measured 5s").err
