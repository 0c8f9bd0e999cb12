"""Occupancy: blocks and threads per multiprocessor, what limits them, and the sectors of a strided load."""

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
def occupancy(
    threads: Annotated[int | None, typer.Option(help="Threads per block.")] = None,
    registers: Annotated[int | None, typer.Option(help="Registers per thread. [default: no limit]")] = None,
    sram: Annotated[str | None, typer.Option(help="Shared memory per block, such as 48KiB. [default: none]")] = None,
    stride: Annotated[int | None, typer.Option(help="Elements between the loads of neighbouring threads. [default: 1]")] = None,
    element_bytes: Annotated[int | None, typer.Option(help="Bytes that a thread loads: 1, 2, 4, 8 or 16. [default: 4]")] = None,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Occupancy: blocks and threads per multiprocessor, what limits them, and the sectors of a strided load.

    Example: perfmodel occupancy --threads 256 --registers 64 --sram 48KiB --stride 2
    """
    outputs = check_outputs(output)
    from perfmodel.core.checks import given, size_bytes
    from perfmodel.core.occupancy import Block
    from perfmodel.kernels.occupancy import StridedLoad, evaluate
    from perfmodel.report.occupancy import report

    threads = given("threads", threads, "occupancy --threads 256 --registers 64 --sram 48KiB")
    block = Block(threads, registers, 0 if sram is None else size_bytes("sram", sram, 0))
    access = None
    if stride is not None or element_bytes is not None:
        access = StridedLoad(1 if stride is None else stride, 4 if element_bytes is None else element_bytes)
    emit(report(evaluate(block, device_for(hardware), access), explained=explain), json, outputs)
