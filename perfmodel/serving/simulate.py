"""A simulation of an engine and its users: each request is sent, waits, runs its prompt and decodes as the ``scheduler`` decides.

A user sends the next request when the last has ended (``--max-concurrency`` with ``--request-rate inf`` of ``vllm bench serve``), or
requests come at a rate (Poisson, as there). A request reaches the scheduler after a delay that is uniform between 0 and twice its mean.
With ``requests`` the run is a benchmark as published: all users begin at once, that many requests are sent, and all of them count, from the
first one sent to the last token. Without it the run starts in the middle of a steady loop: sequences are at different tokens, the first
requests to end do not count, and several runs give the standard error.

In pools a prompt runs on the prefill worker with the fewest requests. Then its cache is sent to the decode worker with the fewest, whose
first step gives the first token (ai-dynamo/dynamo, docs, "Disaggregated Serving").
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, sqrt
from random import Random

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UsageError
from perfmodel.serving.estimate import loop_estimate
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import ServingMetrics, SimulatedRun, metrics
from perfmodel.serving.scheduler import LoggedSteps, Pool, SentRequest, Worker

MOST_RUNS, FEWEST_RUNS = 8, 2
"""Most and fewest simulated runs of a loop: few for many users, whose runs have many requests."""
SIMULATED_REQUESTS = 1500
"""Approximate number of requests that all runs together simulate."""
FEWEST_COUNTED = 16
"""Fewest requests that count in a run."""
MANY_STEPS = 16
"""Decode steps of a request from which on their number is drawn from a normal distribution, not step by step."""
ENGINE, PREFILL, DECODE = "engine", "prefill", "decode"
"""Names of workers in a log: of the only pool, and of two."""
LOGGED = 4000
"""Number of steps after which a log takes no more."""
ROUNDS = 20
"""Iterations for the number of users under way at a rate."""
STRIDES = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)
"""An even sequence in three dimensions (Roberts 2018, the powers of 1 / 1.2207): delays and lengths of few requests fill their range."""
Event = tuple[float, int, Worker | None, int, SentRequest | None]
"""Moment in seconds, number, and what happens: see ``Simulation.push``."""


class Simulation:
    """One simulated run of ``load``. ``pool``: workers that decode, and also run prompts if there is no ``prefill`` pool.

    ``request_s``: mean seconds until the scheduler knows a request; ``transfer_s``: seconds to send its cache between pools. ``spread``:
    shortest length over the longest. ``log``: gets the first steps of all workers, up to ``LOGGED``.
    """

    def __init__(
        self,
        pool: Pool,
        load: Load,
        request_s: float,
        spread: float,
        seed: int,
        prefill: Pool | None = None,
        transfer_s: float = 0.0,
        log: list[LoggedSteps] | None = None,
    ) -> None:
        self.pool, self.load, self.request_s, self.transfer_s = pool, load, request_s, transfer_s
        name = DECODE if prefill else ENGINE
        self.workers = [Worker(pool, load, f"{name} {number}") for number in range(1, pool.workers + 1)]
        self.prefill = [Worker(prefill, load, f"{PREFILL} {number}") for number in range(1, prefill.workers + 1)] if prefill else []
        self.log, self.unlogged = log, LOGGED
        self.lengths = [range(max(int(longest * spread), 1), longest + 1) for longest in (load.isl, load.osl)]  # prompts, outputs
        self.random = Random(seed)
        self.place = [self.random.random() for _ in STRIDES]  # of the next request in the even sequence
        self.events: list[Event] = []  # a heap
        self.event_count = 0
        self.ready: list[Worker] = []
        self.clock, self.ended = 0.0, 0
        self.unsent: int | None = None  # requests of a benchmark that are still to be sent
        self.tally = SimulatedRun()

    # Users

    def drawn(self) -> tuple[float, int, int]:
        """Delay in seconds, prompt tokens and output tokens of the next request: from an even sequence, or random at a rate."""
        self.place = [(coordinate + stride) % 1 for coordinate, stride in zip(self.place, STRIDES, strict=True)]
        delay, prompt, output = self.place if self.load.rate is None else [self.random.random() for _ in STRIDES]
        prompts, outputs = self.lengths
        return 2 * delay * self.request_s, prompts[int(prompt * len(prompts))], outputs[int(output * len(outputs))]

    def new_request(self, at: float) -> SentRequest:
        """A request sent at ``at`` seconds."""
        delay, isl, osl = self.drawn()
        return SentRequest(at, isl, max(isl - self.load.prefix, 1), osl, self.steps_for(osl - 1), at + delay)

    def send(self, at: float) -> None:
        """Sends the next request at ``at`` seconds, unless all have been sent."""
        if self.unsent is not None:
            if not self.unsent:
                return
            self.unsent -= 1
        request = self.new_request(at)
        self.push(request.arrived, None, 0, request)

    def steps_for(self, tokens: int) -> int:
        """Number of decode steps for ``tokens``; drafts are accepted at random (Leviathan et al. 2023).

        For many tokens it is drawn from a normal distribution with mean and variance of a renewal process (Cox 1962).
        """
        load = self.load
        if not load.draft_tokens:
            return tokens
        if tokens > MANY_STEPS * load.queries:
            mean, variance = load.tokens_per_step, load.tokens_variance
            mean_steps = (tokens + (mean * mean + variance) / mean / 2 - 0.5) / mean
            return max(round(self.random.gauss(mean_steps, sqrt(tokens * variance / mean**3))), 1)
        steps = tokens_given = 0
        while tokens_given < tokens:
            accepted = 0
            while accepted < load.draft_tokens and self.random.random() < load.acceptance:
                accepted += 1
            steps += 1
            tokens_given += 1 + accepted
        return steps

    def all_at_once(self, requests: int) -> None:
        """Starts a benchmark of ``requests``: all users send one now (``--num-prompts`` of ``vllm bench serve``)."""
        self.unsent = requests
        for _ in range(self.load.concurrency or 0):
            self.send(0.0)

    def in_the_middle(self, users: int, slots: int) -> None:
        """Starts a loop of ``users`` in steady state: as many decode as the closed form says, at random steps; the others send soon."""
        pool, load, running = self.pool, self.load, min(users, slots)
        loop = loop_estimate(pool.times, load, pool.batching, self.request_s, ceil_div(running, pool.workers))
        cycle_s = loop.ttft_s + loop.decode_s
        decoding = 0
        for number in range(round(running * loop.decode_s / cycle_s)):
            request = self.new_request(0.0)
            request.counted, request.left = False, 0
            if request.steps:  # a request of a single token never decodes: its user sends one below
                decoding += 1
                worker = self.workers[number % len(self.workers)]
                worker.slots_used += 1
                worker.join(request, 0.0, self.random.randrange(request.steps))
        self.ready = [worker for worker in self.workers if worker.slots_used]
        if load.concurrency is None:
            self.push(0.0, None, 0, None)
        else:
            for _ in range(users - decoding):
                self.send(self.random.random() * cycle_s * (users - decoding) / users)

    # Events

    def push(self, at: float, worker: Worker | None, version: int, request: SentRequest | None) -> None:
        """Adds an event at ``at`` seconds: ``request`` reaches a worker, steps of ``worker`` end, or, with neither, a request is sent.

        ``version``: that of the steps, which ``Worker.cut`` may have replaced by then.
        """
        self.event_count += 1
        heappush(self.events, (at, self.event_count, worker, version, request))

    def run(self, warm_up: int, requests: int) -> SimulatedRun:
        """Runs until ``warm_up`` requests and then ``requests`` more have ended; returns the sums over the latter."""
        self.plan()
        self.restart_count()
        counting = not warm_up
        while not counting or len(self.tally.ttft) < requests:
            self.clock, _, worker, version, request = heappop(self.events)
            if request is not None:
                self.arrive(request, self.fewest(self.prefill or self.workers) if worker is None else worker)
            elif worker is None:
                self.send(self.clock)
                self.push(self.clock + self.random.expovariate(self.load.rate or 1.0), None, 0, None)
            elif version == worker.version:
                self.finish(worker)
            if not counting and self.ended >= warm_up:
                counting = True
                self.restart_count()
            more_at_this_moment = self.events and self.events[0][0] <= self.clock
            if not more_at_this_moment:
                self.plan()
        self.tally.seconds = self.clock - self.tally.start
        for worker in self.workers:
            self.tally.gaps += worker.tally.gaps
            self.tally.decodes += worker.tally.decodes
            self.tally.mixed += worker.tally.mixed
            self.tally.waiting += worker.tally.waiting
        return self.tally

    def restart_count(self) -> None:
        """Sets the sums of this run and of its workers to zero."""
        self.tally = SimulatedRun(self.clock)
        for worker in self.workers:
            worker.tally = SimulatedRun()

    def fewest(self, workers: Sequence[Worker]) -> Worker:
        """The worker with the fewest requests, running and waiting."""
        return workers[0] if len(workers) == 1 else min(workers, key=lambda worker: worker.slots_used + len(worker.waiting))

    def arrive(self, request: SentRequest, worker: Worker) -> None:
        """Puts ``request`` into the queue of ``worker``."""
        worker.waiting.append(request)
        if worker in self.ready:
            return
        if not worker.count:
            self.ready.append(worker)
        elif (end := worker.cut(self.clock)) is not None:
            self.push(end, worker, worker.version, None)

    def plan(self) -> None:
        """Lets workers whose steps have ended decide on their next ones."""
        for worker in self.ready:
            if (end := worker.plan(self.clock)) is not None:
                self.push(end, worker, worker.version, None)
        self.ready.clear()

    def finish(self, worker: Worker) -> None:
        """Ends the steps of ``worker``: their tokens go out, and it is ready for the next ones."""
        if self.log is not None and self.unlogged > 0:
            self.log.append(worker.logged())
            self.unlogged -= worker.count
        prompted, ended = worker.finish(self.clock)
        for request in ended:
            self.end(request)
        for request in prompted:
            if not self.prefill and request.steps:
                request.first = self.clock
                worker.join(request, self.clock)
                continue
            worker.slots_used -= 1
            if request.steps:
                request.arrived = self.clock + self.transfer_s
                self.push(request.arrived, self.fewest(self.workers), 0, request)
            else:
                request.first = self.clock
                self.end(request)
        self.ready.append(worker)

    def end(self, request: SentRequest) -> None:
        """Ends ``request``, which has all its tokens; its user sends the next one."""
        self.ended += 1
        if request.counted:
            tally = self.tally
            tally.ttft.append(request.first - request.sent)
            tally.prompts += request.first - request.begun
            tally.stays += self.clock - request.sent
            tally.osl += request.osl
            if request.osl > 1:
                tally.tpot.append((self.clock - request.first) / (request.osl - 1))
        if self.load.concurrency is not None:
            self.send(self.clock)


def simulate(
    pool: Pool,
    load: Load,
    request_s: float = 0.0,
    *,
    spread: float = 1.0,
    requests: int | None = None,
    prefill: Pool | None = None,
    transfer_s: float = 0.0,
    log: list[LoggedSteps] | None = None,
) -> ServingMetrics:
    """Metrics of the users of ``pool``. ``spread``: lengths are drawn evenly between this share of the longest and the longest.

    ``requests``: number of requests of a benchmark that begins with all users at once; None for a loop in steady state. ``prefill``: the
    pool that runs the prompts, None if ``pool`` does. ``log``: gets the first steps of the first run. UsageError for a rate too high.
    """
    if load.concurrency is not None:
        pool = pool.limited_to(load.concurrency)
        prefill = None if prefill is None else prefill.limited_to(load.concurrency)

    def simulation(load: Load, seed: int) -> Simulation:
        return Simulation(pool, load, request_s, spread, seed, prefill, transfer_s, log if seed == 0 else None)

    slots = pool.workers * Worker(pool, load).slots
    most_running = inf if prefill else slots
    runs: list[SimulatedRun] = []
    if requests is not None:
        for seed in range(min(max(SIMULATED_REQUESTS // requests, 1), MOST_RUNS)):
            benchmark = simulation(load, seed)
            benchmark.all_at_once(requests)
            runs.append(benchmark.run(0, requests))
        return metrics(runs, load.concurrency, load.rate, True, most_running)
    if load.rate is not None:
        under_way, queued = _under_way_at_rate(pool, load, request_s, slots, spread), 0
    else:  # users whom more than a full set of slots keeps waiting only lengthen the queue, which needs no simulation
        users = load.concurrency or 1
        under_way = min(users, slots + max(slots, FEWEST_COUNTED))
        load, queued = load.with_users(under_way), users - under_way
    seeds = min(max(SIMULATED_REQUESTS // (3 * under_way), FEWEST_RUNS), MOST_RUNS)
    counted = max(SIMULATED_REQUESTS // seeds - 2 * under_way, under_way // 2, FEWEST_COUNTED)
    for seed in range(seeds):
        loop = simulation(load, seed)
        loop.in_the_middle(under_way, slots)
        runs.append(loop.run(2 * under_way, counted))
    result = metrics(runs, load.concurrency, load.rate, False, most_running)
    return result.behind(queued) if queued else result


def _under_way_at_rate(pool: Pool, load: Load, request_s: float, slots: int, spread: float) -> int:
    """Approximate number of requests under way at ``load.rate``; UsageError if the engine serves fewer requests/s."""
    rate, users = load.rate or 0.0, 1
    for _ in range(ROUNDS):
        loop = loop_estimate(pool.times, load, pool.batching, request_s, users)
        users = min(max(round(rate * users / loop.requests_per_s), 1), slots)
    if rate * 2 > loop_estimate(pool.times, load, pool.batching, 0.0, slots).requests_per_s:
        most_per_s = simulate(pool, load.with_users(slots), spread=spread).requests_per_s  # of a loop in which no slot is ever free
        if rate >= most_per_s:
            raise UsageError(
                f"--rate {rate:g}: {most_per_s:.3g} requests a second is the most that this serves", "give fewer, or more GPUs"
            )
    return users
