"""What reports of models say first, to one who sizes machines: whole sentences of a line each, and no number against another one."""

from __future__ import annotations

import re

import pytest

from perfmodel.transformer.answer import ModelAnswer

LINES = [
    "model llama-3-8b",
    "model llama-3-8b --phase decode --batch 64 --n 4096 --hardware h200",
    "model llama-3-70b --phase decode --batch 32 --hardware h100-sxm",
    "model llama-3-70b --phase generate --batch 8 --n 2048 --kv-len 4096 --hardware h200 --tp 2 --weights-dtype int4",
    "model deepseek-v3 --phase decode --hardware h200 --tp 8 --batch 16",
    "model mixtral-8x7b --phase decode --hardware mi300x --batch 8",
    "model llama-3-70b --phase train --hardware mi300x --batch 16 --tp 8",
    "model llama-3-8b --phase train --batch 64 --search 8 --hardware mi300x",
]


def _said(run, line: str) -> list[str]:
    """The first lines below the title, and before the meters, of 80 columns."""
    verdict: list[str] = run(f"{line} --json").json.get("verdict", [])
    return verdict


@pytest.mark.parametrize("line", LINES[:6])
def test_the_share_of_kernels_is_no_less_than_that_of_the_resource(run, line: str) -> None:
    """A resource is busy only while kernels run that use it; those it bounds take longer than it is busy with them."""
    out = run(line).out
    said = re.search(r"(?:kernels bound by it take |Limited by [\w ]+? )(\d+)% of the time", out)
    busy = re.search(r"(\d+)%.*< limits", out)
    if said is None:
        assert "Limited by latency: " in out
        assert busy is None
    else:
        assert busy is not None
        assert int(said[1]) >= 0.6 * int(busy[1])


def test_waits_and_exchanges_limit_too(run) -> None:
    line = "model gpt2 --phase train --batch 8 --n 256 --pp 4 --micro-batch 8 --hardware h200"
    out = run(line).out
    assert re.search(r"Limited by pipeline bubble: it takes \d\d% of the time\.", out)
    assert re.search(r"pipeline bubble .*< limits", out)


@pytest.mark.parametrize(
    "line",
    [
        "model llama-3-70b --phase decode --batch 32",
        "model llama-3.1-405b --phase decode",
        "kv-cache llama-3-70b",
        "kv-cache llama-3.1-405b --weights-dtype fp8",
    ],
)
def test_what_is_said_to_fit_does(run, line: str) -> None:
    """And half as many GPUs do not."""
    command = f"{line} --hardware h100-sxm"
    said = re.search(r"; ((?:--\w+ \d+ ?)+) would fit", _said(run, command)[0])
    assert said is not None
    assert run(f"{command} {said[1]}").out.splitlines()[1].startswith("Fits: ")
    name, count = said[1].split()[-2:]
    fewer = said[1].removesuffix(f"{name} {count}") + f"{name} {int(count) // 2}"
    assert run(f"{command} {fewer}").out.splitlines()[1].startswith("Does not fit: ")


def test_rows_of_a_generation_are_added_up_once_per_table(run, monkeypatch) -> None:
    """Not once per row of each: a generation adds up thousands of them."""
    added, add = [], ModelAnswer._line
    monkeypatch.setattr(ModelAnswer, "_line", lambda *args: added.append(add(*args)) or added[-1])
    rows = run("model gpt2 --phase generate --n 16 --json").json["ops"]
    assert len(rows) <= len(added) <= 8 * len(rows)
