"""The lower bound of a recorded kernel, by workload; or why it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.attention.algorithms import find
from perfmodel.attention.patterns import block_pattern
from perfmodel.cost import Kernel, Tile
from perfmodel.dtypes import DTYPES, Dtype
from perfmodel.errors import PerfmodelError, UnavailableError
from perfmodel.hardware import Device
from perfmodel.ops.matmul import Matmul
from perfmodel.ops.matmul import kernels as matmul_kernels
from perfmodel.roofline import estimate, total
from perfmodel.validation.records import Record
from perfmodel.workload import BACKWARD, FORWARD, Attention

_ALGORITHMS = {"torch-eager": "standard", "numba-standard": "standard", "numba-flash1": "flash1"}
"""IO scheme of an implementation; every other attention kernel keeps its scores on chip like flash2."""


def kernels_of(record: Record, dtype: Dtype) -> list[Kernel]:
    """The kernels that a recorded measurement ran, as the model sees them; UnavailableError says what the record lacks."""
    build = _WORKLOADS.get(record.workload)
    if build is None:
        raise UnavailableError(f"no model of workload {record.workload!r}", f"there is one of {', '.join(_WORKLOADS)}")
    return build(record, dtype)


def lower_bound_s(record: Record, device: Device) -> float:
    """Seconds that no implementation of the record's algorithm beats; the warm bound unless L2 was flushed.

    UnavailableError says why there is none.
    """
    if record.dtype not in DTYPES:
        raise UnavailableError(f"no model of dtype {record.dtype!r}")
    cost = total(estimate(kernel, device) for kernel in kernels_of(record, DTYPES[record.dtype]))
    return float(cost.lower_s if record.cache == "cold" else cost.lower_warm_s)


def _sizes(record: Record, names: Mapping[str, Any]) -> dict[str, Any]:
    """The shape's values under ``names``; a default of None must be given."""
    sizes = {name: record.shape.get(name, default) for name, default in names.items()}
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise UnavailableError(f"its shape lacks {', '.join(missing)}")
    return sizes


def _attention(record: Record, dtype: Dtype) -> list[Kernel]:
    density = record.shape.get("density")
    if density is None and "sparse" in record.implementation:
        raise UnavailableError("block-sparse attention without a density")
    sizes = _sizes(record, {"batch": None, "heads": None, "kv_heads": None, "n": None, "kv_len": None, "d": None, "causal": False})
    w = Attention(
        **sizes,
        dv=int(record.shape.get("dv", sizes["d"])),
        dtype=dtype,
        window=record.shape.get("window"),
        mask=bool(record.shape.get("mask", False)),
        dropout=float(record.shape.get("dropout", 0)),
        sparsity=None if density is None else block_pattern(float(density), None),
        packed=True,  # K and V once per KV head: what no implementation undercuts
    ).check()
    algorithm = find("flash2" if density is None else "block-sparse")
    algorithm = find(_ALGORITHMS[record.implementation]) if record.implementation in _ALGORITHMS else algorithm
    passes = {FORWARD: [algorithm.forward], BACKWARD: [algorithm.backward]}.get(record.direction, [algorithm.forward, algorithm.backward])
    return [kernel for run in passes for kernel in run(w, Tile(128, 128))]


def _matmul(record: Record, dtype: Dtype) -> list[Kernel]:
    return matmul_kernels(Matmul(**_sizes(record, {"m": None, "n": None, "k": None, "batch": 1}), dtype=dtype), Tile(128, 128))


_WORKLOADS: dict[str, Callable[[Record, Dtype], list[Kernel]]] = {"attention": _attention, "matmul": _matmul}


def evaluated(record: Record, device: Device) -> tuple[float | None, str]:
    """Lower bound, or None and the reason in words."""
    try:
        return lower_bound_s(record, device), ""
    except PerfmodelError as error:
        return None, error.message
