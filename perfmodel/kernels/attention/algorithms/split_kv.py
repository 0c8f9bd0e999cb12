"""Flash-Decoding: the keys of a query tile are cut into splits, each streamed by a separate block, then combined.

Kernel ``split``: every (query tile, split) block loads its Q tile, streams the key tiles of its split that hold a visible
score, and stores a partial O and its logsumexp in fp32. Kernel ``combine`` weighs the partial results and stores O and the
logsumexp. A split is ceil(T_c / s) key tiles; trailing splits without a tile are not launched. A single split stores O
itself, and there is nothing to combine. There is no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from perfmodel.core.arith import Number, ceil_div, deferrable, minimum
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import label
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.flash2 import forward_kernel, sram_elements
from perfmodel.kernels.attention.base import FUSED_VECTOR, Algorithm, Tiling, query_rows, seeing_rows
from perfmodel.kernels.attention.loops import Move, cut, everything, heads, moves, tensors
from perfmodel.kernels.attention.walk import key_tiles, row_tiles

MAX_SPLITS = 128
FULL_ENOUGH = 0.8
"""Share of the slots that blocks of unsplit keys must fill; below it, splits pay."""
NEARLY_BEST = 0.85
"""The heuristic takes the fewest splits that reach this share of the best wave efficiency."""
CASES = 4096
"""Most cases in one array, with a column of MAX_SPLITS numbers each."""
BLOCKS_PER_MULTIPROCESSOR = 2
COMBINE_VECTOR = 2  # per partial element: multiply by its weight, add
PARTIAL_SIZE = 4
"""Bytes of a partial O element: fp32."""

_ROWS = 64
_KEYS = {32: 256, 64: 256, 96: 128, 128: 128, 192: 64, 256: 64}
"""B_r, and B_c by the head dim that a kernel is compiled for.

Source: Dao-AILab/flash-attention @0251105a csrc/flash_attn/flash_api.cpp, set_params_splitkv."""
NO_BACKWARD = "there is no split-KV backward pass; take --pass forward, or flash2 for both"


def default_tile(w: Attention, device: Device, sram_bytes: int, direction: str) -> Tile | None:
    """FlashAttention-2's split-KV tile, in rows; None unless the dtype has 16 bits and the head dim is at most 256."""
    if w.dtype.name not in ("fp16", "bf16"):
        return None
    for head_dim, bc in _KEYS.items():
        if max(w.d, w.dv) <= head_dim:
            return Tile(_ROWS, bc, origin="FlashAttention-2's split-KV", head_dim=head_dim)
    return None


def effective_splits(key_tiles: Number, splits: Number) -> Number:
    """Number of splits that hold a tile if each takes ceil(T_c / s) tiles.

    >>> effective_splits(64, 11), effective_splits(64, 12), effective_splits(3, 128)
    (11, 11, 3)
    """
    return ceil_div(key_tiles, ceil_div(key_tiles, splits))


def num_splits(blocks: Number, slots: Number, key_tiles: Number) -> Number:
    """FlashAttention-2's choice: the fewest splits whose waves are nearly as full as the best possible.

    ``blocks``: (head, query tile) pairs; ``slots``: blocks that run at once. 48 blocks on 108 slots take 2 splits, which
    fill 89 % of a wave.
    Source: Dao-AILab/flash-attention @0251105a csrc/flash_attn/flash_api.cpp, num_splits_heuristic.

    >>> num_splits(48, 108, 64), num_splits(87, 108, 64), num_splits(8, 216, 512)
    (2, 1, 23)
    """
    if not all(isinstance(size, int) for size in (blocks, slots, key_tiles)):
        return deferrable(_num_splits_arrays, blocks, slots, key_tiles)
    if blocks >= FULL_ENOUGH * slots:
        return 1
    candidates = range(1, min(MAX_SPLITS, slots, key_tiles) + 1)
    shortening = (s for s in candidates if s == 1 or ceil_div(key_tiles, s) != ceil_div(key_tiles, s - 1))
    efficiency = {s: _efficiency(blocks * s, slots) for s in shortening}
    least = NEARLY_BEST * max(efficiency.values())
    return next(s for s in efficiency if efficiency[s] >= least)


def _efficiency(blocks: Number, slots: Number) -> Number:
    """Share of the slots of all waves that have a block."""
    return blocks / slots / ceil_div(blocks, slots)


def _num_splits_arrays(blocks: Number, slots: Number, key_tiles: Number) -> Number:
    """``num_splits`` for arrays: 1 if the blocks fill the device; equal cases among the others are evaluated once."""
    import numpy as np

    blocks, slots, key_tiles = np.broadcast_arrays(blocks, slots, key_tiles)
    few = blocks < FULL_ENOUGH * slots
    chosen = np.ones(few.shape)
    if few.any():
        cases, case_of = np.unique(np.stack([blocks[few], slots[few], key_tiles[few]]), axis=1, return_inverse=True)
        parts = [_num_splits_of_cases(cases[:, first : first + CASES]) for first in range(0, cases.shape[1], CASES)]
        chosen[few] = np.concatenate(parts)[case_of.reshape(-1)]
    return chosen


def _num_splits_of_cases(cases: Number) -> Number:
    """``num_splits`` of each column of ``cases``, which is blocks, slots and key tiles."""
    import numpy as np

    blocks, slots, key_tiles = cases
    splits = np.arange(1, int(min(MAX_SPLITS, slots.max(), key_tiles.max())) + 1)[:, None]  # a row of each array below for each
    tiles_of_split = ceil_div(key_tiles, splits)
    possible = splits <= np.minimum(slots, key_tiles)
    possible[1:] &= tiles_of_split[1:] != tiles_of_split[:-1]
    efficiency = np.where(possible, _efficiency(blocks * splits, slots), 0)
    nearly_best = (efficiency > 0) & (efficiency >= NEARLY_BEST * efficiency.max(axis=0))
    return 1 + np.argmax(nearly_best, axis=0)  # the first row that is


