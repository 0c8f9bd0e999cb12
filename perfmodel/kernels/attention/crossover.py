"""Borders in N, d and M where a tiled algorithm stops beating standard attention in bytes or time; and accesses over SRAM sizes.

Borders are found by bisection on the exact counts, with partial tiles, statistics and linear terms. Near a border, partial tiles make wins
and losses alternate; one of the turns is reported. Some algorithms also have a law of the leading terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from perfmodel.core.cost import Tile
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.evaluate import AttentionResult, evaluate
from perfmodel.kernels.attention.request import Comparison
from perfmodel.kernels.attention.walk import row_tiles

LARGEST = {"n": 1 << 40, "d": 1 << 20, "sram_bytes": 1 << 40}
"""Largest value searched, beyond any sequence, head or on-chip memory."""
MEASURES: dict[str, Callable[[AttentionResult], float]] = {
    "accesses": lambda result: result.total.access_bytes,
    "roofline": lambda result: result.total.roofline_s,
}


@dataclass(frozen=True, slots=True)
class Crossover:
    """Limits within which ``algorithm`` beats standard attention by ``measure``, each with the other sizes held.

    ``first_n``: smallest sequence length; ``last_d``: largest head dim; ``first_sram_bytes``: smallest M. Each is None if there is no
    border; ``wins_here`` then holds for all values. ``law``: the condition on d by the leading terms alone.
    """

    algorithm: Algorithm
    measure: str
    wins_here: bool
    law: str | None
    last_d_by_law: float | None
    first_n: int | None
    last_d: int | None
    first_sram_bytes: int | None


def crossover(algorithm: Algorithm, w: Attention, device: Device, sram_bytes: int, measure: str) -> Crossover:
    """Borders of ``algorithm`` around the forward pass of ``w``, by ``measure``: bytes of accesses or time at the roof."""
    amount, standard = MEASURES[measure], find("standard")

    def wins(n: int, d: int, m: int) -> bool:
        keys = n if w.kv_len == w.n else w.kv_len
        shape = replace(w, n=n, kv_len=keys, d=d, dv=d if w.dv == w.d else w.dv)
        try:
            tiled = evaluate(algorithm, shape, device, FORWARD, m)
        except UsageError:  # not even one row fits
            return False
        return amount(tiled) < amount(evaluate(standard, shape, device, FORWARD, m))

    law, last_d_by_law = None, None
    if algorithm.pays_while is not None and measure == "accesses":
        law, limit = algorithm.pays_while
        tile = evaluate(algorithm, w, device, FORWARD, sram_bytes).tile
        last_d_by_law = limit(sram_bytes // w.dtype.size, tile) if tile and row_tiles(w, tile.br) > 1 else None
    return Crossover(
        algorithm,
        measure,
        wins(w.n, w.d, sram_bytes),
        law,
        last_d_by_law,
        first_n=_first_true(lambda n: wins(n, w.d, sram_bytes), LARGEST["n"]),
        last_d=_last_true(lambda d: wins(w.n, d, sram_bytes), LARGEST["d"]),
        first_sram_bytes=_first_true(lambda m: wins(w.n, w.d, m), LARGEST["sram_bytes"]),
    )


def crossovers(comparison: Comparison) -> list[Crossover]:
    """Borders of every tiled algorithm of ``comparison`` by every measure; UsageError if it has none."""
    tiled = comparison.tiled_in_sram()
    if comparison.tile_given:
        raise UsageError("--crossover lets each algorithm choose its tile", "leave out --block-q and --block-kv")
    if not tiled or comparison.sram_bytes is None:
        raise UsageError("--crossover compares tiled algorithms with standard attention, forward", "add --algorithm flash")
    w, device, m = comparison.workload, comparison.device, comparison.sram_bytes
    return [crossover(algorithm, w, device, m, measure) for algorithm in tiled for measure in MEASURES]


def _first_true(holds: Callable[[int], bool], largest: int) -> int | None:
    """An x at which ``holds`` turns true, perhaps not for good (partial tiles); None if it is false at ``largest``."""
    return _border(holds, 0, largest) if holds(largest) else None


def _last_true(holds: Callable[[int], bool], largest: int) -> int | None:
    """An x after which ``holds`` turns false, perhaps not for good (partial tiles); None if it is false at 1 or true at ``largest``."""
    return None if not holds(1) or holds(largest) else _border(lambda x: not holds(x), 1, largest) - 1


def _border(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The x at which ``holds`` turns from false, as at ``low``, to true, as at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# Accesses over SRAM sizes


GRANULE = 16
"""Tile edges are multiples of this: the smallest matrix that tensor cores take."""


@dataclass(frozen=True, slots=True)
class SramPoint:
    """One algorithm with SRAM of ``sram_bytes`` and its best tile; None if no tile of GRANULE rows fits."""

    algorithm: Algorithm
    sram_bytes: int
    result: AttentionResult | None


def sram_sweep(comparison: Comparison) -> list[SramPoint]:
    """The forward pass of every tiled algorithm of ``comparison`` at each of its SRAM sizes."""
    return [SramPoint(a, m, _best(a, comparison, m)) for a in comparison.tiled_in_sram() for m in comparison.sram_sizes]


def _best(algorithm: Algorithm, comparison: Comparison, sram_bytes: int) -> AttentionResult | None:
    """The result with the fewest accesses among tiles that fill the SRAM, or the registers with fp32 scores and sums."""
    w, device = comparison.workload, comparison.device
    registers = device.limits.registers_per_multiprocessor
    tiling = algorithm.tiling
    assert tiling is not None

    def fits(tile: Tile) -> bool:
        accumulators = tile.br * (tile.bc + w.dv)
        in_sram = tiling.sram_elements(w, tile, FORWARD) * w.dtype.size <= sram_bytes
        return bool(in_sram and (registers is None or accumulators <= registers.number))

    results = [evaluate(algorithm, w, device, FORWARD, sram_bytes, tile.br, tile.bc) for tile in _filling_tiles(fits)]
    return min(results, key=lambda result: result.total.access_bytes, default=None)


def _filling_tiles(fits: Callable[[Tile], bool]) -> Iterator[Tile]:
    """Tiles with one edge of 1, 2, 4, ... 64 granules and the largest other edge that ``fits`` allows."""
    for edge in (GRANULE << power for power in range(7)):
        yield from filter(None, (_filling(partial(Tile, bc=edge), fits), _filling(partial(Tile, edge), fits)))


def _filling(shape: Callable[[int], Tile], fits: Callable[[Tile], bool]) -> Tile | None:
    """The largest tile ``shape(edge)`` that ``fits``; its need grows with the edge. None if none fits."""
    count = _last_true(lambda count: fits(shape(count * GRANULE)), 1 << 31)
    return shape(count * GRANULE) if count else None
