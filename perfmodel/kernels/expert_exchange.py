"""Tokens on their way to the GPUs of their experts and back, as expert-parallel libraries send them.

Each GPU of ``world`` sends its tokens: once to each GPU that holds one of their experts, and gets one sum back from each (normal kernels),
or once per expert (low-latency kernels). Source: deepseek-ai/DeepEP, csrc/kernels/{internode,internode_ll}.cu; DeepSeek-V3, section 3.2.2.
"""

from __future__ import annotations

from math import prod

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.frozen import dataclass
from perfmodel.kernels.collectives import COMBINE, DISPATCH, Collective

SCALED_BY = 128  # known
"""Elements of a token that share a scale of 4 B in an 8-bit dispatch."""


@dataclass(frozen=True, slots=True)
class ExpertExchange(Collective):
    """``tokens`` of ``token_bytes`` per GPU, each to ``per_token`` of ``experts``. ``bytes``: sent with one copy per GPU."""

    tokens: Number
    token_bytes: Number
    experts: int
    per_token: int

    @property
    def title(self) -> str:
        """Name of the exchange in words, such as ``expert dispatch``."""
        return f"expert {self.op}"

    @property
    def sent(self) -> Number:
        """Bytes that a GPU sends with one copy per expert, including copies that stay on it."""
        return self.tokens * self.per_token * self.token_bytes

    def to_groups(self, groups: int) -> Number:
        """Bytes that a GPU sends with one copy per group of GPUs that holds one of a token's experts, out of ``groups`` equal groups."""
        return self.tokens * distinct_holders(self.experts, self.per_token, groups) * self.token_bytes


def distinct_holders(experts: int, per_token: int, holders: int) -> float:
    """Expected number of ``holders`` of equal parts of the experts that hold at least one of a token's, under uniform routing.

    >>> distinct_holders(8, 2, 8), round(distinct_holders(4, 2, 2), 6), distinct_holders(256, 8, 1)
    (2.0, 1.666667, 1.0)
    """
    if holders <= 1:
        return 1.0
    elsewhere = experts - experts // holders
    share_without = prod((elsewhere - i) / (experts - i) for i in range(per_token))  # of tokens, none of whose experts a holder has
    return holders * (1 - share_without)


def token_bytes(op: str, hidden: Number, dtype: Dtype) -> Number:
    """Bytes of one token on its way: with scales if it is dispatched in 8 bits; results come back in 16 bits.

    >>> token_bytes("dispatch", 7168, DTYPES["fp8"]), token_bytes("combine", 7168, DTYPES["fp8"])
    (7392, 14336)
    """
    return hidden + 4 * ceil_div(hidden, SCALED_BY) if op == DISPATCH and dtype.size == 1 else hidden * 2


def expert_exchange(op: str, world: int, tokens: Number, hidden: Number, experts: int, per_token: int, dtype: Dtype) -> ExpertExchange:
    """The exchange ``op``: a dispatch in ``dtype``, or a combine, which is always in bf16."""
    bytes_per_token = token_bytes(op, hidden, dtype)
    sent_bytes = tokens * distinct_holders(experts, per_token, world) * bytes_per_token
    return ExpertExchange(op, world, sent_bytes, DTYPES["bf16"] if op == COMBINE else dtype, tokens, bytes_per_token, experts, per_token)
