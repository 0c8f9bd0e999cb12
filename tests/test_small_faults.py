"""Laws that hold of every answer: each breaks by one small fault of the code that whole answers do not show."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import each
from test_power import plain

from perfmodel.catalog import data_folder, find_device
from perfmodel.catalog import find_model as find_spec
from perfmodel.core.cache import held_bytes
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.power import BURST, Demand, Power
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.flash1 import causal_share
from perfmodel.kernels.attention.algorithms.flash2 import length_spread
from perfmodel.kernels.collectives import ALL_TO_ALL
from perfmodel.kernels.matmul import Matmul
from perfmodel.serving.pools import link, transfer_s
from perfmodel.timing.base import Case, find_model
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import weight_bytes
from perfmodel.transformer.step import Split, decode
from perfmodel.validation.calibrate import points
from perfmodel.validation.cross_device import residuals
from perfmodel.validation.records import FITTED, Record, Seconds

H200 = "nvidia-h200-sxm"

# Bounds and caches


@each("device", ["h200", "a100-sxm-80gb", "t4", "mi300x"])
@each("line", ["matmul -m 8192 -n 8192 -k 8192", "attention --n 8192 --d 128 --heads 16 --pass both"])
def test_products_of_the_vector_unit_count_in_the_bound(run: Any, line: str, device: str) -> None:
    """No unit of a device multiplies fp32 faster than the fastest that takes it, at the highest clock."""
    for result in run(f"{line} --dtype fp32 --hardware {device} --json").json["results"]:
        assert result["time_s"]["lower"] >= result["flops"] / find_device(device).best_matmul_rate("fp32") * (1 - 1e-9)


@pytest.mark.parametrize("name", ["amd-mi300x", "amd-mi355x"])
def test_all_shared_caches_hold_what_is_used_again(run: Any, name: str) -> None:
    """128 MiB are read and written: more than the L2 holds, less than the last-level cache."""
    device = find_device(name)
    shared = [level for level in device.memory if level.level in ("l2", "llc") and level.scope == "device"]
    assert [level.level for level in shared][-1] == "llc"
    assert shared[-1].capacity is not None
    assert device.cache_bytes == shared[-1].capacity.number
    assert held_bytes(device) == sum(level.capacity.number for level in shared if level.capacity)
    times = run(f"softmax --rows 4096 --cols 8192 --hardware {name} --json").json["results"][0]["time_s"]
    assert times["lower_warm"] < times["lower"] / 2


@each(("n", "kv_len"), [(400, 400), (300, 700), (700, 300), (50, 950)])
def test_passes_over_queries_that_a_causal_mask_shortens(n: int, kv_len: int) -> None:
    """Keys outermost: the last n keys are seen by ever fewer queries, those before by all."""
    w = Attention(n=n, kv_len=kv_len, d=8, dv=8, causal=True).check()
    seen = [sum(key <= query + kv_len - n for query in range(n)) for key in range(kv_len)]
    assert causal_share(w) == pytest.approx(sum(seen[-n:]) / sum(seen), rel=0.02)
    assert causal_share(replace(w, causal=False)) == 0
    seen = [sum(key <= query + kv_len - n for key in range(kv_len)) for query in range(max(n - kv_len, 0), n)]
    assert length_spread(w, FORWARD) == pytest.approx(1 - min(seen) / max(seen), abs=2 / kv_len)


# Memory

PROFILE = (data_folder("hardware_specs") / f"{H200}.yaml").read_text()


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("model llama-3-8b --phase decode --batch 8 --kv-len 2048", lambda data: data["memory"]["total"]),
        ("kv-cache llama-3-8b --n 4096 --batch 8", lambda data: data["memory"]["weights_bytes"] + data["bytes"]),
        ("memory llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3", lambda data: data["bytes"]["peak"]),
        ("model gpt2 --phase train --batch 8 --n 1024", lambda data: data["memory"]["total"]),
    ],
)
def test_one_byte_too_many_does_not_fit(run: Any, tmp_path: Path, line: str, needs: Callable[[Any], int]) -> None:
    size = needs(run(f"{line} --hardware {H200} --json").json)
    for capacity, fits in ((size, True), (size - 1, False)):
        path = tmp_path / f"{capacity}.yaml"
        path.write_text(re.sub(r"capacity: \{value: \d{12} B,", f"capacity: {{value: {capacity} B,", PROFILE))
        found = run(f"{line} --hardware {path} --json").json
        assert (found["memory"]["fits"], found["verdict"][0].startswith("Fits")) == (fits, fits)


@each(
    ("one", "two"),
    [
        ("serve llama-3.1-8b --concurrency 8", "serve llama-3.1-8b --concurrency 8 --dp 2"),
        ("model qwen3-30b-a3b --phase decode --batch 8", "model qwen3-30b-a3b --phase decode --batch 16 --dp 2 --ep 2"),
    ],
)
def test_each_data_parallel_group_holds_activations_of_its_own_sequences(run: Any, one: str, two: str) -> None:
    alone, apart = (run(f"{line} --hardware h200 --json").json["memory"]["activations"] for line in (one, two))
    assert alone == apart


@each("name", ["llama-3.2-1b", "gemma-2-2b"])
def test_a_tied_head_is_held_by_the_last_stage_too(name: str) -> None:
    model = find_spec(name)
    whole, half = (weight_bytes(model, decode(1, 64, split=Split(pp=pp))) for pp in (1, 2))
    assert 2 * half - whole == 2 * (model.vocab + 1) * model.hidden  # the table and the last norm, in 2 bytes


# Experts

EXPERTS = "qwen3-30b-a3b"


def test_experts_get_tokens_of_all_groups_by_an_even_router_as_by_one_nearly_even(run: Any) -> None:
    line = f"model {EXPERTS} --phase decode --batch 8 --kv-len 64 --dp 4 --ep 4 --hardware h200 --json"
    even, nearly = ({op["name"]: op["bytes"] for op in run(f"{line} --imbalance {imbalance}").json["ops"]} for imbalance in (0, 0.001))
    for name in ("experts, gate and up", "experts, down"):
        assert even[name] == pytest.approx(nearly[name], rel=0.05)


def test_a_token_goes_at_most_once_to_each_gpu() -> None:
    """Of its eight experts' copies by all-to-all, two GPUs get one each."""
    model = find_spec(EXPERTS)
    for ep in (2, 16):
        step = decode(32, 64, split=Split(dp=ep, ep=ep))
        [sent] = [op.exchange.bytes for op in step_ops(model, step) if op.exchange is not None and op.exchange.op == ALL_TO_ALL]
        assert sent == 32 / ep * min(8, ep) * model.hidden * 2


