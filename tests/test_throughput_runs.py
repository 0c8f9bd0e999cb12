"""Records of runs by tokens a second: what was sent at once, at a rate, or always enough of."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfmodel.catalog import calibrated_devices, find_device, find_engine, find_model
from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.serving.answer import ServingAnswer
from perfmodel.validation.compare import compare
from perfmodel.validation.records import HELD_OUT, THROUGHPUT_RUNS, as_record, held_out, raw_of, read_records, shipped_records
from perfmodel.validation.serving import ServingRun, checked

SHAPE: dict[str, Any] = {
    **{"model": "llama-3.1-8b", "engine": "tensorrt-llm", "weights_dtype": "fp8", "gpus": 1, "tensor_parallel": 1},
    **{"isl": 640, "osl": 320},
}
RAW: dict[str, Any] = {
    **{"workload": "serving", "implementation": "tensorrt-llm", "hardware": "nvidia-h100-sxm-80gb", "dtype": "bf16", "shape": SHAPE},
    **{"tokens_per_s": 8000.0, "version": "0.1"},
}


@cache
def answer(**changes: Any) -> ServingAnswer:
    shape = {**SHAPE, **changes}
    run = ServingRun(find_model(shape["model"]), find_device(RAW["hardware"]), find_engine(shape["engine"]), shape)
    return run.predicted(run.times(cache(calibrated_devices)))


def test_tokens_a_second_are_read_and_written_as_they_stand() -> None:
    record = as_record(RAW)
    assert record.time_s.median == 1 / 8000
    assert raw_of(record) == {**RAW, "pass": "forward"}


@pytest.mark.parametrize("value", [0, -1.0, 1e13])
@pytest.mark.parametrize("beside", [{}, {"tpot_s": 0.01}])
def test_rates_without_meaning_are_refused(tmp_path: Path, value: float, beside: dict[str, float]) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({**RAW, **beside, "tokens_per_s": value}) + "\n")
    with pytest.raises(DataError, match="line 1: 1 / tokens_per_s is"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"rate": 0.0}, "rate 0.0"), ({"rate": 2.5, "concurrency": 4}, "one of both"), ({"concurrency": 0}, "concurrency 0")],
)
def test_users_without_meaning_have_a_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        checked(as_record({**RAW, "shape": {**SHAPE, **changes}}))


def test_many_requests_at_once_come_near_to_always_enough() -> None:
    steady, long, short = (answer(max_sequences=64, **given) for given in ({}, {"requests": 1000}, {"requests": 16}))
    assert long.tokens_per_s == pytest.approx(steady.tokens_per_s, rel=0.1)
    assert short.tokens_per_s < 0.8 * steady.tokens_per_s
    assert long.metrics.mean_ttft_s > 10 * short.metrics.mean_ttft_s


def test_users_at_a_rate_get_what_they_ask_for() -> None:
    assert answer(rate=2.0).tokens_per_s == pytest.approx(2.0 * SHAPE["osl"], rel=0.01)


def test_a_run_by_tokens_a_second_stands_beside_the_model() -> None:
    record = as_record(RAW)
    row = compare(RAW, record, find_device(RAW["hardware"]), cache(calibrated_devices))
    assert row.served is not None
    assert row.lower_s is not None
    assert row.lower_s < 1 / answer().tokens_per_s == row.served.tpot[0]
    assert row.error == pytest.approx(8000 / answer().tokens_per_s - 1)
    assert row.ttft_error is None


def test_shipped_runs_have_a_meaning_and_no_fit_sees_them() -> None:
    records = [record for path in shipped_records(THROUGHPUT_RUNS) for _, record in read_records(path)]
    assert len(records) > 600
    for record in records:
        assert checked(record)["gpus"] >= 1
        assert held_out(record)
        assert record.source.endswith(HELD_OUT)
        assert record.implementation == record.shape["engine"]
    assert not set(shipped_records(THROUGHPUT_RUNS)) & set(shipped_records())
