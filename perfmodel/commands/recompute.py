"""Recompute a tensor or store it: times at the roof, break-even FLOP/B, verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import (
    Command,
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
def recompute(
    size: Annotated[str | None, typer.Option("--bytes", help="Size of the tensor, such as 64MiB.")] = None,
    flops: Annotated[str | None, typer.Option(help="FLOP to compute it once, such as 137.4GFLOP or 1.374e11.")] = None,
    times: Annotated[int, typer.Option(help="Later uses of it. [default: 1]", show_default=False)] = 1,
    dtype: Annotated[str | None, typer.Option(help="Sets the unit that recomputes: fp32 vector, fp16 tensor, ... [default: fp16]")] = None,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Recompute a tensor or store it: times at the roof, break-even FLOP/B, verdict.

    Example: perfmodel recompute --bytes 64MiB --flops 10GFLOP
    """
    outputs = check_outputs(output)
    from perfmodel.core.checks import dtype_on, flop_count, given, size_bytes
    from perfmodel.kernels.recompute import Recompute, evaluate
    from perfmodel.report.recompute import report

    device = device_for(hardware)
    size, flops = (given(name, value, "recompute --bytes 64MiB --flops 10GFLOP") for name, value in (("bytes", size), ("flops", flops)))
    w = Recompute(size_bytes("bytes", size), flop_count("flops", flops), dtype_on(dtype, device), times).check()
    emit(report(evaluate(w, device), explained=explain), json, outputs)
