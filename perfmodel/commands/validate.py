"""Hold the bounds against recorded measurements."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import Command, JsonOption, OutputOption, check_outputs, emit, new_app

app = new_app()


@app.command(cls=Command)
def validate(
    records: Annotated[list[str] | None, typer.Option(help="Measurement records, JSON Lines. Repeatable.")] = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Hold the bounds against recorded measurements: bound / measured per group, and every violation.

    Exit code 3 if a measurement beats its lower bound. Example: perfmodel validate --records runs.jsonl
    """
    outputs = check_outputs(output)
    from pathlib import Path

    from perfmodel.catalog import find_device
    from perfmodel.errors import UsageError
    from perfmodel.report.validation import report
    from perfmodel.validation.compare import compare_files

    if not records:
        raise UsageError("--records is missing", "such as: perfmodel validate --records runs.jsonl")
    rows = compare_files(map(Path, records), find_device)
    emit(report(rows), json, outputs)
    if any(row.violates for row in rows):
        raise typer.Exit(3)
