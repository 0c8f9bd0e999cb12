"""Cases on the CPU, with arrays, calls and a check against float64; and their measurement: profile, parameters, records.

Some shapes fit the caches and are bound by multiply-adds; others stream scores or copies through DRAM, with sizes relative to the
last-level cache. Halving any rate of the profile spoils the predictions of some group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

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
from perfmodel.validation.fit_points import FULL, FitPoint, Key, solved
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
    """Shapes to time for a last-level cache of ``llc_bytes``: those of ``cases.yaml``."""
    streamed = min(max(ceil_div(int(STREAMED_SHARE * llc_bytes), 2 * 4 * STREAMED_N**2), 2) // 2 * 2, MOST_HEADS)

    def sizes(row: dict[str, Any]) -> dict[str, Any]:
        if "share" in row:
            return {"bytes": int(llc_bytes * row["share"]) // 128 * 64}
        if "m" in row:
            return row
        n, heads = (STREAMED_N, streamed) if "streamed" in row else (row["n"], row.get("heads", 2))
        return attention_shape((1, heads, heads // row.get("group", 1)), (n, row.get("kv_len", n)), row["d"], row.get("causal", False))

    table, _ = read_yaml(CASES)
    return [cpu_case(name, sizes(row), role) for role in (FIT, HELD_OUT) for name, rows in table[role].items() for row in rows]


Prepared = tuple[Run, Callable[[], float]]
"""(run the shape, relative error of its output); the output starts as NaN."""


def scratch_for(listed: Sequence[KernelCase]) -> Any:
    """Two arrays for S and P that all of ``listed`` share, as large as the largest needs."""
    sizes = [shape.shape for shape in listed if shape.implementation == "cpu-standard"]
    return np.empty((2, max((size["heads"] * size["n"] * size["kv_len"] for size in sizes), default=0)), np.float32)


def prepare(shape: KernelCase, threads: int, scratch: Any) -> Prepared:
    """``shape`` with random operands; ``scratch``: arrays of ``scratch_for``."""
    rng, w = np.random.default_rng(SEED), case_of(shape.record()).workload

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
        tile = MATMUL_ROWS, MATMUL_COLUMNS, MATMUL_COLUMNS
        return lambda: kernels.multiply(a, b, c, *tile, False, kernels.ONE, threads), lambda: relative_error(c, expected)
    q, k, v = random(w.query_heads, w.n, w.d), *(random(w.stored_kv_heads, w.kv_len, width) for width in (w.d, w.dv))
    o, scale, scores = output(w.query_heads, w.n, w.dv), np.float32(1 / math.sqrt(w.d)), (w.query_heads, w.n, w.kv_len)

    if shape.implementation == "cpu-flash":
        return lambda: kernels.flash(q, k, v, o, w.causal, scale, threads), lambda: attention_error(w, q, k, v, o)
    s, p = (array[: math.prod(scores)].reshape(scores) for array in scratch)
    s[:] = p[:] = np.nan

    def standard() -> None:
        kernels.multiply(q, k, s, TILE_ROWS, TILE_KEYS, w.kv_len, True, scale, threads)
        kernels.softmax(s, p, w.causal, threads)
        kernels.multiply(p, v, o, TILE_ROWS, w.dv, w.dv, False, kernels.ONE, threads)

    return standard, lambda: attention_error(w, q, k, v, o)


def checked(shape: KernelCase, threads: int, scratch: Any) -> Run:
    """Function that runs ``shape``; PerfmodelError if its result is wrong."""
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

    The profile carries a calibration per implementation. Records are those of shapes that no fit saw. ``done`` is called with the share of
    timing that is over.
    """
    cores = int(get_num_threads())  # every kernel uses all: one per core that this process may use
    cache_bytes = caches(cores)
    progress(f"compiling kernels for {cores} threads and checking them against float64")
    asked, loops = shapes(cache_bytes[0]), rate_loops(cache_bytes[0], cores)
    scratch = scratch_for(asked)
    runs = {shape.label: checked(shape, cores, scratch) for shape in asked}
    progress(f"timing {len(loops)} rates and {len(runs)} kernels in turns")
    times = in_turns({**{name: run for name, (run, _) in loops.items()}, **runs}, done)
    profile = device(loops, times, cache_bytes, cores)
    facts = {**versions(), "threads": cores}
    records = [
        shape.record(profile.id, Seconds.of(seconds), SOURCE, environment={**facts, "runs": len(seconds)})
        for shape, seconds in ((shape, times[shape.label]) for shape in asked)
    ]
    unseen = [raw_of(record) for record in records if held_out(record)]
    return replace(profile, calibration=calibrations([record for record in records if not held_out(record)], profile)), unseen


def calibrations(records: Sequence[Record], profile: Device) -> list[Calibration]:
    """Parameters by implementation, with an interval from the residuals of all implementations, as each has few shapes."""
    grouped: dict[Key, list[FitPoint]] = {}
    for record in records:
        case, lower_s, reason = evaluated(record, profile)
        if case is None or lower_s is None:
            raise PerfmodelError(reason)
        key: Key = (record.workload, record.implementation, "forward", MODEL.name, profile.architecture)
        grouped.setdefault(key, []).append(FitPoint(record, case, profile, lower_s))
    fits = {key: solved(listed, FULL, MODEL) for key, listed in grouped.items()}
    missed = {key: [Residual(value, f"{key} {at}") for at, value in enumerate(values)] for key, (_, values) in fits.items()}
    low, high = interval([residual for listed in missed.values() for residual in listed])
    blocks = {
        key: block_of(key, fits[key][0], listed, date.today().isoformat(), lambda records: in_words()) for key, listed in grouped.items()
    }
    return [replace(with_interval(block, missed[key]), low=low, high=high, source="run") for key, block in blocks.items()]
