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

from perfmodel.core.errors import UsageError
from perfmodel.serving.estimate import loop_estimate
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import ServingMetrics, SimulatedRun, metrics
from perfmodel.serving.scheduler import LoggedSteps, Pool, SentRequest, Worker

RUNS, FEWEST_RUNS = 8, 2
"""Most and fewest simulated runs of a loop: few for many users, whose runs have many requests."""
SIMULATED = 1500
"""Approximate number of requests that all runs together simulate."""
LEAST = 16
"""Fewest requests that count in a run."""
MANY = 16
"""Number of decode steps above which it is drawn at once and not step by step."""
ENGINE, PREFILL, DECODE = "engine", "prefill", "decode"
"""Names of workers in a log: of the only pool, and of two."""
LOGGED = 4000
"""Number of steps after which a log takes no more."""
ROUNDS = 20
"""Iterations for the number of users under way at a rate."""
STRIDES = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)
"""An even sequence in three dimensions (Roberts 2018, the powers of 1 / 1.2207): delays and lengths of few requests fill their range."""


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
        shortest = [max(int(longest * spread), 1) for longest in (load.isl, load.osl)]
        self.lengths = [(low, longest - low + 1) for low, longest in zip(shortest, (load.isl, load.osl), strict=True)]
        self.random = Random(seed)
        self.even = [self.random.random() for _ in STRIDES]
        self.events: list[tuple[float, int, Worker | None, int, SentRequest | None]] = []
        self.ready: list[Worker] = []
        self.clock, self.count, self.ended = 0.0, 0, 0
        self.unsent: int | None = None
        self.tally = SimulatedRun()

    # Users

    def drawn(self) -> tuple[float, int, int]:
        """Delay in seconds, prompt tokens and output tokens of the next request: from an even sequence, or random at a rate."""
        (a, b, c), (x, y, z) = self.even, STRIDES
        self.even = [(a + x) % 1, (b + y) % 1, (c + z) % 1]
        delay, prompt, output = self.even if self.load.rate is None else [self.random.random() for _ in STRIDES]
        (shortest_isl, isls), (shortest_osl, osls) = self.lengths
        return 2 * delay * self.request_s, shortest_isl + int(prompt * isls), shortest_osl + int(output * osls)

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
        load, steps, tokens_given = self.load, 0, 0
        if not load.draft_tokens:
            return tokens
        if tokens > MANY * load.queries:
            mean, variance = load.tokens_per_step, load.tokens_variance
            middle = (tokens + (mean * mean + variance) / mean / 2 - 0.5) / mean
            return max(round(self.random.gauss(middle, sqrt(tokens * variance / mean**3))), 1)
        while tokens_given < tokens:
            steps, tokens_given = steps + 1, tokens_given + 1
            accepted = 0
            while accepted < load.draft_tokens and self.random.random() < load.acceptance:
                accepted += 1
            tokens_given += accepted
        return steps

    def all_at_once(self, requests: int) -> None:
        """Starts a benchmark of ``requests``: all users send one now (``--num-prompts`` of ``vllm bench serve``)."""
        self.unsent = requests
        for _ in range(self.load.concurrency or 0):
            self.send(0.0)

    def in_the_middle(self, users: int, slots: int) -> None:
        """Starts a loop of ``users`` in steady state: as many decode as the closed form says, at random steps; the others send soon."""
        pool, load, running = self.pool, self.load, min(users, slots)
        loop = loop_estimate(pool.times, load, pool.batching, self.request_s, -(-running // pool.workers))
        cycle_s = loop.ttft_s + loop.decode_s
        decoding = 0
        for place in range(round(running * loop.decode_s / cycle_s)):
            request = self.new_request(0.0)
            request.counted, request.left = False, 0
            if request.steps:  # one of a single token is sent instead
                decoding += 1
                worker = self.workers[place % len(self.workers)]
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
        """Adds an event at ``at`` seconds: steps of ``worker`` end, ``request`` reaches a worker, or, with neither, a request is sent."""
        self.count += 1
        heappush(self.events, (at, self.count, worker, version, request))

    def run(self, warm_up: int, requests: int) -> SimulatedRun:
        """Runs until ``warm_up`` requests and then ``requests`` more have ended; returns the sums over the latter."""
        self.plan()
        self.begin_count()
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
                self.begin_count()
            if not self.events or self.events[0][0] > self.clock:  # all that happens at this moment is known
                self.plan()
        self.tally.seconds = self.clock - self.tally.start
        for process in self.workers:
            for name in ("gaps", "decodes", "mixed", "waiting"):
                setattr(self.tally, name, getattr(self.tally, name) + getattr(process.tally, name))
        return self.tally

    def begin_count(self) -> None:
        """Starts to count anew."""
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

    ``requests``: number of requests of a benchmark that begins with all users at once; None for a loop in steady state. ``log``: gets
    the first steps of the first run. UsageError for a rate that is too high.
    """
    if load.concurrency is not None:
        pool, prefill = pool.among(load.concurrency), prefill and prefill.among(load.concurrency)

    def run(seed: int) -> Simulation:
        return Simulation(pool, load, request_s, spread, seed, prefill, transfer_s, None if seed else log)

    slots = pool.workers * Worker(pool, load).slots
    most_running = inf if prefill else slots
    if requests is not None:
        tallies = []
        for seed in range(min(max(SIMULATED // requests, 1), RUNS)):
            simulation = run(seed)
            simulation.all_at_once(requests)
            tallies.append(simulation.run(0, requests))
        return metrics(tallies, load.concurrency, load.rate, True, most_running)
    if load.rate is not None:
        under_way, late = _at_a_rate(pool, load, request_s, slots, spread), 0
    else:
        users = load.concurrency or 1
        under_way = min(users, slots + max(slots, LEAST))
        load, late = load.of(under_way), users - under_way
    runs = min(max(SIMULATED // (3 * under_way), FEWEST_RUNS), RUNS)
    counted = max(SIMULATED // runs - 2 * under_way, under_way // 2, LEAST)
    tallies = []
    for seed in range(runs):
        simulation = run(seed)
        simulation.in_the_middle(under_way, slots)
        tallies.append(simulation.run(2 * under_way, counted))
    result = metrics(tallies, load.concurrency, load.rate, False, most_running)
    return result.behind(late) if late else result


def _at_a_rate(pool: Pool, load: Load, request_s: float, slots: int, spread: float) -> int:
    """Approximate number of requests under way at ``load.rate``; UsageError if the engine serves fewer requests/s."""
    rate, users = load.rate or 0.0, 1
    for _ in range(ROUNDS):
        loop = loop_estimate(pool.times, load, pool.batching, request_s, users)
        users = min(max(round(rate * users / loop.requests_per_s), 1), slots)
    if rate * 2 > loop_estimate(pool.times, load, pool.batching, 0.0, slots).requests_per_s:
        most_per_s = simulate(pool, load.of(slots), spread=spread).requests_per_s  # the next is always there
        if rate >= most_per_s:
            raise UsageError(
                f"--rate {rate:g}: {most_per_s:.3g} requests a second is the most that this serves", "give fewer, or more GPUs"
            )
    return users
