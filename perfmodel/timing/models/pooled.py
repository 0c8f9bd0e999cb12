"""Rooflines with fitted shares: for any kernel of a device without calibrated kernels, and as the baseline that other models must beat.

t = launch + the norm of FLOP / (peak x share) and bytes / (bandwidth x share), on visible FLOP and on what each kernel touches, once. The
parameters of ``pooled`` are of all calibrated devices together (``timing/pooled.json``); ``three-scalars`` takes the longer of both times,
and is fitted to the records that it is compared on.
Source: the roofline of Williams, Waterman & Patterson 2009 with the efficiencies that practice fits to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.core.cost import READ, WRITE, ZERO_FILL
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import rates_of
from perfmodel.timing.base import Case, Model, never
from perfmodel.timing.case_bounds import kernels_of
from perfmodel.timing.engine import HARDEST, joined

if TYPE_CHECKING:
    from perfmodel.timing.fit import Floats


@cached_by_identity
def terms(case: Case, device: Device) -> tuple[float, float]:
    """Seconds of visible FLOP at the peak, and of what each kernel touches at the DRAM bandwidth.

    UnavailableError without a peak for the dtype or a DRAM bandwidth, or for what has no list of kernels.
    """
    kernels = kernels_of(case)
    rates = rates_of(device, kernels[0].dtype)
    touched = sum(a.footprint * a.element_size for kernel in kernels for a in kernel.accesses if a.kind in (READ, WRITE, ZERO_FILL))
    return float(sum(kernel.flops for kernel in kernels) / rates.matmul), float(touched / rates.dram)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError as ``terms``."""
    compute, traffic = terms(case, device)
    return p["launch_us"] * 1e-6 + joined(p.get("overlap", HARDEST), compute / p["compute_share"], traffic / p["bandwidth_share"])


def seconds_of_rows(rows: Floats, p: Mapping[str, float]) -> Floats:
    """Seconds by ``three-scalars`` of many calls, of each of which ``rows`` has the ``terms``."""
    longest: Floats = (rows / (p["compute_share"], p["bandwidth_share"])).max(axis=1)
    return p["launch_us"] * 1e-6 + longest


def covers(case: Case) -> bool:
    """Every case; no implementation is calibrated with them."""
    return True


POOLED = Model("pooled", "pooled", covers, seconds, "launch + roofline with shares of all devices together", knows_warm=never)
THREE_SCALARS = Model("three-scalars", "pooled", covers, seconds, "launch + roofline with fitted shares")
MODELS = {model.name: model for model in (POOLED, THREE_SCALARS)}
