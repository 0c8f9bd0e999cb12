"""Given pools of prefill and decode workers: the closed loop over both, runs that have them, and decode with drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from perfmodel.catalog import calibrated_devices, find_device, find_engine, find_model
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.report.serve import report
from perfmodel.serving.answer import ServingAnswer, serve_pools
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.layouts import Replica
from perfmodel.serving.load import Load
from perfmodel.serving.pools import Pools, prompt_time
from perfmodel.serving.steps import KernelTimes, step_times
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.step import DECODE, ModelPass, Split, formats
from perfmodel.validation.records import as_record
from perfmodel.validation.serving import checked

LAYOUT = {"tensor_parallel": 8, "expert_parallel": 8, "attention_data_parallel": 1, "pipeline_parallel": 1}
SHAPE = {
    **{"model": "deepseek-v3", "engine": "tensorrt-llm", "weights_dtype": "fp8", "kv_dtype": "fp8", **LAYOUT, "workers": 4, "gpus": 36},
    **{"prefill_workers": 1, "prefill_tensor_parallel": 1, "prefill_expert_parallel": 4, "prefill_attention_data_parallel": 4},
    **{"concurrency": 36, "isl": 1024, "osl": 8192, "spread": 0.8},
}
RAW: dict[str, Any] = {
    **{"workload": "serving", "implementation": "tensorrt-llm", "hardware": "nvidia-gb300", "dtype": "bf16", "shape": SHAPE},
    **{"ttft_s": 1.0, "tpot_s": 0.01},
}
SMALL = "llama-3.1-8b"


@cache
def times(model: str = SMALL, hardware: str = "nvidia-h200-sxm", split: Split = Split(), kv: str | None = None) -> KernelTimes:  # noqa: B008
    half, spec = DTYPES["bf16"], find_model(model)
    like = ModelPass(DECODE, 1, 1, 1, half, split=split, **formats(spec, half, None, kv))
    return step_times(spec, find_device(hardware), find_engine("tensorrt-llm"), like, cache(calibrated_devices))


def of(users: int, x: int = 1, y: int = 1, **given: Any) -> ServingAnswer:
    decode = replace(times(), engine=times().engine.with_batching(**given))
    return serve_pools(Pools(times(), decode, x, y), Load(2000, 200, users))


@pytest.mark.parametrize(("users", "x", "y"), [(1, 1, 1), (16, 1, 1), (64, 1, 2), (300, 2, 1), (300, 1, 3)])
def test_all_users_are_somewhere(users: int, x: int, y: int) -> None:
    """Little's law over the whole loop: rate x (time to the first token + all others) is the number of users."""
    found = of(users, x, y)
    tpot = found.metrics.mean_tpot_s
    assert tpot is not None
    assert found.requests_per_s * (found.metrics.mean_ttft_s + tpot * 199) == pytest.approx(users)
    assert found.metrics.running + found.metrics.waiting == pytest.approx(users)
    assert found.tokens_per_s == pytest.approx(200 * found.requests_per_s)
    assert found.gpus == x + y
    assert found.tokens_per_s <= found.bound


def test_prefill_limits_and_more_workers_help() -> None:
    one, two, four = (of(300, x) for x in (1, 2, 4))
    assert 1.5 * one.requests_per_s < two.requests_per_s < 1.05 * four.requests_per_s
    assert one.metrics.mean_ttft_s > two.metrics.mean_ttft_s > four.metrics.mean_ttft_s


def test_users_beyond_the_slots_wait_for_one() -> None:
    free, full = of(64, 4), of(64, 4, max_sequences=16)
    assert full.metrics.decoding == pytest.approx(16, rel=0.05)
    assert full.metrics.waiting > 30
    assert full.metrics.mean_ttft_s > 5 * free.metrics.mean_ttft_s


def test_a_crowd_waits_for_its_prompts() -> None:
    """All users at once: the mean first token of the first ones is half way through the prompts of all."""
    alone, crowd = of(1), serve_pools(Pools(times(), times()), Load(2000, 200, 64), requests=64)
    prompt = prompt_time(Replica(times().engine, Split(), times(), 64), Load(2000, 200, 64))
    assert crowd.metrics.mean_ttft_s == pytest.approx(alone.metrics.mean_ttft_s + 32 / prompt.per_s, rel=0.1)


