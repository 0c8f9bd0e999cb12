"""Devices by name, each read once."""

from __future__ import annotations

from functools import cache

from perfmodel import catalog
from perfmodel.core.hardware import Device


@cache
def device_named(name: str) -> Device:
    """The device that ``name`` means, as everywhere."""
    return catalog.find_device(name)


def canonical(name: str) -> str:
    """The id of the device that ``name`` means; a path stays one."""
    found = device_named(name)
    return name if name.endswith((".yaml", ".yml")) or "/" in name else found.id


@cache
def device_ids() -> tuple[str, ...]:
    """Every shipped device."""
    return tuple(catalog.device_ids())


@cache
def fallback_devices() -> tuple[Device, ...]:
    """Devices whose calibrations may be borrowed."""
    return tuple(catalog.calibrated_devices())
