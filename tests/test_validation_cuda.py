"""Measuring on an NVIDIA GPU, mostly without one: timers, drivers and profilers are stood in for; what needs a GPU says so."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda
from sampled import own_counted
from tables import table

from perfmodel.catalog import device_ids, find_device
from perfmodel.core import csv_table
from perfmodel.core.arith import quantile
from perfmodel.core.errors import DataError, PerfmodelError, UnavailableError, UsageError
from perfmodel.core.workload import Attention
from perfmodel.program import ncu_csv
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.cuda import counters, gpu, microbench, prepare, run
from perfmodel.validation.cuda.cases import (
    WORKLOADS,
    attention_case,
    checked,
    counted_cases,
    default_cases,
    needed_bytes,
    numba_case,
    timed_cases,
)
from perfmodel.validation.cuda.gpu import Environment, nvidia_smi, package_versions, profile_of
from perfmodel.validation.cuda.microbench import ProbeResult
from perfmodel.validation.cuda.microbench import benchmark as run_benchmark
from perfmodel.validation.kernels import flash, flash1, flash_mma, matmul, probes, reference, standard
from perfmodel.validation.records import Record, Seconds, read_records
from perfmodel.validation.statistics import StoppingRule, measure_times, relative_error_of_median

ROOT = Path(__file__).parents[1]
NO_GPU = pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU")
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not cuda.is_available(), reason="no CUDA device: nothing is measured")]


# Timing


class FakeTimer:
    """Gives the times of a list, over and over, and lets a clock pass."""

    def __init__(self, *times: float, clock_step: float = 0.01) -> None:
        self.times, self.now, self.step, self.count = itertools.cycle(times), 0.0, clock_step, 0

    def seconds(self, launch: Any) -> float:
        launch()
        self.now += self.step
        self.count += 1
        return next(self.times)

    def clock(self) -> float:
        return self.now


def timed(timer: FakeTimer, **rule: Any) -> list[float]:
    return measure_times(lambda: None, timer, StoppingRule(**{"warm_up_s": 0.0, **rule}), timer.clock)


def test_noisy_times_go_on_until_the_median_is_known() -> None:
    rng = random.Random(1)
    times = [rng.gauss(1.0, 0.02) for _ in range(4000)]
    found = timed(FakeTimer(*times), budget_s=1e9, runs=4000)
    assert 10 < len(found) < 400
    assert quantile(found, 0.5) == pytest.approx(1.0, abs=3 * 0.005)
    assert len(timed(FakeTimer(*times), budget_s=1e9, runs=4000, relative_error=0.001)) > 4 * len(found)


@pytest.mark.parametrize(
    ("times", "rule", "runs"),
    [
        ([2.0], {"least_runs": 7}, 7),
        ([1.0, 2.0], {"runs": 25, "budget_s": 1e9}, 25),
        ([1.0, 2.0], {"runs": 200, "budget_s": 0.4}, 40),
        ([1.0, 2.0], {"least_runs": 12, "budget_s": 0.01}, 12),  # the budget never cuts the least runs
    ],
)
def test_runs_stop_when_they_agree_or_reach_a_limit(times: list[float], rule: dict[str, Any], runs: int) -> None:
    timer = FakeTimer(*times)
    assert len(timed(timer, warm_up_runs=3, **rule)) == runs
    assert timer.count == runs + 3


def test_warm_up_goes_on_for_a_while_and_is_not_counted() -> None:
    timer = FakeTimer(*[9.0] * 5, *[1.0] * 100)
    assert timed(timer, warm_up_runs=2, warm_up_s=0.05, least_runs=10) == [1.0] * 10
    assert timer.count == 15


def test_a_rule_without_runs_has_no_meaning() -> None:
    with pytest.raises(UsageError, match="0 runs at least"):
        StoppingRule(least_runs=0)


def test_noise_is_the_width_between_the_outer_tenths() -> None:
    found = Seconds.of([float(x) for x in range(1, 12)])
    assert (found.median, found.p10, found.p90, found.noise) == (6.0, 2.0, 10.0, 8 / 6)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60), st.floats(1e-3, 1e3))
def test_the_error_of_a_median_has_no_unit(times: list[float], factor: float) -> None:
    error = relative_error_of_median(times)
    assert error >= 0
    assert relative_error_of_median([factor * time for time in times]) == pytest.approx(error, rel=1e-6, abs=1e-9)
    assert min(times) <= quantile(times, 0.1) <= quantile(times, 0.5) <= quantile(times, 0.9) <= max(times)


def test_the_error_of_a_median_is_its_scatter() -> None:
    """Against what many repetitions scatter: about 1.25 sigma / sqrt(n) for normal noise."""
    rng = random.Random(2)
    samples = [[rng.gauss(1.0, 0.05) for _ in range(50)] for _ in range(400)]
    scatter = float(np.std([quantile(sample, 0.5) for sample in samples]))
    assert float(np.median([relative_error_of_median(sample) for sample in samples])) == pytest.approx(scatter, rel=0.2)


# The machine


@each(("name", "memory", "profile"), table("names_that_drivers_use"))
def test_names_that_drivers_use(name: str, memory: float | None, profile: str) -> None:
    assert profile_of(name, None if memory is None else int(memory)) == profile


@each("profile", [known for known in device_ids() if known.startswith("nvidia-")])
def test_every_profile_is_found_by_its_own_name(profile: str) -> None:
    name = find_device(profile).name.split(",")[0]
    assert profile_of(name) == profile


@pytest.mark.parametrize(
    "name", ["NVIDIA H200 NVL", "NVIDIA A10G", "NVIDIA GeForce RTX 3050", "Quadro P400", "NVIDIA RTX PRO 6000 Blackwell Max-Q", ""]
)
def test_an_unknown_name_asks_for_the_profile(name: str) -> None:
    with pytest.raises(UnavailableError) as error:
        profile_of(name)
    assert "--hardware" in str(error.value)


def test_a_name_that_fits_several_lists_them() -> None:
    with pytest.raises(UnavailableError, match="any of nvidia-a100-sxm-40gb, nvidia-a100-sxm-80gb"):
        profile_of("NVIDIA A100")


FAKE_GPU = gpu.Gpu("NVIDIA H200", 132, 60 << 20, 150_109_945_856, 149_000_000_000)


def test_the_environment_says_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_run", lambda command: "580.159.04, 1980 MHz, 3201 MHz, 1980 MHz, [N/A], 700.00 W\n")
    found = gpu.this_environment(FAKE_GPU)
    assert found.hardware == "nvidia-h200-sxm"
    assert found.facts["driver"] == "580.159.04"
    assert found.facts["sm_clock"] == "1980 MHz"
    assert "max_memory_clock" not in found.facts
    assert set(package_versions()) >= {"numba", "numpy"}
    assert package_versions(["no-such-package"]) == {}
    assert gpu.this_environment(FAKE_GPU, "nvidia-l4").hardware == "nvidia-l4"


@pytest.mark.parametrize("answer", ["", "one, two", OSError("no such file"), subprocess.TimeoutExpired("nvidia-smi", 1)])
def test_clocks_are_best_effort(answer: str | Exception) -> None:
    def ask(command: list[str]) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert nvidia_smi(ask) == {}


@NO_GPU
def test_without_a_gpu_the_reason_is_said() -> None:
    with pytest.raises(UnavailableError) as error:
        gpu.open_gpu()
    assert "no CUDA device" in str(error.value)
    assert "NVIDIA GPU" in str(error.value)


def in_a_process(code: str, **variables: str) -> str:
    path = os.pathsep.join(filter(None, (variables.pop("PYTHONPATH", ""), str(ROOT))))
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, env=os.environ | variables | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


OPEN = """
from perfmodel.core.errors import UnavailableError
from perfmodel.validation.cuda.gpu import open_gpu
try:
    open_gpu()
