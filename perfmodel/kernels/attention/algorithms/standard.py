"""Standard attention: scores and probabilities go through memory (Dao et al. 2022, Algorithms 0 and 3).

Forward: S = Q K^T (scaled), P = softmax(S), O = P V. Backward: dV, dP, dS, dQ, dK. Options that a fused kernel absorbs are separate kernels
here: an additive mask, PyTorch's masked_fill and a separate scale read and write every score. A mask is read beside each score, once per
head: 2 B per score for a 16-bit additive mask, 1 B for masked_fill's. Dropout also stores one byte per score. The full n x kv_len matrix is
moved even if a causal mask hides half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, matmul_work, once
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.base import (
    DROPOUT_VECTOR,
    MASK_VECTOR,
    SCALE_VECTOR,
    SOFTMAX_VECTOR,
    Algorithm,
    key_gradients,
    key_read,
    matmul_flops,
    query_read,
    query_write,
    unfused_masks,
)
from perfmodel.kernels.attention.loops import Move, everything, group_sum, moves
from perfmodel.kernels.attention.walk import visible_scores
from perfmodel.kernels.matmul import Matmul

Scores = Callable[[str, str], Access]
"""Function that gives the access of one pass over a score-shaped tensor, from its name and READ or WRITE."""
Moved = tuple[Access, ...]
"""Accesses of one kernel."""
PRODUCTS: Mapping[str, tuple[str, str, str]] = {
    "S = Q K^T": ("n", "kv_len", "d"),
    "O = P V": ("n", "dv", "kv_len"),
    "dV = P^T dO": ("kv_len", "dv", "n"),
    "dP = dO V^T": ("n", "kv_len", "dv"),
    "dK = dS^T Q": ("kv_len", "d", "n"),
    "dQ = dS K": ("n", "d", "kv_len"),
}
"""m, n and k of each matmul by the name of its kernel. Kernels list the read of the m x k operand first; the first two are forward."""


def _scores(w: Attention, tensor: str, kind: str, *, handoff: bool = True, size: int | None = None) -> Access:
    """One pass over a score-shaped tensor, of which only the visible part is compulsory; elements of ``size`` bytes, or the dtype's."""
    heads = w.query_heads
    return once(tensor, kind, heads * w.n * w.kv_len, size or w.dtype.size, compulsory=heads * visible_scores(w), handoff=handoff)


def matmul(w: Attention, name: str, per_d: int, per_dv: int, *accesses: Access) -> Kernel:
    """A kernel that multiplies whole matrices: ``per_d`` multiply-adds per score and column of Q, ``per_dv`` per column of V."""
    visible, executed = matmul_flops(w, per_d, per_dv), matmul_flops(w, per_d, per_dv, w.n * w.kv_len)
    needed = matmul_work(w.dtype, visible)
    return Kernel(name, w.dtype, accesses, visible, executed, matmul_work(w.dtype, executed), needed)


def product(w: Attention, name: str) -> Matmul:
    """The matmul of one of ``PRODUCTS``, a product for each query head."""
    m, n, k = (getattr(w, size) for size in PRODUCTS[name])
    return Matmul(m, n, k, batch=w.query_heads, dtype=w.dtype)


def elementwise(w: Attention, name: str, vector: int, *accesses: Access, sfu: int = 0) -> Kernel:
    """A kernel with ``vector`` operations and ``sfu`` exponentials per score."""
    scores = w.query_heads * w.n * w.kv_len
    return Kernel(name, w.dtype, accesses, work=Work(0, vector * scores, sfu * scores))


def score_kernels(w: Attention, query: Access, key: Access, scores: Scores, masks: dict[str, Access]) -> list[Kernel]:
    """The kernels that compute S and apply scale and masks to it in place."""
    read, write = scores("S", READ), scores("S", WRITE)
    kernels = [matmul(w, "S = Q K^T", 1, 0, query, key, write)]
    if w.unfused_scale:
        kernels.append(elementwise(w, "scale", SCALE_VECTOR, read, write))
    return [*kernels, *(elementwise(w, name, MASK_VECTOR, read, mask, write) for name, mask in masks.items())]


def gradient_kernels(w: Attention, scores: Scores, masks: dict[str, Access], vector: int, moved: Mapping[str, Moved]) -> list[Kernel]:
    """The kernels that compute dV, dP, dS, dQ and dK. ``vector``: operations of dS per score.

    ``moved``: accesses of the kernel of each gradient, by its name, and of dropout. Scale and masked_fill apply to dS in place; an additive
    mask needs nothing.
    """
    kernels = [matmul(w, "dV = P^T dO", 0, 1, *moved["dV"]), matmul(w, "dP = dO V^T", 0, 1, *moved["dP"])]
    if w.dropout:
        kernels.append(elementwise(w, "dropout backward", DROPOUT_VECTOR, *moved["dropout"]))
    kernels.append(elementwise(w, "softmax backward", vector, *moved["dS"]))
    read, write = scores("dS", READ), scores("dS", WRITE)
    if w.masked_fill:
        kernels.append(elementwise(w, "masked_fill backward", MASK_VECTOR, read, masks["masked_fill"], write))
    if w.unfused_scale:
        kernels.append(elementwise(w, "scale backward", SCALE_VECTOR, read, write))
    return [*kernels, matmul(w, "dQ = dS K", 1, 0, read, *moved["dQ"]), matmul(w, "dK = dS^T Q", 1, 0, read, *moved["dK"])]


