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
finds all N and W counts no steps of its own. From outside (a rate), the loop is that of as many users as give the rate, coming by Poisson.
Lengths are drawn evenly from ``spread`` times the longest to the longest. Batch dynamics of this kind: Vidur (arXiv 2405.05465),
DistServe (arXiv 2401.09670).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, comb, exp, inf, log, sqrt

from perfmodel.core.errors import UsageError
from perfmodel.serving.backlog import Arrivals, backlog
from perfmodel.serving.engine import FULL, Batching, Overhead
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load

POINTS = 5
"""Equally likely values that stand for a distribution."""
FEW = 4
"""Prompts before and behind the own one that are counted one by one."""
SMALL = 16
"""Prompts of a burst that are counted one by one."""
STANDS = 2e-3
"""Share of a prompt at whose change the queue of prompts stands."""
HALVINGS, SETTLED = 30, 1e-4
"""Of an interval at most, and the share of a cycle at whose change a fixed point stands."""


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


SIMULATED_TURNS, FEWEST_SIMULATED, MOST_SIMULATED = 6, 100, 1000
"""Requests of a simulation: so many times those that run, within bounds."""
Weighted = list[tuple[float, float]]
"""Values with their chance."""


def mean(values: Weighted) -> float:
    """Of values with their chance."""
    return sum(value * chance for value, chance in values)


def quantile(values: Weighted, share: float) -> float:
    """The least value that this share does not exceed."""
    left = share * sum(chance for _, chance in values) - 1e-9
    for value, chance in sorted(values):
        left -= chance
        if left <= 0:
            return value
    return values[-1][0]


@dataclass(frozen=True, slots=True)
class Queue:
    """The prompts' station in steps: ``rate`` prompts per step that others send, ``left``: tokens left over with their chance."""

    rate: float
    users: float
    room: float
    steps: float
    left: Weighted