except UnavailableError as error:
    print(error)
"""


def test_numba_cuda_that_does_not_load_is_explained(tmp_path: Path) -> None:
    package = tmp_path / "numba"
    package.mkdir()
    (package / "__init__.py").write_text("config = None\n")
    (package / "cuda.py").write_text("import types\ntypes.ModuleType('numpy').row_stack\n")
    said = in_a_process(OPEN, PYTHONPATH=str(tmp_path))
    assert "numba.cuda does not load" in said
    assert "row_stack" in said or "numba.core" in said  # where numba-cuda has taken over the import of numba.cuda
    assert "numpy<2.5" in said


def test_the_simulator_is_no_gpu() -> None:
    assert "NUMBA_ENABLE_CUDASIM is set" in in_a_process(OPEN, NUMBA_ENABLE_CUDASIM="1")


@pytest.mark.driver
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ImportError("libNVVM cannot be found"), ["no CUDA toolkit that numba can use", "libNVVM", "pip install 'numba-cuda[cu13]'"]),
        (RuntimeError("missing libdevice"), ["no CUDA toolkit", "libdevice"]),
        (RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS"), ["the first kernel fails", "ILLEGAL_ADDRESS", "nvidia-smi"]),
    ],
)
def test_a_toolkit_that_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch, failure: Exception, words: list[str]) -> None:
    def fail(cuda: Any) -> None:
        raise failure

    monkeypatch.setattr(gpu, "_driver_problem", lambda cuda: None)
    monkeypatch.setattr(gpu, "_try_kernel", fail)
    with pytest.raises(UnavailableError) as error:
        gpu.open_gpu()
    for word in words:
        assert word in str(error.value)


def test_a_driver_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    problem = gpu._driver_problem(SimpleNamespace(cuda_error=lambda: None, gpus=[]))
    assert problem is not None
    assert "CUDA_VISIBLE_DEVICES is 7" in problem


@pytest.mark.driver
def test_what_the_driver_says_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(name=b"NVIDIA H200", MULTIPROCESSOR_COUNT=132, L2_CACHE_SIZE=60 << 20)
    memory = SimpleNamespace(total=FAKE_GPU.memory_bytes, free=FAKE_GPU.free_bytes)
    monkeypatch.setattr(cuda, "get_current_device", lambda: device)
    monkeypatch.setattr(cuda, "current_context", lambda: SimpleNamespace(get_memory_info=lambda: memory))
    assert gpu.current_gpu() == FAKE_GPU


# Cases


def geometry_of(case: KernelCase) -> Any:
    """The kernel's geometry; an impossible one raises."""
    d, br, bc = case.shape.get("d", 0), case.launch.get("br", 0), case.launch.get("bc", 0)
    return {
        "numba-flash": lambda: flash.geometry(d, br, bc),
        "numba-flash1": lambda: flash1.geometry(d, br, bc),
        "numba-flash-mma": lambda: flash_mma.geometry(d, br, bc, case.dtype),
        "numba-standard": lambda: standard.geometry(d, br, bc),
        "numba-matmul": lambda: matmul.geometry(br),
    }.get(case.implementation, lambda: None)()


@each("case", [*timed_cases(), *counted_cases()])
def test_default_cases_can_run(case: KernelCase) -> None:
    assert checked(case) is case
    geometry_of(case)
    assert needed_bytes(case) < 16e9, "a device with 16 GB runs it"


def test_default_cases_cover_what_they_say() -> None:
    flash_cases = [case for case in timed_cases() if case.implementation == "numba-flash"]
    for key, wanted in (("d", {64, 128}), ("causal", {False, True})):
        assert {case.shape[key] for case in flash_cases} == wanted
    for edge in ("br", "bc"):
        assert {case.launch[edge] for case in flash_cases} == {32, 64, 128}
    assert any(case.shape["heads"] != case.shape["kv_heads"] for case in flash_cases)
    assert any(case.shape["n"] % case.launch["br"] and case.shape["kv_len"] % case.launch["bc"] for case in flash_cases)
    assert {case.implementation for case in timed_cases()} == set(WORKLOADS)
    work = [case.attention().query_heads * case.shape["n"] * case.shape["kv_len"] * case.shape["d"] for case in flash_cases]
    assert max(work) / min(work) >= 100
    counted = [case.implementation for case in counted_cases()]
    assert counted.count("numba-flash") >= 16
    assert counted.count("numba-flash1") >= 5


def compiled(cases: list[KernelCase]) -> set[tuple[Any, ...]]:
    """What is compiled, each once: a kernel for a head dim, a mask, a dtype and a tile."""
    return {(case.implementation, case.shape.get("d"), case.shape.get("causal"), case.dtype, *case.launch.values()) for case in cases}


