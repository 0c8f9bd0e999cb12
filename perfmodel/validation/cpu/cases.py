"""What is run on the CPU, with arrays, calls and a check against float64; its measurement: profile, parameters, records.

Some shapes fix the model's parameters and others judge it, with no pair (d, causal) in common. Some sit in the caches and are
bound by multiply-adds, some stream scores or copies through DRAM; sizes of the latter follow the last-level cache. Any halved
rate of the profile spoils the predictions of some group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from perfmodel.core.arith import quantile
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import WARM, Case
from perfmodel.timing.models.cpu import MATMUL_COLUMNS, MATMUL_ROWS, MODEL, TILE_ROWS
from perfmodel.validation.bounds import case_of, evaluated
from perfmodel.validation.calibrate import block_of
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from perfmodel.validation.cpu import kernels
from perfmodel.validation.cpu.profile import Run, cache_sizes, device, in_turns, in_words, rate_loops, shared_caches, threads, versions
from perfmodel.validation.fit_points import FULL, FitPoint, Key, solved
from perfmodel.validation.kernels.reference import TOLERANCE, attention_error, relative_error
from perfmodel.validation.records import Record, Seconds, held_out, raw_of
from perfmodel.validation.statistics import Residual, interval

SEED = 20240229
SOURCE = "perfmodel validate --backend cpu: CPU time of the busiest thread, the same buffers again and again"
DTYPE = "fp32"
STREAMED_N = 1024
"""Sequence length of the shapes whose scores overflow the cache."""
STREAMED_SHARE = 2.0
"""Their S and P together, over the last-level cache; see STREAMED of the time model."""
MOST_HEADS = 64


def cpu_case(implementation: str, sizes: dict[str, Any], role: str = HELD_OUT) -> KernelCase:
    """One kernel to time; FIT: it fixes parameters, HELD_OUT: it judges predictions."""
    workload = {"cpu-copy": "copy", "cpu-matmul": "matmul"}.get(implementation, "attention")
    return KernelCase(workload, implementation, sizes, DTYPE, role=role, cache=WARM)


def timed(shape: KernelCase) -> Case:
    """Case of the time model for ``shape``; it does not depend on the time."""
    return case_of(shape.record())


def _attention(heads: int, kv_heads: int, n: int, kv_len: int, d: int, causal: bool = False) -> dict[str, Any]:
    return {"batch": 1, "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len, "d": d, "causal": causal}


def shapes(llc_bytes: int) -> list[KernelCase]:
    """Shapes to time for a last-level cache of ``llc_bytes``."""
    heads = min(max(-(-int(STREAMED_SHARE * llc_bytes) // (2 * 4 * STREAMED_N**2)), 2) // 2 * 2, MOST_HEADS)

    def streamed(d: int, causal: bool, group: int = 1) -> dict[str, Any]:
        return _attention(heads, heads // group, STREAMED_N, STREAMED_N, d, causal)

    fit = {
        "cpu-flash": [_attention(2, 2, 512, 512, 32), _attention(2, 2, 768, 768, 128, True), _attention(2, 2, 512, 512, 96)],
        "cpu-standard": [
            *(_attention(2, 2, 768, 768, 32), _attention(2, 2, 768, 768, 128, True)),
            *(streamed(32, False), streamed(128, True)),
        ],
        "cpu-matmul": [{"m": m, "n": n, "k": 384} for m, n in ((384, 384), (256, 512))],
        "cpu-copy": [{"bytes": int(llc_bytes * share) // 128 * 64} for share in (0.4, 4.0)],
    }
    judge = {
        "cpu-flash": [_attention(2, 2, 768, 768, 64, True), _attention(4, 2, 500, 700, 16, True), _attention(4, 1, 512, 512, 128)],
        "cpu-standard": [
            _attention(2, 2, 768, 768, 64),
            *(streamed(16, False), streamed(16, True), streamed(48, False), streamed(48, True, group=2)),
        ],
        "cpu-matmul": [{"m": m, "n": n, "k": k} for m, n, k in ((512, 512, 512), (448, 320, 640))],
        "cpu-copy": [{"bytes": int(llc_bytes * share) // 128 * 64} for share in (0.6, 1.6, 2.5, 3.0, 5.0)],
    }
    return [cpu_case(name, sizes, role) for role, table in ((FIT, fit), (HELD_OUT, judge)) for name in table for sizes in table[name]]


Prepared = tuple[Run, Callable[[], float]]
"""(run the shape, relative error of its output); the output starts as NaN."""


def scratch_for(listed: Sequence[KernelCase]) -> Any:
    """Two arrays for S and P that all of ``listed`` share, as large as the largest has them."""
    sizes = [shape.shape for shape in listed if shape.implementation == "cpu-standard"]
    return np.empty((2, max((one["heads"] * one["n"] * one["kv_len"] for one in sizes), default=0)), np.float32)


def prepare(shape: KernelCase, threads: int, scratch: Any) -> Prepared:
    """``shape`` with random operands; ``scratch``: of ``scratch_for``."""
    rng, w = np.random.default_rng(SEED), timed(shape).workload

    def random(*sizes: int) -> Any:
        return rng.standard_normal(sizes, dtype=np.float32)

    def output(*sizes: int) -> Any:
        return np.full(sizes, np.nan, np.float32)

    if shape.implementation == "cpu-copy":
        source = random(w.read_bytes // 4)
        target = output(source.size)
        return lambda: kernels.copy(source, target, kernels.ONE, threads), lambda: relative_error(target, source)
    if shape.implementation == "cpu-matmul":
        a, b, c = random(1, w.m, w.k), random(1, w.k, w.n), output(1, w.m, w.n)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        return lambda: kernels.multiply(a, b, c, MATMUL_ROWS, MATMUL_COLUMNS, threads), lambda: relative_error(c, expected)
    q, k, v = random(w.query_heads, w.n, w.d), *(random(w.stored_kv_heads, w.kv_len, width) for width in (w.d, w.dv))
    o, scale, scores = output(w.query_heads, w.n, w.dv), np.float32(1 / math.sqrt(w.d)), (w.query_heads, w.n, w.kv_len)

    if shape.implementation == "cpu-flash":
        return lambda: kernels.flash(q, k, v, o, w.causal, scale, threads), lambda: attention_error(w, q, k, v, o)
    s, p = (array[: math.prod(scores)].reshape(scores) for array in scratch)
    s[:] = p[:] = np.nan

    def standard() -> None:
        kernels.standard_scores(q, k, s, scale, threads)
        kernels.standard_softmax(s, p, w.causal, threads)
        kernels.multiply(p, v, o, TILE_ROWS, w.dv, threads)

    return standard, lambda: attention_error(w, q, k, v, o)


def checked(shape: KernelCase, threads: int, scratch: Any) -> Run:
    """Function that runs ``shape``, whose result has been found right; PerfmodelError otherwise."""
    run, error = prepare(shape, threads, scratch)
    run()
    if not (off := error()) < TOLERANCE["fp32"]:
        raise PerfmodelError(
            f"{shape.implementation} {shape.shape}: relative error {off:.2g}, expected below {TOLERANCE['fp32']:.0e}",
            "the compiler of this machine's numba makes wrong code; report numba's version and the processor",
        )
    return run


def measure(progress: Callable[[str], None], done: Callable[[float], None] = lambda share: None) -> tuple[Device, list[dict[str, Any]]]:
    """Profile, calibration and records of this machine's CPU; PerfmodelError if a kernel's result is wrong.

    The profile carries a calibration per implementation. Records are of shapes that fixed no parameter. ``done`` hears what share of
    the timing is over.
    """
    cores = threads()
    caches = shared_caches(cache_sizes(), cores)
    progress(f"compiling kernels for {cores} threads and checking them against float64")
    asked, loops = shapes(caches[0]), rate_loops(caches[0], cores)
    scratch = scratch_for(asked)
    runs = {shape.label: checked(shape, cores, scratch) for shape in asked}
    progress(f"timing {len(loops)} rates and {len(runs)} kernels in turns")
    times = in_turns({**{name: run for name, (run, _) in loops.items()}, **runs}, done)
    profile = device(loops, times, caches, cores)
    environment = {**versions(), "threads": cores}
    records = [
        shape.record(profile.id, Seconds.of(times[shape.label]), SOURCE, environment={**environment, "runs": len(times[shape.label])})
        for shape in asked
    ]
    unseen = [raw_of(record) for record in records if held_out(record)]
    return replace(profile, calibration=calibrations([record for record in records if not held_out(record)], profile)), unseen


def calibrations(records: Sequence[Record], profile: Device) -> list[Calibration]:
    """Parameters by implementation, with an interval of the residuals of all, as each has few shapes."""
    points: dict[str, list[FitPoint]] = {}
    for record in records:
        case, lower_s, reason = evaluated(record, profile)
        if case is None or lower_s is None:
            raise PerfmodelError(reason)
        points.setdefault(record.implementation, []).append(FitPoint(record, case, profile, lower_s))
    fits = {name: solved(listed, FULL, MODEL) for name, listed in points.items()}
    low, high = interval([Residual(value, f"{name} {at}") for name, (_, missed) in fits.items() for at, value in enumerate(missed)])
    blocks = []
    for name, (parameters, missed) in fits.items():
        key: Key = (points[name][0].record.workload, name, "forward", MODEL.name, profile.architecture)
        block = block_of(key, parameters, points[name], date.today().isoformat(), lambda records: in_words())
        off = quantile([abs(math.expm1(-value)) for value in missed], 0.5)
        blocks.append(replace(block, low=low, high=high, source="run", median_error=off))
    return blocks
