"""Library kernels: what is measured, the records of it, the timer; the kernels themselves where there is a GPU with torch."""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from each import each

from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from perfmodel.validation.libraries import Prepared, load_torch
from perfmodel.validation.libraries import measure as measuring
from perfmodel.validation.libraries.kernels import LIBRARIES, directions, find
from perfmodel.validation.libraries.measure import FAMILIES, RULE, TorchTimer, as_line, cases, measure, shapes
from perfmodel.validation.records import Record, Seconds, read_records, shipped_records
from tools.measure import compiled, wide
from tools.measure.prepared import PREPARED
from tools.measure.profiler import Launch, in_windows

ALL = [case for family in FAMILIES for case in cases(family)]
SHIPPED = [path for path in shipped_records() if path.name.startswith("torch-")]


def run(listed):
    """Records of cases, and why others have none."""
    records, skipped = [], []
    measure(listed, "nvidia-h200-sxm", records.append, lambda case, why: skipped.append(why), find=find)
    return records, skipped


def identity(workload, implementation, direction, dtype, shape, cache, row_major):
    return (workload, implementation, direction, dtype, json.dumps(dict(shape), sort_keys=True), cache, row_major)


def values(section, role, *columns):
    return {tuple(row[column] for column in columns) for row in shapes()[section][role]}


@each(
    ("section", "columns"),
    [(section, columns) for section in ("attention", "decode", "eager") for columns in (("kv_len",), ("batch", "heads", "kv_heads"))]
    + [("matmul", ("n", "k")), ("batched matmul", ("m", "n", "k")), ("copy", ("bytes",)), ("mask", ("cols",)), ("mask", ("rows",))]
    + [(section, (column,)) for section in ("rows", "softmax") for column in ("rows", "cols")],
)
def test_fit_and_held_out_shapes_have_nothing_in_common(section, columns):
    assert not values(section, FIT, *columns) & values(section, HELD_OUT, *columns)
    assert values(section, FIT, *columns)
    assert values(section, HELD_OUT, *columns)


def test_some_head_dims_are_held_out_with_their_mask():
    unseen = values("attention", HELD_OUT, "d", "causal") - values("attention", FIT, "d", "causal")
    assert unseen == {(96, False), (192, True), (256, False)}


def test_no_shape_is_listed_twice():
    for section in shapes():
        rows = [json.dumps(row) for role in (FIT, HELD_OUT) for row in shapes()[section][role]]
        assert len(rows) == len(set(rows))


def test_no_case_is_fit_on_and_judged_on():
    """Across the families too: attention's matmuls are also cases of the matmul kernels."""
    seen = {}
    for case in ALL:
        key = identity(case.workload, case.implementation, case.direction, case.dtype, case.shape, True, case.row_major)
        assert seen.setdefault(key, case.role) == case.role, case


@each("case", [cases(family)[0] for family in FAMILIES])
def test_every_family_starts_with_a_case_that_runs(case):
    assert callable(find(case))
    assert case.direction in directions(case.workload)


def test_every_case_has_a_kernel_and_every_kernel_a_case():
    assert all(callable(find(case)) for case in ALL)
    assert {(case.workload, case.implementation) for case in ALL} == set(LIBRARIES)
    drawn = {(workload, name) for workload, name, *_ in (*wide.FAMILIES, *compiled.FAMILIES)}
    assert drawn - set(LIBRARIES) == set(PREPARED) - set(LIBRARIES) != set()


def test_an_unknown_kernel_is_named():
    with pytest.raises(DataError, match=r"torch-sdpa-flush.*\n.*torch-sdpa-flash"):
        find(KernelCase("attention", "torch-sdpa-flush", {}))
    with pytest.raises(DataError, match="no backward pass"):
        find(KernelCase("matmul", "torch-matmul", {}, direction="backward"))
    with pytest.raises(DataError, match="no family"):
        cases("sdpa-flush")


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"need PyTorch(.|\n)*perfmodel\[torch\]"):
        run(cases("copy"))


def test_without_a_gpu_the_build_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="9.9", cuda=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(UnavailableError, match=r"PyTorch 9\.9 sees no CUDA device"):
        run(cases("copy"))


def test_shipped_records_are_the_cases():
    """Every case was measured, nothing else is in the files, and each row says which set it belongs to."""
    roles = {identity(c.workload, c.implementation, c.direction, c.dtype, c.shape, c.cache, c.row_major): c.role for c in ALL}
    found = {}
    for path in SHIPPED:
        for _, r in read_records(path):
            row_major = "B row-major" in r.source
            key = identity(r.workload, r.implementation, r.direction, r.dtype, r.shape, r.cache_state, row_major)
            role = r.source.rsplit("; ", 1)[1]
            assert found.setdefault(key, role) == role  # different attention shapes share some of their steps
    assert found == roles
    assert sum(path.stat().st_size for path in SHIPPED) < 800_000


class FakeTorch:
    """As much of torch as the timer uses; each event reads a clock that every run moves on."""

    def __init__(self, steps=(1e-3,)):
        self.now, self.calls, self.steps = 0.0, [], steps
        self.float32, self.__version__ = None, "9.9+cpu"
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: FakeEvent(self),
            synchronize=lambda: self.calls.append("synchronize"),
            _sleep=lambda cycles: self.calls.append("wait"),
            clock_rate=lambda: 1500,
            memory_reserved=lambda: 1 << 40,
            empty_cache=lambda: self.calls.append("emptied"),
        )
        self.no_grad = self.enable_grad = nullcontext

    def zeros(self, *args, **kwargs):
        return SimpleNamespace(sum=lambda: self.calls.append("flush"), zero_=lambda: self.calls.append("write"))

    def run(self):
        self.now += self.steps[self.calls.count("run") % len(self.steps)]
        self.calls.append("run")