def test_what_validate_runs_by_default_compiles_few_kernels() -> None:
    """Each kernel with each head dim, mask and dtype, on one tile; a factor of a hundred in work is left."""
    few, whole = compiled(default_cases()), compiled(timed_cases())
    for trait in (1, 2, 3):
        assert {(kernel[0], kernel[trait]) for kernel in few} == {(kernel[0], kernel[trait]) for kernel in whole}
    assert len(few) == len({kernel[:4] for kernel in few}) <= len(whole) * 0.4
    assert len(default_cases()) <= len(timed_cases()) * 0.4
    work = [
        case.attention().query_heads * case.shape["n"] * case.shape["kv_len"] * case.shape["d"]
        for case in default_cases()
        if "d" in case.shape
    ]
    assert max(work) / min(work) >= 100


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (KernelCase("attention", "numba-flush", {}), "numba-flash"),
        (numba_case("numba-copy", {"n": 1}), "give bytes"),
        (numba_case("numba-matmul", {"m": 1, "n": 1, "k": 1}), "give br and bc"),
    ],
)
def test_cases_that_cannot_run(case: KernelCase, words: str) -> None:
    with pytest.raises(UsageError) as error:
        checked(case)
    assert words in str(error.value)


CASE = attention_case("numba-flash", (1, 4, 2), (300, 500), 64, (64, 32), True, "fp32")


