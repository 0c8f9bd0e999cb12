"""Records of the workload ``serving``: read, predicted, bounded, grouped and shipped in halves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tables import table

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.validation.compare import compare, compare_files
from perfmodel.validation.records import SERVING_RUNS, Record, as_record, fitted_runs, held_out, raw_of, read_records, shipped_records
from perfmodel.validation.serving import checked

SHAPE = {
    **{"model": "llama-3.1-70b", "engine": "vllm", "weights_dtype": "fp8", "gpus": 4, "tensor_parallel": 4, "expert_parallel": 1},
    **{"attention_data_parallel": 1, "pipeline_parallel": 1, "concurrency": 16, "isl": 1024, "osl": 1024, "spread": 0.8},
}
RAW: dict[str, Any] = {
    **{"workload": "serving", "implementation": "vllm", "hardware": "nvidia-h200-sxm", "dtype": "bf16", "shape": SHAPE},
    **{"ttft_s": 0.1, "tpot_s": 0.01, "version": "0.1"},
}
SHIPPED = shipped_records(SERVING_RUNS)


@cache
def shipped() -> list[tuple[dict[str, Any], Record]]:
    return [one for path in SHIPPED for one in read_records(path)]


def with_shape(**changes: Any) -> Record:
    return as_record({**RAW, "shape": {**SHAPE, **changes}})


def test_a_run_is_read_and_written_as_it_stands() -> None:
    record = as_record(RAW)
    assert record.time_s.median == record.tpot_s == 0.01
    assert record.group == "serving/vllm/llama-3.1-70b"
    assert raw_of(record) == {**RAW, "pass": "forward"}


@pytest.mark.parametrize(("name", "value"), [("ttft_s", 0.0), ("tpot_s", -1.0), ("ttft_s", 1e12)])
def test_times_without_meaning_are_refused(tmp_path: Path, name: str, value: float) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({**RAW, name: value}) + "\n")
    with pytest.raises(DataError, match=rf"line 1: {name} is"):
        list(read_records(path))


@pytest.mark.parametrize(("changes", "words"), table("shapes_without_meaning_have_a_reason"))
def test_shapes_without_meaning_have_a_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        checked(with_shape(**changes))
    assert words in compare(RAW, with_shape(**changes), find_device("nvidia-h200-sxm")).reason


@pytest.mark.parametrize(
    "changes",
    [{"model": "nobody"}, {"engine": "nobody"}, {"osl": 1}, {"requests": 3}, {"gpus": 1, "tensor_parallel": 1, "weights_dtype": "bf16"}],
)
def test_what_cannot_be_predicted_is_kept_with_the_reason(changes: dict[str, Any]) -> None:
    row = compare(RAW, with_shape(**changes), find_device("nvidia-h200-sxm"), cache(calibrated_devices))
    assert row.reason
    assert row.error is row.lower_s is row.served is row.ttft_error is None


def test_a_run_beside_its_prediction(tmp_path: Path) -> None:
    """Errors are of the predicted means; a time below the bound of a decode step is a violation."""
    row = compare(RAW, as_record(RAW), find_device("nvidia-h200-sxm"), cache(calibrated_devices))
    assert row.served is not None
    assert row.lower_s is not None
    (tpot, low, high), (ttft, *_) = row.served.tpot, row.served.ttft
    assert row.error == pytest.approx(tpot / 0.01 - 1)
    assert row.ttft_error == pytest.approx(ttft / 0.1 - 1)
    assert 0 < row.lower_s < tpot
    assert low < tpot < high
    for measured, violates in ((row.lower_s * 0.99, True), (row.lower_s * 1.01, False)):
        raw = {**RAW, "tpot_s": measured}
        assert replace(row, raw=raw, record=as_record(raw)).violates == violates


def test_halves_are_whole_groups_and_all_are_shipped() -> None:
    halves = defaultdict(set)
    for _, record in shipped():
        halves[record.shape["model"], record.hardware, record.shape["engine"]].add(held_out(record))
    assert all(len(half) == 1 for half in halves.values())
    assert {group for group, half in halves.items() if half == {False}} == fitted_runs()
    assert all(record.source and record.ttft_s and checked(record) for _, record in shipped())


def test_other_readers_do_not_meet_runs_unasked() -> None:
    assert SHIPPED
    assert not set(SHIPPED) & set(shipped_records())


@pytest.mark.parametrize("group", ["serving/vllm/llama-3.1-70b", "serving/tensorrt-llm/llama-3.1-8b", "serving/vllm/gpt-oss-120b"])
def test_a_sample_of_shipped_runs(group: str) -> None:
    """Two of a layout: each is predicted, and beats no bound."""
    every = [one for one in shipped() if one[1].group == group and not held_out(one[1])]
    sizes = ("tensor_parallel", "weights_dtype")
    alike = [one for one in every if all(one[1].shape[name] == every[0][1].shape[name] for name in sizes)]
    devices = cache(calibrated_devices)
    rows = [compare(raw, record, find_device(record.hardware), devices) for raw, record in (alike[0], alike[len(alike) // 2])]
    assert [row.reason for row in rows] == ["", ""]
    assert not [row.raw for row in rows if row.violates]


def test_validate_lists_runs_beside_kernels(run: Callable[..., Any], tmp_path: Path) -> None:
    kernel = json.loads((Path(__file__).parent / "data" / "records.jsonl").read_text().splitlines()[0])
    path = tmp_path / "both.jsonl"
    lines = [RAW, kernel, {**RAW, "shape": {**SHAPE, "model": "nobody"}}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(run(f"validate --records {path} --json").out)
    group = found["groups"]["serving/vllm/llama-3.1-70b"]
    assert group["count"] == group["predicted"] == 1
    assert {"median_abs_tpot_error", "p90_abs_ttft_error", "tpot_intervals_hold", "ttft_intervals_hold"} <= set(group)
    assert found["rows"][0]["predicted_ttft_s"] > 0 < found["rows"][0]["predicted_tpot_s"]
    assert "predicted_ttft_s" not in found["rows"][1]
    assert "nobody" in found["rows"][2]["reason"]
    [one, *_] = compare_files([path], find_device, board=True)
    assert "scoreboard" in one.reason
