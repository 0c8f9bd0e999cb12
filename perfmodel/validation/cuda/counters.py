"""Hardware counters of the project's kernels, by Nsight Compute, and their tolerances against the model's counts.

``python -m perfmodel.validation.cuda.counters CASES MANIFEST`` is the program that is profiled: it launches each case once. CASES holds one
case per line. MANIFEST gets a line for each: the kernels that were launched, in order, or the reason why none was.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import estimate
from perfmodel.kernels.attention.algorithms import find
from perfmodel.program.ncu_csv import METRICS, CountedKernel, counters, parse, seconds
from perfmodel.validation.bounds import case_of
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.compare import Count, label
from perfmodel.validation.cuda.cases import checked
from perfmodel.validation.cuda.gpu import Environment, current_gpu, in_words, load_numba_cuda, open_gpu, small_grids, this_environment
from perfmodel.validation.cuda.run import OnRecord, Progress
from perfmodel.validation.kernels import FILL
from perfmodel.validation.records import Record, Seconds, raw_of

SOURCE = "perfmodel numba kernels under Nsight Compute, --clock-control none, caches flushed, one run"
TIMEOUT_S = 1800
BY_HAND = "try the same command by hand: ncu --csv --metrics dram__bytes_read.sum python -m perfmodel ..."
NO_RIGHT = "counters are for administrators on this machine: run as root, or set NVreg_RestrictProfilingToAdminUsers=0"
Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def find_ncu() -> str:
    """Path of ncu; UnavailableError if it is not on PATH."""
    path = shutil.which("ncu")
    if path is None:
        fix = "install NVIDIA Nsight Compute, or bring its output: ncu --csv --metrics ... > FILE"
        raise UnavailableError("no hardware counters: ncu is not on PATH", fix)
    return path


@dataclass(frozen=True, slots=True)
class Profile:
    """Kernels with ncu's counts, a row per case with the kernels it launched, and an error message, if any."""

    kernels: list[CountedKernel]
    launched: list[dict[str, Any]]
    complaint: str = ""


def profile(cases: Sequence[KernelCase], folder: Path, ncu: str, run: Run | None = None) -> Profile:
    """Run ``cases`` under ncu; UnavailableError if it counted nothing. ``folder`` holds files that the processes exchange."""
    listed, manifest, log = folder / "cases.jsonl", folder / "manifest.jsonl", folder / "ncu.csv"
    write_cases(cases, listed)
    options = ["--csv", "--metrics", ",".join(METRICS), "--clock-control", "none", "--log-file", str(log)]
    program = [sys.executable, "-m", "perfmodel.validation.cuda.counters", str(listed), str(manifest)]
    try:
        finished = (run or _run)([ncu, *options, *program])
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ncu took more than {TIMEOUT_S} s", "count fewer cases") from None
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()] if manifest.is_file() else []
    complaint = _complaint(finished, log) if finished.returncode else ""
    if not log.is_file() or not any(row["kernels"] for row in rows):
        raise UnavailableError(
            f"ncu failed: {complaint or 'it launched nothing'}", NO_RIGHT if "ERR_NVGPUCTRPERM" in complaint else BY_HAND
        )
    return Profile(parse(log), rows, complaint)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)


def _complaint(finished: subprocess.CompletedProcess[str], log: Path) -> str:
    """The line in which ncu or the program says what went wrong."""
    written = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in (written + "\n" + finished.stdout + "\n" + finished.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line]
    return (errors or lines or [f"exit code {finished.returncode}"])[0 if errors else -1]


def assign(kernels: list[CountedKernel], launched: list[dict[str, Any]]) -> list[list[CountedKernel]]:
    """The counted kernels of each case: launches come in the order of the cases. DataError if the names do not match.

    Kernels after the last case belong to a case that did not finish.
    """
    rest = iter(sorted(kernels, key=lambda kernel: kernel.run))
    by_case = []
    for row in launched:
        of_case = []
        for name in row["kernels"]:
            kernel = next(rest, None)
            if kernel is None or name not in kernel.name:
                seen = "the end" if kernel is None else f"{kernel.name[:80]!r} (line {kernel.line})"
                raise DataError(f"ncu's list of kernels: expected {name!r}, found {seen}", "count the cases again")
            of_case += [kernel] if name != FILL else []
        by_case.append(of_case)
    return by_case


def count(cases: Sequence[KernelCase], progress: Progress, on_record: OnRecord, hardware: str | None = None) -> list[str]:
    """Run ``cases`` under ncu and pass a record with counters of each to ``on_record``; returns a message per case without one."""
    ncu, gpu = find_ncu(), open_gpu()
    environment = this_environment(gpu, hardware)
    progress(f"{len(cases)} cases under {ncu}")
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as name:
        counted = profile(cases, Path(name), ncu)
    return records_of(cases, counted, environment, on_record)


