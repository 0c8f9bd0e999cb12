"""Tiles of a block of attention rows: chosen once for every different case, by the function that chooses one for a single row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.core.cost import Tile
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.tiles import LARGEST_EDGE, fitting_tile, tallest
from perfmodel.sweep.base import LeftOut

TILE = ("br", "bc", "threads", "head_dim")
_DEPENDS = ("d", "dv", "block_q", "block_kv", "sram")
_MATTER = "query rows matter"
_MOST_KEPT, _MOST_TRIED = 64, 1 << 10

Case = list[int]
"""Query rows, d, d_v, the edges given (0 if not) and bytes of SRAM."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """One algorithm on one device; ``probe`` is a workload with all choices and small sizes. ``memo``: tiles chosen so far."""

    algorithm: Algorithm
    device: Device
    passes: Sequence[str]
    probe: Attention
    sram_bytes: int | None
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, kw_only=True)


def extras(cell: Tiled, values: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Sizes of the tiles, and what they depend on: the query rows only where a square tile may be cut down to few of them."""
    if cell.algorithm.tiling is None:
        return {}
    cell.memo[_MATTER] = _rows_matter(cell, values)
    rows = ["n", *(["heads", "kv_heads"] if cell.probe.packed else [])] if cell.memo[_MATTER] else []
    depends = [*_DEPENDS, *rows]
    return {f"{direction} {name}": [one for one in depends if one in values] for direction in cell.passes for name in TILE}


def _rows(cell: Tiled, values: Mapping[str, Any]) -> Any:
    """Query rows of a walk."""
    return values["n"] * (values["heads"] // values["kv_heads"] if cell.probe.packed else 1)


def _rows_matter(cell: Tiled, values: Mapping[str, Any]) -> bool:
    """Whether some rows are few, and a tile is another one for few."""
    import numpy as np

    if np.min(_rows(cell, values)) > LARGEST_EDGE // 2:
        return False
    cases = _stacked(cell, values, LARGEST_EDGE)
    if cases.shape[1] > _MOST_TRIED:
        return True
    return any(_tile(cell, one, case) != _tile(cell, one, [1, *case[1:]]) for one in cell.passes for case in cases.T.tolist())


def _stacked(cell: Tiled, values: Mapping[str, Any], rows: Any) -> Any:
    """The case of every combination: one column each."""
    import numpy as np

    axes = np.broadcast_arrays(rows, *(values.get(name, 0) for name in _DEPENDS[:-1]), values.get("sram", cell.sram_bytes or 0))
    return np.stack([axis.ravel() for axis in axes]).astype(np.int64)


def tiles(cell: Tiled, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[LeftOut]]:
    """Sizes of the tiles of every pass in a block, and the rows for which none fits."""
    import numpy as np

    if cell.algorithm.tiling is None:
        return {}, []
    rows = np.minimum(_rows(cell, values), LARGEST_EDGE) if cell.memo.get(_MATTER, True) else LARGEST_EDGE
    stacked = _stacked(cell, values, rows)
    shape = np.broadcast_shapes(*(np.shape(values[name]) for name in _DEPENDS if name in values), np.shape(rows))
    key = stacked.tobytes()
    if key not in cell.memo:
        if len(cell.memo) > _MOST_KEPT:
            for known in [one for one in cell.memo if one != _MATTER]:
                del cell.memo[known]
        cell.memo[key] = _chosen(cell, stacked)
    chosen, reasons, where = cell.memo[key]
    found = {name: column[where].reshape(shape) for name, column in chosen.items()}
    missing = [LeftOut(reason, np.isin(where, which).reshape(shape)) for reason, which in reasons.items()]
    return found, missing


def _chosen(cell: Tiled, stacked: Any) -> tuple[dict[str, Any], dict[str, list[int]], Any]:
    """Of each different case the sizes of its tiles, 1 if there is none; the cases without one by reason; which case a column is."""
    import numpy as np

    cases, where = np.unique(stacked, axis=1, return_inverse=True)
    columns: dict[str, list[int]] = {f"{direction} {name}": [] for direction in cell.passes for name in TILE}
    reasons: dict[str, list[int]] = {}
    for index, case in enumerate(cases.T.tolist()):
        for direction in cell.passes:
            tile = _tile(cell, direction, case)
            if isinstance(tile, str):
                reasons.setdefault(tile, []).append(index)
                tile = Tile(1, 1)
            for name in TILE:
                columns[f"{direction} {name}"].append(getattr(tile, name))
    return {name: np.array(column, float) for name, column in columns.items()}, reasons, where.reshape(-1)


def _tile(cell: Tiled, direction: str, case: Case) -> Tile | str:
    """The tile, or why there is none."""
    rows, d, dv, br, bc, sram_bytes = case
    rows = tallest(rows)
    w = replace(cell.probe, n=rows, kv_len=rows, d=d, dv=dv)
    try:
        return fitting_tile(cell.algorithm, w, cell.device, direction, sram_bytes, br or None, bc or None)
    except PerfmodelError as error:
        return error.message
