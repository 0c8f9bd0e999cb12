"""Accuracy is kept: the shipped calibrations against the shipped records, on those that no fit saw."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.cli import main
from perfmodel.core.arith import quantile
from perfmodel.report.validation import scoreboard_report
from perfmodel.timing import implementations
from perfmodel.timing.base import find_model, model_names
from perfmodel.timing.predict import CALIBRATED
from perfmodel.validation import run as validation_run
from perfmodel.validation.calibration_run import versions_of
from perfmodel.validation.compare import RecordRow, compare_files
from perfmodel.validation.records import Record, held_out, profiled, read_records, sets_width, shipped_records
from perfmodel.validation.run import GroupScore, scoreboard
from tools.refresh.readme import PAGES, SHOWN
from tools.scores.left_out import leave_out

PUBLIC = ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm", "nvidia-b200-sxm")
H200 = "nvidia-h200-sxm"
SCOREBOARD = "validate --scoreboard"


@cache
def scored() -> tuple[str, list[RecordRow], list[GroupScore]]:
    """What ``validate --scoreboard`` prints, every shipped record that is held out beside the model, and their scores."""
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(validation_run, "scoreboard", lambda rows: kept.extend((rows, scoreboard(rows))) or kept[1])
        main(SCOREBOARD.split())
    return out.getvalue(), *kept


def all_rows() -> list[RecordRow]:
    return scored()[1]


def test_the_scoreboard_that_is_shown_is_current():
    [shown] = [text for page in PAGES for command, text in SHOWN.findall(page.read_text()) if command == SCOREBOARD]
    assert scored()[0] == shown, "refresh with: python -m tools.refresh.readme"


def judges(record: Record) -> bool:
    """Whether neither a parameter nor a width was made of ``record``."""
    return held_out(record) and not sets_width(record)


DECODE = {name for name in model_names() if find_model(name).regime == "decode"}


@cache
def rows() -> dict[tuple[str, str], list[RecordRow]]:
    """Held-out rows with a calibrated prediction, by device and group; fused attention of several queries and of one apart."""
    found: dict[tuple[str, str], list[RecordRow]] = defaultdict(list)
    for row in all_rows():
        if row.prediction is not None and row.prediction.kind == CALIBRATED and judges(row.record):
            decode = " decode" if row.prediction.calibration.model in DECODE else ""
            found[row.record.hardware, row.record.group + decode].append(row)
    return found


def errors(hardware: str, group: str) -> list[float]:
    return [abs(row.error) for row in rows()[hardware, group] if row.error is not None]


TARGETS = [
    *((name, "attention/vllm-flash-attn/forward", 0.10, None) for name in PUBLIC),
    *((name, "attention/vllm-flash-attn/forward decode", 0.07, None) for name in PUBLIC),
    *((name, "matmul/cublas/forward", 0.07, None) for name in PUBLIC),
    (H200, "attention/numba-flash/forward", 0.05, 0.12),
    *((H200, f"attention/torch-sdpa-{name}/{way}", 0.05, 0.15) for name in ("flash", "cudnn") for way in ("forward", "backward")),
    *((H200, f"attention/torch-sdpa-{name}/forward decode", 0.08, 0.25) for name in ("flash", "cudnn")),
    *((H200, f"attention/torch-eager/{way}", 0.08, 0.25) for way in ("forward", "backward")),
    (H200, "matmul/torch-matmul/forward", 0.08, 0.25),
]


@pytest.mark.parametrize(("hardware", "group", "median", "p90"), TARGETS, ids=str)
def test_held_out_errors(hardware, group, median, p90):
    found = errors(hardware, group)
    assert len(found) >= 40
    assert quantile(found, 0.5) <= median
    assert p90 is None or quantile(found, 0.9) <= p90


def steps(phase: str, gpus: int) -> list[RecordRow]:
    own = rows()[H200, "transformer/torch/forward"]
    return [row for row in own if (row.record.shape["phase"], row.record.shape["tensor_parallel"]) == (phase, gpus)]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_held_out_steps_of_models_that_no_fit_saw(phase):
    found = steps(phase, 1)
    assert {row.record.shape["model"] for row in found} == {"llama-2-7b", "llama-2-13b"}
    assert len(found) >= 16
    off = [abs(row.error) for row in found]
    assert quantile(off, 0.5) <= 0.08
    assert quantile(off, 0.9) <= 0.15
    assert not any(row.violates for row in found)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_tensor_parallel_steps_of_which_no_fit_saw_any(phase):
    found = steps(phase, 2)
    assert {row.record.shape["model"] for row in found} == {"llama-3-8b", "llama-2-13b", "llama-3-70b"}
    assert len(found) >= 23
    off = [abs(row.error) for row in found]
    assert quantile(off, 0.5) <= 0.05
    assert max(off) <= 0.08
    assert not any(row.violates for row in found)


SLOWER = pytest.mark.xfail(strict=True, reason="13 %: one sharpness for every change of protocol")
COLLECTIVES = (*PUBLIC[:3], *(pytest.param(name, marks=SLOWER) for name in (PUBLIC[3], "nvidia-gb200")))


@pytest.mark.parametrize("hardware", COLLECTIVES)
def test_held_out_collectives_from_a_mebibyte_up(hardware):
    own = [row for row in rows()[hardware, "collective/nccl/forward"] if row.record.shape["bytes"] >= 1 << 20]
    assert len(own) >= 40
    assert quantile([abs(row.error) for row in own], 0.5) <= 0.12
    assert not any(row.violates for row in own)


def test_collectives_of_two_gpus_measured_here_by_parameters_from_public_tables():
    own = [row for row in rows()[H200, "collective/nccl/forward"] if row.record.dtype == "bf16" and row.record.shape["bytes"] >= 1 << 20]
    assert len(own) == 80
    assert quantile([abs(row.error) for row in own], 0.5) <= 0.10


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_held_out_training_steps(attention, checkpointing):
    """GPT-2 by Hugging Face in PyTorch, models that no fit saw among them; the 90 % is set by hosts that were slower than the median."""
    own = rows()[H200, "transformer/huggingface/both"]
    found = [row for row in own if (row.record.shape["attention"], row.record.shape["checkpointing"]) == (attention, checkpointing)]
    assert {row.record.shape["model"] for row in found} == {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}
    assert len(found) >= 11
    off = [abs(row.error) for row in found]
    assert quantile(off, 0.5) <= 0.12
    assert quantile(off, 0.9) <= 0.30
    assert not any(row.violates for row in found)


def test_held_out_times_of_the_own_kernel_span_two_decades():
    times = [row.record.time_s.median for row in rows()[H200, "attention/numba-flash/forward"]]
    assert max(times) / min(times) >= 100


@cache
def large() -> dict[tuple[str, str], list[RecordRow]]:
    """Groups large enough to judge."""
    return {key: own for key, own in rows().items() if len(own) >= 75}


def test_large_groups_are_there():
    assert len(large()) >= 19


OFF, WIDE = 0.22, 0.35
"""Of the large groups, at most such a share has a share outside, or an interval so wide: ``docs/accuracy.md`` lists every one.