def records_of(cases: Sequence[KernelCase], counted: Profile, environment: Environment, on_record: OnRecord) -> list[str]:
    """Passes a record per counted case to ``on_record``; returns messages on the others."""
    failures = []
    for case, row, kernels in zip(cases, counted.launched, assign(counted.kernels, counted.launched), strict=False):
        time_s = seconds(kernels)
        if not row["kernels"] or time_s is None:
            failures.append(f"{case.label}: {row.get('reason', 'ncu gave no duration')}")
        else:
            facts = {"counters": counters(kernels), "environment": {**environment.facts, "runs": 1}}
            record = case.record(environment.hardware, Seconds(time_s, time_s, time_s), SOURCE, **facts)  # one run: equal quantiles
            on_record(raw_of(record) | {"launch": row["launch"]})
    why = counted.complaint or "the program ended early"
    return failures + [f"{case.label}: not run, {why}" for case in cases[len(counted.launched) :]]


# The program that is profiled


def write_cases(cases: Iterable[KernelCase], path: Path) -> None:
    """Writes ``cases`` to ``path``, one JSON object per line."""
    path.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases), encoding="utf-8")


def read_cases(path: Path) -> list[KernelCase]:
    """Cases that ``write_cases`` wrote to ``path``."""
    return [checked(KernelCase(**json.loads(line))) for line in path.read_text(encoding="utf-8").splitlines()]


def launch_all(cases: Iterable[KernelCase], manifest: Path, launch_one: Callable[[KernelCase], dict[str, Any]]) -> None:
    """Launch each case once; a case that fails before its launch leaves its reason in ``manifest``."""
    with manifest.open("w", encoding="utf-8") as file:
        for case in cases:
            try:
                row = launch_one(case)
            except Exception as error:  # whatever the driver says, the next case may run
                row = {"kernels": [], "reason": in_words(error)}
            file.write(json.dumps(row) + "\n")
            file.flush()


def launch_on_gpu(case: KernelCase) -> dict[str, Any]:
    """Prepare and launch ``case`` once, and nothing else."""
    import numpy as np

    from perfmodel.validation.cuda.prepare import prepare

    cuda = load_numba_cuda()
    with small_grids():
        ready = prepare(case, np.random.default_rng())
        ready.launch()
        cuda.synchronize()
    row = {"kernels": list(ready.kernels), "launch": ready.facts}
    del ready
    cuda.current_context().deallocations.clear()
    return row


def main(arguments: list[str]) -> None:
    """Run the cases of the first file and list their launches in the second."""
    current_gpu()
    launch_all(read_cases(Path(arguments[0])), Path(arguments[1]), launch_on_gpu)


# Against the model

ALGORITHMS = {"numba-flash": "flash2", "numba-flash-mma": "flash2", "numba-flash1": "flash1"}
SRAM_TOLERANCE = {"numba-flash": 1e-3, "numba-flash-mma": 1e-3, "numba-flash1": 1e-2}
DRAM_TOLERANCE, FAR_BEYOND_L2 = 0.05, 8
"""Allowed relative error of DRAM reads, and size of Q, K and V of all heads over the L2 up to which it holds."""
DRAM_TOLERANCE_BEYOND = 0.30
DRAM_WRITES_ABOVE = 1.25
"""Largest ratio of DRAM writes to the prediction. Below it, as many bytes as the L2 holds may be missing: they are written back later."""


def kernel_of(record: Record) -> Kernel:
    """The model's kernel of an attention record, with the tile that ran; UnavailableError if there is none."""
    if record.implementation not in ALGORITHMS or record.workload != "attention":
        raise UnavailableError(f"no counts of {record.implementation} to compare", f"there are some of {', '.join(ALGORITHMS)}")
    if not {"br", "bc"} <= set(record.launch):
        raise UnavailableError("the record does not say which tile ran", "give br and bc under 'launch'")
    w = replace(case_of(record).workload, packed=False)
    tile = Tile(record.launch["br"], record.launch["bc"], record.launch.get("threads", Tile(1, 1).threads))
    [kernel] = find(ALGORITHMS[record.implementation]).forward(w, tile)
    return kernel


def compare_counters(record: Record, device: Device) -> list[Count]:
    """The counters of ``record`` beside the model's counts; counters that the record lacks are omitted."""
    kernel, counted = kernel_of(record), record.counters
    cost, cache = estimate(kernel, device), device.cache_bytes or 0
    inputs = [access for access in kernel.accesses if access.kind == "read" and access.tensor in ("Q", "K", "V")]
    beyond = sum(access.footprint * access.element_size for access in inputs) >= FAR_BEYOND_L2 * cache
    allowed = {
        "l2_to_sm_bytes": (cost.sram.read, _allowed_counts(cost.sram.read, SRAM_TOLERANCE[record.implementation])),
        "dram_read_bytes": (cost.dram.read, _allowed_counts(cost.dram.read, DRAM_TOLERANCE_BEYOND if beyond else DRAM_TOLERANCE)),
        "dram_write_bytes": (cost.dram.write, (max(cost.dram.write - cache, 0), cost.dram.write * DRAM_WRITES_ABOVE)),
    }
    shown = [(name, *bounds) for name, bounds in allowed.items() if name in counted]
    return [Count(label(record), name, float(count), counted[name], limits) for name, count, limits in shown]


def _allowed_counts(predicted: Any, tolerance: float) -> tuple[float, float]:
    """Range of counts from which ``predicted`` differs by at most ``tolerance``, relative to the count."""
    return float(predicted) / (1 + tolerance), float(predicted) / (1 - tolerance)


if __name__ == "__main__":
    main(sys.argv[1:])
