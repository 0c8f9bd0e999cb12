"""What a first user of ``serve`` tripped over: limits that are none, fixes that do not help, numbers that contradict each other."""

from __future__ import annotations

import re
import shlex

import pytest

from perfmodel.cli import main

LLAMA = "serve llama-3.1-8b --hardware h200"


@pytest.mark.parametrize("more", ["--isl 1 --osl 1 --concurrency 1", "--osl 1", "--isl 100k --osl 100 --concurrency 1", "--rate 1e-9"])
def test_no_others_are_to_blame_where_there_are_none(run, more: str) -> None:
    found = run(f"{LLAMA} {more} --json").json
    assert found["shares"].get("prefill of other requests", 0.0) < 0.01
    assert sum(found["shares"].values()) == pytest.approx(1)


def test_long_prompts_are_limited_by_arithmetic(run) -> None:
    assert run(f"{LLAMA} --isl 100k --osl 1 --json").json["limited_by"] == "compute"


def test_the_host_is_given_the_time_between_kernels(run) -> None:
    from perfmodel.catalog import find_engine

    found = run(f"{LLAMA} --engine sglang --concurrency 1 --json").json
    least = find_engine("sglang").overhead.kernel_s * sum(row["count"] for row in found["steps"]["decode"])
    assert found["shares"]["the engine's host"] * found["step_s"]["with_prompts"] >= least * 0.9


def test_the_proposed_gpus_hold_the_model(run, capsys) -> None:
    """More than the question has: the engine's own share of the memory counts."""
    assert main(shlex.split("serve glm-5 --hardware b200 --gpus 8")) != 0
    more = re.search(r"give --gpus (\d+)", capsys.readouterr().err)
    assert more is not None
    assert int(more[1]) > 8
    assert run(f"serve glm-5 --hardware b200 --gpus {more[1]} --json").json["memory"]["most_running"]


def test_a_search_for_one_token_has_no_time_after_it(run) -> None:
    found = run(f"{LLAMA} --engine vllm --gpus 1 --isl 64 --osl 1 --search --json").json
    assert found["best"]["tpot_s"] is None
    assert "every" not in found["verdict"][1]


def test_times_of_a_device_without_a_calibration_are_at_least(run) -> None:
    found = run("serve llama-3.1-8b --hardware gaudi3 --gpus 8 --concurrency 512 --isl 64 --osl 4 --json").json  # its collectives
    assert "at least" in found["verdict"][1]
    assert found["ttft_s"].get("high") is None


def test_a_pools_first_step_gives_two_tokens_at_once(run) -> None:
    """The token of the prompt goes out with that of the decode worker's first step: of two tokens there is no time between."""
    found = run(f"{LLAMA} --isl 2 --osl 2 --concurrency 1 --prefill-workers 1 --workers 1 --json").json
    assert found["tpot_s"] == {"mean": None}
    assert found["tokens_per_s_per_user"] is None
    assert "the second with it" in found["verdict"][1]


def test_a_time_that_is_the_least_reads_as_one_sentence(run) -> None:
    said = run("serve llama-3.1-70b --dtype fp8 --isl 7k --osl 1k --gpus 2 --hardware h100-sxm").out
    assert re.search(r"First token after at least [\d.]+ ms, then one every [\d.]+ ms or more: at most ", said)
