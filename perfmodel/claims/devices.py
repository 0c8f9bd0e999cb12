"""Numbers of the shipped A100 profiles that claims are checked with."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.claims.base import Reading
from perfmodel.hardware import Device, MemoryLevel, Quantity

A100_40, PCIE_80, SXM_80 = "nvidia-a100-sxm-40gb", "nvidia-a100-pcie-80gb", "nvidia-a100-sxm-80gb"
L1_BYTES = 192 * 1024
"""L1 and shared memory of one SM of an A100 together; NVIDIA A100 whitepaper."""


def peak(name: str, dtype: str, unit: str = "tensor") -> Reading:
    """Dense peak of ``unit`` in FLOP/s."""
    return Reading(name, f"FLOP/s, {dtype}, {unit} unit", lambda found: found.peaks_of(unit).get(dtype))


def dram_bandwidth(name: str) -> Reading:
    """DRAM bandwidth in B/s."""
    return Reading(name, "B/s of DRAM", lambda found: found.dram.bandwidth)


def _level(name: str, which: str, value: Callable[[MemoryLevel], Quantity | None], meaning: str) -> Reading:
    def read(found: Device) -> Quantity | None:
        level = found.level(which)
        return None if level is None else value(level)

    return Reading(name, meaning, read)


FP16 = peak(A100_40, "fp16")
SMS = Reading(A100_40, "SMs", lambda found: found.multiprocessors)
SRAM_RATE = _level(A100_40, "sram", lambda level: level.bandwidth, "B/s of SRAM, all SMs")
SRAM_SIZE = _level(A100_40, "sram", lambda level: level.capacity, "B of shared memory per SM")
HBM_SIZE = _level(A100_40, "dram", lambda level: level.capacity, "B of DRAM")
RIDGE_PCIE = {"flops_per_s": peak(PCIE_80, "fp16"), "bandwidth": dram_bandwidth(PCIE_80)}
