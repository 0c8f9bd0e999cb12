"""The CPU backend: right results, a profile whose bound holds, a model that can fail. No assertion depends on how fast the machine is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.sanity import validated
from perfmodel.timing.base import Case
from perfmodel.timing.models import cpu
from perfmodel.validation.bounds import case_of
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from perfmodel.validation.cpu import cases, profile
from perfmodel.validation.cpu.cases import checked, cpu_case, prepare, scratch_for, shapes
from perfmodel.validation.cpu.profile import DRAM_COPY, FMA, FMA_ALONE, READ, TWICE_COPY, ThreadTimer, in_turns, settled
from perfmodel.validation.kernels.reference import relative_error
from perfmodel.validation.records import Seconds

MIB = 1 << 20
PARAMETERS = {"fma_share": 0.8, "softmax_exps": 4.0, "streams_per_copy": 2.0}


def attention(
    implementation: str, n: int, kv_len: int, d: int, causal: bool, heads: int = 2, kv_heads: int = 1, fit: bool = False
) -> KernelCase:
    sizes = {"batch": 1, "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len, "d": d, "causal": causal}
    return cpu_case(implementation, sizes, FIT if fit else HELD_OUT)


def matmul(m: int, n: int, k: int, fit: bool = False) -> KernelCase:
    return cpu_case("cpu-matmul", {"m": m, "n": n, "k": k}, FIT if fit else HELD_OUT)


def copied(size: int, fit: bool = False) -> KernelCase:
    return cpu_case("cpu-copy", {"bytes": size}, FIT if fit else HELD_OUT)


def measured(value: str | int) -> dict[str, Any]:
    return {"value": value, "kind": "measured", "source": "run"}


def device(flop_per_s: float = 230e9, dram: float = 55e9) -> Device:
    """Two cores with 32 MiB of cache."""
    llc = {"capacity": measured(f"{32 * MIB} B"), "measured_bandwidth": measured("110000000000 B/s")}
    return validated(
        {
            "schema_version": 1,
            "id": "two-cores",
            "name": "two cores",
            "vendor": "none",
            "architecture": "none",
            "sources": {"run": "this test"},
            "multiprocessors": measured(2),
            "memory": [
                {"level": "llc", "scope": "device", "name": "cache", **llc},
                {"level": "dram", "scope": "device", "name": "DRAM", "measured_bandwidth": measured(f"{dram:.0f} B/s")},
            ],
            "peaks": {"vector": {"fp32": measured(f"{flop_per_s:.0f} FLOP/s")}, "exp": measured("10000000000 OP/s")},
            "launch_overhead": {"stream": measured("0.00003 s")},
        }
    )


def timed(shape: KernelCase) -> Case:
    return case_of(shape.record())


def seconds(shape: KernelCase, on: Device) -> float:
    return cpu.MODEL.seconds(timed(shape), on, PARAMETERS)


# Kernels

KERNELS = [
    *(
        attention(name, n, kv_len, d, causal, heads, kv_heads)
        for name in ("cpu-flash", "cpu-standard")
        for n, kv_len, d, causal, heads, kv_heads in (
            (1, 1, 16, False, 1, 1),
            (130, 70, 32, True, 2, 1),  # partial tiles; rows that see nothing
            (37, 300, 16, True, 4, 2),  # more keys than queries, grouped heads
            (128, 64, 64, False, 3, 3),  # whole tiles, heads that do not divide among two threads
            (9, 11, 20, False, 1, 1),  # a head dim that fills no vector
        )
    ),
    *(matmul(*sizes) for sizes in ((1, 1, 1), (64, 128, 128), (70, 131, 257))),
    copied(4 * 1023),
]


@pytest.mark.parametrize("shape", KERNELS, ids=lambda shape: f"{shape.implementation}-{'-'.join(map(str, shape.shape.values()))}")
def test_kernels_agree_with_float64(shape: KernelCase) -> None:
    for threads in (1, 2):
        call, error = prepare(shape, threads, scratch_for([shape]))
        assert error() == float("inf")  # the output is poisoned
        call()
        assert error() < 1e-5


def test_a_wrong_result_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "relative_error", lambda found, expected: relative_error(found * 1.001, expected))
    with pytest.raises(PerfmodelError, match=r"cpu-matmul .*relative error 0\.001, expected below 1e-05"):
        checked(matmul(8, 8, 8), 1, scratch_for([]))


# Timing


def test_waiting_does_not_count() -> None:
    if not profile.thread_clocks():
        pytest.skip("this system has no clocks of threads")
    assert ThreadTimer().seconds(lambda: time.sleep(0.03)) < 0.015


def test_without_clocks_of_threads_the_wall_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "thread_clocks", list)
    assert ThreadTimer().seconds(lambda: time.sleep(0.03)) >= 0.03


def test_times_are_settled_when_they_agree_or_are_out_of_budget() -> None:
    assert settled([0.001, 0.001001, 0.000999] * 5)
    assert settled([0.5, 0.1])
    assert not settled([0.001, 0.002, 0.003] * 5)


def test_runs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(profile, "thread_clocks", list)
    monkeypatch.setattr(profile, "TURN", replace(profile.TURN, budget_s=0.0))
    monkeypatch.setattr(profile, "settled", lambda times: len(times) == 2)

    def calls(name: str) -> Callable[[], None]:
        return lambda: called.append(name)

    shares: list[float] = []
    times = in_turns({name: calls(name) for name in "ab"}, shares.append)
    assert "".join(called) == "aabbaabb"  # each turn begins with a run to warm up
    assert {name: len(listed) for name, listed in times.items()} == {"a": 2, "b": 2}
    assert shares == sorted(shares)
    assert shares[-1] == 1


# Profile


def fake_caches(folder: Path) -> Path:
    listed = [(1, "Data", "48K", "0"), (1, "Instruction", "32K", "0"), (2, "Unified", "2048K", "0-1"), (3, "Unified", "8192K", "0-3,8-11")]
    for index, (level, kind, size, cores) in enumerate(listed):
        place = folder / f"index{index}"
        place.mkdir()
        for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", cores)):
            (place / name).write_text(text + "\n")
    return folder


def test_caches_are_read_from_the_system(tmp_path: Path) -> None:
    folder = fake_caches(tmp_path)
    assert profile.caches(1, folder) == (8 * MIB, 2 * MIB)
    assert profile.caches(8, folder) == (8 * MIB, 8 * MIB)
    assert profile.caches(16, folder) == (16 * MIB, 16 * MIB)
    for level in (2, 3):
        shutil.rmtree(folder / f"index{level}")
    assert profile.caches(3, folder) == (3 * 48 << 10, 0), "private caches alone"
    assert profile.caches(2, tmp_path / "none") == (profile.ASSUMED_LLC_BYTES, 0)


def test_bounds_use_the_best_run_and_predictions_the_median() -> None:
    llc, cores = 1 << 20, 2
    loops = profile.rate_loops(llc, cores)
    times = {name: [0.001, 0.002, 0.002, 0.003] for name in loops} | {FMA_ALONE: [0.0008]}
    found = profile.device(loops, times, profile.CacheBytes(llc, 1 << 19), cores)
    assert found.best_matmul_rate("fp32") == pytest.approx(2 * profile.FMA_VALUES * profile.FMA_CHAIN * profile.FMA_ROUNDS * cores / 0.0008)
    assert {name: loops[name][1] / llc for name in (TWICE_COPY, DRAM_COPY, READ)} == {TWICE_COPY: 2, DRAM_COPY: 4, READ: 2}
    assert loops[FMA][1] == loops[FMA_ALONE][1]
    assert found.dram.bandwidth_bytes_per_s == pytest.approx(4 * llc / 0.001)
    assert found.dram.measured_bandwidth is not None
    assert found.dram.measured_bandwidth.number == pytest.approx(4 * llc / 0.002)
    assert found.cache_bytes == llc
    assert {level.level for level in found.memory} == {"l2", "llc", "dram"}


# Model


@pytest.mark.parametrize(("n", "kv_len", "causal"), [(300, 300, True), (300, 100, True), (100, 300, True), (130, 257, False)])
def test_tiles_against_their_rows(n: int, kv_len: int, causal: bool) -> None:
    w = timed(attention("cpu-flash", n, kv_len, 16, causal)).workload
    seen = [min(kv_len, max(0, row + 1 + kv_len - n)) if causal else kv_len for row in range(n)]
    for at, (rows, visible, keys) in enumerate(cpu.row_tiles(w)):
        own = seen[at * cpu.TILE_ROWS : (at + 1) * cpu.TILE_ROWS]
        assert (rows, visible) == (len(own), sum(own))
        assert max(own) <= keys <= min(kv_len, max(own) + cpu.TILE_KEYS - 1)


def test_hand_worked_times() -> None:
    on = device()
    assert seconds(matmul(64, 128, 128), on) == pytest.approx(30e-6 + 2 * 64 * 128 * 128 / (115e9 * 0.8))  # one tile, one core
    assert seconds(matmul(128, 128, 128), on) == pytest.approx(seconds(matmul(64, 128, 128), on))  # two tiles, two cores
    assert seconds(copied(100 * MIB), on) == pytest.approx(30e-6 + 200 * MIB / 55e9)
    assert seconds(copied(4 * MIB), on) == pytest.approx(30e-6 + 8 * MIB / 110e9)
    tile = 4 * 128 * 128 * 16 / (115e9 * 0.8) + 128 * 128 * 4.0 / 5e9
    assert seconds(attention("cpu-flash", 128, 128, 16, False), on) == pytest.approx(30e-6 + tile)
    assert seconds(attention("cpu-flash", 128, 128, 16, False, heads=3, kv_heads=3), on) == pytest.approx(30e-6 + 2 * tile)


def test_scores_stream_only_beyond_the_cache() -> None:
    small, large = (attention("cpu-standard", 1024, 1024, 32, False, heads, heads) for heads in (2, 16))
    slow = device(dram=1e9)
    assert seconds(small, slow) == seconds(small, device())
    assert seconds(large, slow) > 5 * seconds(large, device())


def test_what_the_model_covers() -> None:
    case = timed(attention("cpu-flash", 8, 8, 16, True))
    assert cpu.MODEL.covers(case)
    assert not any(
        cpu.MODEL.covers(other)
        for other in (
            replace(case, implementation="numba-flash"),
            replace(case, direction="backward"),
            replace(case, cache="clean"),
            replace(case, workload=replace(case.workload, window=4)),
            replace(case, implementation="cpu-matmul"),
            replace(case, implementation="cpu-copy"),
        )
    )


def test_a_profile_without_a_rate_says_which() -> None:
    lacking = replace(device(), launch_overhead=None)
    with pytest.raises(UnavailableError, match=r"two-cores has no launch_overhead\.stream"):
        seconds(copied(64), lacking)


# Fit and verdict


def test_judged_shapes_share_no_pair_with_fitted_ones() -> None:
    pairs: dict[bool, set[tuple[str, int, bool]]] = {True: set(), False: set()}
    sizes: dict[bool, list[Any]] = {True: [], False: []}
    for shape in shapes(32 * MIB):
        if shape.workload == "attention":
            pairs[shape.role == FIT].add((shape.implementation, shape.shape["d"], shape.shape["causal"]))
        sizes[shape.role == FIT].append((shape.implementation, shape.shape))
    assert pairs[True]
    assert not pairs[True] & pairs[False]
    assert not [one for one in sizes[True] if one in sizes[False]]


@pytest.mark.parametrize("llc", [4 * MIB, 32 * MIB, 384 * MIB])
def test_shapes_follow_the_cache(llc: int) -> None:
    streamed = [shape.shape for shape in shapes(llc) if shape.implementation == "cpu-standard" and shape.shape["n"] == 1024]
    held = {2 * 4 * sizes["heads"] * sizes["n"] * sizes["kv_len"] for sizes in streamed}
    assert all(size >= min(cpu.STREAMED * llc, 512 * MIB) for size in held)
    copies = [2 * shape.shape["bytes"] / llc for shape in shapes(llc) if (shape.implementation, shape.role) == ("cpu-copy", HELD_OUT)]
    assert min(copies) < cpu.STREAMED < sorted(copies)[1]


def test_a_fit_finds_what_the_times_were_made_with() -> None:
    on = device()
    fitted = [shape for shape in shapes(32 * MIB) if shape.role == FIT]
    found = {
        block.implementation: block
        for block in cases.calibrations([shape.record(on.id, Seconds(seconds(shape, on))) for shape in fitted], on)
    }
    assert set(found) == set(cpu.IMPLEMENTATIONS)
    for name, depends_on in (("cpu-flash", 2), ("cpu-standard", 3), ("cpu-matmul", 1)):
        for key in list(PARAMETERS)[:depends_on]:
            assert found[name].parameters[key] == pytest.approx(PARAMETERS[key], rel=0.01)
    assert all(block.low == pytest.approx(1, abs=0.01) and block.high == pytest.approx(1, abs=0.01) for block in found.values())


@pytest.mark.parametrize("wrong", [device(dram=27.5e9), device(flop_per_s=115e9)], ids=["half the DRAM bandwidth", "half the FMA rate"])
def test_a_profile_that_is_wrong_by_two_fails(wrong: Device) -> None:
    judged = [shape for shape in shapes(32 * MIB) if shape.role == HELD_OUT]
    errors = {id(shape): abs(seconds(shape, wrong) / seconds(shape, device()) - 1) for shape in judged}
    by_group = [
        median(errors[id(shape)] for shape in judged if shape.implementation == name) for name in {shape.implementation for shape in judged}
    ]
    assert max(by_group) > 0.5
    assert median(errors.values()) > 0.25


def test_measure_gives_records_that_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfmodel.validation.compare import compare
    from perfmodel.validation.records import Record

    small = [
        *(attention("cpu-flash", 64, 64, d, False, fit=fit) for d, fit in ((16, True), (32, True), (64, True), (48, False))),
        *(
            attention("cpu-standard", n, 64, 16, False, fit=fit)
            for n, fit in ((64, True), (96, True), (128, True), (192, True), (160, False))
        ),
        *(matmul(n, n, n, fit=fit) for n, fit in ((64, True), (96, True), (128, False))),
        *(copied(size, fit=fit) for size, fit in ((1 << 16, False), (1 << 17, True), (1 << 18, True))),
    ]
    monkeypatch.setattr(cases, "shapes", lambda llc_bytes: small)
    monkeypatch.setattr(cases, "caches", lambda cores: profile.CacheBytes(1 << 20, 0))
    monkeypatch.setattr(profile, "TURN", replace(profile.TURN, budget_s=0.002))
    monkeypatch.setattr(profile, "BUDGET_S", 0.004)
    said: list[str] = []
    found, records = cases.measure(said.append)
    assert {block.implementation for block in found.calibration} == set(cpu.IMPLEMENTATIONS)
    assert all(block.low <= block.high and block.source in found.sources for block in found.calibration)
    assert sum(block.points for block in found.calibration) == sum(shape.role == FIT for shape in small)
    assert [(raw["implementation"], raw["shape"]) for raw in records] == [(s.implementation, s.shape) for s in small if s.role == HELD_OUT]
    assert len(said) >= 2
    for raw in records:
        fields = {Record.FIELDS.get(key, key): value for key, value in raw.items()}
        row = compare(raw, Record(**{**fields, "time_s": Seconds(**raw["time_s"])}), found)
        assert raw["time_s"]["p10"] <= raw["time_s"]["median"] <= raw["time_s"]["p90"]
        assert row.prediction is not None
        assert row.lower_s is not None
        assert not row.violates
