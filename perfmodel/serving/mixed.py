"""Prompts in front of the steps of a closed loop: how long they queue, and what one that decodes sees of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log

from perfmodel.serving.backlog import Arrivals, backlog
from perfmodel.serving.engine import FULL
from perfmodel.serving.loop_steps import POINTS, LoopSteps
from perfmodel.serving.weighted import Weighted, mean, thin

HALVINGS, SETTLED = 30, 1e-4
"""Of an interval at most, and the share of a cycle at whose change a fixed point stands."""
FEW = 4
"""Prompts before and behind the own one that are counted one by one."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The prompts' station in steps: ``rate`` prompts per step that others send, ``left``: tokens left over with their chance."""

    rate: float
    users: float
    room: float
    steps: float
    left: Weighted


class Mixed(LoopSteps):
    """Steps of prompts and decoding sequences together."""

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

    def alone(self, rate: float, users: float) -> Queue:
        """So many prompts per decode step that run in steps without decoding."""
        return Queue(rate, users, self.room(0), 1.0, [(0.0, 1.0)])

    # Mixed steps

    def mixed(self, users: float, outside: bool) -> tuple[float, float, Weighted, Queue, float]:
        """Seconds between decode steps as one that decodes sees them, share with prompts, times to the first token, and the chunk."""
        queue = self.queue(users, outside)
        arrivals = Arrivals(queue.rate, queue.users, self.prompt, self.squared)
        others = self.others(users, outside)
        step, share, tokens = self._seen(queue, arrivals, others) if self._come(queue) <= 0 else self._together(queue, others)
        joined = replace(arrivals, rate=max(self._come(queue), queue.rate))
        return step, share, self.to_first(queue, joined, others), queue, tokens / share if share else 0.0

    def _seen(self, queue: Queue, arrivals: Arrivals, others: float) -> tuple[float, float, float]:
        """Of a step with an own decode: its seconds, the chance of prompts, and their mean tokens."""
        total = share = tokens = 0.0
        for number, one in thin([(float(number), chance) for number, chance in arrivals.chances()]):
            for old, two in queue.left:
                found, chance = number * self.prompt + old, one * two
                decodes = 1 + max(others - found / self.prompt, 0.0) * bool(self.steps)
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

    def to_first(self, queue: Queue, arrivals: Arrivals, others: float) -> Weighted:
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
                        (self.until(before + size, size, behind, room, decodes, queue.rate * self.prompt * (queue.left[-1][0] > 0)), chance)
                        for size in self.sizes
                    ]
        return found

    def others(self, users: float, outside: bool) -> float:
        """Sequences that one of ``users`` meets: all but itself; from outside as many as there are, less its slot."""
        return users * (1 - 1 / self.slots) if outside else max(users - 1, 0.0)
