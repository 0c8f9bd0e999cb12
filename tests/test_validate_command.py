"""validate and calibrate as commands: what they run, read, write and refuse."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.catalog import calibrated_devices, device_ids, find_device, load_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.hardware import Calibration, Clocks
from perfmodel.core.workload import Stream
from perfmodel.timing.base import Case, find_model, model_names
from perfmodel.timing.predict import BORROWED, CALIBRATED, TimeRequest, predict
from perfmodel.validation import run as validation_run
from perfmodel.validation.calibrate import calibrate
from perfmodel.validation.cross_device import residuals, widths, with_borrowed
from perfmodel.validation.profile_text import profile_text
from perfmodel.validation.records import as_record
from perfmodel.validation.statistics import Residual, interval
from tools.scores.left_out import leave_out

DATA = Path(__file__).parent / "data"
COPY = find_model("stream")
TRUE = {**COPY.starts(), "launch_us": 4.0, "bandwidth_share": 0.8}


def copy_record(hardware="nvidia-h200-sxm", size=1 << 20, factor=1.0, **more):
    """A copy as long as its model says with the parameters ``TRUE``: what a fit finds again."""
    seconds = COPY.seconds(Case(Stream("copy", 1, size, dtype=DTYPES["fp8"]), "torch-copy"), find_device(hardware), TRUE)
    head = {"workload": "copy", "implementation": "torch-copy", "hardware": hardware, "dtype": "bf16", "pass": "forward", "cache": "cold"}
    return {**head, "shape": {"bytes": size}, "time_s": {"median": seconds * factor}, **more}


def copies(hardware="nvidia-h200-sxm", count=24, noise=0.02):
    chance = random.Random(7)
    sizes = sorted({int(2 ** chance.uniform(12, 30)) for _ in range(count)})
    return [
        copy_record(hardware, size, 1 + noise * chance.uniform(-1, 1), source="test; held out" if at % 3 == 0 else "test; fit")
        for at, size in enumerate(sizes)
    ]


def written(path: Path, records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# validate


@pytest.fixture
def cpu_session(monkeypatch):
    """A CPU backend that has measured copies of a known device."""
    device = replace(find_device("nvidia-h200-sxm"), calibration=[block_of_copies()])

    def measure(progress, done):
        progress("measuring")
        return device, copies(count=9)

    monkeypatch.setattr("perfmodel.validation.cpu.cases.measure", measure)
    return device


def block_of_copies(**more):
    given = {"implementation": "torch-copy", "workload": "copy", "model": "stream", "dtypes": ["bf16"], "parameters": TRUE, "points": 9}
    return Calibration(**(given | {"low": 0.98, "high": 1.02, "source": "records", "date": "2026-01-01", "versions": "none"} | more))


def test_a_backend_reports_every_kernel(run, cpu_session, tmp_path):
    path = tmp_path / "runs.jsonl"
    outcome = run(f"validate --backend cpu --json -o {path} -o -")
    assert outcome.code == 0
    assert outcome.err == "measuring\n"
    assert len(outcome.json["rows"]) == 9
    assert max(abs(row["error"]) for row in outcome.json["rows"]) < 0.03
    read_back = run(f"validate --records {path} --json")
    assert [row["measured_s"] for row in read_back.json["rows"]] == [row["measured_s"] for row in outcome.json["rows"]]
    table = run("validate --backend cpu --full").out
    assert all(word in table for word in ("lower", "predicted", "measured", "p10", "p90", "noise", "of roof", "torch-copy bytes"))


def test_out_of_tolerance_is_exit_code_3(run, cpu_session):
    assert run("validate --backend cpu --tolerance 0.1%").code == 3
    assert "OUT OF TOLERANCE" in run("validate --backend cpu --tolerance 0.001").out


def test_auto_takes_the_cpu_without_a_gpu(run, cpu_session, monkeypatch):
    monkeypatch.setattr(validation_run, "best_backend", lambda: "cpu")
    assert run("validate --json").json["backend"] == "cpu"
    monkeypatch.undo()
    assert validation_run.best_backend() in ("cpu", "cuda")


def test_a_gpu_backend_without_a_gpu_says_so(run):
    outcome = run("validate --backend cuda")
    assert outcome.code == 1
    assert outcome.out == ""


def test_counters_of_a_users_file(run):
    outcome = run(f"validate --counters-csv {DATA / 'ncu_long.csv'} --json")
    assert outcome.code == 0
    [first, *_] = outcome.json["kernels"]
    assert first["metrics"]


def test_the_scoreboard_judges_held_out_records_alone(run, tmp_path):
    path = written(tmp_path / "copies.jsonl", [*copies(), *[record | {"implementation": "unknown-copy"} for record in copies()]])
    outcome = run(f"validate --scoreboard --records {path} --json")
    line, unknown = outcome.json["lines"]
    assert unknown["predicted"]["median"] is None
    assert (line["points"], line["unpredicted"]) == (8, {})
    [(reason, count)] = unknown["unpredicted"].items()
    assert (unknown["points"], count) == (0, 8)
    assert line["scalars"]["median"] < 0.03, "launch and one bandwidth describe these copies"
    assert line["roofline"]["median"] > 0.1
    markdown = tmp_path / "board.md"
    run(f"validate --scoreboard --records {path} -o {markdown}")
    assert "| nvidia-h200-sxm | copy/torch-copy/forward | 8 |" in markdown.read_text()
    assert f"| nvidia-h200-sxm | copy/unknown-copy/forward | 8 | {reason} |" in markdown.read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": {"launch_us": 4.0}}, "lacks bandwidth_share"),
        ({"parameters": {**TRUE, "luck": 1.0}}, "does not know luck"),
        ({"parameters": {**TRUE, "launch_us": 0.0}}, "launch_us is 0.0"),
        ({"low": 1.5, "high": 0.5}, "above high"),
        ({"high": float("inf")}, "calibration.0.high: input should be a finite number"),
        ({"model": "crystal-ball"}, "crystal-ball"),
        ({"points": 0}, "points"),
    ],
)
def test_a_broken_calibration_is_one_message(run, tmp_path, change, words):
    path = tmp_path / "broken.yaml"
    device = find_device("nvidia-v100-sxm-32gb")
    block = block_of_copies(**change)
    path.write_text(profile_text(replace(device, sources={**device.sources, "records": "x"}, calibration=[block])).replace("inf", ".inf"))
    outcome = run(f"hardware check {path}")
    assert outcome.code == 1
    assert words in outcome.out + outcome.err


def test_a_record_may_name_a_device_in_short(run, tmp_path):
    path = written(tmp_path / "short.jsonl", [record | {"hardware": "h200"} for record in copies()])
    assert "nvidia-h200-sxm" in run(f"calibrate --from-records {path} --json").json["devices"]


def test_fused_kernels_end_at_the_head_dims_they_have(run):
    for d, implementation in ((264, "torch-sdpa-cudnn"), (256, "numba-flash-mma")):
        shown = run(f"attention --n 1024 --d {d} --hardware h200 --implementation {implementation}")
        assert "flash2 forward is predicted for" not in shown.out


# calibrate


def test_a_fit_finds_the_parameters_behind_the_records(run, tmp_path):
    path, profile = written(tmp_path / "copies.jsonl", copies()), tmp_path / "fitted.yaml"
    outcome = run(f"calibrate --from-records {path} --implementation torch-copy --json -o {profile} -o -")
    assert outcome.code == 0
    [block] = outcome.json["devices"]["nvidia-h200-sxm"]["calibration"]
    assert block["parameters"]["launch_us"] == pytest.approx(TRUE["launch_us"], rel=0.05)
    assert block["parameters"]["bandwidth_share"] == pytest.approx(TRUE["bandwidth_share"], rel=0.03)
    assert (block["points"], block["held_out"]) == (16, 8)
    assert block["held_out_median_error"] < 0.03
    assert run(f"hardware check {profile}").code == 0
    used = run(f"validate --records {path} --hardware {profile} --json")
    assert used.code == 0
    assert used.json["groups"]["copy/torch-copy/forward"]["held_out_median_abs_error"] < 0.03


@pytest.mark.parametrize("as_named", ["nvidia-h200-sxm", "h200"])
def test_records_of_one_device(run, tmp_path, as_named):
    """Of the device that is named, none else is reported or counted, however the records call it."""
    both = [*({**one, "hardware": as_named} for one in copies(count=6)), *copies("nvidia-a100-sxm-80gb", count=9)]
    line = f"validate --tolerance 1000 --records {written(tmp_path / 'copies.jsonl', both)}"
    assert len(run(f"{line} --json --require 15").json["rows"]) == 15
    for name, count in (("h200", 6), ("a100-sxm-80gb", 9)):
        found = run(f"{line} --hardware {name} --require {count} --json").json
        assert len(found["rows"]) == count
        assert {find_device(row["hardware"]).id for row in found["rows"]} == {find_device(name).id}
        assert "NVIDIA" not in run(f"{line} --hardware {name}").out.replace(find_device(name).name, "")
        refused = run(f"{line} --hardware {name} --require {count + 1}")
        assert (refused.code, refused.out) == (2, "")
        assert f"{count} rows were checked, and --require is {count + 1}" in refused.err
        assert "none" not in refused.err


def test_a_calibrated_profile_keeps_its_datasheet_values(run, tmp_path):
    path, profile = written(tmp_path / "copies.jsonl", copies()), tmp_path / "fitted.yaml"
    run(f"calibrate --from-records {path} -o {profile}")
    before, after = find_device("nvidia-h200-sxm"), load_device(profile)
    assert replace(after, calibration=[], sources={}) == replace(before, calibration=[], sources={})
    assert before.sources.items() <= after.sources.items()


def test_too_few_records_or_shapes_are_no_calibration(run, tmp_path):
    for records, words in ((copies(count=4), "too few"), ([copy_record(source="test; fit") for _ in range(30)], "1 shapes are too few")):
        outcome = run(f"calibrate --from-records {written(tmp_path / 'copies.jsonl', records)} --require 0 --json")
        assert outcome.json["devices"] == {}
        assert words in outcome.err


def test_one_profile_holds_one_device(run, tmp_path):
    both = [*copies(), *copies("nvidia-a100-sxm-80gb")]
    path = written(tmp_path / "copies.jsonl", both)
    outcome = run(f"calibrate --from-records {path} -o {tmp_path / 'x.yaml'}")
    assert outcome.code == 2
    assert "--hardware" in outcome.err
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize("name", device_ids())
def test_a_profile_survives_being_written(tmp_path, name):
    path = tmp_path / "again.yaml"
    path.write_text(profile_text(find_device(name)))
    assert load_device(path) == find_device(name)


# Intervals and borrowing


def test_kin_points_count_once():
    """A hundred runs of one kernel that is 30 % off do not hide nine others that are right."""
    many = [Residual(0.3, "one kernel")] * 100
    others = [Residual(0.001 * at, f"kernel {at}") for at in range(19)]
    assert interval([*many, *others])[1] < 1.05


def two_architectures():
    return [*copies(), *copies("nvidia-a100-sxm-80gb")]


def devices_of(records):
    """Without launches and clocks, which would tell them apart."""
    alike = {"calibration": [], "microbenchmarks": [], "launch_overhead": None, "clocks": Clocks()}
    return {name: replace(find_device(name), **alike) for name in {record["hardware"] for record in records}}


def test_a_device_left_out_is_predicted_by_the_other():
    raws = two_architectures()
    found = leave_out(
        "nvidia-a100-sxm-80gb",
        map(as_record, [*raws, *copies("nvidia-h100-sxm-80gb"), *copies("nvidia-b200-sxm")]),
        devices_of([*raws, *copies("nvidia-h100-sxm-80gb"), *copies("nvidia-b200-sxm")]),
    )
    assert len(found) == 8
    for record, prediction in found:
        assert prediction.kind == BORROWED
        assert "nvidia-a100-sxm-80gb" in prediction.provenance
        assert prediction.seconds == pytest.approx(record.time_s.median, rel=0.06)


def test_the_borrowed_interval_is_as_wide_as_parameters_are_off():
    raws = two_architectures()
    slower = [record | {"time_s": {"median": record["time_s"]["median"] * (1.5 if "a100" in record["hardware"] else 1)}} for record in raws]
    from perfmodel.validation.calibrate import points

    def width(listed):
        records, devices = list(map(as_record, listed)), devices_of(listed)
        fits = calibrate(records, devices, "", lambda _: "", lambda text: None)
        return widths(residuals(points(records, devices), fits, tuple))

    assert width(slower)["copy", False] > 0.4 > 0.1 > width(raws)["copy", False]
    assert with_borrowed({"x": [block_of_copies()]}, {})["x"][0].borrowed_low is None
    [block] = with_borrowed({"x": [block_of_copies()]}, {("other", False): 0.7, ("", False): 0.1})["x"]
    assert (block.borrowed_low, block.borrowed_high, block.probed_low) == (0.9048, 1.1052, None)


def test_predictions_say_where_they_are_from():
    h200 = replace(find_device("nvidia-h200-sxm"), calibration=[block_of_copies(borrowed_low=0.7, borrowed_high=1.4, points=40)])
    h100, a100 = (replace(find_device(name), calibration=[]) for name in ("nvidia-h100-sxm-80gb", "nvidia-a100-sxm-80gb"))
    case = Case(Stream("copy", 1, 1 << 20), "torch-copy")
    own = predict(TimeRequest(case, "copy", "fp16", h200, 0.0))
    assert (own.kind, own.low / own.seconds, own.high / own.seconds) == (CALIBRATED, pytest.approx(0.98), pytest.approx(1.02))
    borrowed = predict(TimeRequest(case, "copy", "bf16", a100, 0.0, lambda: [h200]))
    assert (borrowed.kind, borrowed.low / borrowed.seconds) == (BORROWED, pytest.approx(0.7))
    alike = predict(TimeRequest(case, "copy", "bf16", h100, 0.0, lambda: [h200]))
    assert (alike.kind, alike.low / alike.seconds) == (BORROWED, pytest.approx(0.98 ** math.sqrt(1 + 1)))
    few = replace(h200, calibration=[replace(h200.calibration[0], points=39)])
    alike = predict(TimeRequest(case, "copy", "bf16", h100, 0.0, lambda: [few]))
    assert alike.low / alike.seconds == pytest.approx(0.7), "few points tell little of the error elsewhere"
    bounded = predict(TimeRequest(case, "copy", "bf16", h200, 1.0))
    assert bounded.seconds == bounded.low == 1.0


def test_every_model_is_found_by_its_name():
    assert {find_model(name).name for name in model_names()} == set(model_names())
    for device in calibrated_devices():
        for block in device.calibration:
            assert block.implementation in find_model(block.model).implementations or block.model == "cpu"


def test_attention_names_the_fastest_library_kernel(run):
    outcome = run("attention --n 4096 --d 128 --heads 16 --batch 8 --hardware nvidia-a100-sxm-80gb --json")
    flash = outcome.json["results"][1]
    assert flash["implementation"] == "vllm-flash-attn"
    times = flash["time_s"]
    assert times["lower"] <= times["low"] < times["predicted"] < times["high"]
    assert flash["prediction"]["kind"] == "calibrated"
    named = run("attention --n 4096 --d 64 --heads 16 --hardware h200 --implementation numba-flash --dtype fp32 --full")
    assert "is predicted for numba-flash" in named.out


def test_a_device_without_calibrations_borrows(run):
    outcome = run("matmul -m 4096 -n 4096 -k 4096 --hardware nvidia-a100-sxm-40gb --json")
    [entry] = outcome.json["results"]
    assert entry["prediction"]["kind"] == "borrowed"
    assert entry["time_s"]["high"] / entry["time_s"]["low"] > 1.2
