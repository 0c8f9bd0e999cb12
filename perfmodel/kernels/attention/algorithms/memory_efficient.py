"""Memory-efficient attention: chunks of queries by chunks of keys, each pair run as ordinary, unfused kernels.

It saves memory, not accesses: every score still goes through memory, but one chunk pair at a time.

Forward, per pair: S = Q K^T; P = exp(S - its row maximum), with the maximum and the sum of each row (fp32); P V, a partial O
(fp32). After the key chunks of a query chunk: ``combine`` rescales the partial results and stores O.

Backward: ``row statistics`` once, the logsumexp from the saved maxima and sums, and D = rowsum(dO * O). Per pair, S and P are
computed again (jax.checkpoint; the recomputed P V is dead code), then dV, dP, dS, dQ, dK as in standard attention; dQ, dK and
dV start at zero, and every pair reads and writes its part of them.

Assumes: the query chunk is the outer loop and the key chunk the inner one, one pair at a time for all heads and sequences, as the listing's
einsum and vmap run them; so one chunk of S, P, dP, dS is alive per head, and one query chunk's partial results. A last, partial chunk has
its real size (the listing wants lengths that divide). Masked chunks are not skipped. Options are separate kernels over the chunk, as in
standard attention: scale, masks, dropout (whose decisions are drawn again in the backward pass, not stored). The scale is folded into the
product unless it is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from functools import partial

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.cost import GROUP_SUM, READ, WRITE, ZERO_FILL, Access, Kernel, Launch, Tile, Work, once
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.hardware import Device
from perfmodel.core.trace import label
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms.standard import Moved, elementwise, gradient_kernels, matmul, score_kernels
from perfmodel.kernels.attention.base import (
    DROPOUT_VECTOR,
    MASK_VECTOR,
    SCALE_VECTOR,
    Algorithm,
    Tiling,
    key_gradients,
    key_rows_stored,
    query_read,
    query_rows,
    query_write,
    seeing_rows,
    seen_keys,
    unfused_masks,
)
from perfmodel.kernels.attention.loops import SCORES, Move, cut, everything, group_sum, heads, moves, tensors, zeros

QUERY_CHUNK, KEY_CHUNK = 1024, 4096
"""The paper's chunks, in rows: the same on every device."""
EXP_VECTOR = 3  # max, subtract, sum
COMBINE_VECTOR = 3  # per partial element: weigh, add, and divide the sum
RECOMPUTE_VECTOR = 1  # subtract the logsumexp
GRADIENT_VECTOR = 2  # subtract D, multiply
ROW_SUM_VECTOR = 2  # D = rowsum(dO * O): multiply, add
SERIAL = Launch(1, 1, 0, Tile(1, 1).threads, lockstep=True, serial=True)
"""Launch in which the scans of a buffer run one after another."""
PARTIAL_SIZE = 4
"""Bytes of a partial O element: fp32."""


def complete(w: Attention, device: Device, tile: Tile) -> Tile:
    """``tile`` with chunks no longer than the sequences."""
    return tile._replace(br=minimum(tile.br, w.n), bc=minimum(tile.bc, w.kv_len))


def _query_chunks(w: Attention, tile: Tile) -> Number:
    return label("T_q", "query chunks", ceil_div(w.n, tile.br))


def _key_chunks(w: Attention, tile: Tile) -> Number:
    return label("T_k", "key chunks", ceil_div(w.kv_len, tile.bc))


def _looped(tensor: str, kind: str, elements: Number, size: int, footprint: Number, compulsory: Number | None = None) -> Access:
    """Accesses to a tensor or buffer that every chunk uses again; it passes through DRAM again if the L2 has lost it.

    ``compulsory``: None if an earlier kernel of the pair has just touched it, as the L2 holds small chunks.
    """
    needed = 0 if compulsory is None else compulsory
    return Access(tensor, kind, elements, size, footprint, needed, handoff=compulsory is None, reread=True)


