"""List, show and check device profiles."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import Command, ExplainOption, JsonOption, OutputOption, check_outputs, emit, new_app

app = new_app(help="List, show and check device profiles.", no_args_is_help=True)


@app.command("list", cls=Command)
def list_devices(json: JsonOption = False, output: OutputOption = None) -> None:
    """List the shipped device profiles with their peaks and bandwidths.

    Example: perfmodel hardware list
    """
    outputs = check_outputs(output)
    from perfmodel.catalog import device_ids, find_device
    from perfmodel.report.hardware import list_report

    emit(list_report([find_device(name) for name in device_ids()]), json, outputs)


@app.command(cls=Command)
def show(
    device: Annotated[str, typer.Argument(metavar="ID", help="Device: id, words of one, or a profile's path.")],
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Show every number of one profile with its kind and source, and the ridge points they imply.

    Example: perfmodel hardware show h200
    """
    outputs = check_outputs(output)
    from perfmodel.catalog import find_device
    from perfmodel.report.hardware import show_report

    emit(show_report(find_device(device), explain), json, outputs)


@app.command(cls=Command)
def check(file: Annotated[str, typer.Argument(metavar="FILE", help="A device profile, or the id of a shipped one.")]) -> None:
    """Check a profile: schema, units, sources, and rules such as SMs x FLOP/clk x clock = peak.

    Example: perfmodel hardware check h200
    """
    from perfmodel.catalog import find_device
    from perfmodel.core.errors import DataError, visible
    from perfmodel.core.sanity import check as problems_of

    device = find_device(file)
    problems = problems_of(device)
    if problems:
        raise DataError("\n  ".join([f"{file}: {len(problems)} value(s) contradict each other", *problems]))
    typer.echo(visible(f"{file}: {device.name} is sound"))
