"""Sums over blocks of a score matrix under a causal mask, in closed form: no loop over tiles.

A grid is one walk: ``rows`` query rows in tiles of ``br`` against ``keys`` keys in tiles of ``bc``. Row t sees the keys up to
floor(t / group) + reach. A block is computed if its last row sees its first key. All numbers are Python ints.

Along a diagonal of blocks (j + delta, j) everything is a polynomial, at most quadratic, of x = (j + delta + 1) B_r + reach - j B_c,
cut off at x = 0; so a sum needs only the power sums of j over the range where x > 0. The last row and the last column of
blocks may be partial and are added one by one.

Source: derived; the tests hold every sum against the loop over blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from perfmodel.core.arith import ceil_div, clip, clipped_floor_sum
from perfmodel.core.frozen import dataclass

Moments = Callable[[int], tuple[int, int, int]]
"""x -> (count, sum, sum of squares) of the members j of a set of integers with 0 <= j < x."""


def every(x: int) -> tuple[int, int, int]:
    """Moments of all integers.

    >>> every(4)
    (4, 6, 14)
    """
    return x, x * (x - 1) // 2, (x - 1) * x * (2 * x - 1) // 6


def multiples(step: int) -> Moments:
    """Moments of 0, step, 2 step, ...

    >>> multiples(3)(7)
    (3, 9, 45)
    """

    def moments(x: int) -> tuple[int, int, int]:
        count, first, second = every(ceil_div(x, step))
        return count, step * first, step * step * second

    return moments


def with_bit(half: int) -> Moments:
    """Moments of the integers whose bit of value ``half``, a power of two, is set.

    >>> with_bit(2)(8), (4, 2 + 3 + 6 + 7, 4 + 9 + 36 + 49)
    ((4, 18, 98), (4, 18, 98))
    """

    def moments(x: int) -> tuple[int, int, int]:
        # members come in runs of ``half``: run p is base_p + r with base_p = (2 p + 1) half and 0 <= r < half; x may cut the last one
        runs, rest = divmod(x, 2 * half)
        p0, p1, p2 = every(runs)
        r0, r1, r2 = every(half)
        bases, squared_bases = half * (2 * p1 + p0), half * half * (4 * p2 + 4 * p1 + p0)
        base = (2 * runs + 1) * half
        c0, c1, c2 = every(max(rest - half, 0))
        first = r0 * bases + p0 * r1 + c0 * base + c1
        second = r0 * squared_bases + 2 * r1 * bases + p0 * r2 + c0 * base * base + 2 * base * c1 + c2
        return r0 * p0 + c0, first, second

    return moments


def without(members: Moments) -> Moments:
    """Moments of the integers not in a set.

    >>> without(multiples(2))(4)
    (2, 4, 10)
    """

    def moments(x: int) -> tuple[int, int, int]:
        (a0, a1, a2), (b0, b1, b2) = every(x), members(x)
        return a0 - b0, a1 - b1, a2 - b2

    return moments


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over computed blocks: query ``rows``, rows ``seeing`` a key of their block, ``scores``, and ``visible`` scores."""

    rows: int = 0
    seeing: int = 0
    scores: int = 0
    visible: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, self.seeing + other.seeing, self.scores + other.scores, self.visible + other.visible)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.rows - other.rows, self.seeing - other.seeing, self.scores - other.scores, self.visible - other.visible)


