"""Records against the model: the format, the bounds, the exit code."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from each import each
from sampled import own_counted, sampled

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.records import Record

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
    return run(f"validate --records {path} --require 0 --json")


@pytest.mark.parametrize("name", ["h200_attention_counters.jsonl"])
def test_no_published_measurement_beats_its_bound(run, name):
    """Kernels of five devices, among them those nearest to the bound of the 1,820 of the public tables."""
    outcome = run(f"validate --records {DATA / name} --json")
    assert outcome.code == 0
    checked = [row for row in outcome.json["rows"] if row["lower_s"] is not None]
    assert len(checked) >= 26
    assert all(row["lower_s"] <= row["measured_s"] for row in checked)
    assert max(row["lower_s"] / row["measured_s"] for row in checked) > 0.6, "a bound so low that it says nothing"


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_shipped_measurements_keep_their_bounds(every: int) -> None:
    """Records that are shipped, on every device."""
    records = list(sampled(every))
    bounds = [(record, evaluated(record, find_device(record.hardware))[1]) for record in records if record.hardware in device_ids()]
    assert len(bounds) > 5000 / every
    assert all(lower <= record.time_s.median for record, lower in bounds if lower is not None)
    without = {record.workload for record, lower in bounds if lower is None}
    assert without <= {"mlp-chain", "transformer"}, "of chains and training steps the memory is what was measured"
    assert sum(lower is not None for _, lower in bounds) >= 0.98 * len(records)


@cache
def counted() -> list[Record]:
    own = ("numba-flash", "numba-flash-mma", "numba-flash1")
    return [record for record in own_counted() if "l2_to_sm_bytes" in record.counters and record.implementation in own]


@each("record", counted)
def test_counters_of_our_kernels_equal_the_counts(record):
    """Bytes from the L2 into SMs that the hardware counted, against the closed form."""
    shape = record.shape
    w = Attention(**shape, dv=shape["d"], dtype=DTYPES[record.dtype]).check()
    algorithm = find("flash1" if record.implementation == "numba-flash1" else "flash2")
    [kernel] = algorithm.forward(w, Tile(record.launch["br"], record.launch["bc"]))
    assert kernel.bytes("read") == pytest.approx(record.counters["l2_to_sm_bytes"], rel=1e-3)


def test_enough_of_them_were_counted():
    assert sum(r.implementation == "numba-flash" for r in counted()) >= 16
    assert sum(r.implementation == "numba-flash1" for r in counted()) >= 4
    assert sum(r.implementation == "numba-flash-mma" for r in counted()) >= 16


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
    assert cold == pytest.approx((2 * 8 * 16 * 1024 * 64 * 2 + 8 * 16 * 64 * 2) / 4.91674e12), "K, V and Q; O may stay in the caches"
    assert warm == unknown < cold / 5


def test_a_window_implies_the_causal_mask(run, tmp_path):
    shape = {**RECORD["shape"], "n": 65536, "kv_len": 65536, "window": 128}
    del shape["causal"]
    [row] = validated(run, tmp_path, {**RECORD, "shape": shape, "time_s": {"median": 0.01}}).json["rows"]
    assert row["lower_s"] < 0.002


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
        ({"shape": {**RECORD["shape"], "widow": 128}}, "has widow, which means nothing here"),
        ({"shape": {**RECORD["shape"], "causal": "false"}}, "has causal 'false'"),
        ({"shape": {**RECORD["shape"], "batch": 1.5}}, "has batch 1.5"),
        ({"shape": {**RECORD["shape"], "density": "a"}}, "has density 'a'"),
        ({"workload": "matmul", "shape": {"m": 0, "n": 1, "k": 1}}, "has m 0"),
        ({"workload": "matmul", "shape": {"m": "3", "n": 1, "k": 1}}, "has m '3'"),
        ({"hardware": "../../etc/passwd"}, "no device is called"),
        ({"launch": {"br": 0, "bc": 64}}, "its launch has br 0"),
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
        (json.dumps({**RECORD, "time_s": {"median": float("nan")}}), ["NaN"]),
        (json.dumps({**RECORD, "counters": {"l2_to_sm_bytes": float("inf")}}), ["Infinity"]),
        (json.dumps(RECORD).replace('"n": 4096', '"n": ' + "9" * 5000), ["line 1"]),
        (json.dumps({**RECORD, "implementation": "\ud83d"}), ["line 1"]),
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


def test_a_missing_file(run):
    assert "No such file" in run("validate --records nowhere.jsonl").err