class FakeEvent:
    def __init__(self, torch):
        self.torch = torch

    def record(self):
        self.at = self.torch.now

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


@pytest.mark.parametrize("cache", ["clean", "dirty", "warm"])
def test_only_the_run_is_timed(cache):
    torch = FakeTorch()
    times = TorchTimer(torch).times(torch.run, cache)
    assert times == pytest.approx([1e-3] * 10)
    before = {"clean": ["flush"], "dirty": ["write"], "warm": []}[cache]
    assert [torch.calls.count(call) for call in ("flush", "write")] == [10 * (cache == "clean"), 10 * (cache == "dirty")]
    first = torch.calls.index("wait")
    assert torch.calls[first : first + 3] == ["wait", *before, "run", "wait"][:3]


def test_noisy_runs_are_repeated():
    torch = FakeTorch(steps=(1e-3, 3e-3))
    assert len(TorchTimer(torch, replace(RULE, budget_s=10)).times(torch.run, "clean")) == 40


@pytest.fixture
def faked(monkeypatch):
    """measure() over a library whose error and behaviour the test sets."""
    torch, library = FakeTorch(), SimpleNamespace(error=0.001, failure=None)

    def prepare(case, torch):
        if library.failure:
            raise library.failure
        return Prepared(torch.run, lambda found: library.error)

    monkeypatch.setattr(measuring, "load_torch", lambda: torch)
    monkeypatch.setitem(globals(), "find", lambda case: prepare)
    return library, torch


def test_a_measurement_becomes_a_record(faked, tmp_path):
    case = KernelCase("matmul", "torch-matmul", {"m": 1, "n": 2, "k": 3}, role=HELD_OUT, row_major=True)
    [record], _ = run([case])
    assert record.time_s.median == pytest.approx(1e-3)
    assert record.source == "torch 9.9; B row-major; held out"
    assert record.environment == {"torch": "9.9+cpu", "runs": 10, "relative_error": 0.001, "sm_mhz": 1500}
    assert "emptied" in faked[1].calls
    path = tmp_path / "one.jsonl"
    path.write_text(as_line(record))
    [(raw, read)] = read_records(path)
    assert raw["pass"] == "forward"
    assert "counters" not in raw
    assert read.time_s.median == pytest.approx(record.time_s.median, rel=1e-3)
    assert (read.shape, read.cache, read.source) == (record.shape, "cold", record.source)


@pytest.mark.parametrize("error", [0.5, math.nan])
def test_wrong_results_are_not_recorded(faked, error):
    faked[0].error = error
    records, [skipped] = run(cases("copy")[:1])
    assert records == []
    assert "relative error against float64" in skipped


def test_a_case_that_does_not_run_is_reported(faked):
    faked[0].failure = RuntimeError("No available kernel.\nMore.")
    assert run(cases("copy")[:2]) == ([], ["No available kernel."] * 2)


def test_lines_leave_out_what_is_empty():
    record = Record("copy", "torch-copy", "nvidia-h200-sxm", "bf16", {"bytes": 4}, Seconds(1.23456789e-6))
    line = json.loads(as_line(record))
    assert line["time_s"] == {"median": 1.235e-06}
    assert {"cache", "source", "environment", "launch"}.isdisjoint(line)


def test_kernels_are_found_by_their_window():
    more = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 64, "shared memory": 1024}
    events = [
        {"cat": "user_annotation", "name": "case 0", "ts": 0, "dur": 10},
        {"cat": "user_annotation", "name": "case 1", "ts": 20, "dur": 10},
        {"cat": "kernel", "name": "second", "ts": 7, "dur": 2, "args": more},
        {"cat": "gpu_memset", "name": "first", "ts": 3, "dur": 1, "args": {}},
        {"cat": "kernel", "name": "between", "ts": 15, "dur": 1, "args": more},
        {"cat": "cpu_op", "name": "host", "ts": 5, "dur": 1},
    ]
    found = in_windows(events)
    assert [kernel.name for kernel in found["case 0"]] == ["first", "second"]
    assert found["case 0"][1] == Launch("second", (4, 2, 1), 128, 64, 1024, 2e-6)
    assert found["case 1"] == []


def gpu_or_skip():
    try:
        return load_torch()
    except UnavailableError as error:
        pytest.skip(error.message)


ATTENTION = {"batch": 2, "heads": 4, "kv_heads": 4, "n": 256, "kv_len": 256, "d": 64, "causal": False}
MATRIX = {"rows": 96, "cols": 512}
SMALL = {
    "attention": ATTENTION,
    "matmul": {"m": 65, "n": 96, "k": 128},
    "copy": {"bytes": 4096},
    "softmax": MATRIX,
    "norm": MATRIX,
    "scale": MATRIX,
}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's first matmul on a thread of its autograd engine
@pytest.mark.parametrize(("workload", "name", "direction"), [(*key, way) for key in LIBRARIES for way in directions(key[0])])
def test_results_and_times_on_a_gpu(workload, name, direction):
    gpu_or_skip()
    shape = SMALL[workload] | ({"mask_rows": 24} if name == "torch-mask" else {})
    [record], _ = run([KernelCase(workload, name, shape, direction=direction)])
    assert 1e-6 < record.time_s.p10 <= record.time_s.median <= record.time_s.p90 < 1e-2


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's first matmul on a thread of its autograd engine
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_wrong_reference_is_noticed_on_a_gpu(direction, monkeypatch):
    gpu_or_skip()
    case = KernelCase("attention", "torch-sdpa-flash", ATTENTION | {"causal": True}, direction=direction)
    assert run([case])[1] == []
    monkeypatch.setattr(math, "sqrt", lambda x: 2 * x)
    assert "relative error" in run([case])[1][0]