@pytest.mark.parametrize(("users", "x", "y"), [(1, 1, 2), (64, 1, 2), (300, 2, 1)])
def test_counts_and_watts_are_of_all_workers(users: int, x: int, y: int) -> None:
    """Joules of a request are those of its prompt in one pool, of its steps in the other, and of all that idle meanwhile."""
    found = of(users, x, y)
    data = report(found).data
    assert data["running"] + data["waiting"] == pytest.approx(users)
    assert data["memory"]["most_running"] == y * found.most_running
    prompt, step, rate = found.prompt_pass, found.decode_pass, found.requests_per_s
    assert prompt.power is not None
    assert step.power is not None
    assert found.watts is not None
    assert found.joules_per_token is not None
    prompts, steps = min(rate * prompt.seconds, x), rate * 199 / found.decode_step.decodes * step.seconds  # no pool is busier than busy
    idle_w = found.times.device.power.static_w  # type: ignore[union-attr]
    all_w = prompts * prompt.power.watts + steps * step.power.watts + (x + y - prompts - steps) * idle_w
    assert found.gpus * found.watts == pytest.approx(all_w)
    assert found.joules_per_token * found.tokens_per_s == pytest.approx(found.gpus * found.watts)
    assert (data["power_w"], data["energy_per_token_j"]) == (found.watts, found.joules_per_token)
    [meter] = [one for one in report(found).meters if "power" in one.name]
    assert meter.name == f"power, {x + y} GPUs"
    assert meter.share == pytest.approx(found.watts / 700)


def test_no_rate_and_no_single_token() -> None:
    pools = Pools(times(), times())
    for load in (Load(1000, 100, rate=1.0), Load(1000, 1, 4)):
        with pytest.raises(UsageError, match="pools answer users"):
            serve_pools(pools, load)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"gpus": 12}, "layout is of 36 GPUs"), ({"workers": 0}, "workers 0"), ({"prefill_workers": 0}, "prefill_workers 0")],
)
def test_pools_of_a_record(changes: dict[str, Any], words: str) -> None:
    assert checked(as_record(RAW))["workers"] == 4
    with pytest.raises(UnavailableError, match=words):
        checked(as_record({**RAW, "shape": {**SHAPE, **changes}}))


def test_workers_without_prefill_are_refused() -> None:
    shape = {name: value for name, value in SHAPE.items() if not name.startswith("prefill_")}
    with pytest.raises(UnavailableError, match="workers without prefill_workers"):
        checked(as_record({**RAW, "shape": shape}))


def test_groups_take_the_time_of_their_own_sequences() -> None:
    """A data-parallel group's process has its own sequences alone."""
    one, eight = times(), times("deepseek-v3", split=Split(1, 8, 1, 8))
    each = one.engine.overhead.sequence_s
    assert one.own_seconds(64) - one.own_seconds(0) == pytest.approx(64 * each)
    assert eight.own_seconds(64) - eight.own_seconds(0) == pytest.approx(8 * each)


@pytest.mark.parametrize("queries", [2, 4])
def test_drafted_tokens_over_a_compressed_cache(queries: int) -> None:
    """Arithmetic grows with the queries and the cache is read once: predicted, and bounded in the format of the cache."""
    steps = times("deepseek-v3", "nvidia-b200-sxm", Split(1, 8, 1, 8), "fp8")
    ops = [
        next(op for op in step_ops(steps.model, steps.pass_of(Iteration(0, 0, 1, 512, 4096, n))) if op.name == "attention")
        for n in (1, queries)
    ]
    one, more = ops
    assert one.compute_dtype == more.compute_dtype == DTYPES["fp8"]
    rows = [next(row for row in steps.passed(Iteration(0, 0, 1, 512, 4096, n)).rows if row.op.name == "attention") for n in (1, queries)]
    assert rows[1].prediction is not None
    assert rows[0].seconds < rows[1].seconds < 1.1 * queries * rows[0].seconds
    assert float(rows[1].cost.terms["tensor"]) < 1.1 * queries * float(rows[0].cost.terms["tensor"])


def test_the_command_answers_for_pools(run: Callable[..., Any]) -> None:
    asked = "serve llama-3.1-8b --hardware h200 --engine tensorrt-llm --concurrency 8"
    assert "1 x (1 GPU) to 2 x (1 GPU)" in run(f"{asked} --prefill-workers 1 --workers 2").out
    assert "give --prefill-workers too" in run(f"{asked} --workers 2").err
