"""What more SRAM buys: each tiled algorithm at several M, with the tile that moves least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perfmodel.core.cost import Tile
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.evaluate import Result, evaluate
from perfmodel.kernels.attention.request import Comparison

GRANULE = 16
"""Tile edges are multiples of this: the smallest matrix that tensor cores take."""


@dataclass(frozen=True, slots=True)
class SramPoint:
    """One algorithm with SRAM of ``sram_bytes`` and its best tile; None if no tile of GRANULE rows fits."""

    algorithm: Algorithm
    sram_bytes: int
    result: Result | None


def sram_sweep(comparison: Comparison) -> list[SramPoint]:
    """Every tiled algorithm of ``comparison``, forward, at the SRAM sizes that it names."""
    return [SramPoint(a, m, _best(a, comparison, m)) for a in comparison.tiled_in_sram() for m in comparison.sram_sizes]


def _best(algorithm: Algorithm, comparison: Comparison, sram_bytes: int) -> Result | None:
    """The result with the fewest accesses over the tiles that fill the SRAM or, with fp32 scores and sums, the registers."""
    w, device = comparison.workload, comparison.device
    registers = device.limits.registers_per_multiprocessor
    tiling = algorithm.tiling
    assert tiling is not None

    def fits(tile: Tile) -> bool:
        held = tile.br * (tile.bc + w.dv)
        in_sram = tiling.sram_elements(w, tile, FORWARD) * w.dtype.size <= sram_bytes
        return bool(in_sram and (registers is None or held <= registers.number))

    results = [evaluate(algorithm, w, device, FORWARD, sram_bytes, tile.br, tile.bc) for tile in _filling_tiles(fits)]
    return min(results, key=lambda result: result.total.access_bytes, default=None)


def _filling_tiles(fits: Callable[[Tile], bool]) -> Iterator[Tile]:
    """For one edge at 1, 2, 4, ... 64 granules, the largest other edge that fits."""
    for edge in (GRANULE << power for power in range(7)):
        for flip in (False, True):

            def shape(other: int, edge: int = edge, flip: bool = flip) -> Tile:
                return Tile(edge, other) if flip else Tile(other, edge)

            count = 0
            step = 1 << 30
            while step:  # the need grows with the edge: binary search for the last multiple that fits
                if fits(shape((count + step) * GRANULE)):
                    count += step
                step //= 2
            if count:
                yield shape(count * GRANULE)
