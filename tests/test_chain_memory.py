"""Peak memory of checkpointed chains in PyTorch: hand-worked cases, and the measured ones."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import median

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.transformer.training.chain_memory import peak_bytes, staging_bytes
from perfmodel.validation.compare import compare
from perfmodel.validation.records import as_record, read_records, shipped_records

DEVICE = find_device("h200")
FP32 = DTYPES["fp32"]


[CHAINS] = shipped_records("chains")
[ATTENTION] = shipped_records("attention-memory")


def compared(path):
    return [compare(raw, record, DEVICE) for raw, record in read_records(path)]


def test_measured_chains():
    """Held out: widths, depths and batches that the fit half has not; no number was fitted to either half."""
    rows = compared(CHAINS)
    unseen = [abs(row.memory_error) for row in rows if row.record.source.endswith("held out")]
    assert len(unseen) >= 20
    assert max(unseen) <= 0.05
    assert median(unseen) < 0.001


def test_measured_attention():
    unseen = [abs(row.memory_error) for row in compared(ATTENTION) if row.record.source.endswith("held out")]
    assert len(unseen) == 12
    assert max(unseen) <= 0.03


def test_one_layer():
    """The result, the gradient of the weights and a copy of it; no gradient of the input. A sum that one block does needs no buffer."""
    assert staging_bytes(16, 8, DEVICE) == 0
    assert peak_bytes(1, 8, 16, FP32, DEVICE) == 16 * 8 * 4 + 8 * 8 * 4 * 2 + 8 * 4


def test_checkpointing_keeps_the_inputs_of_segments():
    """Wide rows and no weights to speak of: 16 values forward; with four segments 3 inputs and 4 of the last one."""
    value = 4096 * 8 * 4
    plain, four = (peak_bytes(16, 8, 4096, FP32, DEVICE, segments=segments) for segments in (1, 4))
    staging = staging_bytes(4096, 8, DEVICE)
    assert plain == pytest.approx(17 * value + staging, rel=0.01)
    assert four == pytest.approx(8 * value + staging, rel=0.02)


def test_a_relu_adds_its_gradient():
    with_relu, without = (peak_bytes(4, 64, 4096, FP32, DEVICE, relu=relu) for relu in (True, False))
    assert with_relu > without


def test_blocks_of_the_sum_stop_at_the_device_or_at_the_rows():
    assert staging_bytes(8192, 2048, DEVICE) == 4 * 2048 * 128 * (8192 // 64)
    assert staging_bytes(1 << 30, 2048, DEVICE) == 4 * 2048 * 128 * (132 * 16 // 16)
    with pytest.raises(UnavailableError, match="multiprocessors"):
        staging_bytes(8192, 2048, replace(DEVICE, multiprocessors=None))


def test_what_no_model_knows_has_no_predicted_memory():
    raw = {"workload": "mlp-chain", "implementation": "torch-checkpoint", "hardware": DEVICE.id, "dtype": "bf16", "pass": "both"}
    raw |= {"time_s": {"median": 1.0}, "memory": {"peak_bytes": 1.0}}
    for shape in ({"layers": 4}, {"layers": "many", "d": 8, "batch": 8, "segments": 1, "relu": False}):
        row = compare(raw | {"shape": shape}, as_record(raw | {"shape": shape}), DEVICE)
        assert row.predicted_bytes is None
        assert row.memory_error is None


def test_validate_prints_memory(run):
    outcome = run(f"validate --records {CHAINS} --json")
    group = outcome.json["groups"]["mlp-chain/torch-checkpoint/both"]
    assert group["max_abs_memory_error"] <= 0.05
    said = run(f"validate --records {CHAINS}").out
    assert "None of 48 measurements has a lower bound to check.\n48 peaks of memory are predicted, <0.1% off in the median" in said
    assert re.search(r"^peak memory: .*\n.*\ntorch-checkpoint both  +<0\.1% .* 48$", said, re.MULTILINE)
    assert "the groups that are farthest off" not in said, "no time of these is predicted"
    assert "\npeak memory\n" in run(f"validate --records {CHAINS} --full").out
