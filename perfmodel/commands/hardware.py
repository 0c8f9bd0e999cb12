"""List, show and check device profiles."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from perfmodel.commands._command import Destination, ExplainedPicture, add_command, new_app
from perfmodel.core.question import Question, argument

app = new_app(help="List, show and check device profiles.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class DeviceQuestion(Question):
    """Which device."""

    device: str = argument("ID", "Device: id, words of one, or a profile's path.")


@dataclass(frozen=True, slots=True)
class ProfileQuestion(Question):
    """Which profile."""

    file: str = argument("FILE", "A device profile, or the id of a shipped one.")


@add_command(app, "list")
def list_devices(to: Destination) -> None:
    """List the shipped device profiles with their peaks and bandwidths.

    Example: perfmodel hardware list
    """
    from perfmodel.catalog import device_ids, find_device
    from perfmodel.report.hardware import list_report

    to.emit(list_report([find_device(name) for name in device_ids()]))


@add_command(app)
def show(asked: DeviceQuestion, to: ExplainedPicture) -> None:
    """Show every number of one profile with its kind and source, and the ridge points they imply.

    Example: perfmodel hardware show h200
    """
    from perfmodel.catalog import find_device
    from perfmodel.report.hardware import show_report

    to.emit(show_report(find_device(asked.device), to.explain, to.pictures))


@add_command(app)
def check(asked: ProfileQuestion) -> None:
    """Check a profile: schema, units, sources, and rules such as SMs x FLOP/clk x clock = peak.

    Example: perfmodel hardware check h200
    """
    from perfmodel.catalog import find_device
    from perfmodel.core.errors import DataError, visible
    from perfmodel.core.sanity import check as problems_of

    device = find_device(asked.file)
    problems = problems_of(device)
    if problems:
        raise DataError("\n  ".join([f"{asked.file}: {len(problems)} value(s) contradict each other", *problems]))
    typer.echo(visible(f"{asked.file}: {device.name} is sound"))
