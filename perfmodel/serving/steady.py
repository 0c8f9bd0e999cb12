"""An engine's loop in steady state, by mean-value analysis: what a user waits for, and what all of them get.

A request visits two stations in turn: prompts, in W steps until its first token, and G decode steps. In a closed loop of N users it
finds each other one at a random point of the cycle of G + W steps, as if the loop had one user less (the arrival theorem: Reiser &
Lavenberg 1980), so

    users per step = N / (G + W),    W = mean of ceil((V + P a + P) / C),    requests per second = N / (TTFT + time of the decode steps)

with P tokens of a prompt, C tokens of prompts that a step has room for, V tokens left over from the steps before and a prompts of the
same step before the own one (``backlog``); the last is Little's law (1961). A user's next request starts where a step has ended, so it
waits for no rest of a step; one from outside does, and for more of a long one (E[S^2] / 2 E[S], the inspection paradox).

Mixed (Agrawal et al. 2024, Sarathi-Serve; vLLM V1): prompts take the room that the decoding sequences leave, C = budget - n (1 + drafts).
Prompts first (Yu et al. 2022, Orca; SGLang): all prompts that came up in a decode step run before the next one, so that each decode step
finds all N and W counts no steps of its own; at a rate see ``prompts_first``, and where requests come late ``crowds``. Mixed at a rate,
the loop is that of as many users as give the rate, coming by Poisson.
Lengths are drawn evenly from ``spread`` times the longest to the longest. Batch dynamics of this kind:
Vidur (arXiv 2405.05465), DistServe (arXiv 2401.09670).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, exp, sqrt

from perfmodel.core.errors import UsageError
from perfmodel.serving.backlog import Arrivals
from perfmodel.serving.crowds import crowded
from perfmodel.serving.engine import Batching, Overhead
from perfmodel.serving.iteration import StepTimes
from perfmodel.serving.load import Load
from perfmodel.serving.loop_steps import STANDS
from perfmodel.serving.mixed import HALVINGS, SETTLED, Mixed, Queue
from perfmodel.serving.one_slot import one_slot
from perfmodel.serving.prompts_first import PromptsFirst
from perfmodel.serving.simulate import simulate
from perfmodel.serving.weighted import Weighted, mean, quantile, thin

UNFELT_S = 1e-12  # known
"""A wait below this is none: a power of the load that only underflows."""
SMALL = 16
"""Prompts of a burst that are counted one by one."""


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
    mean_osl: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all users."""
        return self.requests_per_s * (self.mean_osl or self.osl)

    @property
    def users(self) -> float:
        """Requests under way, waiting ones too."""
        return self.running + self.waiting

    def times(self, copies: float) -> Steady:
        """So many engines alike, each with users of its own."""
        amounts = ("requests_per_s", "decoding", "running", "waiting")
        return replace(self, **{name: copies * getattr(self, name) for name in amounts})


