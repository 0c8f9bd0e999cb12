"""What a simulation saw: sums over its requests and its time, and the figures that they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Simulated:
    """Figures of the requests that ended after the warm-up; seconds, sequences, tokens or requests a second.

    ``ttft_*``: from sending a request to its first token. ``tpot_*``: over requests, the time from first to last token over ``osl - 1``;
    None where one token is asked. ``itl_p99_s``: of the times between decode steps that a sequence sees. ``running``: mean sequences that
    hold a slot, prompts under way too; ``waiting``: mean requests that hold none. ``step_s``: mean step. ``prefill_share``: share of the
    time in steps with prompts; ``utilisation``: in steps at all. ``most_running``: sequences at a time.
    """

    ttft_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    itl_p99_s: float | None
    running: float
    waiting: float
    requests_per_s: float
    tokens_per_s: float
    step_s: float
    prefill_share: float
    utilisation: float
    most_running: int
    requests: int
    asked: int
    given: int


@dataclass(slots=True)
class Served:
    """Sums since the warm-up ended: of requests that ended, of tokens and of time. ``tokens``: of all requests, as they were given."""

    start: float = 0.0
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    asked: int = 0
    given: int = 0
    tokens: float = 0.0
    most_running: int = 0
    steps: int = 0
    busy: float = 0.0
    prefill: float = 0.0
    running: float = 0.0
    waiting: float = 0.0


def figures(tally: Served, end: float) -> Simulated:
    """The sums as means, quantiles and rates over the time until ``end``."""
    ttft, tpot, time = [(value, 1.0) for value in tally.ttft], [(value, 1.0) for value in tally.tpot], end - tally.start
    return Simulated(
        ttft_s=mean(ttft) or 0.0,
        ttft_p50_s=quantile(ttft, 0.5) or 0.0,
        ttft_p90_s=quantile(ttft, 0.9) or 0.0,
        ttft_p99_s=quantile(ttft, 0.99) or 0.0,
        tpot_s=mean(tpot),
        tpot_p50_s=quantile(tpot, 0.5),
        tpot_p99_s=quantile(tpot, 0.99),
        itl_p99_s=quantile(tally.gaps, 0.99),
        running=tally.running / time,
        waiting=tally.waiting / time,
        requests_per_s=len(ttft) / time,
        tokens_per_s=tally.tokens / time,
        step_s=tally.busy / tally.steps,
        prefill_share=tally.prefill / time,
        utilisation=tally.busy / time,
        most_running=tally.most_running,
        requests=len(ttft),
        asked=tally.asked,
        given=tally.given,
    )


def mean(weighted: Sequence[tuple[float, float]]) -> float | None:
    """Of pairs of (value, weight); None without weight.

    >>> mean([(1.0, 3.0), (5.0, 1.0)])
    2.0
    """
    weight = sum(each for _, each in weighted)
    return sum(value * each for value, each in weighted) / weight if weight else None


def quantile(weighted: Sequence[tuple[float, float]], share: float) -> float | None:
    """Smallest value with at least ``share`` of the weight at or below it; pairs of (value, weight); None of no pairs.

    >>> quantile([(1.0, 1.0), (2.0, 1.0), (9.0, 2.0)], 0.5)
    2.0
    """
    left = share * sum(weight for _, weight in weighted) * (1 - 1e-12)
    for value, weight in sorted(weighted):
        left -= weight
        if left <= 0:
            return value
    return None
