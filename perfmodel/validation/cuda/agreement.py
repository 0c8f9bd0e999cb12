"""Counters of a record beside the model's counts, and how far apart the two may be."""

from __future__ import annotations

from typing import Any, NamedTuple

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import estimate
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.validation.records import Record


class Comparison(NamedTuple):
    """Bytes as predicted and as counted; ``allowed``: the lowest and the highest count that agree with the prediction."""

    counter: str
    predicted: float
    counted: float
    ratio: float
    allowed: tuple[float, float]

    @property
    def within(self) -> bool:
        """Whether the count agrees."""
        return self.allowed[0] <= self.counted <= self.allowed[1]


ALGORITHMS = {"numba-flash": "flash2", "numba-flash-mma": "flash2", "numba-flash1": "flash1"}
SRAM_TOLERANCE = {"numba-flash": 1e-3, "numba-flash-mma": 1e-3, "numba-flash1": 1e-2}
DRAM_TOLERANCE, FAR_BEYOND_L2 = 0.05, 8
"""Relative error of DRAM reads that is allowed while Q, K and V of all heads take less than so many times L2."""
DRAM_TOLERANCE_BEYOND = 0.30
DRAM_WRITES_ABOVE = 1.25
"""DRAM writes over their prediction; below, what L2 can hold may be missing, as it is written after the kernel."""


def kernel_of(record: Record) -> Kernel:
    """The model's kernel of an attention record, with the tile that ran; UnavailableError where there is none."""
    if record.implementation not in ALGORITHMS or record.workload != "attention":
        raise UnavailableError(f"no counts of {record.implementation} to compare", f"there are some of {', '.join(ALGORITHMS)}")
    if not {"br", "bc"} <= set(record.launch) or record.dtype not in DTYPES:
        raise UnavailableError("the record does not say which tile or dtype ran", "give br and bc under 'launch'")
    sizes: dict[str, Any] = {"dv": record.shape.get("d"), **record.shape}
    try:
        w = Attention(**sizes, dtype=DTYPES[record.dtype]).check()
    except TypeError:
        raise UnavailableError(f"the record's shape has {', '.join(record.shape)}", "give the keys of an attention workload") from None
    tile = Tile(record.launch["br"], record.launch["bc"], record.launch.get("threads", Tile(1, 1).threads))
    [kernel] = find(ALGORITHMS[record.implementation]).forward(w, tile)
    return kernel


def compare_counters(record: Record, device: Device) -> list[Comparison]:
    """The counters of ``record`` beside the model; those that the record lacks are left out."""
    kernel, found = kernel_of(record), record.counters
    cost, cache = estimate(kernel, device), device.cache_bytes or 0
    beyond = _input_bytes(kernel) >= FAR_BEYOND_L2 * cache
    predicted = {"l2_to_sm_bytes": cost.sram.read, "dram_read_bytes": cost.dram.read, "dram_write_bytes": cost.dram.write}
    allowed = {
        "l2_to_sm_bytes": _around(cost.sram.read, SRAM_TOLERANCE[record.implementation]),
        "dram_read_bytes": _around(cost.dram.read, DRAM_TOLERANCE_BEYOND if beyond else DRAM_TOLERANCE),
        "dram_write_bytes": (max(cost.dram.write - cache, 0), cost.dram.write * DRAM_WRITES_ABOVE),
    }
    return [
        Comparison(
            name, float(predicted[name]), found[name], float(predicted[name]) / found[name] if found[name] else float("inf"), allowed[name]
        )
        for name in predicted
        if name in found
    ]


def _around(predicted: Any, tolerance: float) -> tuple[float, float]:
    """Counts of which ``predicted`` is no more than ``tolerance`` off, relative to the count."""
    return float(predicted) / (1 + tolerance), float(predicted) / (1 - tolerance)


def _input_bytes(kernel: Kernel) -> Any:
    """Bytes of Q, K and V over all heads."""
    return sum(
        access.footprint * access.element_size for access in kernel.accesses if access.kind == "read" and access.tensor in ("Q", "K", "V")
    )
