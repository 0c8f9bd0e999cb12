"""An engine's loop in steady state, by mean-value analysis: what a user waits for, and what all of them get.

A request is a customer that visits two stations in turn: prompts, and D decode steps with all others that decode. In a closed loop a
customer finds the stations as they are on average with one customer less (the arrival theorem: Reiser & Lavenberg 1980); Little's law
(1961) ties requests a second, time and customers together. A decode step lasts longer by the prompts that run in it, or before it.

Of others' prompts, x come up per decode step, as many as are Poisson distributed: a share 1 - exp(-x k) of the steps has prompts,
k being the steps that a prompt takes by itself. Prompts that do not fit a step wait for those before them. Lengths are means: half of
the output is the mean context of a decoding sequence.
Sources: Reiser & Lavenberg 1980 (mean-value analysis); Yu et al. 2022, Agrawal et al. 2024 (which tokens share a step).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor

from perfmodel.core.errors import UsageError
from perfmodel.serving.engine import Batching, Overhead
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load

ROUNDS, DAMPING, CLOSE = 200, 0.5, 1e-7
"""Of the fixed point: most rounds, share of the new value in the next one, and the change at which it stands."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Seconds: ``tpot_s`` per output token after the first, None for a single one; ``ttft_s`` to the first, its mean, median and p99.

    ``step_s``: between two decode steps of a sequence; ``decode_s``: of a step without prompts; ``prompt_s``: of a prompt's steps.
    ``decoding``: sequences in a decode step; ``running``: with those whose prompts run; ``waiting``: users without a slot.
    ``with_prompts``: share of the decode steps that run prompts too, or wait for them.
    """

    tpot_s: float | None
    ttft_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    requests_per_s: float
    osl: int
    decoding: float
    running: float
    waiting: float
    step_s: float
    decode_s: float
    prompt_s: float
    with_prompts: float
    chunk: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all users."""
        return self.requests_per_s * self.osl

    @property
    def users(self) -> float:
        """Requests under way, waiting ones too."""
        return self.running + self.waiting


@dataclass(slots=True)
class _State:
    """Of one round: seconds between decode steps, seconds of the prompts station, others per step and their steps with prompts."""

    step_s: float
    prompt_s: float
    decoding: float = 0.0
    arrivals: float = 0.0
    with_prompts: float = 0.0
    chunk: float = 0.0


