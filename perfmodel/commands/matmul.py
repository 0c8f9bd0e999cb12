"""Matrix multiplication: FLOP, tiled traffic, waves, roofline and the IO lower bound."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import (
    Command,
    DtypeOption,
    ExplainOption,
    HardwareOption,
    ImplementationOption,
    JsonOption,
    OutputOption,
    check_outputs,
    device_for,
    emit,
    new_app,
)

app = new_app()


@app.command(cls=Command)
def matmul(
    m: Annotated[int | None, typer.Option("--m", "-m", help="Rows of A and C.")] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Columns of B and C.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Columns of A, rows of B.")] = None,
    batch: Annotated[int, typer.Option(help="Independent matmuls of this shape. [default: 1]", show_default=False)] = 1,
    tile_m: Annotated[int | None, typer.Option(help="Tile rows. [default: 128, or the largest power of two that fits]")] = None,
    tile_n: Annotated[int | None, typer.Option(help="Tile columns. [default: 128, or the largest power of two that fits]")] = None,
    split_k: Annotated[int, typer.Option(help="Blocks that share the k of a tile. [default: 1]", show_default=False)] = 1,
    sram: Annotated[str | None, typer.Option(help="SRAM per block, such as 163KiB. [default: the device's]")] = None,
    dtype: DtypeOption = None,
    hardware: HardwareOption = None,
    implementation: ImplementationOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Matrix multiplication: FLOP, tiled traffic, waves, roofline, predicted time and the IO lower bound.

    C [m, n] = A [m, k] B [k, n], tile by tile. Example: perfmodel matmul -m 8192 -n 128 -k 8192
    """
    outputs = check_outputs(output)
    from perfmodel.catalog import calibrated_devices
    from perfmodel.core.checks import dtype_on, given, size_bytes
    from perfmodel.core.errors import UnavailableError
    from perfmodel.core.workload import FORWARD
    from perfmodel.kernels.matmul import Matmul, evaluate
    from perfmodel.kernels.tile import with_sram
    from perfmodel.report.matmul import report
    from perfmodel.timing.select_kernel import check_implementation, select_kernel

    device = device_for(hardware)
    if sram is not None:
        device = with_sram(device, size_bytes("sram", sram))
    m, n, k = (given(name, value, "matmul -m 8192 -n 8192 -k 8192") for name, value in (("m", m), ("n", n), ("k", k)))
    w = Matmul(m, n, k, batch, split_k, dtype_on(dtype, device)).check()
    result = evaluate(w, device, tile_m, tile_n)
    if implementation is not None:
        check_implementation(implementation, "matmul", device, calibrated_devices)
    try:
        lower = float(result.total.lower_s)
        known = select_kernel("matmul", w.dtype.name, w, FORWARD, device, lower, implementation, lambda name: True, calibrated_devices)
    except UnavailableError as error:
        known, missing = None, f"No time is predicted: {error.message}."
    else:
        missing = ""
    emit(report(result, prediction=known, unpredicted=missing, explained=explain), json, outputs)
