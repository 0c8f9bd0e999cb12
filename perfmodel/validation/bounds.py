"""The lower bound of a recorded kernel, by workload; or why it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.attention.algorithms import find
from perfmodel.attention.patterns import block_pattern
from perfmodel.cost import READ, WRITE, Kernel, Tile, once
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


_SHARES, _SWITCHES = {"density", "dropout"}, {"causal", "mask"}


def _sizes(record: Record, required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    """The shape's values, checked; UnavailableError names a key that is missing, unknown or has no meaning."""
    missing = [name for name in required if name not in record.shape]
    if missing:
        raise UnavailableError(f"its shape lacks {', '.join(missing)}")
    unknown = sorted(set(record.shape) - {*required, *optional})
    if unknown:
        raise UnavailableError(f"its shape has {', '.join(unknown)}, which means nothing here")
    for name, value in record.shape.items():
        if not _has_meaning(name, value):
            raise UnavailableError(f"its shape has {name} {value!r}")
    return dict(record.shape)


def _has_meaning(name: str, value: Any) -> bool:
    if name in _SWITCHES:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= 1 if name in _SHARES else isinstance(value, int) and value >= 1


def _attention(record: Record, dtype: Dtype) -> list[Kernel]:
    optional = ("causal", "dv", "window", "density", "mask", "dropout")
    sizes = _sizes(record, ("batch", "heads", "kv_heads", "n", "kv_len", "d"), optional)
    density = sizes.pop("density", None)
    if density is None and "sparse" in record.implementation:
        raise UnavailableError("block-sparse attention without a density")
    sizes["causal"] = sizes.get("causal", False) or "window" in sizes
    sizes.setdefault("dv", sizes["d"])
    pattern = None if density is None else block_pattern(float(density), None)
    w = Attention(**sizes, dtype=dtype, sparsity=pattern, packed=True).check()  # packed: K and V once per KV head
    algorithm = find("flash2" if density is None else "block-sparse")
    algorithm = find(_ALGORITHMS[record.implementation]) if record.implementation in _ALGORITHMS else algorithm
    passes = {FORWARD: [algorithm.forward], BACKWARD: [algorithm.backward]}.get(record.direction, [algorithm.forward, algorithm.backward])
    return [kernel for run in passes for kernel in run(w, Tile(128, 128))]


def _matmul(record: Record, dtype: Dtype) -> list[Kernel]:
    return matmul_kernels(Matmul(**_sizes(record, ("m", "n", "k"), ("batch",)), dtype=dtype).check(), Tile(128, 128))


def _copy(record: Record, dtype: Dtype) -> list[Kernel]:
    size = _sizes(record, ("bytes",), ())["bytes"]
    return [Kernel("copy", dtype, (once("source", READ, size, 1), once("copy", WRITE, size, 1)))]


_WORKLOADS: dict[str, Callable[[Record, Dtype], list[Kernel]]] = {"attention": _attention, "matmul": _matmul, "copy": _copy}


def evaluated(record: Record, device: Device) -> tuple[float | None, str]:
    """Lower bound, or None and the reason in words."""
    try:
        return lower_bound_s(record, device), ""
    except PerfmodelError as error:
        return None, error.message
