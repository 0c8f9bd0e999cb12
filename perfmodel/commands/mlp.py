"""Two-layer MLP, forward and backward: FLOP per layer, kernels, what must be kept."""

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
def mlp(
    batch: Annotated[int | None, typer.Option(help="Rows of x.")] = None,
    d_in: Annotated[int | None, typer.Option(help="Columns of x.")] = None,
    d_hidden: Annotated[int | None, typer.Option(help="Columns of the hidden layer.")] = None,
    d_out: Annotated[int | None, typer.Option(help="Columns of y.")] = None,
    direction: Annotated[str, typer.Option("--pass", help="forward, backward or both. [default: both]", show_default=False)] = "both",
    input_gradient: Annotated[
        bool, typer.Option("--input-gradient/--no-input-gradient", help="Compute dx as well. [default: no]", show_default=False)
    ] = False,
    dtype: DtypeOption = None,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Two-layer MLP, forward and backward: FLOP per layer, kernels, what must be kept.

    x W1, ReLU, W2. Example: perfmodel mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024
    """
    outputs = check_outputs(output)
    from perfmodel.core.checks import dtype_on, given
    from perfmodel.core.errors import UsageError, suggest
    from perfmodel.kernels.mlp import KERNELS, Mlp, evaluate
    from perfmodel.report.mlp import BOTH, report

    passes = {**{name: [name] for name in KERNELS}, BOTH: list(KERNELS)}
    if direction not in passes:
        raise UsageError(f"--pass: unknown pass {direction!r}", suggest(direction, list(passes)))
    device = device_for(hardware)
    usage = "mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024"
    options = {"batch": batch, "d-in": d_in, "d-hidden": d_hidden, "d-out": d_out}
    batch, d_in, d_hidden, d_out = (given(name, value, usage) for name, value in options.items())
    w = Mlp(batch, d_in, d_hidden, d_out, input_gradient, dtype_on(dtype, device)).check()
    emit(report(w, device, [evaluate(w, device, name) for name in passes[direction]], explained=explain), json, outputs)
