"""Fuse a chain of elementwise operations: bytes, launches and time unfused, in a CUDA graph, fused."""

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
def fuse(
    elements: Annotated[int | None, typer.Option(help="Elements of each tensor.")] = None,
    ops: Annotated[int | None, typer.Option(help="Elementwise operations, one kernel each if unfused.")] = None,
    reads_per_op: Annotated[
        int | None, typer.Option(help="Operands per operation; those beyond the first are earlier results. [default: 1]")
    ] = None,
    example: Annotated[
        str | None, typer.Option(help="sin-cos: x = sin(x) + cos(x) ten times on 1024 x 1024 fp32, beside published times.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, tf32, fp16, bf16 or fp8. [default: fp16; sin-cos: fp32]")] = None,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Fuse a chain of elementwise operations: bytes, launches and time unfused, in a CUDA graph, fused.

    Example: perfmodel fuse --elements 1048576 --ops 30
    """
    outputs = check_outputs(output)
    from perfmodel.core.checks import dtype_on
    from perfmodel.kernels.fuse import chain_for, evaluate
    from perfmodel.report.fuse import report

    device = device_for(hardware)
    chain, published = chain_for(elements, ops, reads_per_op, example)
    chain = chain.on(dtype_on(dtype, device, chain.dtype.name))
    emit(report(chain, device, evaluate(chain, device), published=published, explained=explain), json, outputs)
