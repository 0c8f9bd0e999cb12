"""Rematerialization: what backward needs kept or built again, schedules, steps against memory, their timelines."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._remat import Asked, answer
from perfmodel.commands._shared import (
    Command,
    ExplainOption,
    JsonOption,
    OutputOption,
    check_outputs,
    emit,
    new_app,
)

app = new_app()


@app.command(cls=Command)
def remat(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A model whose layers are the chain.", show_default=False)] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the chain.")] = None,
    checkpoints: Annotated[str | None, typer.Option(help="Layers, from 0, whose outputs are kept, such as 2,5.")] = None,
    every: Annotated[int | None, typer.Option(help="Layers per segment, for every-k.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Values stored at once, x_0 among them, for revolve. [default: as the checkpoints, or for one more pass]"),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Budget: values, or bytes such as 40GB. Adds the optimal schedule within it.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Only this one; the first one's timeline is drawn. Repeatable.")] = None,
    cost: Annotated[str | None, typer.Option(help="Forward, per layer or for all: 1,2,1 or 2ms. [default: 1 step]")] = None,
    backward: Annotated[str | None, typer.Option(help="Backward, likewise. [default: twice the forward cost]")] = None,
    size: Annotated[str | None, typer.Option(help="Of outputs, likewise: 1,2,1 or 32MB. [default: 1 value]")] = None,
    interior: Annotated[str | None, typer.Option(help="Beside its input, what backward of a layer needs. [default: nothing]")] = None,
    width: Annotated[str | None, typer.Option(help="Columns of linear layers: one number, or of x_0, x_1, ...")] = None,
    batch: Annotated[int, typer.Option(help="Rows of linear layers, sequences of a model. [default: 1]", show_default=False)] = 1,
    n: Annotated[int | None, typer.Option(help="Tokens of a sequence. [default: 2048, or what the model takes]")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, tf32, fp16, bf16 or fp8. [default: fp16; bf16 for a model]")] = None,
    hardware: Annotated[str | None, typer.Option(help="Device that times them. [default: nvidia-a100-sxm-80gb]")] = None,
    graph: Annotated[
        str | None, typer.Option(metavar="FILE", help="Any graph, as JSON or YAML; --memory then asks the exact solver.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Ask the exact solver for the chain within --memory.")] = False,
    seconds: Annotated[float, typer.Option(help="For the exact solver. [default: 60]", show_default=False)] = 60.0,
    autograd: Annotated[bool, typer.Option("--autograd", help="Show what each operation keeps, and when it goes.")] = False,
    relu: Annotated[bool, typer.Option("--relu", help="With --autograd: a ReLU after each layer but the last.")] = False,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Rematerialization: what backward needs kept or built again, schedules, steps against memory, their timelines.

    Example: perfmodel remat --layers 10 --checkpoints 5
    """
    outputs = check_outputs(output)
    asked = Asked(
        model=model,
        layers=layers,
        checkpoints=checkpoints,
        every=every,
        slots=slots,
        memory=memory,
        strategies=tuple(strategy or ()),
        cost=cost,
        backward=backward,
        size=size,
        interior=interior,
        width=width,
        batch=batch,
        n=n,
        dtype=dtype,
        hardware=hardware,
        graph=graph,
        exact=exact,
        seconds=seconds,
        autograd=autograd,
        relu=relu,
    )
    emit(answer(asked, explained=explain), json, outputs)
