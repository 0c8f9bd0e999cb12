"""Records against the model: the format, the bounds, the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
RECORD = {
    "workload": "attention",
    "implementation": "torch-sdpa-flash",
    "hardware": "nvidia-h200-sxm",
    "dtype": "bf16",
    "pass": "forward",
    "shape": {"batch": 8, "heads": 16, "kv_heads": 16, "n": 4096, "kv_len": 4096, "d": 64, "causal": False},
    "time_s": {"median": 0.0018, "p10": 0.0018, "p90": 0.0018},
    "cache": "cold",
}


def validated(run, tmp_path, *records):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return run(f"validate --records {path} --json")


@pytest.mark.parametrize("name", ["public_kernels.jsonl", "h200_attention_counters.jsonl"])
def test_no_published_measurement_beats_its_bound(run, name):
    """Kernels of five devices, among them those nearest to the bound of the 1,820 of the public tables."""
    outcome = run(f"validate --records {DATA / name} --json")
    assert outcome.code == 0
    checked = [row for row in outcome.json["rows"] if row["lower_s"] is not None]
    assert len(checked) >= 26
    assert all(row["lower_s"] <= row["measured_s"] for row in checked)
    assert max(row["lower_s"] / row["measured_s"] for row in checked) > 0.6, "a bound so low that it says nothing"


def test_a_violation_is_loud(run, tmp_path):
    outcome = validated(run, tmp_path, {**RECORD, "time_s": {"median": 1e-4}}, RECORD)
    assert outcome.code == 3
    data = outcome.json
    assert [row["violates"] for row in data["rows"]] == [True, False]
    group = data["groups"]["attention/torch-sdpa-flash/forward"]
    assert (group["count"], group["bound_violations"]) == (2, 1)
    text = run(f"validate --records {tmp_path / 'records.jsonl'}")
    assert text.out.splitlines()[1].startswith("VIOLATION: 1 of 2")
    assert text.code == 3


def test_rows_keep_what_was_recorded(run, tmp_path):
    [row] = validated(run, tmp_path, {**RECORD, "source": "me"}).json["rows"]
    for key, value in RECORD.items():
        assert row[key] == value
    assert row["source"] == "me"
    assert row["lower_s"] == pytest.approx(4 * 128 * 4096**2 * 64 / (132 * 4096 * 1.98e9))
    assert row["measured_s"] == 0.0018


def test_warm_rows_count_bytes_beyond_the_caches(run, tmp_path):
    decode = {**RECORD, "shape": {**RECORD["shape"], "n": 1, "kv_len": 1024}, "time_s": {"median": 2e-5}}
    cold, warm, unknown = (
        row["lower_s"]
        for row in validated(run, tmp_path, decode, {**decode, "cache": "warm"}, {k: v for k, v in decode.items() if k != "cache"}).json[
            "rows"
        ]
    )
    assert cold == pytest.approx((2 * 8 * 16 * 1024 * 64 * 2 + 2 * 8 * 16 * 64 * 2) / 4.8e12)
    assert warm == unknown < cold / 5


def test_a_density_scales_the_bound(run, tmp_path):
    sparse = {**RECORD, "implementation": "flash-block-sparse", "shape": {**RECORD["shape"], "density": 0.25}}
    dense, quarter = (row["lower_s"] for row in validated(run, tmp_path, RECORD, sparse).json["rows"])
    assert quarter == pytest.approx(dense / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"workload": "sorting"}, "no model of workload 'sorting'"),
        ({"dtype": "int3"}, "no model of dtype 'int3'"),
        ({"hardware": "nvidia-z1000"}, "no device is called"),
        ({"implementation": "flash-block-sparse"}, "block-sparse attention without a density"),
        ({"shape": {"batch": 1}}, "its shape lacks heads, kv_heads, n, kv_len, d"),
        ({"shape": {**RECORD["shape"], "kv_heads": 3}}, "does not divide"),
    ],
)
def test_rows_that_cannot_be_checked_are_listed_with_the_reason(run, tmp_path, change, reason):
    outcome = validated(run, tmp_path, {**RECORD, **change})
    assert outcome.code == 0
    [row] = outcome.json["rows"]
    assert row["lower_s"] is None
    assert reason in row["reason"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["line 1", "not JSON"]),
        ("[1]", ["line 1", "not a JSON object"]),
        ("\xff", ["line 1"]),
        ("[" * 100_000, ["line 1", "not JSON"]),
        (json.dumps({k: v for k, v in RECORD.items() if k != "dtype"}), ["line 1", "dtype"]),
        (json.dumps({**RECORD, "colour": 1}), ["colour"]),
        (json.dumps({**RECORD, "time_s": {"median": 0}}), ["time_s.median is 0"]),
        (json.dumps({**RECORD, "time_s": {"median": float("nan")}}), ["time_s.median"]),
        (json.dumps({**RECORD, "cache": "tepid"}), ["cache"]),
        (json.dumps({**RECORD, "pass": "sideways"}), ["direction"]),
    ],
)
def test_bad_records_name_file_line_and_field(run, tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(line.encode("latin-1"))
    outcome = run(f"validate --records {path}")
    assert outcome.code == 1, outcome
    for word in (str(path), *words):
        assert word in outcome.err
    assert "Traceback" not in outcome.err


def test_missing_file_and_missing_option(run):
    assert run("validate").code == 2
    assert "No such file" in run("validate --records nowhere.jsonl").err
