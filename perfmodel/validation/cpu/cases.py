"""Measurement of the machine's CPU: kernels on listed shapes, checked and timed, and the profile, calibration and records that follow.

Some shapes fit the caches and are bound by multiply-adds; others stream scores or copies through DRAM, with sizes relative to the
last-level cache. So each rate of the profile limits the kernels of some group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.files import read_yaml
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import WARM
from perfmodel.timing.models.cpu import MATMUL_COLUMNS, MATMUL_ROWS, MODEL, TILE_KEYS, TILE_ROWS
from perfmodel.validation.bounds import case_of, evaluated
from perfmodel.validation.calibrate import block_of, with_interval
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase, attention_shape
from perfmodel.validation.cpu import kernels
from perfmodel.validation.cpu.profile import Run, caches, device, in_turns, in_words, rate_loops, versions
from perfmodel.validation.fit_points import FULL, FitKey, FitPoint, solved
from perfmodel.validation.kernels.reference import TOLERANCE, attention_error, relative_error
from perfmodel.validation.records import Record, Seconds, held_out, raw_of
from perfmodel.validation.statistics import Residual, interval

CASES = Path(__file__).with_suffix(".yaml")
SEED = 20240229
SOURCE = "perfmodel validate --backend cpu: CPU time of the busiest thread, the same buffers again and again"
STREAMED_N = 1024
"""Sequence length of the shapes whose scores overflow the cache."""
STREAMED_SHARE = 2.0
"""S and P of these shapes together, over the last-level cache; see STREAMED of the time model."""
MOST_HEADS = 64


def cpu_case(implementation: str, sizes: dict[str, Any], role: str = HELD_OUT) -> KernelCase:
    """One kernel to time. ``role``: FIT to fit parameters, HELD_OUT to judge predictions."""
    workload = {"cpu-copy": "copy", "cpu-matmul": "matmul"}.get(implementation, "attention")
    return KernelCase(workload, implementation, sizes, "fp32", role=role, cache=WARM)


def shapes(llc_bytes: int) -> list[KernelCase]:
    """The cases of ``cases.yaml`` for a last-level cache of ``llc_bytes``."""
    table, _ = read_yaml(CASES)
    return [cpu_case(name, _sizes(row, llc_bytes), role) for role in (FIT, HELD_OUT) for name, rows in table[role].items() for row in rows]


def _sizes(row: dict[str, Any], llc_bytes: int) -> dict[str, Any]:
    """The shape of a record for a row of ``cases.yaml``, whose comment says what its keys mean."""
    if "share" in row:
        return {"bytes": int(llc_bytes * row["share"]) // 128 * 64}
    if "m" in row:
        return row
    if "streamed" in row:
        score_bytes_per_head = 2 * 4 * STREAMED_N**2
        overflowing = ceil_div(int(STREAMED_SHARE * llc_bytes), score_bytes_per_head)
        n, heads = STREAMED_N, min(max(overflowing, 2) // 2 * 2, MOST_HEADS)
    else:
        n, heads = row["n"], row.get("heads", 2)
    kv_heads = heads // row.get("group", 1)
    return attention_shape((1, heads, kv_heads), (n, row.get("kv_len", n)), row["d"], row.get("causal", False))


class PreparedRun(NamedTuple):
    """``run`` runs the kernel once, ``error`` gives the relative error of its output, which starts as NaN."""

    run: Run
    error: Callable[[], float]


def scratch_for(cases: Sequence[KernelCase]) -> Any:
    """Two arrays for S and P that all ``cases`` share, as large as the largest needs."""
    sizes = [case.shape for case in cases if case.implementation == "cpu-standard"]
    return np.empty((2, max((size["heads"] * size["n"] * size["kv_len"] for size in sizes), default=0)), np.float32)


def prepare(case: KernelCase, threads: int, scratch: Any) -> PreparedRun:
    """``case`` with random operands; ``scratch``: arrays of ``scratch_for``."""
    rng, w = np.random.default_rng(SEED), case_of(case.record()).workload

    def random(*sizes: int) -> Any:
        return rng.standard_normal(sizes, dtype=np.float32)

    def output(*sizes: int) -> Any:
        return np.full(sizes, np.nan, np.float32)

    if case.implementation == "cpu-copy":
        source = random(w.read_bytes // 4)
        target = output(source.size)
        return PreparedRun(lambda: kernels.copy(source, target, kernels.ONE, threads), lambda: relative_error(target, source))
    if case.implementation == "cpu-matmul":
        a, b, c = random(1, w.m, w.k), random(1, w.k, w.n), output(1, w.m, w.n)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        tile = MATMUL_ROWS, MATMUL_COLUMNS, MATMUL_COLUMNS
        return PreparedRun(lambda: kernels.multiply(a, b, c, *tile, False, kernels.ONE, threads), lambda: relative_error(c, expected))
    q = random(w.query_heads, w.n, w.d)
    k, v = random(w.stored_kv_heads, w.kv_len, w.d), random(w.stored_kv_heads, w.kv_len, w.dv)
    o, scale = output(w.query_heads, w.n, w.dv), np.float32(1 / math.sqrt(w.d))
    if case.implementation == "cpu-flash":
        return PreparedRun(lambda: kernels.flash(q, k, v, o, w.causal, scale, threads), lambda: attention_error(w, q, k, v, o))
    scores = w.query_heads, w.n, w.kv_len
    s, p = (array[: math.prod(scores)].reshape(scores) for array in scratch)
    s[:] = p[:] = np.nan

    def standard() -> None:
        kernels.multiply(q, k, s, TILE_ROWS, TILE_KEYS, w.kv_len, True, scale, threads)
        kernels.softmax(s, p, w.causal, threads)
        kernels.multiply(p, v, o, TILE_ROWS, w.dv, w.dv, False, kernels.ONE, threads)

    return PreparedRun(standard, lambda: attention_error(w, q, k, v, o))


def checked(case: KernelCase, threads: int, scratch: Any) -> Run:
    """Function that runs ``case``; PerfmodelError if its result is wrong."""
    prepared = prepare(case, threads, scratch)
    prepared.run()
    error = prepared.error()
    if not error < TOLERANCE["fp32"]:  # NaN is wrong too
        raise PerfmodelError(
            f"{case.implementation} {case.shape}: relative error {error:.2g}, expected below {TOLERANCE['fp32']:.0e}",
            "the compiler of this machine's numba makes wrong code; report numba's version and the processor",
        )
    return prepared.run


def measure(progress: Callable[[str], None], done: Callable[[float], None] = lambda share: None) -> tuple[Device, list[dict[str, Any]]]:
    """The profile of this machine's CPU, and records of the shapes that no fit saw; PerfmodelError if a kernel's result is wrong.

    The profile has a calibration per implementation. ``done`` is called with the share of timing that is over.
    """
    cores = int(get_num_threads())  # every kernel uses all: one per core that this process may use
    cache_bytes = caches(cores)
    progress(f"compiling kernels for {cores} threads and checking them against float64")
    cases, loops = shapes(cache_bytes.last_level), rate_loops(cache_bytes.last_level, cores)
    scratch = scratch_for(cases)
    runs = {case.label: checked(case, cores, scratch) for case in cases}
    progress(f"timing {len(loops)} rates and {len(runs)} kernels in turns")
    times = in_turns({**{name: run for name, (run, _) in loops.items()}, **runs}, done)
    profile = device(loops, times, cache_bytes, cores)
    records = []
    for case in cases:
        seconds = times[case.label]
        facts = {**versions(), "threads": cores, "runs": len(seconds)}
        records.append(case.record(profile.id, Seconds.of(seconds), SOURCE, environment=facts))
    fitted = [record for record in records if not held_out(record)]
    unseen = [raw_of(record) for record in records if held_out(record)]
    return replace(profile, calibration=calibrations(fitted, profile)), unseen


def calibrations(records: Sequence[Record], profile: Device) -> list[Calibration]:
    """A calibration per implementation; their interval is that of all residuals, as each implementation has few shapes."""
    grouped: dict[FitKey, list[FitPoint]] = {}
    for record in records:
        case, lower_s, reason = evaluated(record, profile)
        if case is None or lower_s is None:
            raise PerfmodelError(reason)
        key = FitKey(record.workload, record.implementation, "forward", MODEL.name, profile.architecture)
        grouped.setdefault(key, []).append(FitPoint(record, case, profile, lower_s))
    blocks: list[Calibration] = []
    residuals: list[Residual] = []
    for key, points in grouped.items():
        parameters, values = solved(points, FULL, MODEL)
        of_key = [Residual(value, f"{key} {number}") for number, value in enumerate(values)]
        block = block_of(key, parameters, points, date.today().isoformat(), lambda records: in_words())
        blocks.append(with_interval(block, of_key))
        residuals += of_key
    low, high = interval(residuals)
    return [replace(block, low=low, high=high, source="run") for block in blocks]
