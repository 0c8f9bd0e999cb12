"""Calibrating in less time: the same fits by less work, quick ones, and what an interrupted run keeps."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from heapq import heapreplace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import find_device, load_device
from perfmodel.commands._progress import ProgressBar
from perfmodel.core.arith import quantile
from perfmodel.timing.base import find_model, model_of
from perfmodel.timing.engine import last_slot
from perfmodel.timing.models import fa2, gemm, register_tiles
from perfmodel.validation import calibrate as module
from perfmodel.validation.bounds import case_of
from perfmodel.validation.calibrate import calibrate, points, too_few
from perfmodel.validation.calibration_run import OWN_KERNELS, own_cases
from perfmodel.validation.cuda.cases import timed_cases
from perfmodel.validation.cuda.microbench import ProbeResult
from perfmodel.validation.fit_points import FULL, QUICK, Effort, cross_residuals, fitted
from perfmodel.validation.records import all_fitted, as_record, held_out, name_of, read_records, shipped_records
from tests.test_validate_command import TRUE, copies, devices_of, written

H200 = find_device("nvidia-h200-sxm")
SHORT = Effort(rounds=8, folds=2, points=8)
PRIME = 997
FILES = {"numba-flash", "torch-matmul", "torch-attention", "torch-decode", "torch-eager"}


@pytest.fixture(scope="module")
def families():
    """Eight points of each family of some files, by key."""
    paths = [path for path in shipped_records(*FILES) if path.parent.name == H200.id]
    records = [record for path in paths for _, record in read_records(path)]
    assert set(map(name_of, paths)) == FILES
    return {key: SHORT.thinned(own) for key, own in points(records, {H200.id: H200}).items()}


class Anew:
    """A point whose case and device are new objects at every prediction: nothing that is kept of them serves again."""

    def __init__(self, point):
        self.point, self.record = point, point.record

    def predicted(self, model, p):
        return replace(self.point, case=replace(self.point.case), device=replace(self.point.device)).predicted(model, p)

    def residual(self, model, p):
        return replace(self.point, case=replace(self.point.case), device=replace(self.point.device)).residual(model, p)


def test_what_is_kept_of_a_case_changes_no_digit_of_a_fit(families):
    """Of every family: all predictions along the way, hence parameters and residuals."""
    assert {key[3] for key in families} >= {"fa2-forward", "decode-fa2", "gemm", "eager-attention", "register-tiles"}
    for key, known in families.items():
        model = find_model(key[3])
        anew = [Anew(point) for point in known]
        for factor in (0.5, 1.7):
            p = {name: value * factor for name, value in model.starts().items()}
            assert [point.predicted(model, p) for point in known] == [point.predicted(model, p) for point in anew], key
    few = {key: known[:4] for key, known in families.items() if key[3] in ("gemm", "fa2-forward", "eager-attention")}
    for key, known in few.items():
        model = find_model(key[3])
        p = fitted(model, known, effort=SHORT)
        assert p == fitted(model, [Anew(point) for point in known], effort=SHORT), key
        assert cross_residuals(model, known, p, SHORT) == cross_residuals(model, [Anew(point) for point in known], p, SHORT)


WORKED_OUT = (("fa2-forward", fa2, "fa2_tile"), ("gemm", gemm, "rates_of"), ("register-tiles", register_tiles, "tiles_by_block"))


@pytest.mark.parametrize(("name", "models", "function"), WORKED_OUT)
def test_a_fit_works_a_case_out_once(families, monkeypatch, name, models, function):
    """However many parameters it tries."""
    calls, tried, plain = [], [], getattr(models, function)
    monkeypatch.setattr(models, function, lambda *given: calls.append(1) or plain(*given))
    known = next(known for key, known in families.items() if key[3] == name)
    known = [replace(point, case=replace(point.case)) for point in known]
    model = find_model(name)
    counted = model._replace(seconds=lambda *given: tried.append(1) or model.seconds(*given))
    fitted(counted, known, effort=SHORT)
    assert len(tried) > 10 * len(known)
    assert len(calls) == len(known)


RATIOS = st.lists(st.integers(1, 60 * PRIME).filter(lambda k: k % PRIME).map(lambda k: Fraction(k, PRIME)), min_size=1, max_size=9)
"""None at which two places of unequal sums fall free together."""
TILES = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(deadline=None, max_examples=40)
@given(TILES, st.integers(1, 9), st.integers(1, 20), RATIOS)
def test_a_schedule_kept_for_a_range_of_ratios_is_the_one_at_each(tiles, repeats, slots, ratios):
    """However many ratios were asked for before."""
    kept = last_slot(tiles * repeats, slots)
    for ratio in [*ratios, *ratios]:
        free = [Fraction(0)] * slots
        for each in tiles * repeats:
            heapreplace(free, free[0] + ratio + each)
        blocks, run = kept.at(float(ratio))
        assert blocks * ratio + run == max(free)
    assert all(high <= low for (high, _), low in zip(kept.highs_and_values, kept.lows[1:], strict=False))


def test_a_schedule_is_worked_out_once_for_all_ratios_that_share_it():
    kept = last_slot(list(range(16, 0, -1)) * 8, 24)
    plain, calls = kept.compute, []
    kept.compute = lambda ratio: calls.append(ratio) or plain(ratio)
    for step in range(2000):
        kept.at(1 + step / 1000)
    assert 1 < len(calls) < 100


def test_every_record_of_a_user_is_fitted_and_judged_by_a_fit_without_it(run, tmp_path):
    """Of few rows none is kept apart, which would leave too few to fit: the error is that of cross-validation, and so is the interval."""
    path, profile = written(tmp_path / "mine.jsonl", unmarked := [raw | {"source": ""} for raw in copies(count=16)]), tmp_path / "mine.yaml"
    assert 0 < sum(held_out(as_record(raw)) for raw in unmarked) < 16
    outcome = run(f"calibrate --from-records {path} -o {profile} -o - --json")
    [block] = outcome.json["devices"][H200.id]["calibration"]
    assert (block["points"], block["held_out"], block["held_out_median_error"]) == (16, 0, None)
    assert block["parameters"]["launch_us"] == pytest.approx(TRUE["launch_us"], rel=0.02)
    known = [point for own in points(all_fitted(map(as_record, unmarked)), {H200.id: H200}).values() for point in own]
    missed = cross_residuals(find_model("stream"), known, block["parameters"])
    assert block["median_error"] == pytest.approx(quantile([abs(math.expm1(-one)) for one in missed], 0.5), abs=1e-4)
    assert block["low"] <= math.exp(quantile(missed, 0.1)) < math.exp(quantile(missed, 0.9)) <= block["high"]
    rows = run(f"validate --records {path} --hardware {profile} --json").json["rows"]
    assert not any(row["held_out"] for row in rows), "a fit saw them"
    assert any(row["held_out"] for row in run(f"validate --records {path} --json").json["rows"])
    assert (
        run(f"calibrate --from-records {written(path, copies(count=16))} --json").json["devices"][H200.id]["calibration"][0]["held_out"]
        == 6
    )


# Processes


def test_processes_change_no_figure(monkeypatch):
    monkeypatch.setattr(module, "LEAST_SHARED", 1)
    raws = [*copies(), *copies("nvidia-a100-sxm-80gb")]
    said, shares = [], []

    def run(jobs):
        return calibrate(map(as_record, raws), devices_of(raws), "", lambda _: "", said.append, jobs=jobs, done=shares.append)

    assert run(2) == run(1)
    assert sorted(said[:2]) == sorted(said[2:])
    assert shares[0] == 0.0
    assert shares[2] == shares[-1] == 1.0


def test_whole_training_steps_are_calibrated():
    """Their pass is called both in records and forward in calibrations."""
    paths = [path for path in shipped_records("training") if path.parent.name == H200.id]
    records = [record for path in paths for _, record in read_records(path)]
    blocks = calibrate(records, {H200.id: H200}, "", lambda _: "", lambda text: None, effort=SHORT)[H200.id]
    assert ("transformer", "huggingface", "forward") in {(block.workload, block.implementation, block.direction) for block in blocks}


# Quick


def test_a_quick_fit_asks_its_model_less_often():
    raws = copies(count=66)
    [known] = points(map(as_record, raws), devices_of(raws)).values()
    model, counts = find_model("stream"), []
    for effort in (QUICK, FULL):
        tried, some = [], effort.thinned(known)
        counted = model._replace(seconds=lambda *given, tried=tried: tried.append(1) or model.seconds(*given))
        cross_residuals(counted, some, fitted(counted, some, effort=effort), effort)
        counts.append(len(tried))
    assert 2 * counts[0] < counts[1]


def test_thinned_points_span_all_times(families):
    known = [point for listed in families.values() for point in listed]
    times = sorted(point.record.time_s.median for point in known)
    found = [point.record.time_s.median for point in QUICK.thinned(known)]
    assert len(found) == QUICK.points < len(known)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (times[0], times[-1])
    assert len({id(point) for point in QUICK.thinned(known)}) == QUICK.points


def test_a_quick_profile_is_accepted(run, tmp_path):
    path, profile = written(tmp_path / "copies.jsonl", copies(count=48)), tmp_path / "quick.yaml"
    outcome = run(f"calibrate --from-records {path} --quick --json -o {profile} -o -")
    assert outcome.code == 0
    [block] = outcome.json["devices"][H200.id]["calibration"]
    assert block["points"] + block["held_out"] == len(copies(count=48))
    assert block["parameters"]["bandwidth_share"] == pytest.approx(0.8, rel=0.05)
    assert run(f"hardware check {profile}").code == 0
    assert any("quick" in text for text in load_device(profile).sources.values())


def kernels(cases):
    return {(case.implementation, case.shape.get("d"), case.shape.get("causal"), *case.launch.items()) for case in cases}


def test_quick_compiles_fewer_kernels():
    """Of what is left, every head dim and mask stays; compiling takes most of a run."""
    whole, quick = timed_cases(), own_cases(OWN_KERNELS, True)
    left = {case.implementation for case in quick}
    assert left >= {"numba-flash1", "numba-matmul"}
    assert {case[:3] for case in kernels(quick)} == {case[:3] for case in kernels(whole) if case[0] in left}
    assert 2 * len(kernels(quick)) < len(kernels(whole))


def test_a_default_run_fits_every_kernel_of_the_project():
    by_name = {name: own_cases([name], False) for name in OWN_KERNELS}
    too_few_of = {name: too_few((case.record() for case in cases), model_of(case_of(cases[0].record()))) for name, cases in by_name.items()}
    assert too_few_of == dict.fromkeys(OWN_KERNELS, "")


def test_a_quick_run_says_which_kernels_it_leaves_out(run, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    said = run("calibrate --quick --full").out
    left = set(OWN_KERNELS) - {case.implementation for case in own_cases(OWN_KERNELS, True)}
    assert "numba-flash" in left
    assert {name for name in OWN_KERNELS if f"not measured: {name}: left out" in said} == left
    assert f"Not measured: {len(left)}; --full says which and why." in run("calibrate --quick").out


# A GPU that answers from a calibration


@pytest.fixture
def gpu(monkeypatch):
    """``this_machine`` on an H200 whose kernels take what the shipped calibrations predict; gives the number of runs until Ctrl-C."""
    from perfmodel.validation.compare import compare
    from perfmodel.validation.cuda import run as cuda_run

    state = SimpleNamespace(interrupt_after=None, timed=0)

    def measure(cases, progress, on_record, hardware, rule):
        for case in cases:
            if state.timed == state.interrupt_after:
                raise KeyboardInterrupt
            raw = {
                "workload": case.workload,
                "implementation": case.implementation,
                "hardware": hardware,
                "dtype": case.dtype,
                "pass": "forward",
                "shape": case.shape,
                "time_s": {"median": 1.0},
                "cache": "cold",
                "launch": case.launch,
            }
            seconds = compare(raw, as_record(raw), H200).prediction.seconds
            on_record(raw | {"time_s": {"median": seconds * (1 + 0.01 * (state.timed % 3))}})
            progress(f"{case.label}")
            state.timed += 1
        return []

    monkeypatch.setattr("perfmodel.validation.run.best_backend", lambda: "cuda")
    monkeypatch.setattr("perfmodel.validation.cuda.gpu.open_gpu", lambda: None)
    monkeypatch.setattr("perfmodel.validation.cuda.gpu.this_environment", lambda *_: SimpleNamespace(hardware=H200.id))
    monkeypatch.setattr("perfmodel.validation.cuda.microbench.benchmark", lambda progress, rule: [])
    monkeypatch.setattr(cuda_run, "measure", measure)
    return state


OWN = "--implementation numba-flash1 --implementation numba-matmul-naive"


def test_a_quick_run_on_a_gpu_writes_a_profile(run, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    outcome = run(f"calibrate --quick {OWN} -o mine.yaml -o mine.jsonl")
    assert outcome.code == 0, outcome.err
    assert gpu.timed < sum(case.implementation in OWN for case in timed_cases())
    assert run("hardware check mine.yaml").code == 0
    assert "Quick" in run("calibrate --from-records mine.jsonl --quick --full").out
    assert len((tmp_path / "mine.jsonl").read_text().splitlines()) == gpu.timed
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml", "mine.jsonl"}
    assert "% done, about" in outcome.err


def test_published_rates_stay_beside_those_measured_anew(run, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    probe = ProbeResult("launch, stream", "s", 9e-6, 0.1, 5)
    monkeypatch.setattr("perfmodel.validation.cuda.microbench.benchmark", lambda progress, rule: [probe])
    assert run("calibrate --quick --implementation numba-flash1 -o mine.yaml").code == 0
    mine = {one.name: one for one in load_device(Path("mine.yaml")).microbenchmarks}
    known = {one.name: one for one in H200.microbenchmarks}
    assert mine["launch, stream"].value == "9 us" != known["launch, stream"].value
    assert mine["matmul bf16"] == known["matmul bf16"]
    assert mine.keys() == known.keys()


def test_an_interrupted_run_keeps_its_records_and_says_how_to_go_on(run, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    gpu.interrupt_after = 12
    outcome = run(f"calibrate --quick {OWN} -o mine.yaml")
    assert outcome.code == 130
    kept = tmp_path / "mine.partial.jsonl"
    assert len(list(read_records(kept))) == 12
    assert "12 records are kept in mine.partial.jsonl" in outcome.err
    assert "calibrate --from-records mine.partial.jsonl" in outcome.err
    assert not (tmp_path / "mine.yaml").exists()
    assert run(f"calibrate --from-records {kept} -o again.yaml").code == 0
    assert json.loads(kept.read_text().splitlines()[0])["hardware"] == H200.id


def test_nothing_measured_is_said_when_interrupted(run, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    gpu.interrupt_after = 0
    outcome = run(f"calibrate {OWN}")
    assert (outcome.code, list(tmp_path.iterdir())) == (130, [])
    assert "nothing is written" in outcome.err


# Progress


def test_lines_say_the_time_left(capsys):
    now = [0.0]
    with ProgressBar(lambda: now[0]) as bar:
        bar.done(0.0)
        bar("begun")
        now[0] = 10.0
        bar.done(0.25)
        bar("a quarter")
        bar.done(0.0)  # the next phase
        now[0] = 11.0
        bar.done(0.5)
        bar("half of it")
        bar.done(1.0)
        bar("all")
    assert capsys.readouterr().err.splitlines() == [
        "begun",
        "a quarter (25% done, about 30 s left)",
        "half of it (50% done, about 1 s left)",
        "all",
    ]


def test_a_terminal_gets_a_bar_and_whole_lines(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with ProgressBar() as bar:
        bar.done(0.0)
        bar("[one] of a family")
        bar.done(1.0)
    assert "[one] of a family" in capsys.readouterr().err