def exact(case: KernelCase, dtype: str = "fp32") -> tuple[Attention, list[Any], Any]:
    """Inputs, and the outputs that float64 gives."""
    w, rng = case.attention(), np.random.default_rng(3)
    q, k, v = (rng.standard_normal((heads, n, w.d)) for heads, n in ((w.query_heads, w.n), *[(w.stored_kv_heads, w.kv_len)] * 2))
    results = [reference.attention(q[head], k[head // w.group], v[head // w.group], w.causal) for head in range(w.query_heads)]
    return w, [q, k, v, np.stack([o for o, _ in results])], np.stack([lse for _, lse in results])


def test_right_results_pass_the_check_and_wrong_ones_do_not() -> None:
    w, tensors, lse = exact(CASE)
    rng = np.random.default_rng(4)
    flat = [x.reshape(-1) for x in tensors]
    assert reference.attention_error(w, *flat, lse.reshape(-1), rng) < 1e-12
    shifted = tensors[3].copy()
    shifted[0] = shifted[1]  # the output of another head
    assert reference.attention_error(w, *flat[:3], shifted.reshape(-1), lse.reshape(-1), rng) > 0.1
    assert reference.attention_error(w, *flat, lse.reshape(-1) + 0.1, rng) > 1e-3


def test_rows_that_see_no_key_have_to_be_zero() -> None:
    case = attention_case("numba-flash", (1, 1, 1), (500, 20), 64, (64, 32), True, "fp32")
    w, tensors, lse = exact(case)
    flat = [x.reshape(-1) for x in tensors]
    assert reference.attention_error(w, *flat, lse.reshape(-1), np.random.default_rng()) < 1e-12
    flat[3] = flat[3].copy()
    flat[3][0] = 1.0
    assert reference.attention_error(w, *flat, lse.reshape(-1), np.random.default_rng()) >= 1.0


@pytest.mark.parametrize("n", [1, 100, 129, 384, 385, 5000])
def test_windows_stay_inside(n: int) -> None:
    windows = reference.windows(np.random.default_rng(), n)
    assert windows[0] == 0
    assert max(windows) + reference.CHECKED_ROWS >= n > max(windows)


# Runs


ENVIRONMENT = Environment("nvidia-h200-sxm", {"driver": "1", "numba": "2"})


def measured(tmp_path: Path, outcome: Any) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Failures, records and progress of three cases; ``outcome(case)`` times one."""
    cases = [
        CASE,
        numba_case("numba-copy", {"bytes": 1024}),
        attention_case("numba-flash-mma", *((1, 1, 1), (9, 9)), 64, (64, 64), False, "bf16"),
    ]
    records: list[dict[str, Any]] = []
    said: list[str] = []
    failures = run.measure_with(cases, said.append, records.append, outcome, ENVIRONMENT)
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [raw for raw, _ in read_records(path)] == records
    return failures, records, said


def test_records_have_the_format(tmp_path: Path) -> None:
    failures, records, said = measured(tmp_path, lambda case: ([1e-3] * 3 + [2e-3] * 5 + [3e-3] * 3, 1e-7, {**case.launch, "threads": 64}))
    assert failures == []
    assert [record["workload"] for record in records] == ["attention", "copy", "attention"]
    first = records[0]
    assert first["shape"] == {"batch": 1, "heads": 4, "kv_heads": 2, "n": 300, "kv_len": 500, "d": 64, "causal": True}
    assert first["time_s"] == {"median": 2e-3, "p10": 1e-3, "p90": 3e-3}
    assert first["launch"] == {"br": 64, "bc": 32, "threads": 64}
    assert (first["hardware"], first["cache"], first["dtype"], first["pass"]) == ("nvidia-h200-sxm", "cold", "fp32", "forward")
    assert first["environment"].items() >= {"driver": "1", "numba": "2", "relative_error": 1e-7, "runs": 11}.items()
    assert said[0] == f"1/3 {CASE.label}: 2 ms, noise 100.0%, 11 runs"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (UnavailableError("its tensors take 9 B"), "its tensors take 9 B"),
        (MemoryError(), "out of memory on the host"),
        (RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\nmore"), "out of memory on the device"),
        (ValueError("bad\nlines"), "ValueError: bad"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_case_that_fails_does_not_end_the_run(tmp_path: Path, failure: Exception, words: str) -> None:
    def outcome(case: KernelCase) -> tuple[list[float], float, dict[str, int]]:
        if case.workload == "copy":
            raise failure
        return [1.0] * 10, 0.0, dict(case.launch)

    [message], records, said = measured(tmp_path, outcome)
    assert words in message
    assert "numba-copy" in message
    assert len(records) == 2
    assert said[1].endswith(f"failed, {message}")


def test_a_lost_device_ends_the_run_and_keeps_what_there_is() -> None:
    def outcome(case: KernelCase) -> tuple[list[float], float, dict[str, int]]:
        if case.workload == "copy":
            raise run.LostDeviceError("the device is lost")
        return [1.0] * 10, 0.0, {}

    records: list[dict[str, Any]] = []
    with pytest.raises(PerfmodelError, match="lost"):
        run.measure_with([CASE, numba_case("numba-copy", {"bytes": 4})], lambda text: None, records.append, outcome, ENVIRONMENT)
    assert len(records) == 1


class FakeCuda:
    """Stands in for what a run asks of numba.cuda; ``lost`` makes every call fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: bool = False) -> None:
        self.cleared, self.lost = 0, lost
        monkeypatch.setattr(cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(cuda, "current_context", lambda: SimpleNamespace(deallocations=SimpleNamespace(clear=self.clear)))

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    def clear(self) -> None:
        self.cleared += 1


def stand_in(monkeypatch: pytest.MonkeyPatch, error: float) -> list[str]:
    """Every case is prepared without a GPU, with results that are off by ``error``; what happens is listed."""
    happened: list[str] = []

    def prepared(case: KernelCase, rng: Any) -> prepare.PreparedKernel:
        happened.append("prepared")
        return prepare.PreparedKernel(lambda: happened.append("run"), lambda: error, ("fill", "flash1"), {"br": 64}, ())

    monkeypatch.setattr(prepare, "prepare", prepared)
    return happened


def test_a_case_is_checked_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, happened = FakeCuda(monkeypatch), stand_in(monkeypatch, 1e-7)
    times, error, launch = run.time_case(CASE, FakeTimer(1.0), StoppingRule(least_runs=4, warm_up_runs=2, warm_up_s=0.0))
    assert (len(times), error, launch) == (4, 1e-7, {"br": 64})
    assert happened == ["prepared", *["run"] * (1 + 2 + 4)]
    assert fake.cleared == 1


@pytest.mark.parametrize("error", [1e-3, math.inf, math.nan])
def test_wrong_results_have_no_time(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    fake, happened = FakeCuda(monkeypatch), stand_in(monkeypatch, error)
    with pytest.raises(UnavailableError, match="1e-05 is allowed"):
        run.time_case(CASE, FakeTimer(1.0), None)
    assert happened == ["prepared", "run"]
    assert fake.cleared == 1


def test_a_kernel_that_kills_the_device_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, lost=True)
    stand_in(monkeypatch, 0.0)
    with pytest.raises(run.LostDeviceError, match="ILLEGAL_ADDRESS"):
        run.time_case(CASE, FakeTimer(1.0), StoppingRule(warm_up_s=0.0))


def test_measure_opens_the_device_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    stand_in(monkeypatch, 0.0)
    monkeypatch.setattr(run, "open_gpu", lambda: FAKE_GPU)
    monkeypatch.setattr(gpu, "_run", lambda command: "")
    monkeypatch.setattr(run, "EventTimer", lambda gpu: FakeTimer(2e-3))
    records: list[dict[str, Any]] = []
    assert run.measure([CASE], lambda text: None, records.append, None, StoppingRule(warm_up_s=0.0)) == []
    assert (records[0]["hardware"], records[0]["time_s"]["median"]) == ("nvidia-h200-sxm", 2e-3)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_numbers_keep_their_value_on_the_way(dtype: str) -> None:
    numbers = np.array([1.0, -0.5, 3.0, -np.inf], np.float32)
    assert prepare.values(prepare.stored(numbers, dtype), dtype).tolist() == numbers.tolist()
    assert prepare.unwritten(prepare.stored(np.array([1.0, np.nan], np.float32), dtype), dtype)
    assert not prepare.unwritten(prepare.stored(numbers, dtype), dtype)
    assert len({*prepare.random_inputs(np.random.default_rng(), 100, dtype).tolist()}) > 90


# Counters


LONG, WIDE = ROOT / "tests" / "data" / "ncu_long.csv", ROOT / "tests" / "data" / "ncu_wide.csv"
"""What Nsight Compute 2025.3.1 printed on an H200, with and without --page raw; template arguments and most columns left out."""
FLASH_BYTES = 4 * 1024 * 64 * 4 * (1 + 2 * 8)
"""L2 to SM of the first kernel: Q once, K and V for each of 8 query tiles, 4 heads."""


@pytest.mark.parametrize("path", [LONG, WIDE], ids=["long", "wide"])
def test_what_ncu_prints_is_read(path: Path) -> None:
    kernels = ncu_csv.parse(path)
    assert [kernel.run for kernel in kernels] == list(range(6))
    assert [kernel.name.split("[")[0].split("::")[1] for kernel in kernels] == ["flash", "fill", "fill", "fill", "flash1", "copy"]
    assert ncu_csv.counters(kernels[:1])["l2_to_sm_bytes"] == FLASH_BYTES
    copied = ncu_csv.counters(kernels[5:])
    assert copied["l2_to_sm_bytes"] == 1 << 28
    assert copied["dram_read_bytes"] == pytest.approx(1 << 28, rel=1e-3)
    assert copied["l2_slice_read_bytes"] == pytest.approx(1.5 * (1 << 28), rel=1e-2)
    seconds = ncu_csv.seconds(kernels[5:])
    assert seconds is not None
    assert 1.2e-4 < seconds < 1.3e-4
    both, first, last = (ncu_csv.seconds(part) for part in (kernels, kernels[:3], kernels[3:]))
    assert both == pytest.approx((first or 0) + (last or 0))


HEADER = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'


def text_file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("metric", "unit", "value", "base"), table("units_and_separators"))
def test_units_and_separators(tmp_path: Path, metric: str, unit: str, value: str, base: float) -> None:
    path = text_file(
        tmp_path, "==PROF== Connected", "the program's own words, with a , comma", HEADER, f'"0","k","{metric}","{unit}","{value}"'
    )
    [kernel] = ncu_csv.parse(path)
    assert kernel.metrics == {metric: pytest.approx(base, rel=1e-12)}


@pytest.mark.parametrize(
    ("metric", "unit", "value"), [("dram__bytes_read.sum", "byte", "n/a"), ("x__y.sum", "parsec", "1"), ("x__y.sum", "", "Policy")]
)
def test_what_has_no_number_is_left_out(tmp_path: Path, metric: str, unit: str, value: str) -> None:
    [kernel] = ncu_csv.parse(text_file(tmp_path, HEADER, f'"0","k","{metric}","{unit}","{value}"', "", "==PROF== Disconnected"))
    assert kernel.metrics == {}
    assert ncu_csv.counters([kernel]) == {}
    assert ncu_csv.seconds([kernel]) is None


READS = '"0","k","dram__bytes_read.sum"'


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        ([], r"no line with 'ID'.* among the first [\d,]+: .*\n.*--log-file"),
        ([HEADER, f'{READS},"byte","1"', '"0","k"'], "line 3: 2 cells"),
    ],
)
def test_a_large_file_that_is_wrong_is_not_held_in_memory(tmp_path: Path, begin: list[str], words: str) -> None:
    path = text_file(tmp_path, *begin, *["1,2,3,4" * 20] * 100_000)
    tracemalloc.start()
    with pytest.raises(DataError, match=words):
        ncu_csv.parse(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 10


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["nothing of ncu's"], ["no line with 'ID'", "ncu --csv"]),
        (['"ID","Kernel Name","Metric Name","Metric Value"'], ["no column 'Metric Unit'"]),
        (['"ID","Kernel Name","Block Size"'], ["no column of a metric"]),
        ([HEADER, '"0","k"'], ["line 2", "2 cells, the header has 5"]),
        ([HEADER, '"zero","k","m","byte","1"'], ["line 2", "ID is 'zero'"]),
        ([HEADER, f'{READS},"byte","1.234.567"'], ["line 2", "not a number", "LC_ALL=C"]),
        ([HEADER, f'{READS},"byte","12,34"'], ["line 2", "not a number"]),
        ([HEADER, f'{READS},"byte","-1"'], ["line 2", "is '-1'"]),
        ([HEADER, f'{READS},"byte","inf"'], ["line 2", "is 'inf'"]),
        ([HEADER, f'{READS},"furlong","1"'], ["line 2", "no known unit", "--print-units base"]),
        ([HEADER, f'{READS},"byte","1'], ["line 2", "not CSV"]),
        (['"ID","Kernel Name","dram__bytes_read.sum"', '"0","k","1"'], ["line 2", "no units"]),
    ],
)
def test_files_that_are_wrong_name_the_line(tmp_path: Path, lines: list[str], words: list[str]) -> None:
    path = text_file(tmp_path, *lines)
    with pytest.raises(DataError) as error:
        ncu_csv.parse(path)
    for word in (str(path), *words):
        assert word in str(error.value)


