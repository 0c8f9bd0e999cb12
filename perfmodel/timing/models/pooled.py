"""Rooflines with fitted shares: for devices without calibrated kernels, and as the baseline that other models must beat.

t = launch + the norm of FLOP / (peak x share) and bytes / (bandwidth x share), on visible FLOP and on what each kernel touches, once. The
parameters of ``pooled`` are of all calibrated devices together (``timing/pooled.json``); ``three-scalars`` takes the longer of both times,
and is fitted to the records that it is compared on.

``pooled()`` prices a kernel on a device that no calibrated kernel serves: of another maker, or without a device like it for this workload.
Its fits, by workload, are written by ``tools/refresh/pooled.py``; the interval is what devices miss whose records the fit does not see.
Source: the roofline of Williams, Waterman & Patterson 2009 with the efficiencies that practice fits to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.core.architectures import transferable
from perfmodel.core.cost import READ, WRITE, ZERO_FILL
from perfmodel.core.errors import UnavailableError
from perfmodel.core.files import read_json
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import rates_of
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.timing.base import Case, Model, find_model, never
from perfmodel.timing.case_bounds import kernels_of
from perfmodel.timing.engine import HARDEST, joined
from perfmodel.timing.implementations import FUSED, algorithm_of
from perfmodel.timing.predict import BORROWED, Prediction, TimeRequest, modelled_s
from perfmodel.timing.transfer import copied_share, product_share

POOLED = "pooled"

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@cached_by_identity
def terms(case: Case, device: Device) -> tuple[float, float]:
    """Seconds of visible FLOP at the peak, and of what each kernel touches at the DRAM bandwidth.

    UnavailableError without a peak for the dtype or a DRAM bandwidth, and for cases without a list of kernels.
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


_POOLED = Model(POOLED, POOLED, covers, seconds, "launch + roofline with shares of all devices together", knows_warm=never)
THREE_SCALARS = Model("three-scalars", POOLED, covers, seconds, "launch + roofline with fitted shares")
MODELS = {model.name: model for model in (_POOLED, THREE_SCALARS)}


# The time of a kernel that no calibrated one serves

FILE = Path(__file__).parent.parent / "pooled.json"
PRODUCTS = f"matmul/{FORWARD}/tensor"
"""The family whose shares are compared with those of microbenchmarks: a large product and a copy."""
MOST_QUERIES = 16  # known
"""Most queries per sequence of a decode step."""


def family(kind: str, case: Case) -> str:
    """Key of the cases that share a fit: the workload, its pass, and its bound."""
    w = case.workload
    if not isinstance(w, Attention):
        unit = f"/{w.dtype.matmul_unit}" if kind == "matmul" else ""
        return f"{kind}/{case.direction}{unit}"
    if algorithm_of(case.implementation) != FUSED:
        return f"{kind}/{case.direction}/standard"
    few = case.direction == FORWARD and w.n <= MOST_QUERIES < w.kv_len
    return f"{kind}/{case.direction}" + ("/decode" if few else "")


@cache
def fits() -> dict[str, Calibration]:
    """The shipped fits by family."""
    return {name: Calibration(**raw) for name, raw in read_json(FILE).items()}


def pooled(request: TimeRequest, implementation: str = "") -> Prediction:
    """The prediction for the algorithm that ``implementation`` runs; UnavailableError where no fit is of its workload."""
    case = Case(request.case.workload, implementation, request.case.direction, request.case.cache, request.case.launch)
    block = fits().get(family(request.kind, case))
    if block is None:
        raise UnavailableError(f"no implementation of {request.kind} in {request.dtype} is calibrated that covers this")
    p = as_probed(block.parameters, request.device, request.dtype, fits()[PRODUCTS].parameters)
    modelled = modelled_s(find_model(block.model), case, request.device, p)
    seconds = max(modelled, request.lower_s)
    low, high = max(request.lower_s, seconds * block.low), seconds * block.high
    runs_here = any(transferable(request.device, other) for other in request.fallbacks())
    why = "none of their kernels for it runs here" if runs_here else "no kernel of this maker is calibrated"
    words = f"pooled over {block.versions}; {why}"
    case_on = case, request.device
    return Prediction(
        seconds, min(low, seconds), max(seconds, high), BORROWED, words, block, case.cache, *case_on, guess=f"{request.kind} {words}"
    )


def as_probed(parameters: Mapping[str, float], device: Device, dtype: str, products: Mapping[str, float]) -> dict[str, float]:
    """``parameters`` with shares scaled by how far the probes of ``device`` are above or below those of other devices (``products``)."""
    own = {"compute_share": product_share(device, dtype), "bandwidth_share": copied_share(device)}
    return {name: value * (own.get(name) or products[name]) / products[name] for name, value in parameters.items()}
