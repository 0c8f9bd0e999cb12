"""Numbers of the shipped profiles that claims are checked with, read only when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from perfmodel.catalog import find_device
from perfmodel.core.hardware import Device, Quantity

A100_40, PCIE_80, SXM_80 = "nvidia-a100-sxm-40gb", "nvidia-a100-pcie-80gb", "nvidia-a100-sxm-80gb"
V100, H100, B200, T4 = "nvidia-v100-sxm-32gb", "nvidia-h100-sxm-80gb", "nvidia-b200-sxm", "nvidia-t4"
L1_BYTES = 192 * 1024
"""L1 and shared memory of one SM of an A100 together; NVIDIA A100 whitepaper."""


@cache
def device(name: str) -> Device:
    """The shipped profile called ``name``, read once."""
    return find_device(name)


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of a shipped device profile."""

    device: str
    meaning: str
    read: Callable[[Device], Quantity | None]

    @property
    def quantity(self) -> Quantity:
        """The number with its source."""
        found = self.read(device(self.device))
        assert found is not None, f"{self.device} has no {self.meaning}"
        return found

    @property
    def source(self) -> str:
        """Where the profile has it from."""
        quantity = self.quantity
        return f"{self.device}, {quantity.kind}: {device(self.device).sources[quantity.source]}"


def peak(name: str, dtype: str, unit: str = "tensor") -> Reading:
    """Dense peak of ``unit`` in FLOP/s."""
    return Reading(name, f"FLOP/s, {dtype}, {unit} unit", lambda found: found.peaks_of(unit).get(dtype))


def integer_peak(name: str, dtype: str) -> Reading:
    """Dense peak of integers in OP/s."""
    return Reading(name, f"OP/s, {dtype}", lambda found: found.peaks.tensor_int.get(dtype))  # type: ignore[call-overload]


def exponentials(name: str) -> Reading:
    """Exponentials per second of the special function units."""
    return Reading(name, "exponentials per second", lambda found: found.peaks.exp)


def clock(name: str, which: str) -> Reading:
    """``tensor``, ``vector`` or ``max`` clock in Hz."""
    return Reading(name, f"Hz, {which} clock", lambda found: getattr(found.clocks, which))


def limit(name: str, which: str) -> Reading:
    """A limit of one SM."""
    return Reading(name, which.removeprefix("max_").replace("_", " "), lambda found: getattr(found.limits, which))


def multiprocessors(name: str) -> Reading:
    """SMs."""
    return Reading(name, "SMs", lambda found: found.multiprocessors)


def capacity(name: str, which: str) -> Reading:
    """Bytes of a memory level; of shared memory per SM."""
    return _level(name, which, "capacity", f"B of {which}")


def bandwidth(name: str, which: str = "dram") -> Reading:
    """Bandwidth of a memory level in B/s, over all SMs."""
    return _level(name, which, "bandwidth", f"B/s of {which}")


def _level(name: str, which: str, value: str, meaning: str) -> Reading:
    def read(found: Device) -> Quantity | None:
        level = found.level(which)
        return None if level is None else getattr(level, value)

    return Reading(name, meaning, read)
