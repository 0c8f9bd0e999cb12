"""What users of an engine see, in the words of vLLM's benchmark (``vllm bench serve``), with the mean state of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean, median, stdev

from perfmodel.core.arith import quantile


@dataclass(frozen=True, slots=True)
class ServingMetrics:
    """Figures of simulated requests; seconds, tokens, sequences, or requests a second.

    ``*_ttft_s``: from sending a request to its first token. ``*_tpot_s``: from the first token to the last over the tokens after the
    first; None where one token is asked. ``*_itl_s``: between two decode steps of a sequence. ``decoding``: mean sequences in decode
    steps; ``running``: requests under way but for those ``waiting`` for a slot. ``with_prompts``: share of the decode steps of a sequence
    between which prompts ran. ``prompt_s``: from a prompt's first step to its last. ``ttft_error``, ``tpot_error``: standard errors of
    the means as shares of them. ``requests``: that were counted.
    """

    mean_ttft_s: float
    median_ttft_s: float
    p99_ttft_s: float
    mean_tpot_s: float | None
    mean_itl_s: float
    requests_per_s: float
    output_tokens_per_s: float
    decoding: float
    running: float
    waiting: float
    with_prompts: float
    prompt_s: float
    requests: int
    ttft_error: float = 0.0
    tpot_error: float = 0.0

    def times(self, copies: float) -> ServingMetrics:
        """Metrics of ``copies`` engines alike, each with users of its own."""
        amounts = ("requests_per_s", "output_tokens_per_s", "decoding", "running", "waiting")
        return replace(self, **{name: copies * getattr(self, name) for name in amounts})

    def behind(self, others: int) -> ServingMetrics:
        """Metrics with ``others`` more users, all of whom wait for a slot: each request waits for one to end more often."""
        later = others / self.requests_per_s
        times = {name: getattr(self, name) + later for name in ("mean_ttft_s", "median_ttft_s", "p99_ttft_s")}
        return replace(self, waiting=self.waiting + others, **times)


@dataclass(slots=True)
class SimulatedRun:
    """Sums over one simulated stretch of time from ``start``. ``stays``: seconds from sending to the last token; ``osl``: tokens given.

    ``gaps``, ``decodes``: seconds between decode steps and their number, each of a sequence; ``mixed``: those with prompts between.
    """

    start: float = 0.0
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    stays: float = 0.0
    prompts: float = 0.0
    osl: int = 0
    gaps: float = 0.0
    decodes: int = 0
    mixed: int = 0
    waiting: float = 0.0
    seconds: float = 0.0


def metrics(tallies: Sequence[SimulatedRun], users: int | None, rate: float | None, benchmark: bool, slots: float) -> ServingMetrics:
    """Metrics over ``tallies``, runs alike.

    In steady state requests end as they come: at ``rate``, or in a closed loop as Little's law (1961) has it, users over the mean stay.
    Those of a ``benchmark`` are counted from the first one sent to the last token. No more run than there are ``slots``.
    """
    ttft, tpot = ([value for one in tallies for value in getattr(one, name)] for name in ("ttft", "tpot"))
    count, seconds = len(ttft), sum(one.seconds for one in tallies)
    stay, osl = sum(one.stays for one in tallies) / count, sum(one.osl for one in tallies) / count
    per_s = count / seconds if benchmark else rate or (users or 0) / stay
    gaps, decodes = sum(one.gaps for one in tallies), sum(one.decodes for one in tallies)
    steps_s = sum(map(_decoding_s, tallies)) / count
    running = min(max(per_s * stay - sum(one.waiting for one in tallies) / seconds, 0.0), slots)
    return ServingMetrics(
        mean_ttft_s=fmean(ttft),
        median_ttft_s=median(ttft),
        p99_ttft_s=quantile(ttft, 0.99),
        mean_tpot_s=fmean(tpot) if tpot else None,
        mean_itl_s=gaps / decodes if decodes else 0.0,
        requests_per_s=per_s,
        output_tokens_per_s=per_s * osl,
        decoding=per_s * steps_s,
        running=running,
        waiting=max(per_s * stay - running, 0.0),
        with_prompts=sum(one.mixed for one in tallies) / decodes if decodes else 1.0,
        prompt_s=sum(one.prompts for one in tallies) / count,
        requests=count,
        ttft_error=_error([fmean(one.ttft) for one in tallies if one.ttft]),
        tpot_error=_error([fmean(one.tpot) for one in tallies if one.tpot]),
    )


def _decoding_s(tally: SimulatedRun) -> float:
    """Seconds between the first token and the last one, summed over all requests."""
    return tally.stays - sum(tally.ttft)


def _error(means: Sequence[float]) -> float:
    """Standard error of the mean of ``means``, as a share of it."""
    return stdev(means) / sqrt(len(means)) / fmean(means) if len(means) > 1 and fmean(means) else 0.0