def complete(w: Attention, device: Device, tile: Tile) -> Tile:
    """``tile`` with the splits given, else the heuristic's; one split if the profile lacks multiprocessors."""
    tiles = key_tiles(w, tile.bc)
    if w.splits is None:
        slots = 0 if device.multiprocessors is None else BLOCKS_PER_MULTIPROCESSOR * int(device.multiprocessors.number)
        splits, origin = num_splits(w.row_heads * row_tiles(w, tile.br), slots, tiles), "FlashAttention-2's heuristic"
    else:
        splits, origin = effective_splits(tiles, w.splits), "given"
    if not isinstance(splits, int):
        return tile._replace(splits=splits)
    return tile._replace(splits=splits, origin=f"{tile.origin}; {splits} split{'s' * (splits > 1)} of the keys, {origin}")


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """Kernels ``split`` and ``combine``; for one packed query per KV head s g d + n_k (d + d_v) + s g (d_v + 1) loaded elements.

    s splits, g query heads per KV head, n_k = kv_len; shapes as in ``Attention``. Source: Dao et al. 2023, Flash-Decoding
    for long-context inference (pytorch.org/blog/flash-decoding).

    >>> w = Attention(n=1, kv_len=1000, d=64, dv=64, heads=4, packed=True)
    >>> kernels = forward(w, Tile(64, 100, splits=5))
    >>> sum(kernel.elements("read") for kernel in kernels) == 5 * 4 * 64 + 1000 * 128 + 5 * 4 * 65
    True
    """
    s = label("s", "splits launched", effective_splits(key_tiles(w, tile.bc), tile.splits))
    if tile.splits == 1:  # false for a deferred number
        return [_with_accesses(forward_kernel(w, tile, "split", s), _results(w, 1))]
    combines = label("cut", "1 if there is more than one split, else 0", minimum(s - 1, 1))
    per_row = label("p", "partial results of a row: s, but none of a single split", minimum(s, 2 * (s - 1)))
    parts = per_row * query_rows(w)
    split = _with_accesses(forward_kernel(w, tile, "split", s), (*_partial(w, WRITE, parts), *_results(w, 1 - combines)))
    work = Work(0, COMBINE_VECTOR * parts * w.dv, parts)
    return [split, Kernel("combine", w.dtype, (*_partial(w, READ, parts), *_results(w, combines)), work=work)]


def _with_accesses(kernel: Kernel, added: tuple[Access, ...]) -> Kernel:
    return kernel._replace(accesses=(*kernel.accesses, *added))


def _partial(w: Attention, kind: str, rows: Number) -> tuple[Access, ...]:
    """Accesses of one kernel to the partial results that ``split`` hands to ``combine``."""
    return (
        once("partial O", kind, rows * w.dv, PARTIAL_SIZE, compulsory=0, handoff=True),
        once("partial logsumexp", kind, rows, STATISTIC_SIZE, compulsory=0, handoff=True),
    )


def _results(w: Attention, share: Number) -> tuple[Access, ...]:
    """Stores of O and the logsumexp. ``share``: 1 for the kernel that stores them, else 0."""
    return (
        once("O", WRITE, share * query_rows(w) * w.dv, w.dtype.size, compulsory=share * seeing_rows(w) * w.dv),
        once("logsumexp", WRITE, share * query_rows(w), STATISTIC_SIZE, compulsory=0),
    )


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """UsageError, as there is no backward pass."""
    raise UsageError(f"--algorithm split-kv: {NO_BACKWARD}")


def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
    """FlashAttention-2's forward loops, once per split of the key tiles, then the sum of the partial results."""
    tiles = cut(w.kv_len, tile.bc)
    splits = cut(len(tiles), -(-len(tiles) // tile.splits))
    for head in heads(w):
        for rows, (part, split) in product(cut(len(head.rows), tile.br), enumerate(splits)):
            at = tensors(w, [head], rows, ())
            yield from moves(at, "Q ->")
            for keys in (tiles[index] for index in split):
                if head.sees(rows, keys):
                    yield from moves(tensors(w, [head], rows, keys), "K & V & mask ->")
            if len(splits) == 1:
                yield from moves(at, "-> O & logsumexp")
                continue
            stored = [(row, part) for row in at["Q"][0]]
            yield from moves({"partial O": (stored, w.dv), "partial logsumexp": (stored, 1)}, "-> partial O & partial logsumexp")
    if len(splits) > 1:
        stored = [(row, part) for row in everything(w)["Q"][0] for part in range(len(splits))]
        partial = {"partial O": (stored, w.dv), "partial logsumexp": (stored, 1)}
        yield from moves({**everything(w), **partial}, "partial O & partial logsumexp -> O & logsumexp")


ALGORITHM = Algorithm(
    name="split-kv",
    title="Flash-Decoding, keys split over blocks and combined",
    source="Dao, Haziza, Massa & Sizov 2023, Flash-Decoding; FlashAttention-2's split-KV kernel",
    io_class="N^2 d / B_r + s N d",
    vector_work=f"{FUSED_VECTOR}d_v per row and tile to rescale O; combine {COMBINE_VECTOR} d_v per row and split",
    forward=forward,
    backward=backward,
    walk=walk,
    tiling=Tiling(default_tile, sram_elements, {FORWARD: "Q_i, K_j, V_j"}, complete),
    obstacle=lambda w, direction: None if direction == FORWARD else NO_BACKWARD,
)