def forward(w: Attention, tile: Tile) -> list[Kernel]:
    """Kernels of the forward pass; 4 n^2 + 4 n d elements where n = kv_len, d = d_v and no option adds one.

    Per head; shapes as in ``Attention``; ``tile`` is not used. Source: Dao et al. 2022, Algorithm 0.

    >>> w = Attention(n=1000, kv_len=1000, d=64, dv=64)
    >>> sum(kernel.elements("read", "write") for kernel in forward(w, Tile(1, 1)))
    4256000
    """
    query, key = query_read(w, "Q", w.d), key_read(w, "K", w.d)
    kernels = score_kernels(w, query, key, partial(_scores, w), unfused_masks(w, w.query_heads))
    kernels.append(elementwise(w, "softmax", SOFTMAX_VECTOR, _scores(w, "S", READ), _scores(w, "P", WRITE), sfu=1))
    probabilities = "P"
    if w.dropout:
        probabilities = "dropped P"
        accesses = (_scores(w, "P", READ), _scores(w, "dropped P", WRITE), _decisions(w, WRITE))
        kernels.append(elementwise(w, "dropout", DROPOUT_VECTOR, *accesses))
    operands = (_scores(w, probabilities, READ), key_read(w, "V", w.dv))
    return [*kernels, matmul(w, "O = P V", 0, 1, *operands, query_write(w, "O", w.dv))]


def backward(w: Attention, tile: Tile) -> list[Kernel]:
    """Kernels of the backward pass, P stored by the forward; 7 n^2 + 8 n d elements for a square problem.

    Per head; shapes as in ``Attention``; ``tile`` is not used. Source: Dao et al. 2022, Algorithm 3.

    >>> w = Attention(n=1000, kv_len=1000, d=64, dv=64)
    >>> sum(kernel.elements("read", "write") for kernel in backward(w, Tile(1, 1)))
    7512000
    """
    saved = _scores(w, "dropped P" if w.dropout else "P", READ, handoff=False)
    if w.dropout:  # it follows from P and the mask, which are read as well
        saved = saved._replace(compulsory=0)
    output_gradient, scores = query_read(w, "dO", w.dv), partial(_scores, w)
    moved: dict[str, Moved] = {
        "dV": (saved, output_gradient, *key_gradients(w, ("dV", w.dv))),
        "dP": (output_gradient._replace(handoff=True), key_read(w, "V", w.dv), scores("dP", WRITE)),
        "dropout": (scores("dP", READ), _decisions(w, READ), scores("dP", WRITE)),
        "dS": (_scores(w, "P", READ, handoff=not w.dropout), scores("dP", READ), scores("dS", WRITE)),
        "dQ": (key_read(w, "K", w.d), query_write(w, "dQ", w.d)),
        "dK": (query_read(w, "Q", w.d), *key_gradients(w, ("dK", w.d))),
    }
    return gradient_kernels(w, scores, unfused_masks(w, w.query_heads), SOFTMAX_VECTOR, moved)


def _decisions(w: Attention, kind: str) -> Access:
    """Access to the dropout decisions, one byte per score; the backward pass could draw them again."""
    mask = _scores(w, "dropout mask", kind, handoff=False, size=DROPOUT_MASK_SIZE)
    return mask._replace(compulsory=0) if kind == WRITE else mask


def walk(w: Attention, tile: Tile, direction: str) -> Iterator[Move]:
    """Loads and stores of every kernel of Algorithm 0 or 3, and of the options, on whole matrices."""
    probabilities = "dropped P" if w.dropout else "P"
    outputs = {  # each step, and whether it runs
        "Q & K -> S": True,
        "S -> S": w.unfused_scale,
        "S & mask -> S": w.mask,
        "S & boolean mask -> S": w.masked_fill,
        "S -> P": True,
        "P -> dropped P & dropout mask": w.dropout,
        f"{probabilities} & V -> O": True,
    }
    gradients = {
        f"{probabilities} & dO -> dV": True,
        "dO & V -> dP": True,
        "dP & dropout mask -> dP": w.dropout,
        "P & dP -> dS": True,
        "dS & boolean mask -> dS": w.masked_fill,
        "dS -> dS": w.unfused_scale,
        "dS & K -> dQ": True,
        "dS & Q -> dK": True,
    }
    for step, runs in (outputs if direction == FORWARD else gradients).items():
        if runs:
            yield from moves(everything(w), step)
    if direction != FORWARD:
        yield from group_sum(w)


ALGORITHM = Algorithm(
    name="standard",
    title="standard attention, scores in memory",
    source="Dao et al. 2022, arXiv 2205.14135, Algorithms 0 and 3",
    io_class="N^2 + N d",
    vector_work=f"{SOFTMAX_VECTOR} per score each way; mask {MASK_VECTOR}, scale {SCALE_VECTOR}, dropout {DROPOUT_VECTOR}",
    forward=forward,
    backward=backward,
    walk=walk,
)
