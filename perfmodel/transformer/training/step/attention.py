"""The attention of a training step, from Q, K and V to its output: in one kernel, or each operation with the scores in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfmodel.core.cost import Kernel, Tile
from perfmodel.core.workload import BACKWARD, Attention, Stream
from perfmodel.kernels.attention.algorithms import flash2, standard
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.attention_parts import KEY_TILE
from perfmodel.transformer.op import ATTENTION, ELEMENTWISE, MATMUL, Op, Timed, tile_rows
from perfmodel.transformer.training.step.micro_batch import MicroBatch
from perfmodel.transformer.training.step.row import MATMULS, OTHERS, StepOp, pointwise

DROPOUT = 0.1
"""Any probability above 0: whether elements are dropped matters, not how many."""


def attention(op: Op, frame: MicroBatch) -> tuple[list[StepOp], list[StepOp]]:
    """Forward and backward rows of the fused row ``op`` of inference.

    With context parallelism a GPU meets the keys of all ``cp`` in turn, of which the causal mask leaves it half on average: as often
    the triangle over its own part (Liu et al. 2023, ring attention; striped or zigzag, which even the halves out).
    """
    assert op.timed is not None
    w: Attention = op.timed.workload
    if frame.shape.flash:
        return _fused(op, w, frame)
    w = replace(w, packed=False, mask=frame.eager, unfused_scale=frame.eager, dropout=DROPOUT if frame.shape.dropout else 0.0)
    forward = [_apart(kernel, w, frame) for kernel in standard.forward(w, Tile(1, 1))]
    backward = [_apart(kernel, w, frame) for kernel in standard.backward(w, Tile(1, 1))]
    before, between, after = _by_heads(w, frame)
    return [*before, *forward, *between], [*after, *backward]


def _fused(op: Op, w: Attention, frame: MicroBatch) -> tuple[list[StepOp], list[StepOp]]:
    rows = flash2.backward(w, Tile(tile_rows(w.row_group * w.n), KEY_TILE))
    [sums, main] = rows
    both = replace(main, name=f"{op.name}, gradient", accesses=(*sums.accesses, *main.accesses), work=sums.work + main.work)
    timed = Timed("attention", w, None, op.timed.obstacle if op.timed else "")
    back = StepOp(Op(both.name, ATTENTION, 1, both, timed), BACKWARD)
    joint = [_heads_together(w, frame, strided=False)] if frame.eager else []
    return [StepOp(op).times(frame.cp)], [back.times(frame.cp), *joint]


MADE: dict[str, Callable[[Attention], Matmul]] = {
    "S = Q K^T": lambda w: Matmul(w.n, w.kv_len, w.d, w.query_heads, dtype=w.dtype),
    "O = P V": lambda w: Matmul(w.n, w.dv, w.kv_len, w.query_heads, dtype=w.dtype),
    "dV = P^T dO": lambda w: Matmul(w.kv_len, w.dv, w.n, w.query_heads, dtype=w.dtype),
    "dP = dO V^T": lambda w: Matmul(w.n, w.kv_len, w.dv, w.query_heads, dtype=w.dtype),
    "dQ = dS K": lambda w: Matmul(w.n, w.d, w.kv_len, w.query_heads, dtype=w.dtype),
    "dK = dS^T Q": lambda w: Matmul(w.kv_len, w.d, w.n, w.query_heads, dtype=w.dtype),
}
"""The matmuls of standard attention by the names of their kernels."""


def _apart(kernel: Kernel, w: Attention, frame: MicroBatch) -> StepOp:
    """One kernel of standard attention. The causal mask saves it nothing: all scores are computed."""
    rows, half = w.query_heads * w.n, w.query_heads * w.n * w.kv_len // 2
    if kernel.name in MADE:
        return StepOp(Op(kernel.name, MATMUL, frame.cp, kernel, Timed("matmul", MADE[kernel.name](w), MATMULS)))
    if kernel.name == "softmax backward":
        return StepOp(Op(kernel.name, ELEMENTWISE, frame.cp, kernel), share=OTHERS)
    made: dict[str, tuple[str, str, Any]] = {
        "softmax": ("softmax", "torch-softmax", 0),
        "additive mask": ("scale", "torch-mask", w.n * w.kv_len),
        "dropout": ("scale", "torch-scale", half),  # its mask: a byte per score, half an element
        "dropout backward": ("scale", "torch-scale", half),
    }
    kind, implementation, shared = made.get(kernel.name, ("scale", "torch-scale", 0))
    timed = Timed(kind, Stream(kind, rows, w.kv_len, shared=shared, dtype=w.dtype), (implementation,))
    return StepOp(Op(kernel.name, ELEMENTWISE, frame.cp, kernel, timed))


def _by_heads(w: Attention, frame: MicroBatch) -> tuple[list[StepOp], list[StepOp], list[StepOp]]:
    """Copies from tokens to heads before the matmuls, back after them, and what backward copies beside its matmuls."""
    step, tokens = frame.forward, w.batch * w.n
    out = pointwise("output, heads side by side", step, tokens, w.heads * w.dv, vector=0, strided=True)
    if not frame.eager:
        return [], [out], [replace(out, op=replace(out.op, name="gradient of the output, by heads"))]
    copies = [
        pointwise(f"{name} by heads", step, tokens, heads * d, vector=0, strided=True)
        for name, heads, d in (("Q", w.heads, w.d), ("K", w.heads, w.d), ("V", w.heads, w.dv))
    ]
    back = [replace(one, op=replace(one.op, name=f"gradient, {one.op.name}")) for one in copies]
    product = pointwise("scores times their gradient", step, w.query_heads * w.n, w.kv_len, reads=2)
    return copies, [out], [*back, product, _heads_together(w, frame, strided=True)]


def _heads_together(w: Attention, frame: MicroBatch, *, strided: bool) -> StepOp:
    """The gradients of Q, K and V in one matrix, as the joint projection made them."""
    return pointwise(
        "gradients of Q, K and V side by side",
        frame.forward,
        w.batch * w.n,
        (2 * w.heads) * w.d + w.heads * w.dv,
        vector=0,
        strided=strided,
    )
