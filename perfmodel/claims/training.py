"""Claims about backpropagation through a two-layer MLP."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.arith import Number
from perfmodel.claims.base import INCOMPLETE, LECTURE, WRONG, Claim, Figure
from perfmodel.ops.mlp import Mlp, backward, backward_flops, cached, forward, forward_flops

_LAYER = {"batch": 32, "n": 512, "h": 256}
"""W2 is N x H, so a1 is B x N."""


def _net(batch: Number, n: Number, h: Number) -> Mlp:
    return Mlp(batch, n, n, h)


def output_flops(batch: Number, n: Number, h: Number) -> Number:
    """FLOP of a1 W2."""
    return forward(_net(batch, n, h))[-1].flops


def weight_gradient(batch: Number, n: Number, h: Number) -> Number:
    """FLOP of a1^T dz2."""
    return backward(_net(batch, n, h))[0].flops


def input_gradient(batch: Number, n: Number, h: Number) -> Number:
    """FLOP of dz2 W2^T."""
    return backward(_net(batch, n, h))[1].flops


def _backward_over_forward(batch: Number, n: Number, h: Number) -> Number:
    w = _net(batch, n, h)
    return backward_flops(replace(w, input_gradient=True)) / forward_flops(w)


def _without_first_gradient(batch: Number, n: Number, h: Number) -> Number:
    w = _net(batch, n, h)
    return backward_flops(w) / forward_flops(w)


def loss(w1: Number, w2: Number, w3: Number) -> Number:
    """L = 2 (w1 w2) w3, the lecture's example.

    >>> loss(2, 3, 5)
    60
    """
    return 2 * (w1 * w2) * w3


CLAIMS = (
    Claim(
        "S001",
        LECTURE,
        "For L = 2 (w1 w2) w3, dL/dw3 = w3.",
        claimed="w3",
        why="dL/dw3 = v = 2 w1 w2: a slip in the first list, put right further down. L is linear in w3, so the difference is the gradient.",
        inputs={"w1": 2, "w2": 3, "w3": 5},
        figures=(Figure("dL/dw3", lambda w1, w2, w3: loss(w1, w2, w3 + 1) - loss(w1, w2, w3), lambda w3: w3),),
        uses=(loss,),
    ),
    Claim("S002", LECTURE, "u = w1 w2 is reused as v = 2v.", claimed="v = 2v", declared=WRONG, why="v = 2u: a typo."),
    Claim(
        "S003",
        LECTURE,
        "a1 W2 takes 2BNH FLOP.",
        claimed="2BNH",
        inputs=_LAYER,
        figures=(Figure("forward", output_flops, lambda batch, n, h: 2 * batch * n * h, "FLOP"),),
        uses=(forward,),
    ),
    Claim(
        "S004",
        LECTURE,
        "The gradient of W2, a1^T dz2, takes HBN/2 FLOP.",
        claimed="HBN/2",
        why="2HBN: a multiply-add counts 2. The 4BNH quoted for the backward pass needs it too.",
        inputs=_LAYER,
        figures=(Figure("dW2", weight_gradient, lambda batch, n, h: batch * n * h / 2, "FLOP"),),
        uses=(backward,),
    ),
    Claim(
        "S005",
        LECTURE,
        "The gradient of a1, dz2 W2^T, takes BNH/2 FLOP.",
        claimed="BNH/2",
        why="2BNH, as for dW2.",
        inputs=_LAYER,
        figures=(Figure("da1", input_gradient, lambda batch, n, h: batch * n * h / 2, "FLOP"),),
        uses=(backward,),
    ),
    Claim(
        "S006",
        LECTURE,
        "Backpropagation takes twice as long as the forward pass, 4BNH against 2BNH.",
        why="For a layer inside the net; the first needs no input gradient. Biases and ReLU are not counted.",
        inputs=_LAYER,
        figures=(
            Figure("backward over forward", _backward_over_forward, "2 x", "x"),
            Figure("no gradient of the net's input", _without_first_gradient, unit="x"),
        ),
        uses=(forward_flops, backward_flops),
    ),
    Claim(
        "S007",
        LECTURE,
        "The forward pass must keep a1.",
        declared=INCOMPLETE,
        why="ReLU's backward needs the sign of z1 too, one bit per element; a1 > 0 gives it, so a1 is enough for ReLU but not in general.",
        inputs=_LAYER,
        figures=(
            Figure("a1, fp16", lambda batch, n, h: cached(_net(batch, n, h)).a1, unit="B"),
            Figure("signs of z1", lambda batch, n, h: cached(_net(batch, n, h)).sign_bits, unit="B"),
        ),
        uses=(cached,),
    ),
)
