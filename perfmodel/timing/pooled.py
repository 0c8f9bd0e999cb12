"""The time of a kernel on a device that no calibrated kernel serves, as by another maker.

It is a roofline with shares that ``tools/refresh/pooled.py`` fits, by workload, on the records of all devices together (``pooled.json``).
The interval is the error on devices whose records the fit does not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from perfmodel.core.architectures import transferable
from perfmodel.core.errors import UnavailableError
from perfmodel.core.files import read_json
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.timing.base import Case, find_model
from perfmodel.timing.implementations import FUSED, algorithm_of
from perfmodel.timing.predict import BORROWED, Prediction, TimeRequest, modelled_s
from perfmodel.timing.transfer import copied_share, product_share

FILE = Path(__file__).with_name("pooled.json")
POOLED = "pooled"
PRODUCTS = f"matmul/{FORWARD}/tensor"
"""The family whose shares are compared with those of microbenchmarks: a large product and a copy."""
MOST_QUERIES = 16
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
