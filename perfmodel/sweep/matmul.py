"""Sweeps over matrix multiplications: one row per configuration, by the formulas of ``perfmodel matmul``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.checks import dtype_on
from perfmodel.core.cost import Tile, memory_bytes
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import estimate, total
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul, default_columns, extra_memory_bytes, io_lower_bound, kernels
from perfmodel.kernels.tile import OnChip, choose_tile, on_chip, with_sram
from perfmodel.sweep.base import DEFAULT_DEVICE, Column, Input, LeftOut, Workload
from perfmodel.sweep.columns import COSTS, MEMORY, PREDICTED, costs
from perfmodel.sweep.devices import canonical, device_ids, device_named, fallback_devices
from perfmodel.timing.select_kernel import check_implementation, select_kernel

_TILE = ("br", "bc", "threads")
_EDGES = ("tile_m", "tile_n")


@dataclass(frozen=True, slots=True)
class MatmulCell:
    """One device and number format; ``probe`` has them and the split of k."""

    device: Device
    chip: OnChip
    probe: Matmul
    implementation: str | None = None
    memo: dict[tuple[int, int], Tile | str] = field(default_factory=dict, compare=False)

    def extras(self, values: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        """Sizes of the tile, which depend on the edges given alone."""
        return {name: [edge for edge in _EDGES if edge in values] for name in _TILE}

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[LeftOut]]:
        """Sizes of the tile, and the rows where it does not fit or k cannot be split."""
        import numpy as np

        edges = np.broadcast_arrays(*(values.get(edge, 0) for edge in _EDGES))
        chosen = [self._tile((int(br), int(bc))) for br, bc in zip(*(edge.ravel() for edge in edges), strict=True)]
        tiles = [tile if isinstance(tile, Tile) else Tile(1, 1) for tile in chosen]
        found = {name: np.array([getattr(tile, name) for tile in tiles], float).reshape(edges[0].shape) for name in _TILE}
        left_out = [LeftOut("split_k is more than k", np.asarray(values["k"]) < self.probe.split_k)]
        for reason in dict.fromkeys(tile for tile in chosen if isinstance(tile, str)):
            left_out.append(LeftOut(reason, np.array([tile == reason for tile in chosen]).reshape(edges[0].shape)))
        return found, left_out

    def _tile(self, edges: tuple[int, int]) -> Tile | str:
        if edges not in self.memo:
            br, bc = edges
            try:
                self.memo[edges] = choose_tile(self.probe.dtype, self.chip, br or None, bc or None, default_columns(self.device))
            except PerfmodelError as error:
                self.memo[edges] = error.message
        return self.memo[edges]

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Every column but predicted times."""
        w = replace(self.probe, m=numbers["m"], n=numbers["n"], k=numbers["k"], batch=numbers["batch"])
        listed = kernels(w, Tile(*(numbers[name] for name in _TILE)))
        bound = io_lower_bound(w, self.chip.total / w.dtype.size)
        edges = {"tile_rows": numbers["br"], "tile_columns": numbers["bc"], "io_lower_bound_elements": bound}
        extra = {"memory_bytes": memory_bytes(listed), "extra_memory_bytes": extra_memory_bytes(w)}
        return {**costs(total(estimate(kernel, self.device) for kernel in listed)), **extra, **edges}

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Predicted time and its interval; None where no calibration covers the row."""
        w = replace(self.probe, m=values["m"], n=values["n"], k=values["k"], batch=values["batch"])
        extra = {name: int(size) for name, size in self.prepare(values)[0].items()}
        lower = float(self.formulas({**values, **extra})["lower_s"])
        try:
            found = select_kernel(
                "matmul", w.dtype.name, w, FORWARD, self.device, lower, self.implementation, lambda name: True, fallback_devices
            )
        except PerfmodelError:
            return {"predicted_s": None, "predicted_low_s": None, "predicted_high_s": None}
        return {"predicted_s": found.seconds, "predicted_low_s": found.low, "predicted_high_s": found.high}


def cell(choices: Mapping[str, Any]) -> MatmulCell:
    """The cell for one combination of choices; PerfmodelError says why there is none."""
    device = device_named(choices["hardware"])
    device = device if choices["sram"] is None else with_sram(device, choices["sram"])
    probe = Matmul(1, 1, choices["split_k"], 1, choices["split_k"], dtype_on(choices["dtype"], device)).check()
    if choices["implementation"] is not None:
        check_implementation(choices["implementation"], "matmul", device, fallback_devices)
    return MatmulCell(device, on_chip(device), probe, choices["implementation"])


WORKLOAD = Workload(
    name="matmul",
    inputs=(
        Input("hardware", "name", "device", DEFAULT_DEVICE, True, names=device_ids, canonical=canonical),
        Input("dtype", "name", "number format", "fp16", True, names=lambda: list(DTYPES)),
        Input("split_k", "whole", "blocks that share the k of a tile", 1, True),
        Input("sram", "size", "SRAM per block", choice=True, unit="B"),
        Input("implementation", "name", "kernel of the predicted columns", choice=True, columns=tuple(one.name for one in PREDICTED)),
        Input("m", "whole", "rows of A and C", required=True),
        Input("n", "whole", "columns of B and C", required=True),
        Input("k", "whole", "columns of A, rows of B", required=True),
        Input("batch", "whole", "independent matmuls", 1),
        Input("tile_m", "whole", "tile rows"),
        Input("tile_n", "whole", "tile columns"),
    ),
    columns=(
        *COSTS,
        *MEMORY,
        Column("io_lower_bound_elements", "elements", "what any schedule moves with the device's fast memory"),
        Column("tile_rows", "rows", "rows of the tile", whole=True),
        Column("tile_columns", "columns", "columns of the tile", whole=True),
        *PREDICTED,
    ),
    cell=cell,
    shown=("flops", "executed_flops", "accesses_elements", "sram_bytes", "dram_bytes", "lower_s", "roofline_s"),
    objective="roofline_s",
    words={"time": "roofline_s", "io": "sram_bytes", "memory": "memory_bytes"},
    always=("hardware", "m", "n", "k"),
)
