"""Run kernels, or read recorded ones, to test predictions."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import typer

from perfmodel.commands._command import Pictured, command
from perfmodel.commands._progress import ProgressBar
from perfmodel.commands._shared import RUNS, SHIPPED, record_paths, require, share_of
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Condition, Question, as_in, option

_OF_A_RUN = {"backend", "counters", "all"}
_IGNORED_BESIDE = {"counters_csv": {*_OF_A_RUN, "records", "scoreboard"}, "records": _OF_A_RUN, "scoreboard": _OF_A_RUN}
"""For each of these options, others that would be ignored beside it."""
_TIMED = Condition(
    "is for measurements of time", "leave it out", lambda options: options.counters_csv is None and options.backend != "simulator"
)


@dataclass(frozen=True, slots=True)
class ValidationQuestion(Question):
    """Kernels to measure, or records to read, for a comparison with predictions."""

    backend: str | None = option("Where kernels run: auto, cuda, cpu or simulator. [default: auto]")
    records: list[str] | None = option(f"Compare recorded measurements instead: a .jsonl(.gz), '{SHIPPED}' or '{RUNS}'. Repeatable.")
    hardware: str | None = option("Device: id, words or file. [default: this machine's, or the records']", reader=_TIMED)
    tolerance: str = option("Median error of a group from which the exit code is 3.", default="25%", reader=_TIMED)
    all: bool = option("On a GPU, time every tile of each kernel, not one: compiling them takes minutes.", default=False)
    counters: bool = option("Run the GPU kernels under Nsight Compute too and compare its counters.", default=False)
    counters_csv: str | None = option("Compare the kernels in a file that 'ncu --csv' wrote.")
    scoreboard: bool = option("Only held-out records, beside plainer models.", default=False)
    required: int | None = as_in(Common, "required")

    def check_together(self) -> None:
        """UsageError for options of which one would be ignored."""
        given = self.given()
        for name in given:
            ignored = [other for other in given if other in _IGNORED_BESIDE.get(name, ())]
            if ignored:
                raise UsageError(f"--{ignored[0].replace('_', '-')} with --{name.replace('_', '-')}", "leave one of them out")


class _Records(Pictured):
    OFFERS = ("charts", "records")


@command
def validate(options: ValidationQuestion, to: _Records) -> None:
    """Run attention, matmul and copy kernels here and hold bound, prediction and counts against them.

    Exit code 3 if a measurement beats its lower bound, a count of a run is wrong or a group is out of tolerance. -o FILE.jsonl writes
    the records. Example: perfmodel validate --records shipped
    """
    tolerance = share_of("--tolerance", options.tolerance)
    from perfmodel.catalog import calibrated_devices, find_device
    from perfmodel.report.validation import beyond, counters_report, report, scoreboard_report
    from perfmodel.validation import run as validation_run

    options.check_together()
    if options.counters_csv is not None:
        from perfmodel.program.ncu_csv import parse

        kernels = parse(Path(options.counters_csv))
        require(options.required, len(kernels), "kernels are in the file")
        to.emit(counters_report(kernels))
        return
    with ProgressBar() as bar:
        if options.records or options.scoreboard:
            paths = record_paths(options.records or [SHIPPED])
            run = validation_run.read(paths, find_device, options.hardware, cache(calibrated_devices), bar.done, options.scoreboard)
        else:
            backend = options.backend
            if backend is None or backend == "auto":
                backend = validation_run.best_backend()
                if backend == "cpu":
                    bar(validation_run.NO_GPU)
            run = validation_run.run(backend, find_device, options.hardware, options.counters, bar, options.all)
    if options.scoreboard:
        scores = validation_run.scoreboard(run.rows)
        points = sum(line.points for line in scores)
        require(options.required, points, "held-out records were checked", [row.reason for row in run.rows])
        to.emit(scoreboard_report(scores))
    else:
        checked_rows = [row for row in run.rows if row.lower_s is not None or row.memory_error is not None]
        reasons = [row.reason for row in run.rows if row.lower_s is None]
        require(options.required, len(checked_rows) + len(run.counts), "rows were checked", reasons)
        to.emit(report(run, tolerance, to.pictures))
    wrong_count = run.backend and not all(count.agrees for count in run.counts)
    if wrong_count or any(row.violates for row in run.rows) or beyond(run.rows, tolerance):
        raise typer.Exit(3)
