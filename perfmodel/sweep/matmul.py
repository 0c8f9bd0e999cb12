"""Sweeps over matrix multiplications: one row per configuration, by the formulas of ``perfmodel matmul``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.checks import dtype_on
from perfmodel.core.cost import Tile, memory_bytes
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import estimate, total
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul, default_columns, extra_memory_bytes, io_lower_bound, kernels
from perfmodel.kernels.question import MatmulQuestion
from perfmodel.kernels.tile import OnChip, choose_tile, on_chip, with_sram
from perfmodel.sweep.base import (
    PREDICTED,
    Skipped,
    SweepColumn,
    SweepInput,
    SweepVariant,
    TileSizes,
    choice,
    costs,
    count,
    device_named,
    fallbacks,
    kernel_workload,
    predicted_columns,
)
from perfmodel.timing.select_kernel import check_implementation, select_kernel

_TILE = ("br", "bc", "threads")
_EDGES = ("tile_m", "tile_n")


@dataclass(frozen=True, slots=True)
class MatmulVariant(SweepVariant):
    """One device and number format; ``probe`` has them and the split of k."""

    device: Device
    chip: OnChip
    probe: Matmul
    implementation: str | None = None
    sizes: TileSizes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", TileSizes(_TILE, self._tile))

    def _tile(self, br: int, bc: int) -> Mapping[str, Number] | str:
        """Sizes of the tile with the edges given, 0 if not, or why there is none."""
        try:
            tile = choose_tile(self.probe.dtype, self.chip, br or None, bc or None, default_columns(self.device))
        except PerfmodelError as error:
            return error.message
        return {name: getattr(tile, name) for name in _TILE}

    def extras(self, values: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        """Sizes of the tile, which depend on the edges given alone."""
        return {name: [edge for edge in _EDGES if edge in values] for name in _TILE}

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Skipped]]:
        """Sizes of the tile, and the rows where it does not fit or k cannot be split."""
        found, left_out = self.sizes.of(*(values.get(edge, 0) for edge in _EDGES))
        return found, [Skipped("split_k is more than k", values["k"] < self.probe.split_k), *left_out]

    def _workload(self, numbers: Mapping[str, Number]) -> Matmul:
        return replace(self.probe, **{name: numbers[name] for name in ("m", "n", "k", "batch")})

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Every column but predicted times."""
        w = self._workload(numbers)
        listed = kernels(w, Tile(*(numbers[name] for name in _TILE)))
        bound = io_lower_bound(w, self.chip.total / w.dtype.size)
        edges = {"tile_rows": numbers["br"], "tile_columns": numbers["bc"], "io_lower_bound_elements": bound}
        extra = {"memory_bytes": memory_bytes(listed), "extra_memory_bytes": extra_memory_bytes(w)}
        return {**costs(total(estimate(kernel, self.device) for kernel in listed)), **extra, **edges}

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Predicted time and its interval; None where no calibration covers the row."""
        w, extra = self._workload(values), {name: int(size) for name, size in self.prepare(values)[0].items()}
        lower = float(self.formulas({**values, **extra})["lower_s"])
        try:
            found = select_kernel("matmul", w.dtype.name, w, FORWARD, self.device, lower, self.implementation, lambda name: True, fallbacks)
        except PerfmodelError:
            return predicted_columns(None)
        return predicted_columns(found)


def variant(choices: Mapping[str, Any]) -> MatmulVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    device = device_named(choices["hardware"])
    device = device if choices["sram"] is None else with_sram(device, choices["sram"])
    probe = Matmul(1, 1, choices["split_k"], 1, choices["split_k"], dtype_on(choices["dtype"], device)).check()
    if choices["implementation"] is not None:
        check_implementation(choices["implementation"], "matmul", device, fallbacks)
    return MatmulVariant(device, on_chip(device), probe, choices["implementation"])


MATMUL = kernel_workload(
    MatmulQuestion,
    (
        choice("split_k", "blocks that share the k of a tile"),
        choice("sram", "SRAM per block", unit="B"),
        choice("implementation", "kernel of the predicted columns", kind="name", columns=tuple(one.name for one in PREDICTED)),
        SweepInput("m", "rows of A and C", required=True),
        SweepInput("n", "columns of B and C", required=True),
        SweepInput("k", "columns of A, rows of B", required=True),
        SweepInput("batch", "independent matmuls"),
        SweepInput("tile_m", "tile rows"),
        SweepInput("tile_n", "tile columns"),
    ),
    (
        SweepColumn("io_lower_bound_elements", "elements", "what any schedule moves with the device's fast memory"),
        count("tile_rows", "rows", "rows of the tile"),
        count("tile_columns", "columns", "columns of the tile"),
    ),
    name="matmul",
    variant=variant,
    always=("hardware", "m", "n", "k"),
)
