"""Options that the commands of single operations share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfmodel.hardware import Device

DEFAULT_DEVICE = "nvidia-a100-sxm-80gb"

HardwareOption = Annotated[str | None, typer.Option(help=f"Device: id, words of one, or a profile's path. [default: {DEFAULT_DEVICE}]")]
DtypeOption = Annotated[str | None, typer.Option(help="fp32, tf32, fp16, bf16 or fp8. [default: fp16]")]


def device_for(name: str | None) -> Device:
    """The device that ``--hardware`` names, or the default one."""
    from perfmodel.catalog import find_device

    return find_device(name or DEFAULT_DEVICE)
