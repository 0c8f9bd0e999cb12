"""Softmax in three ways (safe, online, fused): reads per element, bytes, roofline."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import (
    Command,
    DtypeOption,
    ExplainOption,
    HardwareOption,
    JsonOption,
    OutputOption,
    check_outputs,
    device_for,
    emit,
    new_app,
)

app = new_app()


@app.command(cls=Command)
def softmax(
    rows: Annotated[int | None, typer.Option(help="Rows.")] = None,
    cols: Annotated[int | None, typer.Option(help="Elements of a row.")] = None,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Count the write of the output. [default: store]")] = True,
    dtype: DtypeOption = None,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Softmax in three ways (safe, online, fused): reads per element, bytes, roofline.

    Example: perfmodel softmax --rows 4096 --cols 32768
    """
    outputs = check_outputs(output)
    from perfmodel.core.checks import dtype_on, given
    from perfmodel.kernels.softmax import Softmax, evaluate
    from perfmodel.report.softmax import report

    device = device_for(hardware)
    rows, cols = (given(name, value, "softmax --rows 4096 --cols 32768") for name, value in (("rows", rows), ("cols", cols)))
    w = Softmax(rows, cols, store, dtype_on(dtype, device)).check()
    emit(report(w, device, evaluate(w, device), explained=explain), json, outputs)
