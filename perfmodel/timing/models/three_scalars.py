"""The baseline that other models must beat: launch overhead, and fitted shares of peak and bandwidth.

t = launch + max(FLOP / (peak x share), bytes / (bandwidth x share)), on visible FLOP and compulsory bytes.
Source: the roofline of Williams, Waterman & Patterson 2009 with the three efficiencies that practice fits to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.cost import READ, WRITE, ZERO_FILL, Kernel
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.timing.base import Case, Model, Parameter
from perfmodel.timing.case_bounds import kernels_of

PARAMETERS = (
    Parameter("launch_us", "before anything"),
    Parameter("compute_share", "of the matmul peak"),
    Parameter("bandwidth_share", "of the DRAM bandwidth"),
)


def terms(kernels: list[Kernel], device: Device) -> tuple[float, float]:
    """Seconds of visible FLOP at the peak, and of compulsory bytes at the DRAM bandwidth."""
    rates = rates_of(device, kernels[0].dtype)
    moved = sum(
        access.compulsory * access.element_size for k in kernels for access in k.accesses if access.kind in (READ, WRITE, ZERO_FILL)
    )
    return float(sum(k.flops for k in kernels) / rates.matmul), float(moved / rates.dram)


def from_terms(compute: float, traffic: float, p: Mapping[str, float]) -> float:
    """Predicted seconds from what ``terms`` gives."""
    return p["launch_us"] * 1e-6 + max(compute / p["compute_share"], traffic / p["bandwidth_share"])


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a peak for the dtype, or for a workload that has no list of kernels."""
    return from_terms(*terms(kernels_of(case), device), p)


def covers(case: Case) -> bool:
    """Every case: it is a baseline for comparison, and nothing is calibrated with it."""
    return True


MODEL = Model("three-scalars", PARAMETERS, covers, seconds, "launch + roofline with fitted shares")