class Loop:
    """The loop of ``load`` on an engine, ``times`` its steps. ``slots``: sequences that run at a time. ``spread``: see ``simulate``."""

    def __init__(self, times: StepTimes, load: Load, batching: Batching, overhead: Overhead, slots: int, spread: float = 1.0) -> None:
        self.times, self.load, self.batching, self.overhead, self.spread = times, load, batching, overhead, spread
        self.slots = max(min(slots, batching.max_sequences, batching.token_budget // load.queries if batching.mixed else slots), 1)
        self.sizes = [max(isl - load.prefix, 1.0) for isl in self._points(load.isl)]
        self.prompt = sum(self.sizes) / len(self.sizes)
        self.squared = sum(size**2 for size in self.sizes) / len(self.sizes) / self.prompt**2 - 1
        self.isl, low = (load.isl + max(int(load.isl * spread), 1)) / 2, max(int(load.osl * spread), 1)
        self.osl = (load.osl + low) / 2
        count = load.osl - low + 1
        over = list(range(max(low, 2), load.osl + 1))
        self.inverse = sum(1 / (osl - 1) for osl in over) / len(over) if over else 0.0  # mean of 1 / (osl - 1), of those that decode
        self.decoded = len(over) / count
        self.per_token = self._steps_per_token(over)
        self.steps = sum(self._decode_steps(osl - 1) for osl in over) / count
        self.context = self.isl + sum((osl - 1) * osl / 2 for osl in over) / max(sum(osl - 1 for osl in over), 1) + load.queries / 2
        self.between = 0.0  # steps between two requests of a user
        self.outside = 0.0  # requests a second from outside
        self.last = 1.0  # steps to the first token of the last round
        self.close = STANDS
        self.known: dict[tuple[int, int, int, int], float] = {}

    def _points(self, longest: int) -> list[float]:
        low = max(int(longest * self.spread), 1)
        return [low + (longest - low) * (point + 0.5) / POINTS for point in range(POINTS)] if longest > low else [float(longest)]

    def _decode_steps(self, tokens: int) -> float:
        """Mean steps that give so many tokens: by renewal theory a step's last tokens may be more than are asked."""
        mean_tokens = self.load.tokens_per_step
        if not self.load.draft_tokens or not tokens:
            return float(tokens)
        chances = [
            self.load.acceptance**k * (1 - self.load.acceptance if k < self.load.draft_tokens else 1) for k in range(self.load.queries)
        ]
        if tokens > 4 * self.load.queries:
            second = sum(chance * (k + 1) ** 2 for k, chance in enumerate(chances))
            return (tokens + second / mean_tokens / 2 - 0.5) / mean_tokens
        found = [0.0]
        for left in range(1, tokens + 1):
            found.append(1 + sum(chance * found[max(left - k - 1, 0)] for k, chance in enumerate(chances)))
        return found[-1]

    def _steps_per_token(self, over: list[int]) -> float:
        picked = over[:: max(len(over) // 50, 1)]
        return sum(self._decode_steps(osl - 1) / (osl - 1) for osl in picked) / len(picked) if picked else 0.0

    # Steps

    def seconds(self, chunk: float, decodes: float, reached: float = 0.0) -> float:
        """Of a step with ``chunk`` tokens of prompts, whose mean one then has ``reached`` tokens, and ``decodes`` sequences."""
        tokens = max(round(chunk), 1) if chunk > 0 else 0
        low, share = int(decodes + 1e-9), max(decodes - int(decodes + 1e-9), 0.0)
        prompts = max(round(chunk / self.prompt), 1)
        ends = round(reached or self._reached(chunk)) if tokens else 0
        found = self._at(tokens, ends, prompts, low)
        return found if share < 1e-6 else (1 - share) * found + share * self._at(tokens, ends, prompts, low + 1)

    def _at(self, tokens: int, reached: int, prompts: int, decodes: int) -> float:
        key = (tokens, reached, prompts, decodes)
        if key not in self.known:
            step = Iteration(tokens, reached, prompts, decodes, round(self.context) if decodes else 0, self.load.queries)
            self.known[key] = self.times.seconds(step)
        return self.known[key]

    def _reached(self, chunk: float) -> float:
        """Tokens that the mean prompt of a chunk has, with those of the chunk."""
        return self.load.prefix + (self.prompt if self.prompt <= chunk else (self.prompt * (1 + self.squared) + chunk) / 2)

    def room(self, decodes: float) -> float:
        """Tokens of prompts that fit a step; where prompts are not cut, half of one is lost."""
        room = self.batching.token_budget - (decodes * self.load.queries if self.batching.mixed else 0.0)
        if not self.batching.chunked or not self.batching.mixed:
            cut = self.batching.chunked and self.prompt > room
            room = (
                room
                if cut
                else max(room - self.prompt / 2 * (self.spread < 1), self.prompt, room // self.prompt * self.prompt * (self.spread == 1))
            )
        return max(room, 1.0)

    # The queue of prompts, in steps

    def queue(self, users: float, outside: bool) -> Queue:
        """Mixed: the tokens left over that repeat themselves, found by halving."""
        low, high = 0.0, max(users, 1.0) * self.prompt
        queue, wanted = self._queue_of(users, 0.0, 1.0, outside)
        if wanted > 1e-3 * self.prompt:
            for _ in range(HALVINGS):
                left = (low + high) / 2
                queue, wanted = self._queue_of(users, left, 0.0, outside)
                low, high = (left, high) if wanted > left else (low, left)
                if high - low < self.close * (low + min(self.prompt, queue.room)):
                    break
        return queue

    def _queue_of(self, users: float, left: float, none: float, outside: bool) -> tuple[Queue, float]:
        """With ``left`` tokens left over on average: the station, and the tokens that its arrivals leave over."""
        steps, room, rate = max(self.last, 1.0), self.room(users), 0.0
        share = self.others(users, outside)
        points: Weighted = [(left, 1.0)]
        for _ in range(12):
            cycle = self.steps + steps + self.between
            room, rate = self.room(users * self.steps / cycle), share / cycle
            arrivals = Arrivals(rate, inf if outside else share, self.prompt, self.squared)
            busy = min(rate * self.prompt / room, 1.0)
            points = self._left_over(left, min(max(1 - busy, none), 1.0), users)
            found = mean([(float(max(ceil(tokens / room - 1e-9), 1)), chance) for tokens, chance in self._found(points, arrivals)])
            if abs(found - steps) < SETTLED * (steps + self.steps):
                break
            steps += 0.6 * (found - steps)
        self.last = steps
        busy = rate * (self.outside * self.seconds(room, users * self.steps / cycle) / rate if outside and self.prompt > room / 2 else 1.0)
        wanted, _ = backlog(Arrivals(busy, inf if outside else share, self.prompt, self.squared), room)
        if not outside and users * self.prompt > room * cycle * (1 + 1e-9):
            wanted = inf
        return Queue(rate, inf if outside else share, room, steps, points), wanted

    def _left_over(self, left: float, none: float, users: float) -> Weighted:
        """Tokens left over: none, or as an exponential's; the more of all users' prompts they are, the less they vary."""
        if left <= 0:
            return [(0.0, 1.0)]
        crowd = min(2 * left / (users * self.prompt), 1.0)
        none *= 1 - crowd
        shape = [-log(1 - (point + 0.5) / POINTS) for point in range(POINTS)]
        scale = sum(shape) / POINTS
        each = (1 - none) / POINTS
        return [(0.0, none)] * (none > 0) + [(left / (1 - none) * (crowd + (1 - crowd) * value / scale), each) for value in shape]

    def _found(self, left: Weighted, arrivals: Arrivals) -> Weighted:
        """Tokens until the end of an own prompt: left over ones, those of the same step before it (half of them), and its own."""
        ahead = thin([(number * self.prompt / 2, chance) for number, chance in arrivals.chances()])
        own = 1 / len(self.sizes)
        return [(old + new + size, one * two * own) for old, one in left for new, two in ahead for size in self.sizes]

    # Mixed steps

    def mixed(self, users: float, outside: bool) -> tuple[float, float, Weighted, Queue, float]:
        """Seconds between decode steps as one that decodes sees them, share with prompts, times to the first token, and the chunk."""
        queue = self.queue(users, outside)
        arrivals = Arrivals(queue.rate, queue.users, self.prompt, self.squared)
        others = self.others(users, outside)
        step, share, tokens = self._seen(queue, arrivals, others) if self._come(queue) <= 0 else self._together(queue, others)
        joined = replace(arrivals, rate=max(self._come(queue), queue.rate))
        return step, share, self._first(queue, joined, others), queue, tokens / share if share else 0.0

    def _seen(self, queue: Queue, arrivals: Arrivals, others: float) -> tuple[float, float, float]:
        """Of a step with an own decode: its seconds, the chance of prompts, and their mean tokens."""
        total = share = tokens = 0.0
        for number, one in thin([(float(number), chance) for number, chance in arrivals.chances()]):
            for old, two in queue.left:
                found, chance = number * self.prompt + old, one * two
                decodes = 1 + max(others - found / self.prompt, 0.0) * self._decoding_share(found)
                for size in self.sizes if number == 1 and not old else [0.0]:
                    chunk = min(size or found, queue.room)
                    total += chance * self.seconds(chunk, decodes) / (len(self.sizes) if size else 1)
                share += chance * (found > 0)
                tokens += chance * min(found, queue.room)
        wanted, own, cycle = queue.rate * self.prompt, self.prompt / queue.room, self.steps + queue.steps + self.between
        if own > 1 and cycle > own and queue.users < inf:  # others' prompts run in all steps but those of the own one
            wanted = min(wanted * cycle / (cycle - own), queue.room)
        if share and abs(tokens - wanted) > 1e-6 * queue.room:  # the sum of the chunks is the sum of the prompts
            decodes = 1 + others * self.steps / (self.steps + queue.steps)
            slope = (self.seconds(queue.room, decodes) - self.seconds(0, decodes)) / queue.room
            total += (wanted - tokens) * slope
            share, tokens = min(max(share * wanted / tokens, 0.0), 1.0), wanted
        return total, share, tokens

    def _together(self, queue: Queue, others: float) -> tuple[float, float, float]:
        """The same where prompts have waited for each other and run in as few steps as they fill."""
        tokens = (1 + self._come(queue)) * self.prompt
        chunk = tokens / ceil(tokens / queue.room - 1e-9)
        share = min(queue.rate * self.prompt / chunk, 1.0)
        decodes = 1 + others * self.steps / (self.steps + queue.steps)
        return (1 - share) * self.seconds(0, decodes) + share * self.seconds(chunk, decodes), share, share * chunk

    def _decoding_share(self, found: float) -> float:
        return 1.0 if self.steps else 0.0

    def _first(self, queue: Queue, arrivals: Arrivals, others: float) -> Weighted:
        """Seconds from the start of a prompt's first step to its first token, with their chances."""
        found: Weighted = []
        room, own = queue.room, 1 / len(self.sizes)
        for number, one in thin([(float(number), chance) for number, chance in arrivals.chances()]):
            places = [k / number for k in range(round(number) + 1)] if 0 < number <= FEW else [0.25, 0.75] if number else [0.5]
            for place in places:
                for old, two in queue.left:
                    before, behind = old + number * place * self.prompt, number * (1 - place) * self.prompt
                    decodes = max(others - number - old / self.prompt, 0.0) if self.steps and self.batching.mixed else 0.0
                    chance = one * two * own / len(places)
                    found += [
                        (
                            self.until(before + size, size, behind, room, decodes, queue.rate * self.prompt * (queue.left[-1][0] > 0)),
                            chance,
                        )
                        for size in self.sizes
                    ]
        return found

    def until(self, tokens: float, size: float, behind: float, room: float, decodes: float, later: float = 0.0) -> float:
        """Seconds of the steps that run ``tokens`` of prompts, the last ``size`` of them the own ones, ``behind`` more after them."""
        whole = max(ceil(tokens / room - 1e-9) - 1, 0)
        budget = self.batching.token_budget
        if (not self.batching.mixed or not self.batching.chunked) and size <= budget:
            whole = 0 if tokens <= budget else max(round((tokens - size) / room), 1)
        last = max(tokens - whole * room, size if size <= room else 1.0)
        if not self.batching.chunked and size > budget:
            return round((tokens - size) / room) * self.seconds(room, decodes) + self.seconds(size, decodes)
        if not whole:
            return self.seconds(max(min(tokens + behind, room), min(tokens, budget)), decodes)
        reached = self._reached(room) if size <= room else self.load.prefix + (size + room) / 2
        later = behind + later
        chunk = min(last + later, room) if self.batching.mixed or self.prompt < room else last
        return whole * self.seconds(room, decodes, reached) + self.seconds(chunk, decodes, self.load.prefix + size)

    def others(self, users: float, outside: bool) -> float:
        """Sequences that one of ``users`` meets: all but itself; from outside as many as there are, less its slot."""
        return users * (1 - 1 / self.slots) if outside else max(users - 1, 0.0)

    # Prompts first

    def first(self, users: float) -> tuple[float, float, Weighted, Queue, float, float]:
        """The same where prompts run before the next decode step; and the seconds of prompts after the own one, before decoding."""
        others, room, again = self.others(users, False), self.room(0), 1 - self.decoded
        rate = others * min(self.decoded / self.steps, 1.0)
        look = min(self.batching.admit_every, max(self.steps, 1.0))  # steps between two bursts
        arrivals = Arrivals(rate * look, others, self.prompt, self.squared)
        queue = Queue(others / self.steps, others, room, 1.0, [(0.0, 1.0)])
        bursts = thin([(float(number), chance) for number, chance in arrivals.chances()])
        decode, known = self.seconds(0, users), dict[int, float]()
        burst = mean([(self._repeated(number, again, room, known), chance) for number, chance in bursts])
        own = self._first(queue, arrivals, others)
        one = mean([(self._burst((number + 1) * self.prompt, room), chance) for number, chance in bursts])
        more = mean([(self._repeated(number + 1, again, room, known), chance) for number, chance in bursts]) - one
        rest = max(one - mean(own), 0.0) + more * (1 - again * self.decoded)
        if again:
            fewer = Arrivals(rate * look * again, others, self.prompt, self.squared)
            second = self._first(queue, fewer, others)
            own = [(value, chance * (1 - again)) for value, chance in own] + [(value, chance * again) for value, chance in second]
        share = (1 - sum(chance for number, chance in bursts if not number)) / look
        return decode + burst / look, share, own, queue, queue.rate * self.prompt / share if share else 0.0, rest - burst

    def _repeated(self, number: float, again: float, room: float, known: dict[int, float]) -> float:
        """Seconds of a burst that so many prompts begin, each followed by the next with this chance: those that ask one token only."""
        whole = round(number)
        if not again or not whole:
            return self._burst(number * self.prompt, room)
        if whole not in known:
            took = self._burst(whole * self.prompt, room)
            if whole > SMALL:
                known[whole] = took + self._repeated(whole * again, again, room, known)
            else:
                chances = [comb(whole, k) * again**k * (1 - again) ** (whole - k) for k in range(whole + 1)]
                later = sum(chances[k] * self._repeated(k, again, room, known) for k in range(1, whole))
                known[whole] = (took + later) / (1 - chances[whole])
        return known[whole]

    def _burst(self, tokens: float, room: float) -> float:
        """Seconds of all steps of prompts between two decode steps."""
        if not tokens:
            return 0.0
        if self.prompt <= room:
            whole = int(tokens / room + 1e-9)
            left = tokens - whole * room
            return whole * self.seconds(room, 0) + (self.seconds(left, 0) if left > 0.5 else 0.0)
        each = [self.until(size, size, 0.0, room, 0.0) for size in self.sizes]
        return tokens / self.prompt * sum(each) / len(each)

    # The loop

    def closed(self, users: int, close: float = STANDS) -> Steady:
        """With so many users, those beyond the slots waiting; ``close``: change at which the queue of prompts stands."""
        self.close = close
        return self._closed(min(users, self.slots), max(users - self.slots, 0))

    def _closed(self, users: float, waiting: float = 0.0, outside: bool = False) -> Steady:
        """With so many users in slots, each of whom sends the next request when the last has ended, and so many more that wait."""
        correction = 0.0
        for _ in range(4 if self._late and not waiting and not outside else 1):
            if self.batching.mixed or not self.steps:
                step, share, first, queue, chunk = self.mixed(users, outside)
            else:
                step, share, first, queue, chunk, correction = self.first(users)
            outer = self._wait(step, share, queue, users, outside) if not waiting else 0.0
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
        until = [((ceil(own / each) + ahead) * each, chance) for each, chance in ((plain, 1 - share), (long, share)) if each]
        return own + busy * (max(mean(until) - own, 0.0) + self._held(queue) * plain)

    @property
    def _late(self) -> bool:
        """Whether a request may miss the step after the one that it comes in."""
        return bool(self.overhead.request_s or self.batching.ahead or self.batching.admit_every > 1 or self.batching.hold_steps)

    def _held(self, queue: Queue) -> float:
        """Steps that a prompt waits for the engine to look, and for others to fill its step with."""
        looks, hold = (min(self.batching.admit_every, max(self.steps, 1.0)) - 1) / 2, self.batching.hold_steps
        if not hold or not self.batching.mixed:
            return looks
        come = self._come(queue)
        return looks + (min(hold, come / queue.rate) if queue.rate else hold) * (1 + come / 2) / (1 + come)

    def _come(self, queue: Queue) -> float:
        """Prompts that join one that waits for others, until they fill a step."""
        return min(queue.rate * self.batching.hold_steps, max(FULL * self.batching.token_budget / self.prompt - 1, 0.0))

    def open(self, rate: float) -> Steady:
        """With so many new requests a second; UsageError where the engine cannot serve as many."""
        most = self._closed(self.slots).requests_per_s
        self.outside = rate
        if rate >= most:
            raise UsageError(f"--rate {rate:g}: {most:.3g} requests a second is the most that this serves", "give fewer, or more GPUs")
        if self.slots == 1:
            from perfmodel.serving.one_slot import one_slot

            return one_slot(self, rate)
        if not self.batching.mixed and self.steps:
            from perfmodel.serving.prompts_first import PromptsFirst

            return PromptsFirst(self, rate, most).answer()
        low, high, users = 0.0, float(self.slots), min(rate * self._closed(1.0).ttft_s, self.slots / 2)
        for _ in range(HALVINGS):
            found = self._closed(users, 0.0, True)
            low, high = (low, users) if found.requests_per_s > rate else (users, high)
            if abs(found.requests_per_s / rate - 1) < 2e-3 or high - low < 1e-3 * high:
                break
            users = users * rate / found.requests_per_s
            users = users if low < users < high else (low + high) / 2
        return self._for_a_slot(found)

    def _for_a_slot(self, found: Steady) -> Steady:
        """With the wait for a slot, as of a queue before ``slots`` servers (Sakasegawa 1977), lengths being drawn evenly."""
        busy = min(found.running / self.slots, 0.999)
        varies = ((1 - self.spread) / (1 + self.spread)) ** 2 / 3
        stay = found.running / found.requests_per_s
        wait = stay / self.slots * busy ** (sqrt(2 * (self.slots + 1)) - 1) / (1 - busy) * (1 + varies) / 2
        times = {name: getattr(found, name) + wait for name in ("ttft_s", "ttft_p50_s", "ttft_p99_s")}
        return replace(found, waiting=wait * found.requests_per_s, **times)

    def waited(self, found: Steady, waiting: float) -> Steady:
        """With so many that wait for a slot."""
        return replace(found, waiting=waiting)

    def five(self) -> list[float]:
        """``POINTS`` sizes of prompts, all equally likely."""
        return self.sizes if len(self.sizes) == POINTS else self.sizes * POINTS


def thin(values: Weighted, most: int = 9) -> Weighted:
    """Neighbours that are unlikely as one, at their mean: about ``most`` values; the first stays apart, as none is unlike few."""
    if len(values) <= most:
        return values
    found, value, weight = [values[0]], 0.0, 0.0
    for each, chance in values[1:]:
        value, weight = value + each * chance, weight + chance
        if weight >= 1 / (2 * most):
            found.append((value / weight, weight))
            value = weight = 0.0
    return [*found, (value / weight, weight)] if weight else found


def steady(times: StepTimes, load: Load, batching: Batching, overhead: Overhead, most_running: int, spread: float = 1.0) -> Steady:
    """The steady state of ``load``; UsageError for a rate that is too high."""
    loop = Loop(times, load.check(), batching, overhead, most_running, spread)
    if load.rate is None:
        return loop.closed(load.concurrency or 1)
    return loop.open(load.rate)
