"""To which experts a router sends its tokens: how many of them get any, and how many the fullest gets."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.trace import is_traced, plain, template


def expected_touched(experts: Number, per_token: Number, tokens: Number) -> Number:
    """Experts that at least one of ``tokens`` picks, on average, if each picks ``per_token`` different ones, all alike.

    E (1 - (1 - k / E)^T).

    >>> expected_touched(8, 2, 1), round(expected_touched(8, 2, 4), 3), round(expected_touched(256, 8, 64), 1)
    (2.0, 5.469, 222.4)
    """
    value = float(plain(experts) * (1 - (1 - plain(per_token) / plain(experts)) ** plain(tokens)))
    if is_traced(experts, per_token, tokens):
        return template("({} * (1 - (1 - {} / {})^({})))", value, experts, per_token, experts, tokens)
    return value
