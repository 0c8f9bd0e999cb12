"""List, show, check and add device profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from perfmodel.commands._command import Destination, ExplainedPicture, add_command, new_app
from perfmodel.core.errors import DataError, UsageError, visible
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Question, argument, option

app = new_app(help="List, show, check and add device profiles.", no_args_is_help=True)
_GIVEN = "What is known of it"
"""Heading in ``--help`` of the numbers of a new profile."""


@dataclass(frozen=True, slots=True)
class DeviceQuestion(Question):
    """The device to show."""

    device: str = argument("ID", "Device: id, words of one, or a profile's path.")


@dataclass(frozen=True, slots=True)
class ProfileQuestion(Question):
    """The profile to check."""

    file: str = argument("FILE", "A device profile, or the id of a shipped one.")


@dataclass(frozen=True, slots=True)
class AddedQuestion(Question):
    """A card that is not shipped, by its differences from a shipped one."""

    name: str = argument("NAME", "Its id: small letters, digits and hyphens.")
    like: str | None = option("The shipped device nearest to it, which lends the rest.", metavar="DEVICE")
    force: bool = option("Replace the file.", default=False)
    dram_bandwidth: str | None = option("Such as 432GB/s.", group=_GIVEN)
    dram_capacity: str | None = option("Such as 24GiB.", group=_GIVEN)
    l2: str | None = option("L2 capacity, such as 48MiB.", group=_GIVEN)
    sms: int | None = option("Multiprocessors.", group=_GIVEN)
    clock: str | None = option("Advertised boost clock, such as 2040MHz.", group=_GIVEN)
    fp16: str | None = option("Dense tensor peak, such as 121TFLOP/s.", group=_GIVEN)
    bf16: str | None = option("Dense tensor peak.", group=_GIVEN)
    fp8: str | None = option("Dense tensor peak.", group=_GIVEN)
    tf32: str | None = option("Dense tensor peak.", group=_GIVEN)
    fp4: str | None = option("Dense tensor peak.", group=_GIVEN)
    int8: str | None = option("Dense tensor peak, such as 242TOP/s.", group=_GIVEN)
    fp32: str | None = option("Peak of the vector unit.", group=_GIVEN)
    tdp: str | None = option("Such as 72W.", group=_GIVEN)


@dataclass(frozen=True)
class _Profile(Destination):
    OFFERS = None  # ``add`` checks its files itself

    output: list[str] | None = option("To FILE: .yaml, {formats}. [default: NAME.yaml]", "--output", "-o", metavar="FILE")


@add_command(app, "list")
def list_devices(to: Destination) -> None:
    """List the shipped device profiles with their peaks and bandwidths.

    Example: perfmodel hardware list
    """
    from perfmodel.catalog import device_ids, find_device
    from perfmodel.report.hardware import list_report

    to.emit(list_report([find_device(name) for name in device_ids()]))


@add_command(app, short_help="Show every number of one profile, with kind and source.")
def show(options: DeviceQuestion, to: ExplainedPicture) -> None:
    """Show every number of one profile with its kind and source, and the ridge points they imply.

    Example: perfmodel hardware show h200
    """
    from perfmodel.catalog import find_device
    from perfmodel.report.hardware import show_report

    to.emit(show_report(find_device(options.device), to.explained, to.pictures))


@add_command(app, short_help="Check a profile: schema, units, sources, rules.")
def check(options: ProfileQuestion) -> None:
    """Check a profile: schema, units, sources, and rules such as SMs x FLOP/clk x clock = peak.

    Example: perfmodel hardware check h200
    """
    from perfmodel.catalog import find_device
    from perfmodel.core.sanity import check as problems_of

    device = find_device(options.file)
    problems = problems_of(device)
    if problems:
        raise DataError("\n  ".join([f"{options.file}: {len(problems)} value(s) contradict each other", *problems]))
    typer.echo(visible(f"{options.file}: {device.name} is sound"))


@add_command(app, short_help="Write the profile of a card that is not shipped.")
def add(options: AddedQuestion, to: _Profile) -> None:
    """Write the profile of a card that is not shipped: what is known of it, the rest from the device that it is like.

    Peaks go with --sms and --clock, or with a peak that is given. What was measured on that device is taken where nothing given changes it.
    Without -o the file is NAME.yaml.
    Example: perfmodel hardware add my-card --like l4 --dram-bandwidth 432GB/s
    """
    from perfmodel.catalog import device_ids, find_device
    from perfmodel.core.custom_device import FIELDS, device_like
    from perfmodel.report.hardware import added_report

    to = replace(to, output=to.output or [f"{options.name}.yaml", "-"])
    [like] = options.require("hardware add my-card --like l4 --dram-bandwidth 432GB/s", "like")
    values = {name: getattr(options, name) for name in FIELDS if getattr(options, name) is not None}
    if not values:
        raise UsageError(f"nothing says how {options.name} differs from {like}", "give what is known, such as --dram-bandwidth 432GB/s")
    if options.name in device_ids():
        raise UsageError(f"{options.name} is the id of a shipped device", "choose another; 'perfmodel hardware list' shows those taken")
    reference = find_device(like, "--like")
    device = device_like(reference, options.name, values)
    to.check(["profile"])
    existing = [name for name in to.files if not options.force and Path(name).exists()]
    if existing:
        raise UsageError(f"{existing[0]} is there already", "add --force to replace it, or name another with -o")
    to.emit(added_report(device, reference, to.files))
