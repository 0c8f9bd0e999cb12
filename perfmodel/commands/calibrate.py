"""Measure this machine, or read records, and fit the time models to it."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import (
    Command,
    HardwareOption,
    JsonOption,
    OutputOption,
    RequireOption,
    check_outputs,
    emit,
    new_app,
    require,
    say,
)

app = new_app()

SHIPPED = "shipped"


@app.command(cls=Command)
def calibrate(
    from_records: Annotated[
        list[str] | None,
        typer.Option(help=f"Fit recorded measurements, JSON Lines, or '{SHIPPED}', instead of measuring. Repeatable."),
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(help="Kernels to calibrate, such as torch-sdpa-flash. Repeatable. [default: the project's own]")
    ] = None,
    hardware: HardwareOption = None,
    required: RequireOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Measure bandwidths, rates and overheads of this machine and fit the time models to its kernels.

    -o FILE.yaml writes a device profile with what was measured; datasheet values stay as they are. torch-* kernels need
    PyTorch: pip install 'perfmodel[torch]'. Example: perfmodel calibrate --implementation torch-sdpa-flash -o mine.yaml
    """
    outputs = check_outputs(output, ["profile"] if from_records else ["records", "profile"])
    from pathlib import Path

    from perfmodel.catalog import calibrated_devices, find_device
    from perfmodel.errors import UnavailableError
    from perfmodel.report.calibration import report
    from perfmodel.validation.calibration_run import from_records as fit_records
    from perfmodel.validation.calibration_run import this_machine
    from perfmodel.validation.records import shipped_records

    names = implementation or []
    if from_records:
        paths = [path for name in from_records for path in (shipped_records() if name == SHIPPED else [Path(name)])]
        one = any(name.endswith(".yaml") for name in outputs)
        found = fit_records(paths, find_device, hardware, names, say, one, calibrated_devices)
        fitted = sum(len(one.blocks) for one in found)
        require(
            required, fitted, "kernels were calibrated", [] if fitted else ["too few records of each kernel, or none that a model knows"]
        )
    else:
        found = [this_machine(find_device, hardware, names, say)]
    if not found and outputs:
        raise UnavailableError("nothing was calibrated, so nothing is written", "bring more records of each kernel")
    emit(report(found), json, outputs)