def _scores(w: Attention, tile: Tile, tensor: str, kind: str) -> Access:
    """Every score once, through a buffer of one chunk per head."""
    chunk = w.query_heads * minimum(tile.br, w.n) * minimum(tile.bc, w.kv_len)
    return _looped(tensor, kind, w.query_heads * w.n * w.kv_len, w.dtype.size, chunk)


def _queries(w: Attention, tile: Tile, tensor: str, kind: str, width: Number, size: int | None = None, *, first: bool = False) -> Access:
    """Each row of a query-shaped tensor once per key chunk; ``first``: no kernel of the pass has touched it before."""
    rows, compulsory = query_rows(w), seeing_rows(w) * width if first else None
    return _looped(tensor, kind, _key_chunks(w, tile) * rows * width, size or w.dtype.size, rows * width, compulsory)


def _keys(w: Attention, tile: Tile, tensor: str, width: Number, *, first: bool = False) -> Access:
    """K or V once per query chunk: per query head, or per KV head if packed."""
    loads, compulsory = _query_chunks(w, tile) * w.row_heads * w.kv_len * width, seen_keys(w) * width if first else None
    return _looped(tensor, READ, loads, w.dtype.size, key_rows_stored(w) * width, compulsory)


def _partials(w: Attention, tile: Tile, tensor: str, kind: str, width: Number, *, saved: bool = False) -> Access:
    """Access to one fp32 row per query row and key chunk; alive for one query chunk, or ``saved`` for the backward pass."""
    rows = w.query_heads * (w.n if saved else minimum(tile.br, w.n))
    per_query_row = _key_chunks(w, tile) * width
    return _looped(tensor, kind, per_query_row * query_rows(w), PARTIAL_SIZE, per_query_row * rows)


def _added_up(w: Attention, tile: Tile, tensor: str, width: Number) -> tuple[Access, ...]:
    """Accesses to dK or dV: filled with zeros, read and written once per query chunk, summed over a group at the end."""
    per_walk, size = w.row_heads * w.kv_len * width, w.dtype.size
    passes, stored = _query_chunks(w, tile) * per_walk, key_rows_stored(w) * width
    return (
        _looped(tensor, READ, passes, size, per_walk),
        _looped(tensor, WRITE, passes, size, per_walk, stored),
        once(tensor, ZERO_FILL, per_walk, size, compulsory=0),
        *(access for access in key_gradients(w, (tensor, width)) if access.kind == GROUP_SUM),
    )


def _masks(w: Attention, tile: Tile) -> dict[str, Access]:
    """Kernels that apply masks; all heads read a chunk of the mask before the next one."""
    return unfused_masks(w, w.query_heads * _query_chunks(w, tile) * _key_chunks(w, tile))


