"""A discrete simulation of an engine's scheduler, step by step: it checks the mean-value analysis of ``steady``.

The scheduler takes for a step what vLLM and SGLang take by default:

* mixed (vLLM V1, ``vllm/v1/core/sched/scheduler.py``; Sarathi-Serve, arXiv 2403.02310): a step of every running sequence first, then
  chunks of prompts, first come first served, until ``token_budget`` is full;
* prompts first (SGLang without ``--enable-mixed-chunk``; Orca, OSDI 2022): while a prompt waits and a slot is free, a batch of prompts up
  to ``token_budget`` runs alone and decoding waits.

Users send the next request when the last has ended (``--max-concurrency`` with ``--request-rate inf`` of vLLM's ``benchmark_serving.py``),
or requests come at a rate (Poisson, as there). ``benchmark=True`` is that benchmark: every user sends at time 0 and every request counts,
so the first burst is in the figures, and so are the bursts of those that started together and end nearly so. Else users start at moments
of their own, and the first requests are left out.

Steps in which nothing begins or ends are taken together, at their mean context.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, inf
from random import Random

from perfmodel.serving.engine import FULL, Batching, Overhead
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load
from perfmodel.serving.seen import Served, Simulated, figures


@dataclass(slots=True)
class SentRequest:
    """``left``: tokens of the prompt still to run; ``steps``: decode steps after the first token; ``osl``: tokens to give."""

    sent: float
    isl: int
    left: int
    osl: int
    steps: int
    given: int
    first: float = 0.0


class Scheduler:
    """An engine with its users. ``spread``: lengths are drawn evenly from this share of the longest up to it; 1 for all alike."""

    def __init__(
        self, times: StepTimes, load: Load, batching: Batching, overhead: Overhead, most_running: int, spread: float = 1.0, seed: int = 0
    ) -> None:
        self.times, self.load, self.batching, self.overhead, self.spread = times, load.check(), batching, overhead, spread
        self.slots = slots(load, batching, most_running)
        self.random, self.clock, self.tally = Random(seed), 0.0, Served()
        self.coming: list[tuple[float, int, SentRequest]] = []
        self.waiting: deque[SentRequest] = deque()
        self.prompts: deque[SentRequest] = deque()
        self.ending: list[tuple[int, int, SentRequest]] = []  # with the count of decode steps at which each ends
        self.decode_steps = self.count = self.ended = self.held = self.looked = self.waited = 0
        self.context = self.decoded = self.begun = self.pace = 0.0
        self.left: float = inf

    def run(self, requests: int, warm_up: int, benchmark: bool) -> Served:
        """Until ``requests`` have ended after the first ``warm_up``; a ``benchmark`` sends no more than those."""
        self.left = requests if benchmark else inf
        self.first_requests(benchmark)
        while self.ended < warm_up + requests:
            if self.ended < warm_up:
                self.tally = Served(self.clock)
            self.arrive()
            if self.prompts or self.ending:
                self.step()
            else:
                self.wait_until(self.coming[0][0])
        return self.tally

    def first_requests(self, benchmark: bool) -> None:
        """The first request of every user, or of those that come at a rate."""
        if self.load.concurrency is None:
            self.send(self.random.expovariate(self.load.rate or 1.0))
        for _ in range(self.load.concurrency or 0):
            self.send(0.0, 1.0 if benchmark else self.random.random())

    def length(self, longest: int) -> int:
        """A length drawn evenly."""
        return self.random.randint(max(int(longest * self.spread), 1), longest)

    def send(self, at: float, rest: float = 1.0) -> None:
        """A request sent at a moment; ``rest``: the share of its output that is left, of one met under way."""
        if not self.left:
            return
        self.left -= 1
        isl, osl = self.length(self.load.isl), max(round(self.length(self.load.osl) * rest), 1)
        steps, given = self.steps_for(osl - 1)
        request = SentRequest(at, isl, max(isl - self.load.prefix, 1), osl, steps, 1 + given)
        self.count += 1
        heappush(self.coming, (at + self.overhead.request_s, self.count, request))

    def steps_for(self, tokens: int) -> tuple[int, int]:
        """Decode steps that give so many tokens, and the tokens kept: drafts are accepted or not by chance, those past the end are cut."""
        if not self.load.draft_tokens:
            return tokens, tokens
        steps = given = 0
        while given < tokens:
            steps += 1
            accepted = 0
            while accepted < self.load.draft_tokens and self.random.random() < self.load.acceptance:
                accepted += 1
            given = min(given + 1 + accepted, tokens)
        return steps, given

    def wait_until(self, moment: float) -> None:
        """The engine is idle until then."""
        self.clock = max(moment, self.clock)

    def arrive(self) -> None:
        """Requests that have come join the queue; those that find a slot become prompts that run."""
        known = self.begun if self.batching.ahead and (self.prompts or self.ending) else self.clock
        while self.coming and self.coming[0][0] <= known:
            request = heappop(self.coming)[2]
            self.waiting.append(request)
            if self.load.concurrency is None:
                self.send(request.sent + self.random.expovariate(self.load.rate or 1.0))
        passed = (self.decode_steps - self.looked) % self.batching.admit_every
        self.looked = self.decode_steps - passed
        if passed and self.ending and not self.prompts:
            return
        while self.waiting and self.held < self.slots:
            self.prompts.append(self.waiting.popleft())
            self.held += 1
        assert self.held == len(self.prompts) + len(self.ending) <= self.slots

    def chunks(self, room: int, beside: bool) -> list[tuple[SentRequest, int]]:
        """Prompts of this step, with the tokens of each: first come first served; a prompt that is not cut runs whole or not at all.

        Alone, the first prompt always runs. Prompts first: one that fits in a step is not cut to fill another's.
        """
        taken: list[tuple[SentRequest, int]] = []
        for request in self.prompts:
            whole = not self.batching.chunked or (not self.batching.mixed and bool(taken))
            tokens = request.left if whole else min(request.left, room)
            if tokens < 1 or (tokens > room and (taken or (beside and request.left <= self.batching.token_budget))):
                break
            taken.append((request, tokens))
            room -= tokens
        return taken

    def step(self) -> None:
        """One step: which tokens run, how long it takes, who gets one."""
        decodes = len(self.ending) if self.batching.mixed or not self.prompts else 0
        chunks = self.held_back(self.chunks(self.batching.token_budget - decodes * self.load.queries, decodes > 0), decodes)
        chunk = sum(tokens for _, tokens in chunks)
        reached = sum(request.isl - request.left + tokens for request, tokens in chunks)
        context = round(self.context / decodes) + self.load.queries if decodes else 0
        made = Iteration(chunk, reached // max(len(chunks), 1), max(len(chunks), 1), decodes, context, self.load.queries)
        took, alike = self.times.seconds(made), 1
        assert took > 0
        if not self.prompts:
            alike = self.alike(took)
            took = self.times.seconds(replace(made, context=context + round((alike - 1) / 2 * self.load.tokens_per_step)))
        self.begun = self.clock + (alike - 1) * took  # of the last step
        self.clock += alike * took
        self.note(alike, took, chunk > 0)
        if decodes:
            self.decode(decodes, alike, took)
        for request, tokens in chunks:
            self.prefill(request, tokens)
            self.looked = self.decode_steps

    def held_back(self, chunks: list[tuple[SentRequest, int]], decodes: int) -> list[tuple[SentRequest, int]]:
        """None of ``chunks`` while they wait for others to fill the step."""
        few = sum(tokens for _, tokens in chunks) + decodes < FULL * self.batching.token_budget
        if chunks and decodes and few and self.waited < self.batching.hold_steps:
            self.waited += 1
            return []
        self.waited = 0
        return chunks

    def alike(self, took: float) -> int:
        """Decode steps until a sequence ends, or one comes or is looked for."""
        steps = self.ending[0][0] - self.decode_steps
        if self.waiting and self.held < self.slots:
            steps = min(steps, self.looked + self.batching.admit_every - self.decode_steps)
        if self.coming:
            steps = min(steps, ceil((self.coming[0][0] - self.clock) / took))
        return max(steps, 1)

    def note(self, steps: int, each: float, prefill: bool) -> None:
        """Adds so many steps to the sums over time."""
        tally, took = self.tally, steps * each
        tally.steps += steps
        tally.busy += took
        tally.prefill += took if prefill else 0.0
        tally.running += took * self.held
        tally.waiting += took * len(self.waiting)
        tally.most_running = max(tally.most_running, self.held)

    def decode(self, decodes: int, steps: int, each: float) -> None:
        """So many decode steps have run, alike; sequences that the last one completes end."""
        self.decode_steps += steps
        self.tally.gaps.append((self.clock - (steps - 1) * each - self.decoded, decodes))
        if steps > 1:
            self.tally.gaps.append((each, decodes * (steps - 1)))
        self.tally.tokens += steps * self.pace
        self.decoded = self.clock
        self.context += decodes * steps * self.load.tokens_per_step
        while self.ending and self.ending[0][0] <= self.decode_steps:
            request = heappop(self.ending)[2]
            self.context -= request.isl + request.steps * self.load.tokens_per_step
            self.pace -= (request.given - 1) / request.steps
            self.end(request)

    def prefill(self, request: SentRequest, tokens: int) -> None:
        """A prompt's chunk has run; with the last one comes the first token."""
        request.left -= tokens
        if request.left:
            return
        self.prompts.remove(request)
        request.first = self.clock
        self.tally.tokens += 1
        if not request.steps:
            self.end(request)
            return
        if not self.ending:
            self.decoded = self.clock
        self.count += 1
        self.context += request.isl
        self.pace += (request.given - 1) / request.steps
        heappush(self.ending, (self.decode_steps + request.steps, self.count, request))

    def end(self, request: SentRequest) -> None:
        """A request has all its tokens; its user sends the next."""
        self.ended += 1
        self.held -= 1
        self.tally.asked += request.osl
        self.tally.given += request.given
        self.tally.ttft.append(request.first - request.sent)
        if request.osl > 1:
            self.tally.tpot.append((self.clock - request.first) / (request.osl - 1))
        if self.load.concurrency is not None:
            self.send(self.clock)


def slots(load: Load, batching: Batching, most_running: int) -> int:
    """Sequences that run at a time: what the cache holds, the engine's limit, and where steps mix, a step's tokens."""
    tokens = batching.token_budget // load.queries if batching.mixed else most_running
    return max(min(most_running, batching.max_sequences, tokens), 1)


def simulate(
    times: StepTimes,
    load: Load,
    batching: Batching,
    overhead: Overhead,
    most_running: int,
    *,
    requests: int = 1000,
    seed: int = 0,
    spread: float = 1.0,
    benchmark: bool = False,
) -> Simulated:
    """Figures of ``requests`` that ended after a warm-up of three per user, or of all from the first of a ``benchmark``."""
    users = load.concurrency or 0
    scheduler = Scheduler(times, load, batching, overhead, most_running, spread, seed)
    tally = scheduler.run(requests, 0 if benchmark else max(3 * users, requests // 4 if load.rate else 0), benchmark)
    return figures(tally, scheduler.clock)
