"""How tokens reach their experts: exchanges between GPUs, and tokens per expert, by an even router or an uneven one.

Experts' loads follow a power law, as in ai-dynamo/aiconfigurator, collector/helper.py (``power_law_logits_v3``): drawn with density x^-a
between 1 and 0.8 of the tokens (0.01 and 2 where there are fewer picks than experts), then brought to the number of picks. Here the loads
are quantiles of that law instead of random draws. The order of experts on GPUs is arbitrary.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from perfmodel.core.arith import Number, minimum
from perfmodel.core.cost import READ, Kernel
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.trace import is_traced, plain, template
from perfmodel.kernels.collectives import ALL_GATHER, ALL_TO_ALL, COMBINE, DISPATCH
from perfmodel.transformer.kernel_choice import EXCHANGES, GATHERING
from perfmodel.transformer.op import COLLECTIVE, Op, Timed, activation, collective
from perfmodel.transformer.spec import ModelSpec, MoeMlp
from perfmodel.transformer.step import ModelPass, share
from perfmodel.transformer.weight_formats._base import MatrixFormat

TYPICAL_IMBALANCE = 1.2  # known
"""Exponent of the power law of a router's picks. Source: ai-dynamo/aiconfigurator @095f58a, docs/POWER_LAW_DISTRIBUTION.md (typical
production, Qwen3-235B; DeepSeek-V3 1.01): fewer experts are touched than by an even router, and some get many tokens."""

ORDERS = 16
"""Number of orders of the experts over which the fullest GPU is averaged."""


def router_imbalance(model: ModelSpec, given: float | None = None) -> float:
    """Exponent of the power law of a router's picks: ``given``, else the typical one, 0 for a model without experts."""
    if given is not None:
        return given
    return TYPICAL_IMBALANCE if model.is_moe else 0.0


def gathers(step: ModelPass) -> bool:
    """Whether every GPU gets all tokens: by choice of kernels, or because GPUs that share experts need the same tokens."""
    return step.split.expert_tp > 1 or GATHERING in step.kernels.all_to_all


def received(step: ModelPass) -> Number:
    """Tokens that the experts' kernels of a GPU read and write: its own, or those of all groups."""
    return step.tokens * (step.split.dp if gathers(step) else 1)


def sent(step: ModelPass, mlp: MoeMlp, hidden: Number, gathering: str, form: MatrixFormat) -> list[Op]:
    """Exchanges of tokens on their way to their experts or back. A single group has all tokens on each GPU, and adds up after the MLP.

    Several groups exchange by all-to-all over the stage: each GPU sends its part of the group's tokens, once per expert and at most once
    per GPU. Or they exchange by ``gathering`` among GPUs with the same place in their groups, and add up over a group after the MLP (vLLM).
    ``form``: format of the experts.
    """
    split = step.split
    if split.dp == 1:
        return []
    if gathers(step):
        return [collective(gathering, split.dp, split.dp * step.tokens * hidden, step)]
    if not EXCHANGES.isdisjoint(step.kernels.all_to_all):
        return [_sent_by_library(DISPATCH if gathering == ALL_GATHER else COMBINE, mlp, hidden, step, form)]
    copies = minimum(mlp.experts_per_token, split.ep)
    return [collective(ALL_TO_ALL, split.stage, share(step.tokens, split.tp) * copies * hidden, step)]


def _sent_by_library(op: str, mlp: MoeMlp, hidden: Number, step: ModelPass, form: MatrixFormat) -> Op:
    """``op`` on the tokens of each GPU of a stage, in 8 bits if experts multiply in floats of at most 8 bits (DeepEP, README.md)."""
    from perfmodel.kernels.expert_exchange import expert_exchange

    tokens = share(step.tokens, step.split.tp)
    dtype = DTYPES["fp8"] if form.bits <= 8 and not form.is_integer and step.dtype.size == 2 else step.dtype
    w = expert_exchange(op, step.split.stage, tokens, hidden, int(mlp.experts), int(mlp.experts_per_token), dtype)
    kernel = Kernel(w.title, step.dtype, (activation(READ, tokens * hidden, step, "buffer"),))
    return Op(w.title, COLLECTIVE, 1, kernel, Timed("collective", w, step.kernels.of_collective(op)))


class _UnevenLoad(NamedTuple):
    """Load of the fullest GPU with an uneven router: pairs of token and expert, touched experts, and tokens of each expert."""

    pairs: int
    touched: float
    tokens: tuple[float, ...]


@lru_cache(maxsize=2048)
def _uneven(experts: int, per_token: int, tokens: int, ep: int, exponent: float) -> _UnevenLoad:
    chances = fullest(experts, per_token, tokens, ep, exponent)
    pairs = ceil(tokens * sum(chances) - 1e-6)  # the sum of chances is rounded
    return _UnevenLoad(pairs, touched(chances, tokens), tuple(tokens * chance for chance in chances))


def _uneven_load(step: ModelPass, mlp: MoeMlp) -> _UnevenLoad:
    sizes = (int(plain(size)) for size in (mlp.experts, mlp.experts_per_token, step.all_tokens))
    return _uneven(*sizes, step.split.ep, step.imbalance or 0.0)


