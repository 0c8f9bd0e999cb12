"""Any kernel of a device of which no kernel is calibrated: a roofline with the launch and the shares that libraries reach elsewhere.

t = launch + the norm of FLOP / (peak x share) and bytes / (bandwidth x share), on visible FLOP and on what each kernel touches, once.
The parameters are of all calibrated devices together (``timing/pooled.json``).
Source: the roofline of Williams, Waterman & Patterson 2009.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.cost import READ, WRITE, ZERO_FILL
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.timing.base import Case, Model, Parameter, once_per_case
from perfmodel.timing.case_bounds import kernels_of

PARAMETERS = (
    Parameter("launch_us", "before anything"),
    Parameter("compute_share", "of the matmul peak"),
    Parameter("bandwidth_share", "of the DRAM bandwidth"),
    Parameter("overlap", "norm that joins FLOP and bytes: 1 would add them up, infinity hide the shorter time"),
)

HARDEST = 50.0  # known
"""A norm that hides the shorter time wholly; beyond, powers lose their digits."""


@once_per_case
def terms(case: Case, device: Device) -> tuple[float, float]:
    """Seconds of visible FLOP at the peak, and of what each kernel touches at the DRAM bandwidth."""
    kernels = kernels_of(case)
    rates = rates_of(device, kernels[0].dtype)
    touched = sum(a.footprint * a.element_size for kernel in kernels for a in kernel.accesses if a.kind in (READ, WRITE, ZERO_FILL))
    return float(sum(kernel.flops for kernel in kernels) / rates.matmul), float(touched / rates.dram)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a peak for the dtype or a DRAM bandwidth, or for what has no list of kernels."""
    compute, traffic = terms(case, device)
    compute, traffic, overlap = compute / p["compute_share"], traffic / p["bandwidth_share"], max(1.0, min(p["overlap"], HARDEST))
    longer = max(compute, traffic)
    joined: float = longer * ((compute / longer) ** overlap + (traffic / longer) ** overlap) ** (1 / overlap)
    return p["launch_us"] * 1e-6 + joined


def covers(case: Case) -> bool:
    """Every case; no implementation is calibrated with it."""
    return True


MODEL = Model("pooled", PARAMETERS, covers, seconds, "launch + roofline with shares of all devices together", knows_warm=False)
