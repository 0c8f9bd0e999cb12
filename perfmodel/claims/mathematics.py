"""Identities and derivatives that claims are checked with, on fixed numbers."""

from __future__ import annotations

from math import exp, sin

from perfmodel.core.arith import Number


def ridge_point(flops_per_s: Number, bandwidth: Number) -> Number:
    """FLOP/B at which compute and memory take the same time.

    Source: roofline model, Williams, Waterman & Patterson 2009.

    >>> ridge_point(312e12, 1.5e12)
    208.0
    """
    return flops_per_s / bandwidth


def twice_product(w1: Number, w2: Number) -> Number:
    """v = 2 u, u = w1 w2: what the example computes before w3 comes in."""
    return 2 * (w1 * w2)


def loss(w1: Number, w2: Number, w3: Number) -> Number:
    """L = v w3 = 2 (w1 w2) w3.

    >>> loss(2, 3, 5)
    60
    """
    return twice_product(w1, w2) * w3


def last_gradient(w1: Number, w2: Number, w3: Number) -> Number:
    """dL/dw3: L is linear in w3, so that the difference is the gradient."""
    return loss(w1, w2, w3 + 1) - loss(w1, w2, w3)


def _row(n: int, step: float) -> list[float]:
    """``n`` fixed numbers in [-1, 1]."""
    return [sin(step * (i + 1)) for i in range(n)]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _probabilities(scores: list[float]) -> list[float]:
    total = sum(map(exp, scores))
    return [exp(score) / total for score in scores]


def whole_output(n: int) -> float:
    """softmax(s) v over a whole row, s_i = sin(i), v_i = sin(i/2).

    >>> round(whole_output(7), 4)
    0.4674
    """
    n = int(n)
    return _dot(_probabilities(_row(n, 1.0)), _row(n, 0.5))


def output_of_halves(n: int) -> float:
    """The same from two blocks, weighed by n1/(n1 + n2) and n2/(n1 + n2), where n1, n2 are the blocks' sums of exponentials."""
    scores, values, middle = _row(n, 1.0), _row(n, 0.5), n // 2
    blocks = ((scores[:middle], values[:middle]), (scores[middle:], values[middle:]))
    sums = [sum(map(exp, block)) for block, _ in blocks]
    return sum(share / sum(sums) * _dot(_probabilities(block), v) for share, (block, v) in zip(sums, blocks, strict=True))


def gradient_by_jacobian(n: int) -> float:
    """First entry of (diag(p) - p p^T) dp."""
    n = int(n)
    p, dp = _probabilities(_row(n, 1.0)), _row(n, 0.3)
    return p[0] * (dp[0] - _dot(p, dp))


def gradient_by_difference(n: int) -> float:
    """The same as the central difference of p(s) . dp along the first score."""
    scores, dp, step = _row(n, 1.0), _row(n, 0.3), 1e-5
    up, down = ([scores[0] + sign * step, *scores[1:]] for sign in (1, -1))
    return (_dot(_probabilities(up), dp) - _dot(_probabilities(down), dp)) / (2 * step)


def row_sum_of_probabilities(n: int) -> float:
    """dp . p where dp_j = do v_j: one head dim."""
    n = int(n)
    return _dot([0.7 * v for v in _row(n, 0.5)], _probabilities(_row(n, 1.0)))


def row_sum_of_outputs(n: int) -> float:
    """do . o for the same row."""
    return 0.7 * whole_output(n)
