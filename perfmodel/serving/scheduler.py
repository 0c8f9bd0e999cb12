"""The scheduler of one engine process, which decides what tokens run in the next step, by the engines' default policies.

* Mixed: a token of every running sequence first, then chunks of prompts, first come first served, up to ``token_budget`` (vLLM,
  ``vllm/v1/core/sched/scheduler.py``, ``schedule``: running requests, then waiting ones while ``token_budget > 0``; TensorRT-LLM,
  ``cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp``; Agrawal et al. 2024, Sarathi-Serve).
* Prompts first: while a prompt waits and a slot is free, a batch of prompts of up to ``token_budget`` alone; decoding waits (SGLang,
  ``srt/managers/scheduler.py``, ``get_next_batch_to_run``: ``get_new_batch_prefill``, else ``update_running_batch``).
* Ahead: the next step scheduled as one begins, so that what comes meanwhile joins the one after it (vLLM, ``vllm/v1/engine/core.py``,
  ``step_with_batch_queue``; SGLang, ``event_loop_overlap``; TensorRT-LLM, ``_executor_loop_overlap`` of ``pyexecutor/py_executor.py``).
* Looks: the scheduler looks for new requests every ``admit_every`` decode steps (SGLang, ``scheduler_recv_interval``).
* Holding: prompts held back for others to fill a step, at most ``hold_steps`` (TensorRT-LLM, ``batch_wait_timeout_iters``).

Decode steps in which nothing begins or ends are run together: their seconds grow linearly with the context.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, sqrt

from perfmodel.core.frozen import dataclass
from perfmodel.serving.engine import FULL, Batching
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import SimulatedRun


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request of ``isl`` prompt tokens and ``osl`` output tokens, with moments of the simulated clock in seconds.

    ``left``: prompt tokens still to run; ``steps``: decode steps after the first token. Moments: ``sent`` by its user, ``arrived`` at the
    scheduler, ``begun`` with its first step, ``first`` token. ``counted``: whether the metrics count it; requests that were already under
    way when the simulation began do not count.
    """

    sent: float
    isl: int
    left: int
    osl: int
    steps: int
    arrived: float
    begun: float = -1.0
    first: float = 0.0
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal ``workers``, each an engine process that runs up to ``slots`` sequences at a time in steps that take ``times``."""

    times: StepTimes
    batching: Batching
    slots: int
    workers: int = 1

    def limited_to(self, users: int) -> Pool:
        """The pool without the workers for which ``users`` are too few."""
        return replace(self, workers=min(self.workers, users))


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """``count`` equal steps of a worker from ``start`` on, the first of ``first_s`` seconds and each further one ``growth_s`` longer.

    ``lane``: pool and number of the worker. ``step``: the tokens of the first step. ``running``, ``waiting``, ``tokens``: requests that run
    and that wait, and tokens in the cache, when the first step begins.
    """

    lane: str
    start: float
    count: int
    first_s: float
    growth_s: float
    step: Iteration
    running: int
    waiting: int
    tokens: int

    @property
    def phase(self) -> str:
        """What runs in each of them: prefill, decode, or both."""
        return " + ".join(name for name, tokens in (("prefill", self.step.chunk), ("decode", self.step.decodes)) if tokens)


class Worker:
    """One engine process: its waiting and its running requests, and the ``count`` equal steps under way since ``start``."""

    def __init__(self, pool: Pool, load: Load, lane: str = "") -> None:
        self.lane = lane  # its name in a log
        self.times, self.batching = pool.times, pool.batching
        self.per_step, self.queries = load.tokens_per_step, load.queries
        sequences_in_budget = pool.batching.token_budget // load.queries if pool.batching.mixed else pool.slots
        self.slots = max(min(pool.slots, pool.batching.max_sequences, sequences_in_budget), 1)
        self.slots_used = 0
        # Requests, in the order in which a request passes these
        self.waiting: deque[SentRequest] = deque()
        self.prompts: deque[SentRequest] = deque()
        self.decoding: list[tuple[int, int, SentRequest]] = []  # a heap: the decode step at which each ends, its number, the request
        self.join_count = 0
        self.fresh: list[SentRequest] = []  # joined decoding after a prefill worker ran their prompt; the next step gives the first token
        # The steps under way
        self.start = self.first_step_s = self.growth_s = 0.0  # each step takes ``growth_s`` more than the one before
        self.count = self.decodes = self.version = 0
        self.chunks: list[tuple[SentRequest, int]] = []  # prompts with the tokens that run
        self.step, self.load_at_start = Iteration(), (0, 0, 0)  # running, waiting, tokens in the cache
        self.holding, self.waited = False, 0  # whether prompts are held back, and for how many steps so far
        # What has run
        self.decode_steps = self.looked_at_step = 0  # the step at which the scheduler last looked for requests
        self.tokens = self.decoded = 0.0  # tokens of all decoding sequences; end of the last decode step
        self.had_prompts = False  # whether prompts ran since then
        self.tally = SimulatedRun()

    # What runs next

    def plan(self, now: float) -> float | None:
        """Decides on the next steps; returns the moment in seconds at which they end, or None if there is nothing to run.

        vLLM: ``Scheduler.schedule`` of ``vllm/v1/core/sched/scheduler.py``. SGLang: ``get_next_batch_to_run`` of
        ``srt/managers/scheduler.py``.
        """
        self.admit(now)
        self.version += 1
        self.start, self.count, self.holding = now, 0, False
        if not self.prompts and not self.decoding:
            return None
        self.decodes = decodes = len(self.decoding) if self.batching.mixed or not self.prompts else 0
        self.chunks = []
        if self.prompts:
            room = self.batching.token_budget - decodes * self.queries
            self.chunks = self.hold_back(self.take(room, decodes > 0), decodes)
        context = round(self.tokens / decodes) + self.queries if decodes else 0
        step = Iteration(decodes=decodes, context=context, queries=self.queries)
        if self.chunks:
            prompts = len(self.chunks)
            chunk = sum(tokens for _, tokens in self.chunks)
            contexts = sum(request.isl - request.left + tokens for request, tokens in self.chunks)
            step = step._replace(chunk=chunk, chunk_context=contexts // prompts, prompts=prompts)
        prefilled = sum(request.isl - request.left for request in self.prompts)
        self.step, self.load_at_start = step, (self.slots_used, len(self.waiting), round(self.tokens) + prefilled)
        self.first_step_s, self.growth_s = self.times.seconds(step), 0.0
        self.count = 1 if self.chunks else self.steps_until_change()
        if self.count > 1:
            last = step._replace(context=context + round((self.count - 1) * self.per_step))
            self.growth_s = (self.times.seconds(last) - self.first_step_s) / (self.count - 1)
        return now + self.elapsed(self.count)

    def admit(self, now: float) -> None:
        """Gives slots to waiting requests that the scheduler knows, first come first served; those with a finished prompt start to decode.

        vLLM: the loop over ``self.waiting`` of ``vllm/v1/core/sched/scheduler.py``. Looks in between: ``recv_requests`` and its
        ``scheduler_recv_interval`` of SGLang's ``srt/managers/scheduler.py``.
        """
        busy = bool(self.prompts or self.decoding)
        known_until = self.last_start if self.batching.ahead and busy else now
        steps_since_look = (self.decode_steps - self.looked_at_step) % self.batching.admit_every
        self.looked_at_step = self.decode_steps - steps_since_look
        if steps_since_look and self.decoding and not self.prompts:  # between two looks nothing is admitted while it only decodes
            return
        while self.waiting and self.slots_used < self.slots and self.waiting[0].arrived <= known_until:
            request = self.waiting.popleft()
            self.slots_used += 1
            if request.left:
                self.prompts.append(request)
            else:
                self.fresh.append(request)
                self.join(request, now)

    def take(self, room: int, beside: bool) -> list[tuple[SentRequest, int]]:
        """Prompts of this step with their tokens, first come first served; ``room``: most tokens, ``beside``: whether sequences decode.

        Without chunks a prompt runs whole or not at all; the first one may exceed ``room`` if no sequence decodes beside it, or if no step
        has room for it. With chunks a prompt gets the tokens that the budget leaves (vLLM, ``schedule``). With prompts first, a prompt
        that fits in one step is not cut to fill another step (SGLang, ``srt/managers/schedule_policy.py``, ``PrefillAdder.add_one_req``).
        """
        chunks: list[tuple[SentRequest, int]] = []
        for request in self.prompts:
            may_cut = self.batching.chunked and (self.batching.mixed or not chunks)
            tokens = min(request.left, room) if may_cut else request.left
            may_exceed = not chunks and (not beside or request.left > self.batching.token_budget)
            if tokens < 1 or (tokens > room and not may_exceed):
                break
            chunks.append((request, tokens))
            room -= tokens
        return chunks

    def hold_back(self, chunks: list[tuple[SentRequest, int]], decodes: int) -> list[tuple[SentRequest, int]]:
        """The chunks that run in this step: none while they wait for others to fill it (TensorRT-LLM, ``pyexecutor/py_executor.py``,
        ``batch_wait_timeout_iters`` and ``batch_wait_max_tokens_ratio``).
        """
        if not self.batching.hold_steps:
            return chunks
        nearly_full = sum(tokens for _, tokens in chunks) + decodes >= FULL * self.batching.token_budget
        may_wait = bool(chunks) and decodes > 0 and self.waited < self.batching.hold_steps
        self.holding = may_wait and not nearly_full
        if self.holding:
            return []
        self.waited = 0
        return chunks

    def steps_until_change(self) -> int:
        """Number of decode steps until a sequence ends, prompts are no longer held back, or the scheduler looks for requests."""
        steps = self.decoding[0][0] - self.decode_steps
        if self.holding:
            steps = min(steps, self.batching.hold_steps - self.waited)
        if self.waiting and self.slots_used < self.slots:
            steps = min(steps, self.looked_at_step + self.batching.admit_every - self.decode_steps)
        return max(steps, 1)

    # Time

    def elapsed(self, steps: int) -> float:
        """Seconds that the first ``steps`` of the steps under way take."""
        return steps * self.first_step_s + self.growth_s * steps * (steps - 1) / 2

    @property
    def last_start(self) -> float:
        """The moment in seconds at which the last of the steps under way begins."""
        return self.start + self.elapsed(max(self.count - 1, 0))

    def cut(self, now: float) -> float | None:
        """Ends the steps under way with the one at ``now``, as a request has come; returns the new end in seconds, None if unchanged."""
        if self.slots_used >= self.slots:
            self.tally.waiting -= now - self.start  # ``finish`` counts the newcomer for all of the steps; take off the part before it came
            return None
        if self.count < 2:
            return None
        # ``elapsed(steps) = now - start`` solved for the steps, in the form of the root that bears a growth near 0
        since_start, growth = now - self.start, max(self.growth_s, 0.0)
        linear = self.first_step_s - growth / 2
        steps = 2 * since_start / (linear + sqrt(linear * linear + 2 * growth * since_start))
        self.count = min(self.count, max(ceil(steps), 1))
        self.version += 1
        return self.start + self.elapsed(self.count)

    def logged(self) -> LoggedSteps:
        """The steps under way, with requests and tokens as they began."""
        return LoggedSteps(self.lane, self.start, self.count, self.first_step_s, self.growth_s, self.step, *self.load_at_start)

    # What has run

    def finish(self, now: float) -> tuple[list[SentRequest], list[SentRequest]]:
        """Ends the steps under way; returns the requests whose prompt is done and those that have all their tokens."""
        tally, seconds = self.tally, now - self.start
        prompted, ended = list[SentRequest](), list[SentRequest]()
        tally.seconds += seconds
        if self.holding:
            self.waited += self.count
        if self.slots_used >= self.slots:
            tally.waiting += seconds * len(self.waiting)
        self.had_prompts = self.had_prompts or bool(self.chunks)
        for request in self.fresh:
            request.first = self.start + self.elapsed(1)
        self.fresh.clear()
        if self.decodes:
            tally.gaps += self.decodes * (now - self.decoded)
            tally.decodes += self.decodes * self.count
            tally.mixed += self.decodes * self.had_prompts
            self.decoded, self.had_prompts = now, False
            self.decode_steps += self.count
            self.tokens += self.decodes * self.count * self.per_step
            while self.decoding and self.decoding[0][0] <= self.decode_steps:
                request = heappop(self.decoding)[2]
                self.tokens -= request.isl + request.steps * self.per_step
                self.slots_used -= 1
                ended.append(request)
        for request, tokens in self.chunks:
            if request.begun < 0:
                request.begun = self.start
            request.left -= tokens
            self.looked_at_step = self.decode_steps
            if not request.left:
                self.prompts.remove(request)
                prompted.append(request)
        return prompted, ended

    def join(self, request: SentRequest, now: float, done: int = 0) -> None:
        """Lets ``request`` decode from ``now`` on; ``done`` of its steps have run."""
        if not self.decoding:
            self.decoded, self.had_prompts = now, False
        self.join_count += 1
        self.tokens += request.isl + done * self.per_step
        heappush(self.decoding, (self.decode_steps + request.steps - done, self.join_count, request))
