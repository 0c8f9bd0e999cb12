"""A small discrete simulation of an engine's scheduler: requests, a queue, steps one after the other.

First come, first served. A step of an engine that mixes takes a token (or a few, with drafts) of every running sequence, then prompts,
as far as the token budget goes, the last one cut if prompts may be. An engine that does not mix runs waiting prompts first, alone. A
prompt gets its first token when its last chunk has run; from then on its sequence decodes. Requests beyond the slots wait.
Sources: Yu et al. 2022 (Orca, iteration-level batches), Kwon et al. 2023 (PagedAttention), Agrawal et al. 2024 (Sarathi-Serve, chunks).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from perfmodel.serving.engine import Batching, Overhead
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load


@dataclass(slots=True)
class _Request:
    """``left``: tokens of the prompt still to run; ``steps``: decode steps it will take; ``made``: tokens those give."""

    arrived: float
    isl: int
    left: int
    steps: int
    made: int
    first: float = 0.0


@dataclass(slots=True)
class Simulated:
    """What was served between the warm-up and the end: times of requests, in seconds, and sums over steps."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    tokens: int = 0
    asked: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    running_seconds: float = 0.0
    most_running: int = 0

    @property
    def ttft_s(self) -> float:
        """Mean time to the first token."""
        return mean(self.ttft)

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first, of requests with more than one."""
        return mean(self.tpot)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all users."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def running(self) -> float:
        """Sequences that decode, on average over the time."""
        return self.running_seconds / self.seconds if self.seconds else 0.0


def mean(values: list[float]) -> float:
    """Their mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def quantile(values: list[float], share: float) -> float:
    """The value below which this ``share`` of them lies, by linear interpolation; 0 of none.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0, 4.0], 0.75)
    (2.0, 3.0)
    """
    if not values:
        return 0.0
    ranked, at = sorted(values), share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (at - below)


class Scheduler:
    """One run. ``spread``: lengths are drawn evenly from this share of the longest up to it; 1 for all alike."""

    def __init__(
        self, times: StepTimes, load: Load, batching: Batching, overhead: Overhead, most_running: int, seed: int = 0, spread: float = 1.0
    ) -> None:
        self.times, self.load, self.batching, self.overhead = times, load, batching, overhead
        self.slots, self.spread, self.random = min(most_running, batching.max_sequences), spread, Random(seed)
        self.now, self.step = 0.0, 0
        self.coming: list[tuple[float, int, _Request]] = []
        self.waiting: deque[_Request] = deque()
        self.prompts: deque[_Request] = deque()
        self.ending: list[tuple[int, int, _Request]] = []  # decode steps so far at which each running sequence ends
        self.decode_steps, self.count, self.context = 0, 0, 0.0

    def run(self, requests: int, warm_up: int = 0, together: bool = True) -> Simulated:
        """``requests`` that end after the first ``warm_up`` have; users start ``together``, or each at a moment of its own."""
        found, self.goal, self.warm_up, self.ended = Simulated(), requests + warm_up, warm_up, 0
        self._first_arrivals(together)
        while self.ended < self.goal:
            self._admit()
            if not self.prompts and not self.ending:
                self.now = self.coming[0][0]
                continue
            self._one_step(found)
        return found

    def _first_arrivals(self, together: bool) -> None:
        if self.load.concurrency is None:
            self._arrive(self.random.expovariate(self.load.rate or 1.0))
            return
        cycle = self.times.seconds(Iteration(decodes=1, context=self.load.isl)) * self.load.osl
        for _ in range(self.load.concurrency):
            self._arrive(0.0 if together else self.random.random() * cycle)

    def _length(self, longest: int) -> int:
        return longest if self.spread == 1.0 else max(self.random.randint(int(longest * self.spread), longest), 1)

    def _arrive(self, at: float) -> None:
        isl, osl = self._length(self.load.isl), self._length(self.load.osl)
        steps, made = 0, 1
        while made < osl:
            steps, made = steps + 1, made + self._accepted()
        left = max(isl - self.load.prefix, 1)
        self.count += 1
        heappush(self.coming, (at + self.overhead.request_s, self.count, _Request(at, isl, left, steps, osl)))

    def _accepted(self) -> int:
        """Tokens of one decode step of one sequence."""
        given = 1
        while given <= self.load.draft_tokens and self.random.random() < self.load.acceptance:
            given += 1
        return given

    def _admit(self) -> None:
        while self.coming and self.coming[0][0] <= self.now:
            self.waiting.append(heappop(self.coming)[2])
            if self.load.rate is not None:
                self._arrive(self.now + self.random.expovariate(self.load.rate))
        while self.waiting and len(self.prompts) + len(self.ending) < self.slots:
            self.prompts.append(self.waiting.popleft())

    def _one_step(self, found: Simulated) -> None:
        decodes = len(self.ending) if self.batching.mixed or not self.prompts else 0
        chunks = self._chunks(self.batching.token_budget - decodes * self.load.queries, bool(decodes))
        chunk, reached = sum(tokens for _, tokens in chunks), sum(one.isl - one.left + tokens for one, tokens in chunks)
        context = round(self.context / decodes) if decodes else 0
        mean_reached = reached // len(chunks) if chunks else 0
        made = Iteration(chunk, mean_reached, max(len(chunks), 1), decodes, context, self.load.queries)
        took = self.times.seconds(made)
        self.now += took
        if self.ended >= self.warm_up:
            found.seconds += took
            found.prefill_seconds += took if chunk else 0.0
            found.running_seconds += took * len(self.ending)
            found.most_running = max(found.most_running, len(self.ending) + len(self.prompts))
        if decodes:
            self._decoded(decodes, found)
        for one, tokens in chunks:
            self._prefilled(one, tokens, found)

    def _chunks(self, room: int, beside: bool) -> list[tuple[_Request, int]]:
        """Prompts of this step with the tokens that run of each."""
        found: list[tuple[_Request, int]] = []
        for one in self.prompts:
            tokens = min(one.left, room) if self.batching.chunked else one.left
            if tokens < 1 or (tokens > room and (found or (beside and room < self.batching.token_budget // 2))):
                break
            found.append((one, tokens))
            room -= tokens
        if not found and not beside and self.prompts:
            found = [(self.prompts[0], self.prompts[0].left)]
        return found

    def _decoded(self, decodes: int, found: Simulated) -> None:
        self.decode_steps += 1
        self.context += decodes * self.load.tokens_per_step
        while self.ending and self.ending[0][0] <= self.decode_steps:
            one = heappop(self.ending)[2]
            self.context -= one.isl + one.steps * self.load.tokens_per_step
            self._end(one, found)

    def _prefilled(self, one: _Request, tokens: int, found: Simulated) -> None:
        one.left -= tokens
        if one.left:
            return
        self.prompts.remove(one)
        one.first = self.now
        if not one.steps:
            self._end(one, found)
            return
        self.count += 1
        heappush(self.ending, (self.decode_steps + one.steps, self.count, one))
        self.context += one.isl

    def _end(self, one: _Request, found: Simulated) -> None:
        self.ended += 1
        if self.ended > self.warm_up:
            found.ttft.append(one.first - one.arrived)
            if one.steps:
                found.tpot.append((self.now - one.first) / (one.made - 1))
            found.tokens += one.made
            found.asked += one.made
        if self.load.concurrency is not None:
            self._arrive(self.now)
