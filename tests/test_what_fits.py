"""What fits is one sum: the commands store weights alike, route alike, and name what they reserve."""

from __future__ import annotations

import re

import pytest
from reports import data, text

LAYOUT = "llama-3.1-70b --tp 2 --hardware h100 --weights-dtype fp8"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("reserve", [0, 3_000_000_000])
def test_commands_differ_by_what_serving_reserves(engine: str, reserve: int) -> None:
    """117 requests, not 144: with the same bytes reserved, ``kv-cache`` and ``model`` have room for as many as ``serve``."""
    line = f"serve {LAYOUT} --engine {engine} --concurrency 4" + f" --reserve {reserve}B" * (reserve > 0)
    served, out = data(line)["memory"], text(line, full=True)
    assert served["runtime"] == reserve
    assert ("for the runtime" in out) == (reserve > 0)
    names = ("activations", "runtime", "left_free")
    held = sum(served[name] for name in names)
    assert served["total"] == served["weights"] + served["activations"] + reserve + 4 * served["sequence"]
    for name in names:
        if served[name]:
            assert f"{served[name] / 1e9:.3g} GB" in out or f"{served[name] / 1e6:.3g} MB" in out
    cached = data(f"kv-cache {LAYOUT} --n 2048 --reserve {held}B")
    step = data(f"model {LAYOUT} --phase decode --kv-len 2048 --reserve {held}B")["memory"]
    assert cached["memory"]["room_bytes"] // served["sequence"] == cached["max_batch"] == step["max_batch"] == served["most_running"]
    assert data(f"kv-cache {LAYOUT} --n 2048")["max_batch"] > cached["max_batch"]


@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "mixtral-8x7b"])
def test_model_and_serve_assume_one_router(run, model: str) -> None:
    for line, times in ((f"model {model} --phase decode --batch 64 --kv-len 2048", "totals"), (f"serve {model}", "step_s")):
        answers = [run(f"{line} --hardware h200 --tp 8 {option} --json").json for option in ("--imbalance 1.2", "", "--imbalance 0")]
        given, usual, even = (one[times] for one in answers)
        assert usual == given
        assert usual != even
        assert [one["inputs"]["imbalance"] for one in answers] == [1.2, 1.2, 0]


@pytest.mark.parametrize("line", ["serve llama-3.1-70b", "model llama-3.1-70b --phase decode --batch 64 --kv-len 1536"])
def test_the_power_meter_and_the_answer_have_one_energy_of_a_token(line: str) -> None:
    """Of all eight GPUs."""
    line = f"{line} --tp 8 --hardware h200"
    found = data(line)
    known = found["energy_per_token_j"] if "serve" in line else found["totals"]["sustained"]["energy_per_token_j"]
    assert float(re.search(r"MHz, ([\d.]+) mJ a token", text(line))[1]) / 1e3 == pytest.approx(known, rel=5e-3)


def test_bytes_of_a_row_are_of_dram_in_every_command(run) -> None:
    layout = "llama-3.1-8b --hardware h200 --json"
    served = run(f"serve {layout} --isl 1024 --osl 1024 --concurrency 64").json["steps"]["decode"]
    rows = {row["name"]: row for row in run(f"model {layout} --phase decode --batch 64 --kv-len 1536 --fused --dtype bf16").json["ops"]}
    for row in served:
        if row["name"] in ("gate and up projection", "down projection", "QKV projection"):
            assert row["bytes"] == pytest.approx(rows[row["name"]]["bytes"], rel=0.02)
