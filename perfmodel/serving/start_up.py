"""The start of a benchmark: all users send their first request at once, and the mean over all requests counts those first ones too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.serving.iteration import Iteration
from perfmodel.serving.steady import Loop, Steady


def first_tokens(loop: Loop, users: int) -> list[float]:
    """Seconds to the first token of each of ``users`` requests that come together, as their prompts run one behind the other.

    Those beyond the slots wait until as many have ended as stand before them, at the rate of the steady state.
    """
    batching, load, size = loop.batching, loop.load, loop.prompt
    slots, clock, decodes, found = min(users, loop.slots), loop.overhead.request_s, 0, list[float]()
    left = [size] * slots
    while left:
        beside = decodes if batching.mixed else 0
        room = max(batching.token_budget - beside * load.queries, 1.0)
        taken, ended = 0.0, 0
        while ended < len(left) and taken + left[ended] <= room:
            taken, ended = taken + left[ended], ended + 1
        part = min(room - taken, left[ended]) if ended < len(left) and (batching.chunked or not ended) else 0.0
        part = left[0] if not ended and not batching.chunked else part
        chunk, prompts = round(taken + part), ended + (part > 0)
        clock += loop.times.seconds(
            Iteration(max(chunk, 1), round(load.prefix + size), max(prompts, 1), beside, round(loop.context) if beside else 0, load.queries)
        )
        if part and ended < len(left):
            left[ended] -= part
            ended += left[ended] <= 0
        found += [clock] * ended
        decodes, left = decodes + ended, left[ended:]
    return found


def benchmarked(loop: Loop, steady: Steady, users: int, requests: int) -> Steady:
    """``steady`` with the time to the first token of ``requests`` of a benchmark, of which the first ``users`` come at once.

    A mean over all; the 99 % is the later of both parts where the first are more than a hundredth.
    """
    first = first_tokens(loop, users)
    behind = max(users - len(first), 0)
    if behind:  # they wait for a slot: as many end a second as the steady state serves
        first += [first[-1] + place / steady.requests_per_s for place in range(1, behind + 1)]
    share = min(users / requests, 1.0)
    mean = share * sum(first) / len(first) + (1 - share) * steady.ttft_s
    last = max(steady.ttft_p99_s, _ranked(first, 1 - 0.01 / share)) if share > 0.01 else steady.ttft_p99_s
    return replace(steady, ttft_s=mean, ttft_p99_s=last)


def _ranked(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(int(max(share, 0.0) * len(ranked)), len(ranked) - 1)]
