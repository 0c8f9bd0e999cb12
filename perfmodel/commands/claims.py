"""Statements of lecture notes and papers, recomputed: what holds, what is wrong and why."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import Command, ExplainOption, JsonOption, OutputOption, check_outputs, emit, new_app

app = new_app()


@app.command(cls=Command)
def claims(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Claims to show, such as S029. [default: all]")] = None,
    verdict: Annotated[
        str | None, typer.Option(help="Only holds, 'holds with relabelling', incomplete, wrong, pending or 'not checkable'.")
    ] = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Statements of lecture notes and papers, recomputed: what holds, what is wrong and why.

    Example: perfmodel claims --verdict wrong
    """
    outputs = check_outputs(output)
    from perfmodel.claims import find_claims
    from perfmodel.report.claims import report

    emit(report(find_claims(ids or (), verdict), explained=explain), json, outputs)