class Loop(Mixed):
    """The loop of a load on an engine."""

    # Prompts first

    def first(self, users: float) -> tuple[float, float, Weighted, Queue, float, float]:
        """The same where prompts run before the next decode step; and the seconds of prompts after the own one, before decoding."""
        others, room, again = self.others(users, False), self.room(0), 1 - self.decoded
        rate = others * min(self.decoded / self.steps, 1.0)
        look = min(self.batching.admit_every, max(self.steps, 1.0))  # steps between two bursts
        arrivals = Arrivals(rate * look, others, self.prompt, self.squared)
        queue = self.alone(others / self.steps, others)
        bursts = thin([(float(number), chance) for number, chance in arrivals.chances()])
        decode, known = self.seconds(0, users), dict[int, float]()
        burst = mean([(self._repeated(number, again, room, known), chance) for number, chance in bursts])
        own = self.to_first(queue, arrivals, others)
        one = mean([(self.burst((number + 1) * self.prompt, room), chance) for number, chance in bursts])
        more = mean([(self._repeated(number + 1, again, room, known), chance) for number, chance in bursts]) - one
        rest = max(one - mean(own), 0.0) + more * (1 - again * self.decoded)
        if again:
            fewer = Arrivals(rate * look * again, others, self.prompt, self.squared)
            second = self.to_first(queue, fewer, others)
            own = [(value, chance * (1 - again)) for value, chance in own] + [(value, chance * again) for value, chance in second]
        share = (1 - sum(chance for number, chance in bursts if not number)) / look
        return decode + burst / look, share, own, queue, queue.rate * self.prompt / share if share else 0.0, rest - burst

    def _repeated(self, number: float, again: float, room: float, known: dict[int, float]) -> float:
        """Seconds of a burst that so many prompts begin, each followed by the next with this chance: those that ask one token only."""
        whole = round(number)
        if not again or not whole:
            return self.burst(number * self.prompt, room)
        if whole not in known:
            took = self.burst(whole * self.prompt, room)
            if whole > SMALL:
                known[whole] = took + self._repeated(whole * again, again, room, known)
            else:
                chances = [comb(whole, k) * again**k * (1 - again) ** (whole - k) for k in range(whole + 1)]
                later = sum(chances[k] * self._repeated(k, again, room, known) for k in range(1, whole))
                known[whole] = (took + later) / (1 - chances[whole])
        return known[whole]

    # The loop

    def closed(self, users: int, close: float = STANDS) -> Steady:
        """With so many users, those beyond the slots waiting; ``close``: change at which the queue of prompts stands."""
        self.close = close
        return self._closed(min(users, self.slots), max(users - self.slots, 0))

    def _closed(self, users: float, waiting: float = 0.0, outside: bool = False) -> Steady:
        """With so many users in slots, each of whom sends the next request when the last has ended, and so many more that wait."""
        correction = saved = 0.0
        late = self._late and not waiting and not outside
        mixed = self.batching.mixed or not self.steps
        crowds = not mixed and late and users >= 2 and self.decoded == 1 and self.batching.admit_every == 1
        for _ in range(4 if late and not crowds else 1):
            if mixed:
                step, share, first, queue, chunk = self.mixed(users, outside)
            elif crowds:
                step, share, first, rate, correction, saved = crowded(self, users)
                queue, chunk = self.alone(rate, users), rate * self.prompt / share if share else 0.0
            else:
                step, share, first, queue, chunk, correction = self.first(users)
            outer = max(self._wait(step, share, queue, users, outside) - saved, self.overhead.request_s) if not waiting else 0.0
            before, self.between = self.between, outer / step if self.steps and not outside else 0.0
            if abs(self.between - before) < SETTLED * (self.steps + self.last):
                break
        ttft = mean(first)
        decode = self.steps * step + self.decoded * correction
        rate = users / (outer + ttft + decode)
        wait = outer if not waiting else max((users + waiting) / rate - decode - ttft, 0.0)
        return self.result(users, waiting, rate, step, share, chunk, first, wait, correction)

    def result(
        self, users: float, waiting: float, rate: float, step: float, share: float, chunk: float, first: Weighted, wait: float, rest: float
    ) -> Steady:
        """The figures; ``rest``: of a burst of prompts after the own one, less a whole burst."""
        per_token = self.per_token * step + self.inverse * rest if self.decoded else None
        decoding, ttft = rate * self.steps * step, mean(first)
        plain = min(self.seconds(0, max(decoding, 1.0)), step) if self.steps else 0.0  # the mean step is of more and of fewer than the mean
        times = (wait + ttft, wait + quantile(first, 0.5), wait + quantile(first, 0.99))
        return Steady(per_token, *times, rate, round(self.osl), decoding, users, waiting, step, plain, ttft, share, round(chunk), self.osl)

    def _wait(self, step: float, share: float, queue: Queue, users: float, outside: bool) -> float:
        """Until the first step of a prompt begins: what a request takes before, and the rest of the step that runs then."""
        own, ahead = self.overhead.request_s, int(self.batching.ahead)
        if outside:
            plain = self.seconds(0, max(users, min(self.steps, 1.0)))
            long = plain + (step - plain) / share if share else plain
            squared = (1 - share) * plain**2 + share * long**2
            rest = squared / step / 2 + ahead * step + self._held(queue) * plain if step else 0.0
            return own + (1 - exp(-users)) * (1 - 1 / self.slots) * rest
        if not self._late or users < 2 or (not self.steps and queue.steps < 1.01):
            return own
        plain = self.seconds(0, users)
        busy = 1 - (own / (own + (self.last + self.steps) * step)) ** (users - 1) if self.steps else 1 - exp(1 - users)
        long = plain + (step - plain) / share if share else plain
        if not self.batching.mixed:
            share = 0.0  # what has just ended left the others in a decode step, and theirs come as late
        until = [((self.steps_late(each) + ahead) * each, chance) for each, chance in ((plain, 1 - share), (long, share)) if each]
        return own + busy * (max(mean(until) - own, 0.0) + self._held(queue) * plain)

    @property
    def _late(self) -> bool:
        """Whether a request may miss the step after the one that it comes in."""
        return bool(self.overhead.request_s or self.batching.ahead or self.batching.admit_every > 1 or self.batching.hold_steps)

    def open(self, rate: float) -> Steady:
        """With so many new requests a second; UsageError where the engine cannot serve as many."""
        most = self._closed(self.slots, 1.0).requests_per_s  # the next is always there
        self.outside = rate
        if rate >= most:
            raise UsageError(f"--rate {rate:g}: {most:.3g} requests a second is the most that this serves", "give fewer, or more GPUs")
        if self.slots == 1:
            return self.result(*one_slot(self, rate))
        if not self.batching.mixed and self.steps:
            return self.result(*PromptsFirst(self, rate, most).answer())
        low, high, users = 0.0, float(self.slots), min(rate * self._closed(1.0).ttft_s, self.slots / 2)
        for _ in range(HALVINGS):
            found = self._closed(users, 0.0, True)
            low, high = (low, users) if found.requests_per_s > rate else (users, high)
            if abs(found.requests_per_s / rate - 1) < 2e-3 or high - low < 1e-3 * high:
                break
            users = users * rate / found.requests_per_s
            users = users if low < users < high else (low + high) / 2
        return self._for_a_slot(found.times(rate / found.requests_per_s))

    def _for_a_slot(self, found: Steady) -> Steady:
        """With the wait for a slot, as of a queue before ``slots`` servers (Sakasegawa 1977), lengths being drawn evenly."""
        busy = min(found.running / self.slots, 0.999)
        varies = ((1 - self.spread) / (1 + self.spread)) ** 2 / 3
        stay = found.running / found.requests_per_s
        wait = stay / self.slots * busy ** (sqrt(2 * (self.slots + 1)) - 1) / (1 - busy) * (1 + varies) / 2
        wait = wait if wait > UNFELT_S else 0.0
        times = {name: getattr(found, name) + wait for name in ("ttft_s", "ttft_p50_s", "ttft_p99_s")}
        return replace(found, waiting=wait * found.requests_per_s, **times)


def steady(times: StepTimes, load: Load, batching: Batching, overhead: Overhead, most_running: int, spread: float = 1.0) -> Steady:
    """The steady state of ``load``; UsageError for a rate that is too high."""
    if load.check().osl == 1 and load.rate is None:
        return _prompts_alone(times, load, batching, overhead, most_running, spread)
    loop = Loop(times, load, batching, overhead, most_running, spread)
    if load.rate is None:
        return loop.closed(load.concurrency or 1)
    return loop.open(load.rate)


def _prompts_alone(times: StepTimes, load: Load, batching: Batching, overhead: Overhead, most_running: int, spread: float) -> Steady:
    """The figures of users who ask for one token each, simulated: no decode steps carry the mean-value analysis."""
    run = simulate(times, load, batching, overhead, most_running, spread=spread)
    chunk = min(load.new_tokens * max(round(run.running), 1), batching.token_budget)
    first = (run.ttft_s, run.ttft_p50_s, run.ttft_p99_s)
    return Steady(None, *first, run.requests_per_s, 1, 0.0, run.running, run.waiting, run.step_s, 0.0, run.step_s, 1.0, chunk)