def test_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text_file(tmp_path, HEADER, *[f'{READS},"byte","1"'] * 4)
    monkeypatch.setattr(csv_table, "MAX_ROWS", 3)
    with pytest.raises(DataError, match="line 5: more than 3 rows"):
        ncu_csv.parse(path)
    monkeypatch.setattr(csv_table, "MAX_CELLS", 7)
    with pytest.raises(DataError, match="line 3: more than 7 cells"):
        ncu_csv.parse(path)
    monkeypatch.setattr(csv_table, "MAX_BYTES", 20)
    with pytest.raises(DataError, match="larger than 20 B"):
        ncu_csv.parse(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="line 1: byte 0 is not UTF-8"):
        ncu_csv.parse(path)
    path.write_bytes(b"x" * (csv_table.MAX_LINE_BYTES + 1))
    monkeypatch.setattr(csv_table, "MAX_BYTES", 1 << 30)
    with pytest.raises(DataError, match="line 1: longer than"):
        ncu_csv.parse(path)
    with pytest.raises(DataError, match="not a regular file"):
        ncu_csv.parse(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        ncu_csv.parse(tmp_path / "absent.csv")


PROFILED = [
    attention_case("numba-flash", (1, 4, 2), (1024, 1024), 64, (128, 64), False, "fp32"),
    attention_case("numba-flash1", (1, 4, 4), (256, 256), 64, (64, 64), False, "fp32"),
    numba_case("numba-copy", {"bytes": 1 << 28}),
]
"""The cases behind the recorded text."""
MANIFEST = [
    {"kernels": ["flash"], "launch": {"br": 128, "bc": 64}},
    {"kernels": ["fill", "fill", "fill", "flash1"], "launch": {"br": 64, "bc": 64}},
    {"kernels": ["copy"], "launch": {}},
]


class FakeNcu:
    """Writes what the profiler and the profiled program leave behind."""

    def __init__(self, code: int = 0, rows: int = 3, log: str | None = None, said: str = "") -> None:
        self.code, self.rows, self.said, self.command = code, rows, said, [""]
        self.log = LONG.read_text() if log is None else log

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.command = command
        Path(command[-1]).write_text("".join(json.dumps(row) + "\n" for row in MANIFEST[: self.rows]))
        Path(command[command.index("--log-file") + 1]).write_text(self.log)
        return subprocess.CompletedProcess(command, self.code, "", self.said)


def counted(tmp_path: Path, ncu: FakeNcu) -> tuple[list[str], list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    found = counters.profile(PROFILED, tmp_path, "/opt/ncu", ncu)
    return counters.records_of(PROFILED, found, ENVIRONMENT, records.append), records


def test_counted_cases_become_records(tmp_path: Path) -> None:
    ncu = FakeNcu()
    failures, records = counted(tmp_path, ncu)
    assert failures == []
    assert [record["implementation"] for record in records] == ["numba-flash", "numba-flash1", "numba-copy"]
    assert records[0]["counters"]["l2_to_sm_bytes"] == FLASH_BYTES
    assert records[1]["time_s"] == {"median": 0.000162688, "p10": 0.000162688, "p90": 0.000162688}, "without its fills"
    assert records[2]["cache"] == "cold"
    assert ncu.command[0] == "/opt/ncu"
    assert set(ncu_csv.METRICS) == set(ncu.command[ncu.command.index("--metrics") + 1].split(","))
    assert "--clock-control none --log-file" in " ".join(ncu.command)
    assert counters.read_cases(Path(ncu.command[-2])) == PROFILED
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    h200 = find_device("nvidia-h200-sxm")
    for _, record in list(read_records(tmp_path / "records.jsonl"))[:2]:
        assert [row.agrees for row in counters.compare_counters(record, h200) if row.quantity == "l2_to_sm_bytes"] == [True]


def test_a_program_that_dies_leaves_what_was_counted(tmp_path: Path) -> None:
    failures, records = counted(tmp_path, FakeNcu(code=1, rows=2, log=LONG.read_text() + "==ERROR== The application returned an error\n"))
    assert len(records) == 2
    [failure] = failures
    assert "numba-copy" in failure
    assert "==ERROR==" in failure


@pytest.mark.parametrize(
    ("ncu", "words"),
    [
        (FakeNcu(code=1, rows=0, log="", said="python: no module named numba"), ["no module named numba"]),
        (FakeNcu(code=1, rows=0, log="==ERROR== ERR_NVGPUCTRPERM - no permission"), ["ERR_NVGPUCTRPERM", "administrators"]),
        (FakeNcu(code=0, rows=0), ["launched nothing"]),
    ],
)
def test_a_profiler_that_fails_is_quoted(tmp_path: Path, ncu: FakeNcu, words: list[str]) -> None:
    with pytest.raises(UnavailableError) as error:
        counted(tmp_path, ncu)
    for word in words:
        assert word in str(error.value)


def test_kernels_that_are_not_the_cases_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected 'flash1', found 'copy"):
        counted(tmp_path, FakeNcu(log="\n".join(line for line in LONG.read_text().splitlines() if not line.startswith('"4"'))))
    with pytest.raises(DataError, match="found the end"):
        counted(tmp_path, FakeNcu(log="\n".join(line for line in LONG.read_text().splitlines() if not line.startswith('"5"'))))


def test_without_ncu_the_way_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnavailableError) as error:
        counters.count(PROFILED, lambda text: None, lambda record: None)
    assert "ncu is not on PATH" in str(error.value)


def test_counting_goes_from_cases_to_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "find_ncu", lambda: "/opt/ncu")
    monkeypatch.setattr(counters, "open_gpu", lambda: FAKE_GPU)
    monkeypatch.setattr(gpu, "_run", lambda command: "")
    monkeypatch.setattr(counters, "_run", FakeNcu())
    records: list[dict[str, Any]] = []
    said: list[str] = []
    assert counters.count(PROFILED, said.append, records.append) == []
    assert len(records) == 3
    assert said == ["3 cases under /opt/ncu"]


