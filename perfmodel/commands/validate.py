"""Run kernels, or read recorded ones, and hold every prediction against them."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import (
    Command,
    HardwareOption,
    JsonOption,
    OutputOption,
    RequireOption,
    check_outputs,
    emit,
    new_app,
    require,
    say,
    share_of,
)

app = new_app()

SHIPPED = "shipped"
DEFAULT_TOLERANCE = "25%"


@app.command(cls=Command)
def validate(
    backend: Annotated[str | None, typer.Option(help="Where kernels run: auto, cuda, cpu or simulator. [default: auto]")] = None,
    records: Annotated[
        list[str] | None, typer.Option(help=f"Compare recorded measurements instead: a JSON Lines file, or '{SHIPPED}'. Repeatable.")
    ] = None,
    hardware: HardwareOption = None,
    tolerance: Annotated[str, typer.Option(help="Median error of a group from which the exit code is 3.")] = DEFAULT_TOLERANCE,
    counters: Annotated[
        bool, typer.Option("--counters", help="Run the GPU kernels under Nsight Compute too and compare its counters.")
    ] = False,
    counters_csv: Annotated[str | None, typer.Option(help="Compare the kernels in a file that 'ncu --csv' wrote.")] = None,
    scoreboard: Annotated[bool, typer.Option("--scoreboard", help="Only held-out records, beside plainer models.")] = False,
    required: RequireOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Run attention, matmul and copy kernels here and hold bound, prediction and counts against them.

    Exit code 3 if a measurement beats its lower bound, a count of a run is wrong or a group is out of tolerance. -o FILE.jsonl writes
    the records. Example: perfmodel validate --records shipped
    """
    outputs = check_outputs(output, ["records"])
    allowed = share_of("--tolerance", tolerance)
    from functools import cache
    from pathlib import Path

    from perfmodel.catalog import calibrated_devices, find_device
    from perfmodel.report.validation import beyond, counters_report, report, scoreboard_report
    from perfmodel.validation import session
    from perfmodel.validation.records import shipped_records

    _check_together(records, backend, counters, counters_csv, scoreboard)
    if counters_csv is not None:
        from perfmodel.validation.cuda.ncu_csv import parse

        kernels = parse(Path(counters_csv))
        require(required, len(kernels), "kernels are in the file")
        emit(counters_report(kernels), json, outputs)
        return
    if records or scoreboard:
        names = records or [SHIPPED]
        paths = [path for name in names for path in (shipped_records() if name == SHIPPED else [Path(name)])]
        found = session.read(paths, find_device, hardware, cache(calibrated_devices))
    else:
        chosen = session.best_backend() if backend in (None, "auto") else str(backend)
        found = session.run(chosen, find_device, hardware, counters, say)
    if scoreboard:
        from perfmodel.validation.scoreboard import scoreboard as lines

        made = lines(found.rows)
        require(required, sum(line.points for line in made), "held-out records were checked", [row.reason for row in found.rows])
        emit(scoreboard_report(made), json, outputs)
    else:
        checked = sum(row.lower_s is not None or row.memory_error is not None for row in found.rows) + len(found.counts)
        require(required, checked, "rows were checked", [row.reason for row in found.rows if row.lower_s is None])
        emit(report(found, allowed), json, outputs)
    wrong = found.backend and not all(count.agrees for count in found.counts)
    if wrong or any(row.violates for row in found.rows) or beyond(found.rows, allowed):
        raise typer.Exit(3)


def _check_together(records: list[str] | None, backend: str | None, counters: bool, counters_csv: str | None, scoreboard: bool) -> None:
    """UsageError for options of which one would be ignored."""
    from perfmodel.core.errors import UsageError

    given = {"--backend": backend, "--counters": counters, "--records": records, "--scoreboard": scoreboard, "--counters-csv": counters_csv}
    alone = {"--counters-csv": set(given), "--records": {"--backend", "--counters"}, "--scoreboard": {"--backend", "--counters"}}
    for name, others in alone.items():
        clash = next((other for other in others - {name} if given[name] and given[other]), None)
        if clash is not None:
            raise UsageError(f"{clash} with {name}", "leave one of them out")