class Loop:
    """The loop of ``load`` on an engine, ``times`` its steps. ``slots``: sequences that run at a time. ``spread``: see ``simulate``."""

    def __init__(self, times: StepTimes, load: Load, batching: Batching, overhead: Overhead, slots: int, spread: float = 1.0) -> None:
        self.times, self.load, self.batching, self.overhead = times, load, batching, overhead
        self.slots = max(min(slots, batching.max_sequences), 1)
        mean = (1 + spread) / 2
        self.isl, self.osl = max(load.isl * mean, 1.0), max(load.osl * mean, 1.0)
        self.prompt = max(self.isl - load.prefix, 1.0)
        self.steps = (self.osl - 1) / load.tokens_per_step
        self.context = self.isl + self.osl / 2

    def seconds(self, chunk: float, decodes: float, ahead: float = 0.0) -> float:
        """Of a step with ``chunk`` tokens of prompts, of which the mean one has ``ahead`` tokens before them, and ``decodes`` sequences."""
        tokens = max(round(chunk), 1) if chunk > 0 else 0
        prompts = max(round(chunk / self.prompt), 1)
        reached = round(self.load.prefix + min(self.prompt, tokens / prompts) + ahead)
        low, share = floor(decodes), decodes - floor(decodes)

        def at(sequences: int) -> float:
            one = Iteration(tokens, reached, prompts, sequences, round(self.context) if sequences else 0, self.load.queries)
            return self.times.seconds(one)

        return at(low) if share < CLOSE else (1 - share) * at(low) + share * at(low + 1)

    # Stations

    def room(self, decoding: float) -> float:
        """Tokens of prompts that fit a step."""
        own = decoding * self.load.queries if self.batching.mixed else 0.0
        budget = self.batching.token_budget - own
        return max(budget, 1.0) if self.batching.chunked else max(budget, self.prompt)

    def prompt_seconds(self, decoding: float, others: float) -> float:
        """From the start of the first step of a prompt to the end of its last, ``others`` beside or before it."""
        beside, room = decoding if self.batching.mixed else 0.0, self.room(decoding)
        tokens = self.prompt * (1 + others)
        if tokens <= room:
            return self.seconds(tokens, beside)
        before = self.prompt * (1 + others / 2)  # in the middle of those that came at the same time
        whole = floor(before / room)
        rest, each = before - whole * room, min(self.prompt, room)
        full = sum(self.seconds(room, beside, ahead=min(step * room, self.prompt - each)) for step in range(min(whole, 64)))
        full *= whole / max(min(whole, 64), 1)
        last = self.seconds(min(rest + self.prompt * others / 2, room), beside, ahead=max(self.prompt - rest, 0.0)) if rest >= 1 else 0.0
        return full + last

    def between_decodes(self, state: _State) -> float:
        """Seconds from one decode step of a sequence to the next."""
        n, x, room = state.decoding, state.arrivals, self.room(state.decoding)
        plain = self.seconds(0, n)
        if x <= 0:
            state.with_prompts = state.chunk = 0.0
            return plain
        alone = ceil(self.prompt / room)
        share = min(max(1 - exp(-x * (alone if self.batching.mixed else 1)), x * self.prompt / room if self.batching.mixed else 0.0), 1.0)
        chunk = x * self.prompt / share
        state.with_prompts, state.chunk = share, chunk
        if self.batching.mixed:
            chunk = min(chunk, room)
            return (1 - share) * plain + share * self.seconds(chunk, n, ahead=max((self.prompt - chunk) / 2, 0.0))
        return plain + share * self._alone(chunk, room)

    def _alone(self, tokens: float, room: float) -> float:
        """Steps of prompts alone, of ``tokens`` in all."""
        if tokens <= room:
            return self.seconds(tokens, 0)
        whole = floor(tokens / room)
        far = max(self.prompt - room, 0.0) / 2
        return whole * self.seconds(room, 0, ahead=far) + self.seconds(tokens - whole * room, 0, ahead=2 * far)

    # The fixed point

    def closed(self, users: int, close: float = CLOSE) -> Steady:
        """With so many users, each of whom sends the next request when the last has ended. ``close``: when the fixed point stands."""
        active = min(users, self.slots)
        state = self._start()
        for _ in range(ROUNDS):
            cycle = self._wait(state, active) + state.prompt_s + self.steps * state.step_s
            decoding = self.steps * state.step_s / cycle
            state.decoding = min(1.0, self.steps) + (active - 1) * decoding
            state.arrivals = (active - 1) * state.step_s / cycle
            others = self._others(state, (active - 1) * state.prompt_s / cycle, active)
            if self._settled(state, self.between_decodes(state), self.prompt_seconds((active - 1) * decoding, others), close):
                break
        wait = self._wait(state, active)
        cycle = wait + state.prompt_s + self.steps * state.step_s
        rate, queued = active / cycle, (users - active) * cycle / active
        return self._result(state, rate, wait + queued, users - active, active)

    def open(self, rate: float) -> Steady:
        """With so many new requests a second; UsageError where the engine cannot serve as many."""
        most = self.closed(self.slots).requests_per_s
        if rate >= most:
            raise UsageError(f"--rate {rate:g}: {most:.3g} requests a second is the most that this serves", "give fewer, or more GPUs")
        state = self._start()
        for _ in range(ROUNDS):
            state.decoding, state.arrivals = max(rate * self.steps * state.step_s, min(1.0, self.steps)), rate * state.step_s
            others = self._others(state, rate * state.prompt_s, self.slots)
            if self._settled(state, self.between_decodes(state), self.prompt_seconds(rate * self.steps * state.step_s, others)):
                break
        busy = min(rate * (self.steps * state.step_s + state.prompt_s), 1.0)
        wait = self.overhead.request_s + busy * state.step_s / 2
        return self._result(state, rate, wait, 0.0, rate * (state.prompt_s + self.steps * state.step_s))

    def _start(self) -> _State:
        return _State(self.seconds(0, min(1.0, self.steps)), self.prompt_seconds(0, 0))

    def _others(self, state: _State, at_station: float, active: int) -> float:
        """Prompts beside or before one that comes up: those of the same step, or all that are at the station if it is behind."""
        together = state.arrivals
        if self.prompt * (1 + together) <= self.room(state.decoding):
            return min(together, active - 1.0)
        return min(max(together, 2 * at_station), active - 1.0)

    def _settled(self, state: _State, step_s: float, prompt_s: float, close: float = CLOSE) -> bool:
        moved = abs(step_s - state.step_s) + abs(prompt_s - state.prompt_s)
        still = moved <= close * (state.step_s + state.prompt_s)
        state.step_s += DAMPING * (step_s - state.step_s)
        state.prompt_s += DAMPING * (prompt_s - state.prompt_s)
        return still

    def _wait(self, state: _State, active: int) -> float:
        """Until the first step of a prompt begins: what a request takes before, and the rest of the step that runs then."""
        own = self.overhead.request_s
        if not own or active < 2:
            return own
        busy = 1 - exp(-(active - 1) * self.steps * state.step_s / (state.prompt_s + self.steps * state.step_s))
        return own + busy * (ceil(own / state.step_s) * state.step_s - own)

    def _result(self, state: _State, rate: float, wait: float, queued: float, running: float) -> Steady:
        median, last = (self._quantile(state, share) + wait for share in (0.5, 0.99))
        per_token = self.steps * state.step_s / (self.osl - 1) if self.osl > 1 else None
        plain = self.seconds(0, state.decoding) if self.steps else 0.0
        first, osl, chunk = wait + state.prompt_s, round(self.osl), round(state.chunk)
        times = (state.step_s, plain, state.prompt_s)
        return Steady(per_token, first, median, last, rate, osl, state.decoding, running, queued, *times, state.with_prompts, chunk)

    def _quantile(self, state: _State, share: float) -> float:
        """Seconds of the prompts station that this share of requests does not exceed, by the Poisson number of others."""
        others, chance, summed = 0, exp(-state.arrivals), exp(-state.arrivals)
        while summed < share and others < self.slots - 1:
            others += 1
            chance *= state.arrivals / others
            summed += chance
        typical = self.prompt_seconds(max(state.decoding - 1, 0.0), state.arrivals)
        return state.prompt_s * self.prompt_seconds(max(state.decoding - 1, 0.0), others) / typical if typical else 0.0


def steady(times: StepTimes, load: Load, batching: Batching, overhead: Overhead, most_running: int, spread: float = 1.0) -> Steady:
    """The steady state of ``load``; UsageError for a rate that is too high."""
    loop = Loop(times, load.check(), batching, overhead, most_running, spread)
    return loop.open(load.rate) if load.rate is not None else loop.closed(load.concurrency or 1)