def _dropout(w: Attention, tile: Tile) -> tuple[str, list[Kernel]]:
    """Name of the probabilities that multiply V, and the dropout kernel that makes them if there is one."""
    if not w.dropout:
        return "P", []
    accesses = _scores(w, tile, "P", READ), _scores(w, tile, "dropped P", WRITE)
    return "dropped P", [elementwise(w, "dropout", DROPOUT_VECTOR, *accesses)]


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """4 n n_k + T_k n d + T_q n_k (d + d_v) elements, 2 T_k n (d_v + 2) of partial results, and n d_v of O, per head.

    n_k: kv_len. Shapes as in ``Attention``. Source: Rabe & Staats 2021, Figure 1.

    >>> w = Attention(n=4096, kv_len=4096, d=64, dv=64)
    >>> moved = sum(kernel.elements("read", "write") for kernel in forward(w, Tile(1024, 4096)))
    >>> moved == 4 * 4096**2 + 4096 * 64 + 4 * 4096 * 128 + 2 * 4096 * 66 + 4096 * 64
    True
    """
    statistics = [("chunk max", 1), ("chunk sum", 1)]
    query, key = _queries(w, tile, "Q", READ, w.d, first=True), _keys(w, tile, "K", w.d, first=True)
    kernels = score_kernels(w, query, key, partial(_scores, w, tile), _masks(w, tile))
    summaries = (_partials(w, tile, name, WRITE, width) for name, width in statistics)
    accesses = (_scores(w, tile, "S", READ), _scores(w, tile, "P", WRITE), *summaries)
    kernels.append(elementwise(w, "exp", EXP_VECTOR, *accesses, sfu=1))
    probabilities, dropout = _dropout(w, tile)
    product = (_scores(w, tile, probabilities, READ), _keys(w, tile, "V", w.dv, first=True), _partials(w, tile, "chunk O", WRITE, w.dv))
    kernels += [*dropout, matmul(w, "P V", 0, 1, *product)]
    rows = _key_chunks(w, tile) * query_rows(w)
    partials = (_partials(w, tile, name, READ, width) for name, width in [("chunk O", w.dv), *statistics])
    work = Work(0, COMBINE_VECTOR * rows * w.dv, rows)
    combine = Kernel("combine", w.dtype, (*partials, query_write(w, "O", w.dv)), work=work)
    return [kernel._replace(launch=SERIAL) for kernel in (*kernels, combine)]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """Per head 10 n n_k, T_k n (4 d + 2 d_v + 2), T_q n_k (4 d + 3 d_v), and n (2 d_v + 2 T_k + 2) of row statistics.

    In elements; n_k: kv_len. Shapes as in ``Attention``. Source: Rabe & Staats 2021, section 3 (checkpointing of each
    chunk); the order of the standard backward pass.

    >>> w = Attention(n=4096, kv_len=4096, d=64, dv=64)
    >>> moved = sum(kernel.elements("read", "write") for kernel in backward(w, Tile(1024, 4096)))
    >>> moved == 10 * 4096**2 + 4096 * (6 * 64 + 2) + 4 * 4096 * 7 * 64 + 4096 * (2 * 64 + 4)
    True
    """
    scores = partial(_scores, w, tile)
    output_gradient = _queries(w, tile, "dO", READ, w.dv)
    logsumexp, row_sum = (_queries(w, tile, name, READ, 1, STATISTIC_SIZE) for name in ("logsumexp", "D"))
    query_gradient = (_queries(w, tile, "dQ", READ, w.d), _queries(w, tile, "dQ", WRITE, w.d, first=True))
    zeros = once("dQ", ZERO_FILL, query_rows(w) * w.d, w.dtype.size, compulsory=0)
    probabilities, dropout = _dropout(w, tile)
    query, key = _queries(w, tile, "Q", READ, w.d, first=True), _keys(w, tile, "K", w.d, first=True)
    first, *options = score_kernels(w, query, key, scores, _masks(w, tile))
    kernels = [_row_statistics(w, tile), first._replace(flops=0), *options]  # recomputed: its FLOP are executed, not counted twice
    kernels.append(elementwise(w, "P = exp", RECOMPUTE_VECTOR, scores("S", READ), logsumexp, scores("P", WRITE), sfu=1))
    moved: dict[str, Moved] = {
        "dV": (scores(probabilities, READ), output_gradient, *_added_up(w, tile, "dV", w.dv)),
        "dP": (output_gradient, _keys(w, tile, "V", w.dv, first=True), scores("dP", WRITE)),
        "dropout": (scores("dP", READ), scores("dP", WRITE)),
        "dS": (scores("P", READ), scores("dP", READ), row_sum, scores("dS", WRITE)),
        "dQ": (_keys(w, tile, "K", w.d), *query_gradient, zeros),
        "dK": (_queries(w, tile, "Q", READ, w.d), *_added_up(w, tile, "dK", w.d)),
    }
    kernels += [*dropout, *gradient_kernels(w, scores, _masks(w, tile), GRADIENT_VECTOR, moved)]
    return [kernel._replace(launch=SERIAL) for kernel in kernels]


def _row_statistics(w: Attention, tile: Tile) -> Kernel:
    """D and the logsumexp of every row."""
    rows, summaries = query_rows(w), _key_chunks(w, tile) * query_rows(w)
    accesses = (
        query_read(w, "O", w.dv),
        query_read(w, "dO", w.dv),
        *(_partials(w, tile, name, READ, 1, saved=True) for name in ("chunk max", "chunk sum")),
        *(once(name, WRITE, rows, STATISTIC_SIZE, compulsory=0) for name in ("logsumexp", "D")),
    )
    vector = ROW_SUM_VECTOR * rows * w.dv + COMBINE_VECTOR * summaries
    return Kernel("row statistics", w.dtype, accesses, work=Work(0, vector, summaries))


