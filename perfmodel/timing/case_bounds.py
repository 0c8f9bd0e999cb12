"""Kernels, bound and roof of a case: what its algorithm does, whichever implementation is timed."""

from __future__ import annotations

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.matmul import Matmul, library_tile
from perfmodel.timing.base import Case
from perfmodel.timing.implementations import algorithm_of

DEFAULT_TILE = Tile(128, 128)


def kernels_of(case: Case, device: Device | None = None) -> list[Kernel]:
    """The kernels of the case's algorithm, with the tile that its launch names. Their bounds do not depend on the tile.

    ``device``: the tile of a matmul whose launch has none is the one of its libraries.
    """
    w = case.workload
    default = library_tile(device, DTYPES["bf16"]) if isinstance(w, Matmul) and device is not None else DEFAULT_TILE
    tile = default._replace(br=case.launch.get("br", default.br), bc=case.launch.get("bc", default.bc))
    if hasattr(w, "kernels"):
        return list(w.kernels(tile))
    if not isinstance(w, Attention):
        raise UnavailableError(f"{case.implementation} is estimated as a whole")
    algorithm = find(algorithm_of(case.implementation) if w.sparsity is None else "block-sparse")
    forward = algorithm.forward(w, tile) if case.direction != BACKWARD else []
    backward = algorithm.backward(w, tile) if case.direction != FORWARD else []
    return [*forward, *backward]


def lower_bound_s(case: Case, device: Device) -> float:
    """Seconds that no implementation of the case's algorithm beats; UnavailableError says why there are none.

    If the L2 was flushed, inputs come from DRAM, while outputs may stay in the L2. Else it is the bound of a warm run.
    """
    needs = cost_of(case, device).needs
    return float(needs.flushed_s if case.flushed else needs.warm_s)


def cost_of(case: Case, device: Device) -> Estimate:
    """Counts, bound and roof of all kernels of the case."""
    return _provided_estimate(case, device) or total(estimate(kernel, device) for kernel in kernels_of(case))


def roof_s(case: Case, device: Device) -> float:
    """Seconds at the roof with the tile that the launch names, kernels one after another.

    In a warm run, which uses the same buffers again, only the DRAM bytes beyond the caches count.
    """
    provided = _provided_estimate(case, device)
    if provided is not None:
        return float(provided.roofline_s)
    costs = [estimate(kernel, device) for kernel in kernels_of(case, device)]
    moved = sum(cost.dram.total for cost in costs)
    missed_share = 1.0 if case.flushed or not moved else max(0, moved - (device.cache_bytes or 0)) / moved
    seconds = 0.0
    for cost in costs:
        terms = {**cost.terms, "dram": cost.terms["dram"] * missed_share} if "dram" in cost.terms else cost.terms
        seconds += float(max(terms.values(), default=0.0))
    return seconds


@cached_by_identity
def _provided_estimate(case: Case, device: Device) -> Estimate | None:
    """The estimate that a collective or a step of a model provides; None for other cases."""
    return case.workload.estimate(device) if hasattr(case.workload, "estimate") else None
