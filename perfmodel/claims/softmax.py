"""Claims about softmax: passes over the row, blocks, and its Jacobian."""

from __future__ import annotations

from math import exp, sin

from perfmodel.arith import Number
from perfmodel.claims.base import INCOMPLETE, WRONG, Claim, Figure
from perfmodel.cost import READ, WRITE
from perfmodel.ops.softmax import VARIANTS, Softmax, kernel

TILES = "lecture notes on attention in tiles"
_PASSES = {variant.name: variant for variant in VARIANTS}


def passes(n: Number, name: str, *kinds: str) -> Number:
    """Accesses per element of a row of ``n``."""
    return kernel(Softmax(1, n), _PASSES[name]).elements(*kinds) / n


def _row(n: int, step: float) -> list[float]:
    """``n`` fixed numbers in [-1, 1]."""
    return [sin(step * (i + 1)) for i in range(n)]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _probabilities(scores: list[float]) -> list[float]:
    total = sum(map(exp, scores))
    return [exp(score) / total for score in scores]


def whole_output(n: int) -> float:
    """softmax(s) v over a whole row.

    >>> round(whole_output(7), 4)
    0.4674
    """
    return _dot(_probabilities(_row(n, 1.0)), _row(n, 0.5))


def output_of_halves(n: int) -> float:
    """The same from two blocks, weighed by n1/(n1 + n2) and n2/(n1 + n2), where n1, n2 are the blocks' sums of exponentials."""
    scores, values, middle = _row(n, 1.0), _row(n, 0.5), n // 2
    blocks = ((scores[:middle], values[:middle]), (scores[middle:], values[middle:]))
    sums = [sum(map(exp, block)) for block, _ in blocks]
    return sum(share / sum(sums) * _dot(_probabilities(block), v) for share, (block, v) in zip(sums, blocks, strict=True))


def gradient_by_jacobian(n: int) -> float:
    """First entry of (diag(p) - p p^T) dp."""
    p, dp = _probabilities(_row(n, 1.0)), _row(n, 0.3)
    return p[0] * (dp[0] - _dot(p, dp))


def gradient_by_difference(n: int) -> float:
    """The same as the central difference of p(s) . dp along the first score."""
    scores, dp, step = _row(n, 1.0), _row(n, 0.3), 1e-5
    up, down = ([scores[0] + sign * step, *scores[1:]] for sign in (1, -1))
    return (_dot(_probabilities(up), dp) - _dot(_probabilities(down), dp)) / (2 * step)


def row_sum_of_probabilities(n: int) -> float:
    """dp . p where dp_j = do v_j: one head dim."""
    return _dot([0.7 * v for v in _row(n, 0.5)], _probabilities(_row(n, 1.0)))


def row_sum_of_outputs(n: int) -> float:
    """do . o for the same row."""
    return 0.7 * whole_output(n)


CLAIMS = (
    Claim(
        "S051",
        TILES,
        "p V is three printed numbers, for seed 42.",
        claimed="three printed numbers",
        declared=WRONG,
        why="Not reproducible: the scores are drawn before the seed is set. Seed first.",
    ),
    Claim(
        "S052",
        TILES,
        "softmax(s) V of a row is that of its blocks, weighed by their shares of the sum of exponentials.",
        claimed="equal",
        why="An identity. Without subtracting the maximum it overflows for large scores.",
        inputs={"n": 7},
        figures=(Figure("one entry of o", whole_output, output_of_halves, formula="softmax(s) v, s_i = sin(i), v_i = sin(i/2)"),),
        uses=(whole_output, output_of_halves),
    ),
    Claim(
        "S069",
        "lecture notes on FlashAttention, after Online softmax (Milakov & Gimelshein 2018)",
        "Safe softmax takes three passes, 3N^2 accesses.",
        claimed="3N^2",
        declared=INCOMPLETE,
        why="3N^2 reads; with the output stored 4N^2 accesses. Online softmax: 2 reads and 1 write.",
        inputs={"n": 1024},
        figures=(
            Figure("safe, reads per score", lambda n: passes(n, "safe", READ), "3"),
            Figure("safe, with the write", lambda n: passes(n, "safe", READ, WRITE)),
            Figure("online, with the write", lambda n: passes(n, "online", READ, WRITE)),
        ),
        uses=(kernel,),
    ),
    Claim(
        "S072",
        "lecture notes on FlashAttention",
        "The Jacobian of a softmax row is diag(P_i) - P_i P_i^T, and dP_i . P_i = dO_i . O_i.",
        claimed="two identities",
        why="Both checked on numbers; the second holds with dropout too.",
        inputs={"n": 7},
        figures=(
            Figure("one entry of dS", gradient_by_jacobian, gradient_by_difference, tolerance=1e-6, formula="p_1 (dp_1 - p . dp)"),
            Figure("dP . P", row_sum_of_probabilities, row_sum_of_outputs, formula="sum of dp_j p_j, dp_j = do v_j"),
        ),
        uses=(gradient_by_jacobian, gradient_by_difference, row_sum_of_probabilities, row_sum_of_outputs),
    ),
)
