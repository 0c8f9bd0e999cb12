"""Sweeps over engines: each row is an answer of ``perfmodel serve``, and what has none is counted by its reason."""

from __future__ import annotations

import pytest
import yaml

import perfmodel

COLUMNS = "ttft_s,ttft_p99_s,tpot_s,tokens_per_s,tokens_per_s_gpu,tokens_per_s_user,waiting,max_requests,weights_bytes,power_w"


def test_rows_are_what_the_command_says(run) -> None:
    found = perfmodel.sweep(
        "serve", model="llama-3.1-8b", hardware="h200", dtype="bf16", concurrency=[1, 64], gpus=[1, 2], isl=256, osl=32, columns=COLUMNS
    )
    assert found.rows == 4
    for place in range(found.rows):
        users, gpus = found["concurrency"][place], found["gpus"][place]
        told = run(f"serve llama-3.1-8b --hardware h200 --dtype bf16 --isl 256 --osl 32 --concurrency {users} --gpus {gpus} --json").json
        same = {
            **{"ttft_s": told["ttft_s"]["mean"], "ttft_p99_s": told["ttft_s"]["p99"], "tpot_s": told["tpot_s"]["mean"]},
            **{name: told[name] for name in ("tokens_per_s", "waiting", "power_w")},
            **{"tokens_per_s_gpu": told["tokens_per_s_per_gpu"], "tokens_per_s_user": told["tokens_per_s_per_user"]},
            **{"max_requests": told["memory"]["most_running"], "weights_bytes": told["memory"]["weights"]},
        }
        assert {name: found[name][place] for name in same} == pytest.approx(same)


def test_layouts_follow_from_gpus_and_what_does_not_fit_is_counted() -> None:
    usual = {"model": "mixtral-8x7b", "hardware": "h200", "isl": 64, "osl": 8, "concurrency": 8, "columns": "tpot_s"}
    found = perfmodel.sweep("serve", **usual, gpus=[1, 4, 6], tp=[1, 2, 4], ep=[1, 2])
    known = {(gpus, tp) for gpus, tp in zip(found["gpus"].tolist(), found["tp"].tolist(), strict=True)}
    assert {(4, 1), (4, 2), (4, 4), (6, 2)} <= known
    assert found.rows + sum(found.left_out.values()) == 18
    small = perfmodel.sweep("serve", **{**usual, "hardware": "a100-sxm-40gb"}, gpus=[1, 2, 4, 8])
    assert small["gpus"].tolist() == [4, 8]
    assert [reason for reason in small.left_out if "does not fit" in reason]


def test_engines_and_limits_are_axes(tmp_path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"id": "own", "name": "Own", "batching": {"token_budget": 64}}))
    found = perfmodel.sweep(
        "serve", model="llama-3.1-8b", hardware="h200", engine=["vllm", str(file)], isl=512, osl=8, rate=1, token_budget=[64, 512]
    )
    by = dict(zip(zip(found["engine"].tolist(), found["token_budget"].tolist(), strict=True), found["ttft_s"].tolist(), strict=True))
    assert by["vllm", 64] > by["vllm", 512]
    assert by[str(file), 64] > by[str(file), 512]