class BlockGrid(NamedTuple):
    """The blocks of one walk, of which a causal mask hides some."""

    rows: int
    keys: int
    br: int
    bc: int
    reach: int
    group: int = 1

    @property
    def tr(self) -> int:
        """Rows of blocks."""
        return int(ceil_div(self.rows, self.br))

    @property
    def tc(self) -> int:
        """Columns of blocks."""
        return int(ceil_div(self.keys, self.bc))

    def _beyond(self, row: int, key: int) -> int:
        """Visible scores in the rows before ``row`` and from ``key`` on, if the keys had no end."""
        queries, rest = divmod(row, self.group)
        whole_queries = every(max(queries + self.reach - key, 0) + 1)[1] - every(max(self.reach - key, 0) + 1)[1]
        return self.group * whole_queries + rest * max(queries + self.reach + 1 - key, 0)

    def block(self, i: int, j: int) -> Tally:
        """One block; nothing if it is outside the grid or hidden.

        >>> BlockGrid(rows=4, keys=4, br=2, bc=2, reach=0).block(1, 1)
        Tally(rows=2, seeing=2, scores=4, visible=3)
        """
        if not (0 <= i < self.tr and 0 <= j < self.tc):
            return Tally()
        top, bottom = i * self.br, min((i + 1) * self.br, self.rows)
        left, right = j * self.bc, min((j + 1) * self.bc, self.keys)
        if (bottom - 1) // self.group + self.reach < left:
            return Tally()
        visible = self._beyond(bottom, left) - self._beyond(top, left) - self._beyond(bottom, right) + self._beyond(top, right)
        seeing = bottom - max(top, self.group * (left - self.reach))
        return Tally(bottom - top, seeing, (bottom - top) * (right - left), visible)

    def diagonal(self, delta: int, members: Moments = every, end: int | None = None) -> Tally:
        """Blocks (j + delta, j) for j in a set, j < ``end``.

        >>> BlockGrid(rows=4, keys=4, br=2, bc=2, reach=0).diagonal(0)
        Tally(rows=4, seeing=4, scores=8, visible=6)
        """
        if self.group != 1:
            raise ValueError("a diagonal of packed rows has no closed form here")
        br, bc = self.br, self.bc
        start, stop = max(0, -delta), min(self.tc, self.tr - delta, self.tc if end is None else end)
        last_column, of_last_row = self.tc - 1, self.tr - 1 - delta
        partial = {j for j in (last_column, of_last_row) if start <= j < stop and members(j + 1)[0] > members(j)[0]}
        stop = min(stop, last_column, of_last_row)

        def powers(x0: int) -> tuple[int, int, int]:
            return _powers(x0, br - bc, members, start, stop)

        x0 = (delta + 1) * br + self.reach
        blocks, seeing_from_left, from_corner = powers(x0)  # the keys from a block's left edge on, seen from its bottom
        _, seeing_above, from_top = powers(x0 - br)
        visible = from_corner - from_top - powers(x0 - bc)[2] + powers(x0 - br - bc)[2]
        total = Tally(br * blocks, seeing_from_left - seeing_above, br * bc * blocks, visible)
        return sum((self.block(j + delta, j) for j in partial), total)

    def columns(self, step: int, count: int) -> Tally:
        """All blocks of columns 0, step, 2 step, ..., ``count`` of them.

        >>> BlockGrid(rows=4, keys=4, br=2, bc=2, reach=0).columns(1, 2)
        Tally(rows=6, seeing=6, scores=12, visible=10)
        """
        if self.group != 1:
            raise ValueError("columns of packed rows have no closed form here")
        bc, last_key = self.bc, (count - 1) * step * self.bc  # the first key of the last column
        missing = max(last_key + bc - self.keys, 0)  # keys that the last column lacks
        rows = count * self.rows - self.br * clipped_floor_sum(count, step * bc, -self.reach, self.br, 0, self.tr)
        rows_of_last = self.rows - self.br * clip((last_key - self.reach) // self.br, 0, self.tr)
        seeing = count * self.rows - _powers(-self.reach, step * bc, every, 0, count)[1]

        def visible_before(row: int) -> int:
            """Visible scores of all columns, as if whole, in the rows before ``row``."""
            from_left = _powers(row + self.reach, -step * bc, every, 0, count)[2]
            return from_left - _powers(row + self.reach - bc, -step * bc, every, 0, count)[2]

        not_there = self._beyond(self.rows, self.keys) - self._beyond(self.rows, self.keys + missing)
        visible = visible_before(self.rows) - visible_before(0) - not_there
        return Tally(rows, seeing, bc * rows - missing * rows_of_last, visible)

    def first_row(self) -> Tally:
        """All blocks of the first row.

        >>> BlockGrid(rows=4, keys=4, br=2, bc=2, reach=1).first_row()
        Tally(rows=4, seeing=3, scores=8, visible=5)
        """
        rows = min(self.br, self.rows)
        blocks = int(ceil_div(clip((rows - 1) // self.group + self.reach + 1, 0, self.keys), self.bc))
        keys = min(blocks * self.bc, self.keys)
        seeing = blocks * rows - _powers(-self.reach, self.bc, every, 0, blocks)[1]
        return Tally(blocks * rows, seeing, rows * keys, self._beyond(rows, 0) - self._beyond(rows, keys))


def _powers(x0: int, slope: int, members: Moments, start: int, stop: int) -> tuple[int, int, int]:
    """Sums of 1, x and x (x + 1) / 2 with x = x0 + slope j, over the members j of [start, stop) where x > 0."""
    if slope > 0:
        start = max(start, -x0 // slope + 1)
    elif slope < 0:
        stop = min(stop, int(ceil_div(x0, -slope)))
    if start >= stop or (slope == 0 and x0 <= 0):
        return 0, 0, 0
    m0, m1, m2 = (upper - lower for upper, lower in zip(members(stop), members(start), strict=True))
    twice = slope * slope * m2 + slope * (2 * x0 + 1) * m1 + x0 * (x0 + 1) * m0
    return m0, slope * m1 + x0 * m0, twice // 2