def _chunk_tensors(w: Attention, queries: range, keys: range, part: int) -> dict[str, tuple[Sequence[Hashable], int]]:
    """Tensors of a pair of chunks over all heads: scores in buffers of one pair, partial results in buffers of one query chunk."""
    walk_rows = range(queries.start * w.row_group, queries.stop * w.row_group)
    rows = list(itertools.product(range(w.batch), range(w.heads), range(len(queries))))
    partial_rows = [(part, *row) for row in rows]
    return {
        **tensors(w, heads(w), walk_rows, keys),
        **{name: (rows, len(keys)) for name in SCORES},
        **{"chunk O": (partial_rows, w.dv), "chunk max": (partial_rows, 1), "chunk sum": (partial_rows, 1)},
    }


def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
    """Loads and stores of Figure 1, or of its backward pass: the kernels of each pair of chunks, one after another."""
    probabilities = "dropped P" if w.dropout else "P"
    # each step, and whether it runs
    scores = {"Q & K -> S": True, "S -> S": w.unfused_scale, "S & mask -> S": w.mask, "S & boolean mask -> S": w.masked_fill}
    dropout = {"P -> dropped P": w.dropout}
    outputs = {**scores, "S -> P & chunk max & chunk sum": True, **dropout, f"{probabilities} & V -> chunk O": True}
    gradients = {
        **scores,
        "S & logsumexp -> P": True,
        **dropout,
        f"{probabilities} & dO & dV -> dV": True,
        "dO & V -> dP": True,
        "dP -> dP": w.dropout,
        "P & dP & D -> dS": True,
        "dS & boolean mask -> dS": w.masked_fill,
        "dS -> dS": w.unfused_scale,
        "dS & K & dQ -> dQ": True,
        "dS & Q & dK -> dK": True,
    }
    key_chunks = list(enumerate(cut(w.kv_len, tile.bc)))
    steps = [step for step, runs in (outputs if direction == FORWARD else gradients).items() if runs]
    if direction == BACKWARD:
        rows = [(part, row) for part, _ in key_chunks for row in everything(w)["Q"][0]]
        saved = {"chunk max": (rows, 1), "chunk sum": (rows, 1)}
        yield from moves({**everything(w), **saved}, "O & dO & chunk max & chunk sum -> logsumexp & D")
        yield from zeros(everything(w), "dQ", "dK", "dV")
    for queries in cut(w.n, tile.br):
        for part, keys in key_chunks:
            for step in steps:
                yield from moves(_chunk_tensors(w, queries, keys, part), step)
        if direction == FORWARD:
            for part, keys in key_chunks:
                yield from moves(_chunk_tensors(w, queries, keys, part), "chunk O & chunk max & chunk sum ->")
            yield from moves(_chunk_tensors(w, queries, range(0), 0), "-> O")
    if direction == BACKWARD:
        yield from group_sum(w)


ALGORITHM = Algorithm(
    name="memory-efficient",
    title="memory-efficient attention, scores in memory by chunks",
    source="Rabe & Staats 2021, arXiv 2112.05682, Figure 1",
    io_class="N^2 + N^2 d / B_r + N d",
    vector_work=f"{EXP_VECTOR} per score forward (max, subtract, sum), {RECOMPUTE_VECTOR + GRADIENT_VECTOR} backward; "
    f"combine {COMBINE_VECTOR} d_v per row and key chunk; mask {MASK_VECTOR}, scale {SCALE_VECTOR}, dropout {DROPOUT_VECTOR}",
    forward=forward,
    backward=backward,
    walk=walk,
    tiling=Tiling(
        lambda w, device, sram_bytes, direction: Tile(QUERY_CHUNK, KEY_CHUNK, origin="the paper's chunks"),
        lambda w, tile, direction: 0,
        dict.fromkeys((FORWARD, BACKWARD), "nothing"),
        complete,
        in_sram=False,
    ),
)
