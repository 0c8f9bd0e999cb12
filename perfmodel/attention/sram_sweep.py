"""What more SRAM buys: each tiled algorithm at several M, with the tile that moves least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.attention.base import Algorithm
from perfmodel.attention.evaluate import Result, evaluate
from perfmodel.attention.request import Comparison
from perfmodel.cost import Tile
from perfmodel.workload import FORWARD, Attention

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
    """The result with the fewest accesses over the tiles that fill the SRAM."""
    w, device = comparison.workload, comparison.device
    tiles = _filling_tiles(algorithm, w, sram_bytes)
    results = [evaluate(algorithm, w, device, FORWARD, sram_bytes, tile.br, tile.bc) for tile in tiles]
    return min(results, key=lambda result: result.total.access_bytes, default=None)


def _filling_tiles(algorithm: Algorithm, w: Attention, sram_bytes: int) -> Iterator[Tile]:
    """For one edge at 1, 2, 4, 8, 16 granules, the largest other edge that fits."""
    assert algorithm.tiling is not None
    needs = algorithm.tiling.sram_elements
    for edge in (GRANULE << power for power in range(5)):
        for flip in (False, True):

            def shape(other: int, edge: int = edge, flip: bool = flip) -> Tile:
                return Tile(edge, other) if flip else Tile(other, edge)

            count = 0
            step = 1 << 30
            while step:  # the need grows with the edge: binary search for the last multiple that fits
                if needs(w, shape((count + step) * GRANULE), FORWARD) * w.dtype.size <= sram_bytes:
                    count += step
                step //= 2
            if count:
                yield shape(count * GRANULE)