def pairs_on(step: ModelPass, mlp: MoeMlp) -> Number:
    """Pairs of token and expert on the fullest GPU: an equal share, if all experts are alike."""
    return _uneven_load(step, mlp).pairs if step.imbalance else share(step.all_tokens * mlp.experts_per_token, step.split.ep)


def touched_on(step: ModelPass, mlp: MoeMlp) -> Number:
    """Mean number of touched experts on the fullest GPU."""
    if step.imbalance:
        return _uneven_load(step, mlp).touched
    return expected_touched(mlp.experts, mlp.experts_per_token, step.all_tokens) / step.split.ep


def loads_on(step: ModelPass, mlp: MoeMlp) -> tuple[float, ...]:
    """Tokens of each expert on the fullest GPU; empty if all experts are alike."""
    return _uneven_load(step, mlp).tokens if step.imbalance else ()


def expected_touched(experts: Number, per_token: Number, tokens: Number) -> Number:
    """Mean number of experts that at least one of ``tokens`` picks, if each picks ``per_token`` different ones uniformly.

    E (1 - (1 - k / E)^T).

    >>> expected_touched(8, 2, 1), round(expected_touched(8, 2, 4), 3), round(expected_touched(256, 8, 64), 1)
    (2.0, 5.469, 222.4)
    """
    value = float(plain(experts) * (1 - (1 - plain(per_token) / plain(experts)) ** plain(tokens)))
    if is_traced(experts, per_token, tokens):
        return template("({} * (1 - (1 - {} / {})^({})))", value, experts, per_token, experts, tokens)
    return value


# Uneven load


def power_law_quantile(u: float, exponent: float, low: float, high: float) -> float:
    """Quantile ``u`` of the power law x^-``exponent`` between ``low`` and ``high``.

    >>> power_law_quantile(0.5, 1, 1, 100), round(power_law_quantile(0.5, 2, 1, 3), 6)
    (10.0, 1.5)
    """
    if exponent == 1:
        return float(low * (high / low) ** u)
    a, b = low ** (1 - exponent), high ** (1 - exponent)
    return float((a + u * (b - a)) ** (1 / (1 - exponent)))


@lru_cache(maxsize=2048)
def picks(experts: int, per_token: int, tokens: int, exponent: float) -> tuple[float, ...]:
    """Chance that a token picks each expert, the likeliest first, at most 1; the sum is ``per_token``. With exponent 0 all are equal.

    >>> [round(one, 3) for one in picks(4, 2, 100, 0.0)], [round(one, 3) for one in picks(4, 2, 100, 1.2)]
    ([0.5, 0.5, 0.5, 0.5], [1.0, 0.664, 0.236, 0.1])
    """
    if exponent == 0:
        return (per_token / experts,) * experts
    low, high = (1.0, max(0.8 * tokens, 1.0)) if tokens * per_token > experts else (0.01, 2.0)
    loads = [power_law_quantile((experts - index - 0.5) / experts, exponent, low, high) for index in range(experts)]
    always = 0  # experts that every token picks
    while always < per_token and loads[always] * (per_token - always) > sum(loads[always:]):
        always += 1
    others = loads[always:]
    total, further_picks = sum(others), per_token - always
    return (*[1.0] * always, *(load * further_picks / total for load in others))


@lru_cache(maxsize=8)
def orders(experts: int) -> list[tuple[int, ...]]:
    """``ORDERS`` random orders of ``experts`` experts, the same in each run."""
    from random import Random

    generator, order = Random(experts), list(range(experts))
    drawn = []
    for _ in range(ORDERS):
        generator.shuffle(order)
        drawn.append(tuple(order))
    return drawn


@lru_cache(maxsize=2048)
def fullest(experts: int, per_token: int, tokens: int, groups: int, exponent: float) -> tuple[float, ...]:
    """Chances of the experts on the fullest of ``groups`` GPUs, averaged over orders of the experts.

    >>> round(sum(fullest(8, 2, 100, 1, 1.2)), 9), [round(one, 2) for one in fullest(8, 2, 100, 8, 1.2)]
    (2.0, [0.97])
    """
    chances, per_group = list(picks(experts, per_token, tokens, exponent)), -(-experts // groups)
    if groups == 1 or per_group == 1 or exponent == 0:
        return tuple(chances[:per_group])
    sums = [0.0] * per_group
    for order in orders(experts):
        ordered = [chances[place] for place in order]
        groups_of_experts = [ordered[start : start + per_group] for start in range(0, experts, per_group)]
        fullest_group = sorted(max(groups_of_experts, key=sum), reverse=True)
        sums = [total + chance for total, chance in zip(sums, fullest_group, strict=False)]
    return tuple(total / ORDERS for total in sums)


def touched(chances: tuple[float, ...], tokens: int) -> float:
    """Expected number of experts that at least one of ``tokens`` picks: the sum of 1 - (1 - p)^T over ``chances``.

    >>> touched((0.5, 0.5), 1), touched((1.0, 0.5), 2)
    (1.0, 1.75)
    """
    return float(sum(1 - (1 - chance) ** tokens for chance in chances))
