"""Metrics of a simulated engine, named as in vLLM's benchmark (``vllm bench serve``), and the engine's mean state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import sqrt
from statistics import fmean, median, stdev

from perfmodel.core.arith import quantile
from perfmodel.core.frozen import dataclass


@dataclass(frozen=True, slots=True)
class ServingMetrics:
    """Metrics of simulated requests.

    ``*_ttft_s``: seconds from sending a request to its first token. ``*_tpot_s``: seconds from the first token to the last, divided by the
    tokens after the first; None for requests of one token. ``*_itl_s``: seconds between two decode steps of a sequence. ``decoding``: mean
    number of sequences that decode; ``running``: mean number of requests with a slot; ``waiting``: those without. ``with_prompts``: share
    of the gaps between decode steps in which prompts ran. ``prompt_s``: seconds from a prompt's first step to its last. ``requests``:
    requests that were counted. ``ttft_error``, ``tpot_error``: standard errors over the means.
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
        """Metrics of ``copies`` equal engines together, each with its own users."""
        amounts = ("requests_per_s", "output_tokens_per_s", "decoding", "running", "waiting")
        return replace(self, **{name: copies * getattr(self, name) for name in amounts})

    def behind(self, others: int) -> ServingMetrics:
        """Metrics with ``others`` more users, all waiting for a slot: each request waits until that many more have ended."""
        later = others / self.requests_per_s
        times = {name: getattr(self, name) + later for name in ("mean_ttft_s", "median_ttft_s", "p99_ttft_s")}
        return replace(self, waiting=self.waiting + others, **times)


@dataclass(slots=True)
class SimulatedRun:
    """Sums over a simulated run of ``seconds`` from ``start``. ``stays``: seconds from sending to the last token; ``osl``: output tokens.

    ``gaps``: seconds between decode steps, summed over sequences; ``decodes``: number of these gaps; ``mixed``: gaps in which prompts ran.
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
    """Metrics over ``tallies``, runs of the same load.

    Requests/s in steady state are ``rate``, or in a closed loop users over the mean stay (Little 1961). A ``benchmark`` counts its requests
    over the time from the first one sent to the last token. At most ``slots`` requests run.
    """
    ttft, tpot = ([value for tally in tallies for value in getattr(tally, name)] for name in ("ttft", "tpot"))
    count, seconds = len(ttft), sum(tally.seconds for tally in tallies)
    stay, osl = sum(tally.stays for tally in tallies) / count, sum(tally.osl for tally in tallies) / count
    per_s = count / seconds if benchmark else rate or (users or 0) / stay
    gaps, decodes = sum(tally.gaps for tally in tallies), sum(tally.decodes for tally in tallies)
    decode_s = sum(tally.stays - sum(tally.ttft) for tally in tallies) / count  # from the first token to the last
    running = min(max(per_s * stay - sum(tally.waiting for tally in tallies) / seconds, 0.0), slots)
    return ServingMetrics(
        mean_ttft_s=fmean(ttft),
        median_ttft_s=median(ttft),
        p99_ttft_s=quantile(ttft, 0.99),
        mean_tpot_s=fmean(tpot) if tpot else None,
        mean_itl_s=gaps / decodes if decodes else 0.0,
        requests_per_s=per_s,
        output_tokens_per_s=per_s * osl,
        decoding=per_s * decode_s,
        running=running,
        waiting=max(per_s * stay - running, 0.0),
        with_prompts=sum(tally.mixed for tally in tallies) / decodes if decodes else 1.0,
        prompt_s=sum(tally.prompts for tally in tallies) / count,
        requests=count,
        ttft_error=_error([fmean(tally.ttft) for tally in tallies if tally.ttft]),
        tpot_error=_error([fmean(tally.tpot) for tally in tallies if tally.tpot]),
    )


def _error(means: Sequence[float]) -> float:
    """Standard error of the mean of ``means``, as a share of it."""
    return stdev(means) / sqrt(len(means)) / fmean(means) if len(means) > 1 and fmean(means) else 0.0