@pytest.mark.driver
def test_the_profiled_program_lists_what_it_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    happened = stand_in(monkeypatch, 0.0)
    monkeypatch.setattr(counters, "current_gpu", lambda: FAKE_GPU)
    cases, manifest = tmp_path / "cases", tmp_path / "manifest"
    counters.write_cases(PROFILED[:2], cases)
    counters.main([str(cases), str(manifest)])
    assert happened == ["prepared", "run"] * 2, "each once"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert rows == [{"kernels": ["fill", "flash1"], "launch": {"br": 64}}] * 2


def test_a_case_that_cannot_be_launched_leaves_its_reason(tmp_path: Path) -> None:
    def launch(case: KernelCase) -> dict[str, Any]:
        raise RuntimeError("no room\nat all")

    counters.launch_all(PROFILED[:1], tmp_path / "manifest", launch)
    assert json.loads((tmp_path / "manifest").read_text()) == {"kernels": [], "reason": "RuntimeError: no room"}


# Counters against the model


@cache
def counted_records() -> list[Record]:
    return [record for record in own_counted() if record.implementation in counters.ALGORITHMS]


def name(record: Record) -> str:
    shape = record.shape
    mask = "causal" if shape["causal"] else "full"
    sizes = f"{shape['heads']}x{shape['n']}x{shape['kv_len']}-d{shape['d']}"
    return f"{record.implementation}-{sizes}-{record.launch['br']}x{record.launch['bc']}-{mask}"


DRAM_MISSES = {
    "numba-flash-mma-16x512x8192-d128-128x64-causal": "few queries against many keys: 6 % more than once",
    "numba-flash-16x512x8192-d64-128x64-causal": "few queries against many keys: 6 % more than once",
    "numba-flash-16x16384x16384-d128-128x64-causal": "groups of four heads lose step more than the model says",
    "numba-flash1-66x1024x1024-d64-64x64-full": "on the steep part of the ramp between all and nothing found again",
}
"""Kernels whose DRAM reads the model misses by more than is allowed, and what is known of it."""


def test_traffic_agrees() -> None:
    """What SMs receive; DRAM reads within 5 %, 30 % far beyond L2; writes between what L2 may keep and 1.25 times the prediction."""
    found = {name(record): counters.compare_counters(record, find_device(record.hardware)) for record in counted_records()}
    missed = {case: rows for case, rows in found.items() if not all(row.agrees for row in rows)}
    assert missed.keys() == DRAM_MISSES.keys(), missed


def invented(**counts: float) -> Record:
    shape = {"batch": 1, "heads": 64, "kv_heads": 64, "n": 4096, "kv_len": 4096, "d": 64, "causal": False}
    return Record("attention", "numba-flash", "nvidia-h200-sxm", "fp32", shape, Seconds(1.0), counters=counts, launch={"br": 128, "bc": 64})


def test_the_limits_are_those_that_are_stated() -> None:
    h200 = find_device("nvidia-h200-sxm")
    exact = {
        row.quantity: row.predicted
        for row in counters.compare_counters(invented(l2_to_sm_bytes=1, dram_read_bytes=1, dram_write_bytes=1), h200)
    }
    assert set(exact) == {"l2_to_sm_bytes", "dram_read_bytes", "dram_write_bytes"}
    reads, writes = exact["dram_read_bytes"], exact["dram_write_bytes"]
    for counter, value, within in (
        ("l2_to_sm_bytes", exact["l2_to_sm_bytes"] / 1.0009, True),
        ("l2_to_sm_bytes", exact["l2_to_sm_bytes"] / 1.0011, False),
        ("dram_read_bytes", reads / 1.049, True),
        ("dram_read_bytes", reads / 0.949, False),
        ("dram_write_bytes", writes - (60 << 20), True),
        ("dram_write_bytes", writes - (60 << 20) - 1, False),
        ("dram_write_bytes", 1.26 * writes, False),
    ):
        [row] = counters.compare_counters(invented(**{counter: value}), h200)
        assert row.agrees is within, row


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"implementation": "torch-eager"}, "no counts of torch-eager"),
        ({"launch": {}}, "which tile"),
        ({"dtype": "int3"}, "no model of dtype 'int3'"),
        ({"shape": {"n": 4}}, "shape lacks batch"),
    ],
)
def test_records_that_have_no_counts(change: dict[str, Any], words: str) -> None:
    record = replace(invented(dram_read_bytes=1), **change)
    with pytest.raises(PerfmodelError, match=words.removeprefix("its ")):
        counters.compare_counters(record, find_device("nvidia-h200-sxm"))


# What the machine reaches


def curve(*points: tuple[int, float]) -> list[ProbeResult]:
    return [ProbeResult("L2 read", "B/s", value, 0.01, 10, size) for size, value in points]


def test_the_apparent_size_is_where_bandwidth_falls() -> None:
    found = microbench.apparent_size(curve((1, 3e12), (2, 8e12), (4, 8e12), (8, 2e12), (16, 2e12)))
    assert found.value == pytest.approx(4 * 2**0.5)
    assert found.spread == 1.0
    assert found.runs == 50
    assert microbench.plateau(curve((1, 3e12), (2, 8e12), (4, 4e12))).size == 2


def test_no_step_is_no_size() -> None:
    found = microbench.apparent_size(curve((1, 2.1e12), (2, 2e12)))
    assert found.value is None
    assert "does not fall" in found.reason


