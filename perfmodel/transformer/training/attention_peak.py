"""Peak memory of attention, forward and backward, in PyTorch, without its inputs and the gradient of its result.

The result is held until the end, as a model holds it. Bytes are those of tensors; PyTorch's allocator may hand out up to 1 MiB more
for one that fills most of a free block (c10/cuda/CUDACachingAllocator.cpp, kSmallSize).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.workload import Attention
from perfmodel.transformer.training.tape import Tape, TapeNode, backward, forward

EAGER, SDPA_FLASH = "torch-eager", "torch-sdpa-flash"
RANDOM_STATE = 2 * 512
"""Bytes of the seed and the offset of dropout: one 512 B block of the allocator for each."""


@dataclass(frozen=True, slots=True)
class AttentionPeak:
    """Bytes without the inputs: peak of both passes, peak of forward, and kept from forward to backward. ``at``: operation at the peak."""

    bytes: Number
    forward: Number
    kept: Number
    at: str


def attention_peak(w: Attention, implementation: str) -> AttentionPeak:
    """Peak bytes of forward and backward of ``w`` in ``implementation``, torch-eager or torch-sdpa-flash; UsageError for another.

    Eager, with S bytes of scores and u of the result, peaks at 4 S + 2 u in softmax's backward pass; a mask is one of the inputs.

    >>> w = Attention(1024, 1024, 64, 64, batch=8, heads=16, kv_heads=16)
    >>> attention_peak(w, "torch-eager"), attention_peak(w, "torch-sdpa-flash").bytes
    (AttentionPeak(bytes=1107296256, forward=553648128, kept=285212672, at='softmax, backward'), 101712896)
    """
    tapes = {EAGER: _eager, SDPA_FLASH: _flash}
    if implementation not in tapes:
        raise UsageError(f"--implementation: no peak is known of {implementation!r}", suggest(implementation, list(tapes)))
    tape = tapes[implementation](w)
    ahead, back = forward(tape), backward(tape)
    if ahead.high > ahead.net + back.high:
        return AttentionPeak(ahead.high, ahead.high, ahead.net, f"{ahead.at}, forward")
    return AttentionPeak(ahead.net + back.high, ahead.high, ahead.net, f"{back.at}, backward")


def _tape(w: Attention, nodes: list[TapeNode], more: dict[str, Number]) -> Tape:
    """Tape of ``nodes``: the result, dQ, dK and dV take bytes; inputs and dO exist already."""
    keys, rows = w.batch * w.kv_heads * w.kv_len * w.dtype.size, w.batch * w.heads * w.n * w.dtype.size
    views = {"Q": rows * w.d, "K": keys * w.d, "V": keys * w.dv, "result": 0}
    return Tape("Q", {**dict.fromkeys(views, 0), "result": rows * w.dv, **more}, nodes, views=views)


def _eager(w: Attention) -> Tape:
    scores = w.batch * w.heads * w.n * w.kv_len * w.dtype.size
    steps = ["Q K^T", "scaled", *(["masked"] if w.causal else [])]
    nodes = [TapeNode("Q K^T", ("Q", "K"), (steps[0],))]
    nodes += [TapeNode(made, (before,), (made,), adds=made == "masked") for before, made in pairwise(steps)]
    # backward multiplies softmax with its gradient before it adds up the rows
    nodes.append(TapeNode("softmax", (steps[-1],), ("softmax",), ("softmax",), backward_scratch=scores))
    nodes.append(TapeNode("P V", ("softmax", "V"), ("result",), ("softmax",), scratch=scores))  # the scores still have a name
    return _tape(w, nodes, dict.fromkeys((*steps, "softmax"), scores))


def _flash(w: Attention) -> Tape:
    """FlashAttention-2: the logsumexp is kept; backward adds dQ up in fp32, with rows padded to 128 and features to 32.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd. Grouped heads have dK, dV per query head first.
    """
    rows = w.batch * w.heads * ceil_div(w.n, 128) * 128
    sums = STATISTIC_SIZE * rows * (ceil_div(w.d, 32) * 32 + 1)
    each = 0 if w.heads == w.kv_heads else w.batch * w.heads * w.kv_len * w.dtype.size * (w.d + w.dv)
    kept = STATISTIC_SIZE * w.batch * w.heads * w.n + RANDOM_STATE
    node = TapeNode("attention", ("Q", "K", "V"), ("result", "logsumexp"), ("logsumexp",), backward_scratch=sums + each)
    return _tape(w, [node], {"logsumexp": kept})
