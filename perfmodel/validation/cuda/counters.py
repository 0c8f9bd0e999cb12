"""Hardware counters of the project's kernels, by Nsight Compute (ncu), and their comparison with the model's counts.

The program that ncu profiles is this module: ``python -m perfmodel.validation.cuda.counters CASES MANIFEST`` launches each case once. CASES
holds one case per line. MANIFEST gets a line for each: the kernels that were launched, in order, or the reason why none was.
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
    """``kernels`` with ncu's counts; ``launched``: the manifest's line of each case that was run; ``error``: a message, if ncu failed."""

    kernels: list[CountedKernel]
    launched: list[dict[str, Any]]
    error: str = ""


def profile(cases: Sequence[KernelCase], folder: Path, ncu: str, run: Run | None = None) -> Profile:
    """The counts of ``cases`` under ncu; UnavailableError if it counted nothing. ``folder`` holds files that the processes exchange."""
    case_file, manifest, log = folder / "cases.jsonl", folder / "manifest.jsonl", folder / "ncu.csv"
    write_cases(cases, case_file)
    options = ["--csv", "--metrics", ",".join(METRICS), "--clock-control", "none", "--log-file", str(log)]
    program = [sys.executable, "-m", "perfmodel.validation.cuda.counters", str(case_file), str(manifest)]
    try:
        finished = (run or _run)([ncu, *options, *program])
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ncu took more than {TIMEOUT_S} s", "count fewer cases") from None
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()] if manifest.is_file() else []
    error = _error_line(finished, log) if finished.returncode else ""
    if not log.is_file() or not any(row["kernels"] for row in rows):
        fix = NO_RIGHT if "ERR_NVGPUCTRPERM" in error else BY_HAND
        raise UnavailableError(f"ncu failed: {error or 'it launched nothing'}", fix)
    return Profile(parse(log), rows, error)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)


def _error_line(finished: subprocess.CompletedProcess[str], log: Path) -> str:
    """The line in which ncu or the program says what went wrong: the first marked as an error, else the last line."""
    logged = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    output = f"{logged}\n{finished.stdout}\n{finished.stderr}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line]
    if errors:
        return errors[0]
    return lines[-1] if lines else f"exit code {finished.returncode}"


def assign(kernels: list[CountedKernel], launched: list[dict[str, Any]]) -> list[list[CountedKernel]]:
    """The counted kernels of each case: launches come in the order of the cases. DataError if the names do not match.

    Kernels after the last case belong to a case that did not finish.
    """
    in_order = iter(sorted(kernels, key=lambda kernel: kernel.run))
    by_case = []
    for row in launched:
        of_case = []
        for name in row["kernels"]:
            kernel = next(in_order, None)
            if kernel is None or name not in kernel.name:
                actual = "the end" if kernel is None else f"{kernel.name[:80]!r} (line {kernel.line})"
                raise DataError(f"ncu's list of kernels: expected {name!r}, found {actual}", "count the cases again")
            if name != FILL:
                of_case.append(kernel)
        by_case.append(of_case)
    return by_case


def count(cases: Sequence[KernelCase], progress: Progress, on_record: OnRecord, hardware: str | None = None) -> list[str]:
    """Runs ``cases`` under ncu and passes a record with counters of each to ``on_record``; returns a message per case without one."""
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
    reason = counted.error or "the program ended early"
    return failures + [f"{case.label}: not run, {reason}" for case in cases[len(counted.launched) :]]


# The program that is profiled


def write_cases(cases: Iterable[KernelCase], path: Path) -> None:
    """Writes ``cases`` to ``path``, one JSON object per line."""
    path.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases), encoding="utf-8")


def read_cases(path: Path) -> list[KernelCase]:
    """Cases that ``write_cases`` wrote to ``path``."""
    return [checked(KernelCase(**json.loads(line))) for line in path.read_text(encoding="utf-8").splitlines()]


def launch_all(cases: Iterable[KernelCase], manifest: Path, launch_one: Callable[[KernelCase], dict[str, Any]]) -> None:
    """Launches each case once and writes a line on it to ``manifest``: what ``launch_one`` returns, or why it failed."""
    with manifest.open("w", encoding="utf-8") as file:
        for case in cases:
            try:
                row = launch_one(case)
            except Exception as error:  # whatever the driver says, the next case may run
                row = {"kernels": [], "reason": in_words(error)}
            file.write(json.dumps(row) + "\n")
            file.flush()


def launch_on_gpu(case: KernelCase) -> dict[str, Any]:
    """Launches ``case`` once and nothing else; returns its line of the manifest."""
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
    """Runs the cases of the first file and lists their launches in the second."""
    current_gpu()
    launch_all(read_cases(Path(arguments[0])), Path(arguments[1]), launch_on_gpu)


# Against the model

ALGORITHMS = {"numba-flash": "flash2", "numba-flash-mma": "flash2", "numba-flash1": "flash1"}
SRAM_TOLERANCE = {"numba-flash": 1e-3, "numba-flash-mma": 1e-3, "numba-flash1": 1e-2}
"""Allowed relative error of the bytes from L2 to multiprocessors."""
FAR_BEYOND_L2, DRAM_TOLERANCE, DRAM_TOLERANCE_BEYOND = 8, 0.05, 0.30
"""Allowed relative error of DRAM reads: the second number, or the third if Q, K and V take more than 8 times the L2."""
MOST_DRAM_WRITES = 1.25
"""Largest ratio of DRAM writes to the prediction. Fewer are allowed by as much as the L2 holds, which is written back later."""


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
    cost, l2_bytes = estimate(kernel, device), device.cache_bytes or 0
    inputs = [access for access in kernel.accesses if access.kind == "read" and access.tensor in ("Q", "K", "V")]
    input_bytes = sum(access.footprint * access.element_size for access in inputs)
    dram_tolerance = DRAM_TOLERANCE_BEYOND if input_bytes >= FAR_BEYOND_L2 * l2_bytes else DRAM_TOLERANCE
    writes = cost.dram.write
    predicted_and_allowed = {
        "l2_to_sm_bytes": (cost.sram.read, _allowed_counts(cost.sram.read, SRAM_TOLERANCE[record.implementation])),
        "dram_read_bytes": (cost.dram.read, _allowed_counts(cost.dram.read, dram_tolerance)),
        "dram_write_bytes": (writes, (max(writes - l2_bytes, 0), writes * MOST_DRAM_WRITES)),
    }
    return [
        Count(label(record), name, float(predicted), counted[name], allowed)
        for name, (predicted, allowed) in predicted_and_allowed.items()
        if name in counted
    ]


def _allowed_counts(predicted: Any, tolerance: float) -> tuple[float, float]:
    """Range of counts from which ``predicted`` differs by at most ``tolerance``, relative to the count."""
    return float(predicted) / (1 + tolerance), float(predicted) / (1 - tolerance)


if __name__ == "__main__":
    main(sys.argv[1:])