# Energy and power


@each(
    "line",
    [
        "serve llama-3.1-8b --concurrency 16 --gpus 2",
        "model llama-3-8b --phase decode --batch 8 --kv-len 2048 --tp 2",
        "model gpt2 --phase decode --kv-len 64 --eager",
        "model gpt2 --phase train --batch 8 --n 1024 --dp 4",
    ],
)
def test_energy_is_the_power_of_all_gpus_over_time_and_never_below_static_power(run: Any, line: str) -> None:
    data = run(f"{line} --hardware h200 --json").json
    drawn = data["power_w"] if "serve" in line else data["totals"]["sustained"]["power_w"]
    gpus = data.get("gpus", data["inputs"].get("gpus", data["inputs"].get("tensor_parallel")))
    if "serve" in line:
        assert data["energy_per_token_j"] * data["tokens_per_s"] == pytest.approx(drawn * gpus)
    else:
        assert data["totals"]["sustained"]["energy_j"] == pytest.approx(drawn * gpus * data["totals"]["time_s"]["sustained"])
    assert drawn >= static_w()


def test_a_curve_over_batches_pays_for_each_token_with_the_power_of_all_gpus(run: Any) -> None:
    for row in run("batch llama-3.1-8b --tp 2 --kv-len 512 --hardware h200 --json").json["results"]:
        drawn = row["sustained"]
        assert drawn["energy_per_token_j"] * row["batch"] == pytest.approx(2 * drawn["power_w"] * row["time_s"]["sustained"])


@each(
    ("one", "several"),
    [
        ("--phase decode --batch 8 --kv-len 2048", "--phase decode --batch 8 --kv-len 2048 --tp 2"),
        ("--phase train --batch 1 --n 512", "--phase train --batch 4 --n 512 --dp 4"),
    ],
)
def test_each_of_several_gpus_draws_what_one_does(run: Any, one: str, several: str) -> None:
    alone, each_of_them = (
        run(f"model llama-3-8b {line} --hardware h200 --json").json["totals"]["sustained"]["power_w"] for line in (one, several)
    )
    assert 0.6 < each_of_them / alone < 1.1


def static_w() -> float:
    fit = find_device(H200).power
    assert fit is not None
    return fit.static_w


def test_gpus_that_wait_for_requests_draw_static_power(run: Any) -> None:
    """A request every 17 minutes."""
    drawn = run("serve llama-3.1-8b --hardware h200 --rate 0.001 --json").json["power_w"]
    assert static_w() < drawn < 1.05 * static_w()


@each("limit_w", [None, 350.0])
def test_a_moment_draws_so_much_more_than_the_limit_that_is_set(limit_w: float | None) -> None:
    found = Power(plain(burst=1.2), limit_w).run([Demand(1e-6, 0.0, 1e-3, 0.0, 0.0)], BURST)
    assert found.watts == pytest.approx(1.2 * (limit_w or 700.0), rel=1e-3)


# Serving

SERVED = "serve llama-3.1-8b --hardware h200 --isl 128 --osl 1024"


def test_kernels_whose_time_is_a_guess_widen_what_is_served(run: Any) -> None:
    """No kernel of a Gaudi 3 was ever timed; an engine's own width says nothing of that."""
    known, guessed = (run(f"serve llama-3.2-1b --concurrency 4 --hardware {name} --json").json["tpot_s"] for name in ("h200", "gaudi3"))
    assert guessed["low"] / guessed["mean"] < 0.9 * known["low"] / known["mean"]
    assert guessed["high"] / guessed["mean"] > 1.1 * known["high"] / known["mean"]


