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
    tokens after the first; None for requests of one token. ``*_itl_s``: seconds between two decode steps of a sequence. Mean numbers:
    ``decoding`` sequences, ``running`` requests, which have a slot, and ``waiting`` requests, which have none. ``with_prompts``: share of
    the gaps between decode steps in which prompts ran. ``prompt_s``: seconds from a prompt's first step to its last. ``requests``: number
    of requests counted. ``ttft_error``, ``tpot_error``: standard errors of the means, as shares of them.
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
    """Sums over the counted requests of a simulated run of ``seconds`` from ``start``.

    ``ttft``, ``tpot``: seconds of each request. Sums over requests: ``stays``, seconds from sending to the last token; ``prompts``, seconds
    from a prompt's first step to its last; ``osl``, output tokens; ``waiting``, seconds without a slot. Sums over decoding sequences:
    ``gaps``, seconds between decode steps; ``decodes``, number of these gaps; ``mixed``, number of gaps in which prompts ran.
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


def metrics(runs: Sequence[SimulatedRun], users: int | None, rate: float | None, benchmark: bool, slots: float) -> ServingMetrics:
    """Metrics over several ``runs`` of the same load; at most ``slots`` requests run at a time.

    Requests/s in steady state are ``rate``, or in a closed loop users over the mean stay (Little 1961). A ``benchmark`` counts its requests
    over the time from the first one sent to the last token.
    """
    ttft = [seconds for run in runs for seconds in run.ttft]
    tpot = [seconds for run in runs for seconds in run.tpot]
    count, seconds = len(ttft), sum(run.seconds for run in runs)
    mean_stay_s = sum(run.stays for run in runs) / count
    mean_osl = sum(run.osl for run in runs) / count
    per_s = count / seconds if benchmark else rate or (users or 0) / mean_stay_s
    in_system = per_s * mean_stay_s
    gaps_s, decodes = sum(run.gaps for run in runs), sum(run.decodes for run in runs)
    mean_decode_s = sum(run.stays - sum(run.ttft) for run in runs) / count  # from the first token to the last
    mean_waiting = sum(run.waiting for run in runs) / seconds
    running = min(max(in_system - mean_waiting, 0.0), slots)
    return ServingMetrics(
        mean_ttft_s=fmean(ttft),
        median_ttft_s=median(ttft),
        p99_ttft_s=quantile(ttft, 0.99),
        mean_tpot_s=fmean(tpot) if tpot else None,
        mean_itl_s=gaps_s / decodes if decodes else 0.0,
        requests_per_s=per_s,
        output_tokens_per_s=per_s * mean_osl,
        decoding=per_s * mean_decode_s,
        running=running,
        waiting=max(in_system - running, 0.0),
        with_prompts=sum(run.mixed for run in runs) / decodes if decodes else 1.0,
        prompt_s=sum(run.prompts for run in runs) / count,
        requests=count,
        ttft_error=_error([fmean(run.ttft) for run in runs if run.ttft]),
        tpot_error=_error([fmean(run.tpot) for run in runs if run.tpot]),
    )


def _error(means: Sequence[float]) -> float:
    """Standard error of the mean of ``means``, as a share of it."""
    return stdev(means) / sqrt(len(means)) / fmean(means) if len(means) > 1 and fmean(means) else 0.0