def test_a_part_that_fails_keeps_what_it_had() -> None:
    def broken(rule: StoppingRule) -> Any:
        yield ProbeResult("first", "s", 1.0)
        raise RuntimeError("driver\ndetails")

    def refused(rule: StoppingRule) -> Any:
        raise UnavailableError("no bindings")
        yield

    said: list[str] = []
    parts = {"broken": broken, "refused": refused, "whole": lambda rule: iter([ProbeResult("last", "s", 2.0)])}
    found = microbench.run_parts(parts, said.append, microbench.RULE)
    assert [(result.name, result.value, result.reason) for result in found] == [
        ("first", 1.0, ""),
        ("broken", None, "RuntimeError: driver"),
        ("refused", None, "no bindings"),
        ("last", 2.0, ""),
    ]
    assert said == ["broken", "refused", "whole"]


def test_parts_turn_times_into_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run takes 2 s: what a part says it has moved shows."""
    FakeCuda(monkeypatch)
    monkeypatch.setattr(cuda, "device_array", lambda elements, dtype: SimpleNamespace(size=elements))
    monkeypatch.setattr(cuda, "stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(microbench, "current_gpu", lambda: FAKE_GPU)
    monkeypatch.setattr(run, "EventTimer", lambda gpu, cold=True: FakeTimer(2.0))
    monkeypatch.setattr(run, "QueueTimer", lambda gpu, stream: FakeTimer(2.0))
    for prepared in ("copy", "read", "fma", "exp", "shared", "empty"):
        monkeypatch.setattr(probes, f"prepare_{prepared}", lambda *args, **options: lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    rule = StoppingRule(least_runs=3, runs=3, warm_up_s=0.0)
    found = [result for name, part in microbench.PARTS.items() if name != "large products" for result in part(rule)]
    by_name = {result.name: result for result in found}
    assert by_name["DRAM copy, largest"].value == 4 << 30
    assert by_name["DRAM read, largest"].value == 2 << 30
    assert {result.size for result in found if result.name == "DRAM copy"} == {1 << power for power in range(16, 33)}
    assert by_name["L2 read, plateau"].value == pytest.approx(1 << 30, rel=0.2)
    blocks = microbench.BLOCKS_PER_SM * 132
    assert by_name["fp32 FMA"].value == blocks * 256 * 8 * 16 * microbench.FMA_ROUNDS
    assert by_name["exp"].value == blocks * 256 * 8 * 16 * microbench.EXP_ROUNDS / 2
    assert by_name["shared memory read"].value == blocks * 256 * 16 * 4 * microbench.SHARED_ROUNDS / 2
    assert by_name["launch, stream"].value == 2.0 / run.KERNELS
    assert 0 < by_name["launch, host"].value < 1e-3, "of this host, which launches nothing here"
    assert by_name["launch, graph"].value is None
    assert "cuda.bindings" in by_name["launch, graph"].reason
    fields = {result.field for result in found if result.field}
    assert {field.split(".")[-1] for field in fields} == {"measured_bandwidth", "stream"}


def test_a_rate_is_the_amount_over_the_median() -> None:
    found = microbench.rate("copy", "B/s", 8.0, [1.9] * 3 + [2.0] * 6 + [2.1] * 3, size=4)
    assert (found.value, found.runs, found.size) == (4.0, 12, 4)
    assert found.spread == pytest.approx(0.1)


class FakeDriver:
    """Of cuda.bindings, what graphs need; ``failing`` names the call that does not succeed."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self.failing = failing
        self.CUstream = int
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __getattr__(self, call: str) -> Any:
        def made(*args: Any) -> tuple[Any, ...]:
            self.calls.append(call)
            return (999 if call == self.failing else 0,) if call == "cuGraphLaunch" else (999 if call == self.failing else 0, call)

        return made


