"""The kernels of a case as the bound and the roof see them."""

from __future__ import annotations

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.matmul import Matmul, default_columns
from perfmodel.timing.base import Case, algorithm_of

DEFAULT_TILE = (128, 128)


def kernels_of(case: Case, device: Device | None = None) -> list[Kernel]:
    """The kernels of the case's algorithm, with the tile that its launch names; bounds do not depend on it.

    ``device``: of matmuls without one in their launch, the tile that its libraries take.
    """
    w, columns = case.workload, DEFAULT_TILE[1]
    if isinstance(w, Matmul) and device is not None:
        columns = default_columns(device)
    tile = Tile(case.launch.get("br", DEFAULT_TILE[0]), case.launch.get("bc", columns))
    if hasattr(w, "kernels"):
        return list(w.kernels(tile))
    if not isinstance(w, Attention):
        raise UnavailableError(f"{case.implementation} is estimated as a whole")
    algorithm = find(algorithm_of(case.implementation) if w.sparsity is None else "block-sparse")
    passes = {FORWARD: [algorithm.forward], BACKWARD: [algorithm.backward]}.get(case.direction, [algorithm.forward, algorithm.backward])
    return [kernel for run in passes for kernel in run(w, tile)]


def lower_bound_s(case: Case, device: Device) -> float:
    """Seconds that no implementation of the case's algorithm beats; the warm bound unless L2 was flushed.

    After a run on flushed caches its outputs may still lie there.

    UnavailableError says why there is none.
    """
    cost = _whole(case, device) or total(estimate(kernel, device) for kernel in kernels_of(case))
    return float(cost.needs.flushed_s if case.cold else cost.needs.warm_s)


def roof_s(case: Case, device: Device) -> float:
    """Seconds at the roof with the tile that the launch names, kernels one after another.

    Where the same buffers are used again (warm), DRAM bytes of all kernels together count only beyond the caches.
    """
    whole = _whole(case, device)
    if whole is not None:
        return float(whole.roofline_s)
    costs = [estimate(kernel, device) for kernel in kernels_of(case, device)]
    moved = sum(cost.dram.total for cost in costs)
    missed = 1.0 if case.cold or not moved else max(0, moved - (device.cache_bytes or 0)) / moved
    return sum(_roof_s(cost, missed) for cost in costs)


def _whole(case: Case, device: Device) -> Estimate | None:
    """Of a collective or a step of a model, which have estimates of their own; else None."""
    return case.workload.estimate(device) if hasattr(case.workload, "estimate") else None


def _roof_s(cost: Estimate, missed: float) -> float:
    """``missed``: share of its DRAM bytes that the caches do not hold already."""
    return float(max((term * (missed if name == "dram" else 1) for name, term in cost.terms.items()), default=0.0))