def test_pipeline_stages_work_at_once_in_the_bound(run: Any) -> None:
    """Two stages of one GPU, each with another half of the users, against one GPU with as many as each half."""
    one, two = (run(f"{SERVED} {more} --json").json["tokens_per_s_bound"] for more in ("--concurrency 8", "--concurrency 8 --pp 2"))
    assert two == pytest.approx(2 * one, rel=0.1)


@each(("line", "gpus"), [("--tp 2", 2), ("--dp 4", 4), ("--prefill-workers 1 --workers 2", 3)])
def test_tokens_are_paid_for_by_the_hours_of_all_gpus(run: Any, line: str, gpus: int) -> None:
    found = run(f"{SERVED} {line} --gpu-hour 3 --json").json
    assert found["price_per_million"] * found["tokens_per_s"] * 3600 / 1e6 == pytest.approx(3 * gpus)


@each(("before", "after", "links"), [(4, 4, 4), (4, 2, 2), (1, 4, 1), (8, 1, 1)])
def test_the_cache_of_all_gpus_of_a_prefill_worker_moves(before: int, after: int, links: int) -> None:
    device = find_device(H200)
    moved = transfer_s(1e9, Split(before), Split(after), device, before + after)
    assert moved == pytest.approx(before * 1e9 / (links * link(device, before + after)))


def test_more_users_than_memory_holds_do_not_raise_the_bound(run: Any) -> None:
    line = "serve llama-3.1-70b --gpus 4 --hardware h100-sxm --isl 2000 --osl 6000"
    few, many = (run(f"{line} --concurrency {users} --json").json["tokens_per_s_bound"] for users in (400, 4000))
    assert many == pytest.approx(few, rel=0.02)


def test_the_most_that_is_served_is_what_users_without_a_pause_get(run: Any) -> None:
    most = run(f"{SERVED} --max-sequences 2 --concurrency 20 --json").json["requests_per_s"]
    assert run(f"{SERVED} --max-sequences 2 --rate {0.9 * most}").code == 0
    assert run(f"{SERVED} --max-sequences 2 --rate {1.2 * most}").code == 2


@each(("busy", "waits"), [(0.6, 0.27), (0.7, 0.48)])
def test_the_wait_for_a_slot_is_that_of_a_queue(run: Any, busy: float, waits: float) -> None:
    """Two slots, equal requests at random: the wait over the service time, of which the first token is a hundredth (M/D/2)."""
    alone = run(f"{SERVED} --concurrency 2 --json").json
    found = run(f"{SERVED} --max-sequences 2 --rate {busy * alone['requests_per_s']} --json").json
    stay = 2 / alone["requests_per_s"]
    assert found["ttft_s"]["mean"] / stay == pytest.approx(waits, rel=0.4)


@each("more", ["", "--dp 2", "--prefill-workers 1 --workers 2"])
def test_every_user_has_one_request_that_runs_or_waits(run: Any, more: str) -> None:
    found = run(f"{SERVED} --max-sequences 4 --concurrency 40 {more} --json").json
    assert found["running"] + found["waiting"] == pytest.approx(40, rel=0.01)
    assert found["waiting"] > 1


def test_requests_of_uneven_lengths_wait_longer_for_the_one_slot(run: Any) -> None:
    """Of lengths spread evenly from none to the longest, the mean square is 4/3 of the squared mean (Pollaczek-Khinchine)."""
    waits = []
    for spread in (1, 0.001):
        line = f"{SERVED} --max-sequences 1 --spread {spread}"
        alone = run(f"{line} --concurrency 1 --json").json
        queued = run(f"{line} --rate {0.7 * alone['requests_per_s']} --json").json
        waits.append((queued["ttft_s"]["mean"] - alone["ttft_s"]["mean"]) * alone["requests_per_s"])
    assert waits[1] / waits[0] == pytest.approx(4 / 3, rel=0.05)


# Fits


def test_no_architecture_is_judged_by_what_it_lends_to_itself() -> None:
    """Products that the own block times exactly; one of another architecture says that they take longer."""
    own = find_device(H200)
    block = next(one for one in own.calibration if one.implementation == "torch-matmul" and "bf16" in one.dtypes)
    model, other, sizes = find_model(block.model), replace(own, id="other", architecture="another"), (1024, 2048, 4096)
    slow = replace(block, parameters={name: value * (3 if name.endswith("_us") else 0.5) for name, value in block.parameters.items()})
    records = [
        Record("matmul", "torch-matmul", H200, "bf16", {"m": n, "n": n, "k": n}, Seconds(seconds), source=FITTED)
        for n in sizes
        for seconds in [float(model.seconds(Case(Matmul(n, n, n, dtype=DTYPES["bf16"]), "torch-matmul"), own, block.parameters))]
    ]
    [(key, known)] = points(records, {H200: own}).items()
    elsewhere = {key._replace(architecture="another"): [replace(one, device=other) for one in known]}
    found = residuals({key: known, **elsewhere}, {H200: [block], "other": [slow]}, tuple)
    assert max(found["matmul", False][H200]) > 0.5
    assert max(found["matmul", False]["other"]) < 0.05  # by the block that times them exactly
