"""Hardware counters of the project's kernels, by Nsight Compute; ``compare_counters`` and ``parse`` are at hand here as well."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.core.errors import DataError, UnavailableError
from perfmodel.validation.cuda.agreement import Comparison, compare_counters
from perfmodel.validation.cuda.cases import KernelCase
from perfmodel.validation.cuda.environment import Environment, this_environment
from perfmodel.validation.cuda.gpu import open_gpu
from perfmodel.validation.cuda.ncu_csv import METRICS, CountedKernel, counters, parse, seconds
from perfmodel.validation.cuda.profiled import write_cases
from perfmodel.validation.cuda.run import OnRecord, Progress

__all__ = ["Comparison", "compare_counters", "count", "find_ncu", "parse", "profile"]

SOURCE = "perfmodel numba kernels under Nsight Compute, --clock-control none, caches flushed, one run"
TIMEOUT_S = 1800
Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def find_ncu() -> str:
    """Path of ncu; UnavailableError where it is not on PATH."""
    path = shutil.which("ncu")
    if path is None:
        fix = "install NVIDIA Nsight Compute, or bring its output: ncu --csv --metrics ... > FILE"
        raise UnavailableError("no hardware counters: ncu is not on PATH", fix)
    return path


@dataclass(frozen=True, slots=True)
class Profile:
    """Kernels as ncu counted them, a row per case with what it launched, and what went wrong, if anything."""

    kernels: list[CountedKernel]
    launched: list[dict[str, Any]]
    complaint: str = ""


def profile(cases: Sequence[KernelCase], folder: Path, ncu: str, run: Run | None = None) -> Profile:
    """Run ``cases`` under ncu; UnavailableError where it counted nothing. ``folder`` holds the files between the processes."""
    listed, manifest, log = folder / "cases.jsonl", folder / "manifest.jsonl", folder / "ncu.csv"
    write_cases(cases, listed)
    options = ["--csv", "--metrics", ",".join(METRICS), "--clock-control", "none", "--log-file", str(log)]
    program = [sys.executable, "-m", "perfmodel.validation.cuda.profiled", str(listed), str(manifest)]
    try:
        finished = (run or _run)([ncu, *options, *program])
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ncu took more than {TIMEOUT_S} s", "count fewer cases") from None
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()] if manifest.is_file() else []
    complaint = _complaint(finished, log) if finished.returncode else ""
    if not log.is_file() or not any(row["kernels"] for row in rows):
        raise UnavailableError(f"ncu failed: {complaint or 'it launched nothing'}", _advice(complaint))
    return Profile(parse(log), rows, complaint)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)


def _complaint(finished: subprocess.CompletedProcess[str], log: Path) -> str:
    """The line in which ncu or the program says what went wrong."""
    said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in (said + "\n" + finished.stdout + "\n" + finished.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line]
    return (errors or lines or [f"exit code {finished.returncode}"])[0 if errors else -1]


def _advice(complaint: str) -> str:
    if "ERR_NVGPUCTRPERM" in complaint:
        return "counters are for administrators on this machine: run as root, or set NVreg_RestrictProfilingToAdminUsers=0"
    return "try the same command by hand: ncu --csv --metrics dram__bytes_read.sum python -m perfmodel ..."


def assign(kernels: list[CountedKernel], launched: list[dict[str, Any]]) -> list[list[CountedKernel]]:
    """The counted kernels of each case: launches come in the order of the cases. DataError where the names do not fit.

    Kernels after the last case's are of a case that did not come to its end.
    """
    rest = iter(sorted(kernels, key=lambda kernel: kernel.run))
    found = []
    for row in launched:
        own = []
        for name in row["kernels"]:
            kernel = next(rest, None)
            if kernel is None or name not in kernel.name:
                seen = "the end" if kernel is None else f"{kernel.name[:80]!r} (line {kernel.line})"
                raise DataError(f"ncu's list of kernels: expected {name!r}, found {seen}", "count the cases again")
            own.append((name, kernel))
        found.append([kernel for name, kernel in own if name in row["counted"]])
    return found


def count(cases: Sequence[KernelCase], progress: Progress, on_record: OnRecord, hardware: str | None = None) -> list[str]:
    """Run ``cases`` under ncu; a record with counters of each goes to ``on_record``. Returns a message per case without one."""
    ncu, gpu = find_ncu(), open_gpu()
    environment = this_environment(gpu, hardware)
    progress(f"{len(cases)} cases under {ncu}")
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as name:
        found = profile(cases, Path(name), ncu)
    return records_of(cases, found, environment, on_record)


def records_of(cases: Sequence[KernelCase], found: Profile, environment: Environment, on_record: OnRecord) -> list[str]:
    """Hand over a record per counted case; the messages of the others."""
    failures = []
    for case, row, own in zip(cases, found.launched, assign(found.kernels, found.launched), strict=False):
        time_s = seconds(own)
        if not row["kernels"] or time_s is None:
            failures.append(f"{case.label}: {row.get('reason', 'ncu gave no duration')}")
        else:
            on_record(counted_record(case, row["launch"], own, time_s, environment))
    return failures + [f"{case.label}: not run, {found.complaint or 'the program ended early'}" for case in cases[len(found.launched) :]]


def counted_record(
    case: KernelCase, launch: dict[str, int], kernels: list[CountedKernel], time_s: float, environment: Environment
) -> dict[str, Any]:
    """A measurement record of a counted case: one run, so its quantiles are equal."""
    return {
        "workload": case.workload,
        "implementation": case.implementation,
        "hardware": environment.hardware,
        "dtype": case.dtype,
        "pass": "forward",
        "shape": case.shape,
        "time_s": {"median": time_s, "p10": time_s, "p90": time_s},
        "cache": "cold",
        "counters": counters(kernels),
        "environment": {**environment.facts, "runs": 1},
        "source": SOURCE,
        "launch": launch,
    }