def bindings(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    module: Any = ModuleType("cuda.bindings")
    module.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", module)


def test_a_graph_is_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, queued = FakeDriver(), []
    bindings(monkeypatch, driver)
    replay = run.captured(lambda: queued.append(len(driver.calls)), SimpleNamespace(handle=7))
    assert queued == [1], "between the beginning and the end of the capture"
    replay()
    replay()
    assert driver.calls == ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch", "cuGraphLaunch"]


@pytest.mark.parametrize("call", ["cuStreamBeginCapture", "cuGraphInstantiate", "cuGraphLaunch"])
def test_a_graph_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    bindings(monkeypatch, FakeDriver(failing=call))
    with pytest.raises(UnavailableError, match="CUDA graph: 999"):
        run.captured(lambda: None, SimpleNamespace(handle=7))()


def test_many_launches_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[int] = []
    monkeypatch.setattr(probes, "prepare_empty", lambda stream: lambda: queued.append(1))
    run.empty_launches(None, 17)()
    assert len(queued) == 17


class FakeEvent:
    """A start event that has happened before everything was queued, ``late`` times."""

    def __init__(self, late: int = 0) -> None:
        self.late, self.milliseconds = late, 0.75

    def record(self, stream: Any) -> None:
        return

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        self.late -= 1
        return self.late >= 0

    def elapsed_time(self, end: FakeEvent) -> float:
        return self.milliseconds


def queue_timer(monkeypatch: pytest.MonkeyPatch, late: int) -> tuple[run.QueueTimer, list[int]]:
    delays: list[int] = []
    monkeypatch.setattr(cuda, "event", lambda timing: FakeEvent(late))
    monkeypatch.setattr(cuda, "device_array", lambda *args: None)
    monkeypatch.setattr(probes, "prepare_fma", lambda sums, blocks, rounds, stream: lambda: delays.append(rounds))
    return run.QueueTimer(FAKE_GPU, None), delays


def test_launches_wait_until_all_of_them_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, delays = queue_timer(monkeypatch, late=2)
    assert timer.seconds(lambda: None) == 0.75e-3
    assert delays == [run.FIRST_DELAY_ROUNDS * factor for factor in (1, 2, 4)]


def test_a_cpu_that_never_gets_ahead_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, _ = queue_timer(monkeypatch, late=10**6)
    with pytest.raises(UnavailableError, match="idle machine"):
        timer.seconds(lambda: None)


# Probe kernels in the simulator, in a process of its own

SIMULATE = """
import json
import numpy as np
from perfmodel.validation.kernels import probes

class Counting:
    def __init__(self, size):
        self.size, self.loads, self.stores = size, np.zeros(size, int), 0
    def __getitem__(self, index):
        self.loads[int(index)] += 1
        return np.float32(1)
    def __setitem__(self, index, value):
        self.stores += 1

loads = {}
for size in (4, 64, 100, 1024):
    source, sums = Counting(size), Counting(1)
    probes.prepare_read(source, sums, 3, blocks=2, threads=4)()
    loads[size] = [int(source.loads.min()), int(source.loads.max()), sums.stores]

steps = []
kernel = probes._rate_kernel(lambda x, a, b: steps.append(1) or x * a + b)
kernel[(2,), 4, 0, 0](Counting(1), np.uint64(3), np.float32(1), np.float32(0.5), np.float32(0.25))

places, plain = [], probes.steps.load4
def load4(array, index):
    places.append(int(index))
    return plain(array, index)
probes.steps.load4 = load4
probes.prepare_shared(Counting(1), 2, 3, threads=8)()
probes.prepare_fma(Counting(1), 1, 1, threads=1)()
probes.prepare_exp(Counting(1), 1, 1, threads=1)()
probes.prepare_empty()()
print(json.dumps({"loads": loads, "steps": len(steps), "places": places}))
"""


def test_probe_kernels_do_the_work_that_is_counted() -> None:
    found = json.loads(in_a_process(SIMULATE, NUMBA_ENABLE_CUDASIM="1"))
    assert set(map(tuple, found["loads"].values())) == {(3, 3, 0)}, "every element once a pass, and nothing written"
    assert found["steps"] == probes.operations(2, 3, threads=4)
    assert 16 * len(found["places"]) == probes.shared_bytes(2, 3, threads=8)
    assert set(found["places"]) == set(range(0, probes.shared_bytes(1, 1, 8) // 4, 4)), "all of shared memory"


PREPARE = """
import json, sys
from types import SimpleNamespace
import numpy as np
from perfmodel.kernels.register_tiles import Geometry
from perfmodel.validation.cuda import prepare
from perfmodel.validation.cuda.cases import attention_case, numba_case

sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other at every barrier
memory = SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=1 << 40))
prepare.cuda = SimpleNamespace(to_device=prepare.cuda.to_device, synchronize=prepare.cuda.synchronize, current_context=lambda: memory)
prepare._facts = lambda *launch: {}  # registers are those of a device
for family in (prepare.flash, prepare.flash1):
    family.geometry = lambda d, br, bc: Geometry(d, br, bc, lanes=2, rows=2, max_scores=4)
prepare.standard.geometry = lambda d, br, bc: prepare.standard.StandardGeometry(br, 2, 2, d=d, bc=bc, depth=8, softmax_lanes=2)
prepare.matmul.geometry = lambda tile: prepare.matmul.MatmulGeometry(tile, 2, 2, bc=tile, depth=8)
names = ("numba-flash", "numba-flash1", "numba-standard")
cases = [attention_case(name, (1, 4, 2), lengths, 8, (4, 8), True, "fp32") for name in names for lengths in ((13, 20), (12, 4))]
cases += [numba_case("numba-matmul", {"m": 13, "n": 12, "k": 20}, tile=(8, 8)), numba_case("numba-copy", {"bytes": 1600})]
cases += [numba_case("numba-matmul-naive", {"m": 9, "n": 20, "k": 4})]
errors = []
for case in cases:
    ready = prepare.prepare(case, np.random.default_rng(1))
    before = ready.error()
    ready.launch()
    errors.append([before, ready.error()])
print(json.dumps(errors))
"""


def test_what_is_prepared_passes_its_own_check_once_it_has_run() -> None:
    for before, after in json.loads(in_a_process(PREPARE, NUMBA_ENABLE_CUDASIM="1")):
        assert before == math.inf, "outputs are poisoned"
        assert after < reference.TOLERANCE["fp32"]


# On a GPU


def small(implementation: str, dtype: str, d: int, tile: tuple[int, int], causal: bool) -> KernelCase:
    return attention_case(implementation, (1, 4, 2), (200, 300), d, tile, causal, dtype)


SMALL = [
    small("numba-flash", "fp32", 64, (64, 32), True),
    small("numba-flash1", "fp32", 64, (64, 64), False),
    small("numba-standard", "fp32", 64, (128, 64), True),
    small("numba-flash-mma", "fp16", 64, (64, 64), False),
    small("numba-flash-mma", "bf16", 128, (128, 64), True),
    numba_case("numba-matmul", {"m": 100, "n": 200, "k": 300}, tile=(64, 64)),
    numba_case("numba-matmul-naive", {"m": 100, "n": 200, "k": 300}),
    numba_case("numba-copy", {"bytes": 1 << 20}),
]
QUICK = StoppingRule(least_runs=3, runs=5, warm_up_s=0.0, budget_s=0.1)


class TestOnGpu:
    pytestmark = ON_GPU

    def test_every_kernel_is_timed_and_a_hopeless_case_is_a_message(self) -> None:
        records: list[dict[str, Any]] = []
        hopeless = numba_case("numba-copy", {"bytes": 1 << 50})
        said: list[str] = []
        [failure] = run.measure([hopeless, *SMALL], said.append, records.append, "nvidia-h200-sxm", QUICK)
        assert "are free" in failure
        assert [record["implementation"] for record in records] == [case.implementation for case in SMALL], said
        assert all(0 < record["time_s"]["median"] < 1e-2 for record in records)
        assert all(record["launch"]["registers"] > 16 for record in records if "threads" in record["launch"])

    @pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not on PATH: nothing is counted")
    def test_a_kernel_is_counted(self) -> None:
        records: list[dict[str, Any]] = []
        failures = counters.count([SMALL[0], SMALL[-1]], lambda text: None, records.append, "nvidia-h200-sxm")
        assert failures == []
        assert [record["implementation"] for record in records] == ["numba-flash", "numba-copy"]
        assert records[1]["counters"]["l2_to_sm_bytes"] == pytest.approx(1 << 20, rel=1e-3)

    def test_what_the_machine_reaches(self) -> None:
        found = {result.name: result for result in run_benchmark(rule=QUICK)}
        assert all(result.value or result.reason for result in found.values())
        l2, dram = found["L2 read, plateau"].value, found["DRAM read, largest"].value
        assert l2 is not None
        assert dram is not None
        assert l2 > dram > 1e11
        stream = found["launch, stream"].value
        assert stream is not None
        assert 1e-7 < stream < 1e-4
        assert math.isfinite(found["fp32 FMA"].value or math.nan)
