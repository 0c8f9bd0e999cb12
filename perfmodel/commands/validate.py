"""Hold the bounds against recorded measurements."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import Command, JsonOption, OutputOption, check_outputs, emit, new_app

app = new_app()


@app.command(cls=Command)
def validate(
    records: Annotated[
        list[str] | None, typer.Option(help="Measurement records, JSON Lines. Repeatable. [default: the shipped ones]")
    ] = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Hold the bounds against recorded measurements: bound / measured per group, and every violation.

    Exit code 3 if a measurement beats its lower bound. Example: perfmodel validate --records runs.jsonl
    """
    outputs = check_outputs(output)
    from pathlib import Path

    from perfmodel.catalog import find_device
    from perfmodel.report.validation import report
    from perfmodel.validation.compare import compare_files
    from perfmodel.validation.records import shipped_records

    rows = compare_files(map(Path, records) if records else shipped_records(), find_device)
    emit(report(rows), json, outputs)
    if any(row.violates for row in rows):
        raise typer.Exit(3)
