"""How fast this package is here: rows of a sweep per second against a plain loop, memory, start-up; in ratios."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import Command, JsonOption, OutputOption, check_outputs, emit, new_app, say

app = new_app()


@app.command(cls=Command)
def bench(
    rows: Annotated[int, typer.Option(help="Rows of each grid. [default: 4000000]", show_default=False)] = 4_000_000,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Measure this package: rows of a sweep per second against a plain loop over the same formulas, memory, start-up.

    Example: perfmodel bench --rows 20000000
    """
    outputs = check_outputs(output)
    from perfmodel.core.checks import whole
    from perfmodel.report.bench import report
    from perfmodel.sweep.bench import bench as measured

    whole("rows", rows)
    emit(report(measured(rows, lambda what: say(f"measuring {what} ..."))), json, outputs)