Most widths are of shapes drawn wider than these, which err more: split conformal prediction promises as much for records like those of the
width alone, and ``test_wide`` judges it on a draw like theirs. Others are of one interval for two kinds of kernels or of shapes.
"""


def test_intervals_cover_what_they_promise():
    """80 % intervals hold 72 to 90 % of the rows of a group, but for a share ``OFF`` of the groups."""
    shares = {key: sum(bool(row.covered) for row in own) / len(own) for key, own in large().items()}
    wrong = {key: share for key, share in shares.items() if not 0.72 <= share <= 0.90}
    assert len(wrong) <= OFF * len(shares), wrong
    assert min(wrong.values()) >= 2 / 3, "no group's interval misses a third of its rows"
    assert len(large()) >= 60


def test_intervals_are_in_proportion_to_the_error():
    """Half an interval is at most three median errors of its group, but for a share ``WIDE`` of the groups."""
    halves = {
        key: quantile([(row.prediction.high - row.prediction.low) / row.prediction.seconds / 2 for row in own], 0.5)
        for key, own in large().items()
    }
    wide = {key: half for key, half in halves.items() if half > 3 * quantile(errors(*key), 0.5)}
    assert len(wide) <= WIDE * len(halves), wide


def test_no_prediction_is_below_its_bound():
    assert all(row.prediction.low >= row.lower_s * (1 - 1e-12) for own in rows().values() for row in own)


@pytest.mark.parametrize("device", calibrated_devices(), ids=lambda device: device.id)
def test_calibrations_name_the_parameters_of_their_model(device):
    for block in device.calibration:
        model = find_model(block.model)
        assert set(block.parameters) == {parameter.name for parameter in model.parameters}
        assert block.low < 1 < block.high
        assert block.borrowed_low < 1 < block.borrowed_high


def test_devices_of_an_architecture_share_parameters():
    """Parameters are per implementation and architecture, not per device."""
    seen = {}
    for device in calibrated_devices():
        for block in device.calibration:
            key = (device.architecture, block.workload, block.implementation, block.direction, block.model)
            assert seen.setdefault(key, block.parameters) == block.parameters


def test_what_a_profile_says_of_its_errors_is_what_the_records_give():
    for device in calibrated_devices():
        for block in device.calibration:
            decode = " decode" if block.model in DECODE else ""
            way = "both" if block.model == "torch-training" else block.direction  # a whole step has no passes to tell apart
            names = [
                block.implementation,
                *(alias for alias, known in implementations.listed().items() if known.kernel == block.implementation),
            ]
            groups = [f"{block.workload}/{name}/{way}{kind}" for name in names for kind in ([decode] if decode else ["", "/profiled"])]
            listed = [row for group in groups for row in rows().get((device.id, group), [])]
            own = [abs(row.error) for row in listed if row.prediction.calibration.model == block.model]
            assert len(own) == block.held_out, (device.id, block.implementation, block.direction, block.model)
            if own:
                assert quantile(own, 0.5) == pytest.approx(block.held_out_median_error, abs=2e-4)


@pytest.mark.slow
def test_what_a_profile_says_of_versions_is_what_the_records_tell():
    told = defaultdict(list)
    for row in compare_files(shipped_records(), find_device, cache(calibrated_devices)):
        if row.prediction is not None:
            block = row.prediction.calibration
            told[row.record.hardware, block.workload, block.implementation, block.direction, block.model].append(row.record)
    for device in calibrated_devices():
        for block in device.calibration:
            records = told[device.id, block.workload, block.implementation, block.direction, block.model]
            assert block.versions == versions_of(records), f"{device.id}: python -m tools.refresh.versions"


def test_no_shipped_record_of_torch_lacks_its_versions():
    for row in all_rows():
        if row.record.implementation.startswith("torch") and " torch " in f" {row.record.source}":
            assert "torch 2." in versions_of([row.record])


def test_every_held_out_record_is_predicted_or_listed_with_its_reason():
    lines = scored()[2]
    wanted: dict[str, int] = defaultdict(int)
    for row in all_rows():
        if judges(row.record) and not profiled(row.record):
            wanted[row.record.hardware] += 1
    found: dict[str, int] = defaultdict(int)
    for line in lines:
        found[line.hardware] += line.points + sum(line.unpredicted.values())
        assert all(line.unpredicted)
    assert found == wanted
    [efficient] = [line for line in lines if line.group == "attention/torch-sdpa-efficient/backward"]
    assert (efficient.points, efficient.unpredicted) == (163, {})  # head dims over 128 among them
    assert any(line.unpredicted for line in lines)


def test_only_groups_with_an_opponent_are_won():
    lines = [line for line in scored()[2] if line.predicted.median is not None]
    rivals = [line for line in lines if line.scalars.median is not None]
    won = sum(line.predicted.median < line.scalars.median for line in rivals)
    assert len(rivals) < len(lines)
    [said, *_] = scoreboard_report(lines).verdict
    assert f"predict {len(rivals)} of these groups" in said
    assert f"in {won} of those" in said


def test_a_profile_with_half_the_bandwidth_fails(run, tmp_path):
    text = (Path(__file__).parents[1] / "hardware_specs" / f"{H200}.yaml").read_text()
    assert text.count(" bandwidth: {value: 4.8 TB/s") == 1
    path = tmp_path / "halved.yaml"
    path.write_text(text.replace(" bandwidth: {value: 4.8 TB/s", " bandwidth: {value: 2.4 TB/s"))
    [copies] = shipped_records("torch-rows")
    outcome = run(f"validate --records {copies} --hardware {path} --json")
    assert outcome.code == 3
    assert json.loads(outcome.out)["groups"]["copy/torch-copy/forward"]["median_abs_error"] > 0.25


LEFT_OUT = ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-b200-sxm")
MISSED = {
    ("nvidia-b200-sxm", "prefill"): "22 % against 20 %: other kernels (TensorRT-LLM), and a tensor unit that reaches more of its peak"
}


@cache
def without(name: str) -> dict[str, list[tuple[float, bool, float]]]:
    """Error, whether covered, and high / low of held-out public records of ``name``, by calibrations that saw no record of it."""
    records = [record for path in shipped_records("public-tables") for _, record in read_records(path) if record.hardware in PUBLIC]
    found: dict[str, list[tuple[float, bool, float]]] = defaultdict(list)
    for record, made in leave_out(name, records, {device: find_device(device) for device in PUBLIC}):
        kind = "gemm" if record.workload == "matmul" else "decode" if record.shape["n"] == 1 else "prefill"
        time = record.time_s.median
        found[kind].append((abs(made.seconds / time - 1), made.low <= time <= made.high, made.high / made.low))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize(("kind", "median"), [("prefill", 0.20), ("decode", 0.30), ("gemm", 0.30)])
def test_a_device_that_no_fit_saw(name, kind, median, request):
    """Parameters of the nearest architecture; for the H100, of the H200's records alone."""
    if (name, kind) in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[name, kind], strict=True))
    own = without(name)[kind]
    assert quantile([error for error, _, _ in own], 0.5) <= median


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("kind", ["prefill", "decode", "gemm"])
def test_borrowed_intervals_are_honest(name, kind):
    """Of three devices that lend, the widest residual makes the interval; with all devices it holds no more than ``test_leave_one_out``."""
    own = without(name)[kind]
    assert sum(covered for _, covered, _ in own) / len(own) >= 0.75
