"""What a serving engine delivers, and the best layout: what the command says, saves and refuses."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from perfmodel.catalog import find_engine

LLAMA = "serve llama-3.1-8b --hardware h200 --engine vllm"


def test_the_price_is_that_of_the_gpus_while_a_million_tokens_come(run) -> None:
    found = run(f"{LLAMA} --gpu-hour 3.6 --json").json
    assert found["price_per_million"] == pytest.approx(3.6 / 3600 * 1e6 / found["tokens_per_s"])


def test_a_kind_of_model_that_no_run_of_the_engine_is_of_is_said_to_be_so_and_has_wide_intervals(run) -> None:
    """What a request takes beside kernels is then nothing up to what it takes with other models."""
    words, unfitted = "No dense model was fitted for SGLang", LLAMA.replace("vllm", "sglang")
    assert words in run(unfitted).out
    assert words not in run(LLAMA).out
    assert "No " not in run("serve qwen3-30b-a3b --hardware h200 --engine sglang").out
    ends = {name: run(f"{line} --concurrency 1 --json").json for name, line in (("sglang", unfitted), ("vllm", LLAMA))}
    widths = {name: [one[key]["high"] / one[key]["low"] for key in ("ttft_s", "tpot_s")] for name, one in ends.items()}
    assert all(wide > 1.2 * narrow for wide, narrow in zip(widths["sglang"], widths["vllm"], strict=True))
    assert ends["sglang"]["ttft_s"]["low"] < ends["sglang"]["ttft_s"]["mean"] - find_engine("sglang").overhead.request_s


def test_requests_of_a_benchmark_change_every_figure(run) -> None:
    """The start and the end of 128 requests of 64 users count."""
    loop, short = (run(f"{LLAMA} --osl 128 --concurrency 64 {more} --json").json for more in ("", "--requests 128"))
    assert short["ttft_s"]["mean"] > 1.5 * loop["ttft_s"]["mean"]
    assert short["tokens_per_s"] != loop["tokens_per_s"]
    assert short["tpot_s"]["mean"] != loop["tpot_s"]["mean"]
    assert short["tokens_per_s"] == pytest.approx(128 * short["requests_per_s"])


def test_a_search_keeps_its_limits_and_prints_lines_that_run(run) -> None:
    found = run(f"{LLAMA} --gpus 2 --search --ttft 500ms --tpot 12ms --gpu-hour 2 --json").json
    best = found["best"]
    assert best["ttft_s"] <= 0.5
    assert best["tpot_s"] <= 0.012
    rates = [(one["tokens_per_s_gpu"], one["tokens_per_s_user"]) for one in found["front"]]
    assert rates == sorted(rates, key=lambda pair: (-pair[0], pair[1]))
    starts, again = found["paste"]
    assert "vllm serve " in starts
    told = run(f"{again.removeprefix('perfmodel ')} --json").json
    assert told["tpot_s"]["mean"] == pytest.approx(best["tpot_s"], rel=0.1)


def test_a_pasted_line_is_one_command(run) -> None:
    """The screen breaks it between options as a shell joins it again."""
    from perfmodel.report.serve_search import _broken

    line = run(f"{LLAMA} --gpus 2 --search --concurrency 8 --json").json["paste"][0]
    rows = _broken(line)
    assert len(rows) > 1
    assert shlex.split(" ".join(row.removesuffix("\\") for row in rows)) == shlex.split(line)


WORK = """
import contextlib, io, sys, time
begun = time.process_time()
import numpy, pydantic, yaml
imported = time.process_time() - begun
from perfmodel.cli import main
begun = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[1:]) == 0
print((time.process_time() - begun) / imported)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("more", "most"), [("", 6), ("--gpus 8 --search --disaggregated", 40)])
def test_a_query_takes_some_times_what_imports_take(more: str, most: float) -> None:
    """A ratio of two times of one process: machines differ, and their load."""
    command = [sys.executable, "-c", WORK, *LLAMA.split(), *more.split()]
    ratios = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert min(ratios) < most, ratios
