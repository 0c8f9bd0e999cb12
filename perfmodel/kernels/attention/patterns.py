"""Block patterns of block-sparse attention: a density, a named pattern, or the pairs in a file.

The grid of blocks is T_r x T_c over the scores of one head; block (i, j) holds query tile i and key tile j, as a walk of one head
cuts them. A block is computed if the pattern has it and the causal mask leaves some of it. Packed, query block i of all g heads of
a group is g row tiles of the walk, with the same keys: packing changes the tiles, not which scores are computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from math import isqrt
from pathlib import Path
from typing import NamedTuple

from perfmodel.core.arith import Number, ceil_div, deferrable, maximum, minimum
from perfmodel.core.checks import read_text
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.trace import is_traced, plain, template
from perfmodel.core.workload import Attention, BlockCounts, BlockPattern
from perfmodel.kernels.attention.blocks import BlockGrid, Tally, every, multiples, with_bit, without
from perfmodel.kernels.attention.walk import distinct_query_rows, streamed_query_rows, visible_rows, visible_scores, visited_scores

MAX_BYTES = 1 << 20
MOST_PACKED = 1024
"""Heads of a group whose row tiles are counted one by one."""


class Density(NamedTuple):
    """``numerator / denominator`` of all blocks, spread evenly, without saying which.

    Streamed rows, scores and visible scores are that share of the dense walk's (under a mask: of the unmasked ones), rounded up. Every
    query row is assumed to be in some nonzero block, as long as there are enough blocks.
    """

    numerator: int
    denominator: int

    @property
    def name(self) -> str:
        """Name in reports, such as ``density 0.25``."""
        return f"density {self.numerator / self.denominator:g}"

    def obstacle(self, w: Attention) -> str | None:
        """None: a density scales with any mask."""
        return None

    def counts(self, w: Attention, br: Number, bc: Number) -> BlockCounts:
        """Counts of the dense walk times the density.

        >>> Density(1, 4).counts(Attention(n=1000, kv_len=1000, d=64, dv=64), 100, 100).streamed_rows
        2500
        """

        def share(dense: Number) -> Number:
            return ceil_div(self.numerator * dense, self.denominator)

        rows = share(streamed_query_rows(w, br, bc))
        distinct = minimum(distinct_query_rows(w, br, bc), rows)
        seeing = minimum(w.row_group * visible_rows(w), distinct)
        visible = w.row_group * share(visible_scores(w))
        return BlockCounts(rows, distinct, seeing, maximum(share(visited_scores(w, br, bc)), visible), visible)


def _evaluated(name: str, count: Callable[[BlockGrid], BlockCounts], w: Attention, br: Number, bc: Number) -> BlockCounts:
    """``count`` of the walk's grid, for ints, arrays and traced numbers; ``count`` itself takes only ints.

    Arrays are evaluated element by element, and a traced result is a single node. Without a causal mask one head of a packed group is
    counted and multiplied, as each head has its own row tiles with equal counts.
    """
    group, counted_heads = (w.row_group, 1) if w.causal else (1, w.row_group)
    reach = w.kv_len - w.n if w.causal else w.kv_len  # without a mask every row sees every key
    sizes = (group * w.n, w.kv_len, br, bc, reach, group)

    @cache
    def checked(*sizes: int) -> BlockCounts:
        counts = count(BlockGrid(*sizes))
        if counts.streamed_rows == 0:
            raise UsageError(f"--pattern {name}: the causal mask hides every nonzero block", "include one on or below the diagonal")
        return counts

    numbers: Iterable[Number]
    if is_traced(*sizes):
        values = count(BlockGrid(*(int(plain(size)) for size in sizes)))
        shown, plain_name = (w.n, w.kv_len, br, bc), name.replace("{", "{{").replace("}", "}}")
        nodes = (f"[{field.replace('_', ' ')} of {plain_name}]({{}}, {{}}, {{}}, {{}})" for field in BlockCounts._fields)
        numbers = (template(node, value, *shown) for node, value in zip(nodes, values, strict=True))
    elif all(isinstance(size, int) for size in sizes):
        numbers = checked(*sizes)
    else:
        numbers = (deferrable(partial(_column, checked, index), *sizes) for index in range(len(BlockCounts._fields)))
    return BlockCounts(*(counted_heads * number for number in numbers))


def _column(count: Callable[..., BlockCounts], index: int, *sizes: Number) -> Number:
    """The ``index``-th of the counts over arrays of sizes, computed point by point."""
    import numpy as np

    axes = np.broadcast_arrays(*sizes)
    points = [count(*map(int, point))[index] for point in zip(*(axis.ravel() for axis in axes), strict=True)]
    return np.array(points, float).reshape(axes[0].shape)


class Named(NamedTuple):
    """A pattern by rule, counted in O(log T) steps."""

    name: str

    def obstacle(self, w: Attention) -> str | None:
        """Reason why its blocks cannot be counted under this mask; None if they can."""
        if w.window is not None:
            return f"the blocks of {self.name} under a --window are not modelled; give --sparsity, or --causal alone"
        if w.causal and w.row_group > 1:
            return f"the blocks of {self.name} under a causal mask have no closed form for packed rows; add --unpacked"
        return None

    def counts(self, w: Attention, br: Number, bc: Number) -> BlockCounts:
        """Counts of its nonzero, visible blocks.

        >>> Named("local-global").counts(Attention(n=400, kv_len=400, d=64, dv=64), 100, 100).streamed_rows
        1400
        """
        return _evaluated(self.name, NAMED[self.name], w, br, bc)


def local_global(grid: BlockGrid) -> BlockCounts:
    """|i - j| <= 1, and the first row and column of blocks (Zaheer et al. 2020, arXiv 2007.14062, without random blocks)."""
    column, corner = grid.columns(1, 1), grid.block(0, 0)
    band = grid.diagonal(-1) + grid.diagonal(0) + grid.diagonal(1)
    total = band + column + grid.first_row() - corner - corner - grid.block(1, 0) - grid.block(0, 1)
    return _counts(total, column)


def strided(grid: BlockGrid) -> BlockCounts:
    """|i - j| <= 1, and block columns 0, k, 2k, ... with k = ceil(sqrt(T_c)) (Child et al. 2019, arXiv 1904.10509)."""
    step = isqrt(grid.tc - 1) + 1
    others = without(multiples(step))
    band = grid.diagonal(-1, others) + grid.diagonal(0, others) + grid.diagonal(1, others)
    return _counts(band + grid.columns(step, int(ceil_div(grid.tc, step))), grid.columns(1, 1))


def butterfly(grid: BlockGrid) -> BlockCounts:
    """i = j or i XOR j a power of two, within T_r x T_c (Dao et al. 2021, arXiv 2112.00029, flat block butterfly).

    The leftmost block of row i > 0 lies in column i less its highest bit.
    """
    total, leftmost, half = grid.diagonal(0), grid.block(0, 0), 1
    while half < max(grid.tr, grid.tc):
        total += grid.diagonal(-half, with_bit(half)) + grid.diagonal(half, without(with_bit(half)))
        leftmost += grid.diagonal(half, every, half)
        half *= 2
    return _counts(total, leftmost)


def _counts(total: Tally, leftmost: Tally) -> BlockCounts:
    """Counts of the blocks in ``total``. ``leftmost``: first computed block of each row of blocks; a row sees keys only from there on."""
    return BlockCounts(total.rows, leftmost.rows, leftmost.seeing, total.scores, total.visible)


NAMED: dict[str, Callable[[BlockGrid], BlockCounts]] = {"local-global": local_global, "strided": strided, "butterfly": butterfly}


class Blocks(NamedTuple):
    """The blocks listed in a file, as sorted pairs (i, j)."""

    name: str
    pairs: tuple[tuple[int, int], ...]

    def obstacle(self, w: Attention) -> str | None:
        """Reason why its blocks cannot be counted under this mask; None if they can."""
        return None if w.window is None else "the blocks of a pattern file under a --window are not modelled; use --causal alone"

    def counts(self, w: Attention, br: Number, bc: Number) -> BlockCounts:
        """Counts of the listed, visible blocks; UsageError if one is outside the grid.

        >>> Blocks("mine", ((0, 0), (3, 1))).counts(Attention(n=400, kv_len=400, d=64, dv=64), 100, 100).scores
        20000
        """
        return _evaluated(self.name, self._listed_counts, w, br, bc)

    def _listed_counts(self, grid: BlockGrid) -> BlockCounts:
        total, leftmost = Tally(), dict[int, Tally]()
        tr, group = int(ceil_div(grid.tr, grid.group)), grid.group
        if group > MOST_PACKED:
            raise UsageError(
                f"--pattern {self.name}: a causal mask over {group:,} packed heads of a group is not counted", "add --unpacked"
            )
        for i, j in self.pairs:
            if i >= tr or j >= grid.tc:
                raise UsageError(
                    f"--pattern {self.name}: block {i} {j} is outside the grid of {tr} x {grid.tc} blocks",
                    f"indices start at 0; blocks are {grid.br} x {grid.bc}, set by --block-q and --block-kv",
                )
            for row in range(group * i, min(group * (i + 1), grid.tr)):  # the row tiles of query block i
                block = grid.block(row, j)
                total += block
                if block.rows:
                    leftmost.setdefault(row, block)
        return _counts(total, sum(leftmost.values(), Tally()))


# From the command line


def block_pattern(sparsity: float | None, pattern: str | None) -> BlockPattern | None:
    """The pattern of ``--sparsity`` or ``--pattern``; None if neither is given.

    >>> block_pattern(0.1, None)
    Density(numerator=1, denominator=10)
    """
    if sparsity is not None and pattern is not None:
        raise UsageError("--sparsity and --pattern exclude each other", "give the share of nonzero blocks or which they are, not both")
    if sparsity is not None:
        if not 0 < sparsity <= 1:
            raise UsageError(f"--sparsity is {sparsity}", "give the share of nonzero blocks, above 0 and up to 1")
        from fractions import Fraction

        return Density(*Fraction(str(sparsity)).as_integer_ratio())  # the decimal that was typed, not its binary neighbour
    if pattern is None or pattern in NAMED:
        return None if pattern is None else Named(pattern)
    path = Path(pattern)
    if not pattern or ("/" not in pattern and not path.suffix and not path.exists()):
        raise UsageError(f"--pattern: no pattern is called {pattern!r}", f"{suggest(pattern, list(NAMED))}; or give the path of a file")
    return read_pattern(path)


def read_pattern(path: Path) -> Blocks:
    """A text file with one pair of block indices, row and column, per line; ``#`` begins a comment."""
    lines = read_text(path, MAX_BYTES, "use larger blocks, a named pattern or --sparsity", "utf-8-sig").splitlines()
    line_of: dict[tuple[int, int], int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"([0-9]{1,15})\s+([0-9]{1,15})", text)
        if match is None:
            raise DataError(f"{path}, line {number}: {text[:40]!r} is not a pair of block indices", "write it like: 3 0")
        pair = int(match[1]), int(match[2])
        if pair in line_of:
            raise DataError(f"{path}, line {number}: block {pair[0]} {pair[1]} is already on line {line_of[pair]}", "list each block once")
        line_of[pair] = number
    if not line_of:
        raise DataError(f"{path}: lists no block", "write one pair of block indices per line, such as: 0 0")
    return Blocks(str(path), tuple(sorted(line_of)))
