"""Parts of the walks of algorithms: their loops, step by step.

A walk yields every load and store of the published listing, in its order, for shapes small enough to step through. Tests hold the closed
forms of the algorithm against it, so it may use none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from perfmodel.core.cost import GROUP_SUM, READ, WRITE, ZERO_FILL, Tile
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import Attention

SCORES = ("S", "P", "dropped P", "dropout mask", "dP", "dS")


class Move(NamedTuple):
    """Rows of a tensor that cross the SRAM boundary, ``width`` elements each; a row is named by its place in the tensor."""

    kind: str
    tensor: str
    rows: Sequence[Hashable]
    width: int


Tensors = Mapping[str, tuple[Sequence[Hashable], int]]
"""Rows and width of each tensor in one step of the loops."""


@dataclass(frozen=True, slots=True)
class Head:
    """Heads of one walk: a query head, or if packed all g heads of a group, with row = query g + head."""

    w: Attention
    batch: int
    index: int

    @property
    def rows(self) -> range:
        """All rows of the walk."""
        return range(self.w.row_group * self.w.n)

    def sees(self, rows: Sequence[int], keys: Sequence[int]) -> bool:
        """Whether any of these scores is visible."""
        return any(visible(self.w, row // self.w.row_group, key) for row, key in product(rows, keys))


def visible(w: Attention, query: int, key: int) -> bool:
    """Whether ``query`` sees ``key``: causal masks are aligned to the last query and the last key."""
    last = query + w.kv_len - w.n
    return not w.causal or (key <= last and (w.window is None or key > last - w.window))


def heads(w: Attention) -> list[Head]:
    """All walks over the batch."""
    return [Head(w, batch, index) for batch in range(w.batch) for index in range(w.row_heads // w.batch)]


def cut(length: int, edge: int) -> list[range]:
    """Tiles of ``edge``, the last one shorter."""
    return [range(first, min(first + edge, length)) for first in range(0, length, edge)]


def tensors(w: Attention, walks: Sequence[Head], rows: Sequence[int], keys: Sequence[int]) -> dict[str, tuple[Sequence[Hashable], int]]:
    """The usual tensors at ``rows`` and ``keys`` of ``walks``; without an additive mask its rows are empty."""
    g, shared = w.row_group, 1 if w.packed else w.group
    queries = [(head.batch, head.index * g + row % g, row // g) for head in walks for row in rows]
    stored = [(head.batch, head.index // shared, key) for head in walks for key in keys]
    gradient_rows = [(head.batch, head.index, key) for head in walks for key in keys]
    pairs = [(row // g, key) for _ in walks for row in rows for key in keys]
    widths = {"Q": w.d, "dQ": w.d, "O": w.dv, "dO": w.dv, "l, m": 2, "logsumexp": 1, "D": 1, **dict.fromkeys(SCORES, len(keys))}
    return {
        **{name: (queries, width) for name, width in widths.items()},
        **{"K": (stored, w.d), "V": (stored, w.dv), "dK": (gradient_rows, w.d), "dV": (gradient_rows, w.dv)},
        **{"mask": (pairs if w.mask else [], 1), "boolean mask": (pairs, 1)},
    }


def everything(w: Attention) -> dict[str, tuple[Sequence[Hashable], int]]:
    """All rows of every tensor, over batch and heads."""
    return tensors(w, heads(w), range(w.row_group * w.n), range(w.kv_len))


def moves(at: Tensors, step: str) -> Iterator[Move]:
    """Loads and stores of ``step``, written as ``Q & K -> S``.

    >>> [move[:2] for move in moves({"Q": ([0], 8), "K": ([0, 1], 8), "S": ([0], 2)}, "Q & K -> S")]
    [('read', 'Q'), ('read', 'K'), ('write', 'S')]
    """
    for kind, names in zip((READ, WRITE), step.split("->"), strict=True):
        yield from (Move(kind, name.strip(), *at[name.strip()]) for name in names.split("&") if name.strip())


def zeros(at: Tensors, *names: str) -> Iterator[Move]:
    """Accumulators filled with zeros."""
    return (Move(ZERO_FILL, name, *at[name]) for name in names)


def keys_outermost(
    w: Attention, tile: Tile, step: str, stored: str, computes: Callable[[Head, range, range], bool] = Head.sees
) -> Iterator[Move]:
    """Moves of loops over key tiles: ``step`` for each query tile that ``computes`` with the key tile, then the stores ``stored``."""
    for head in heads(w):
        for keys in cut(w.kv_len, tile.bc):
            yield from moves(tensors(w, [head], (), keys), "K & V ->")
            for rows in cut(len(head.rows), tile.br):
                if computes(head, rows, keys):
                    yield from moves(tensors(w, [head], rows, keys), step)
            yield from moves(tensors(w, [head], (), keys), f"-> {stored}")


def group_sum(w: Attention) -> Iterator[Move]:
    """Moves that add up dK and dV, stored for each query head, over the heads of a group."""
    for name, width in (("dK", w.d), ("dV", w.dv)):
        if w.row_group < w.group:
            for heads_stored in (w.heads, w.kv_heads):
                rows = list(product([name], range(w.batch), range(heads_stored), range(w.kv_len)))
                yield Move(GROUP_SUM, "group sum", rows, width)
