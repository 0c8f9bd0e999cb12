"""Prompts first at a rate: what requests from outside wait for, and get. The theory is that of ``bursts``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log
from typing import TYPE_CHECKING

from perfmodel.serving.backlog import Arrivals
from perfmodel.serving.bursts import Bursts, ladder
from perfmodel.serving.one_slot import tail

if TYPE_CHECKING:
    from perfmodel.serving.steady import Loop, Steady, Weighted

POINTS = 5
FULL = 0.02
"""Chance that all slots are taken from which on the step follows from their number (Little 1961)."""


@dataclass
class PromptsFirst:
    """The engine of ``loop`` with so many new requests a second, of ``most`` that it can serve."""

    loop: Loop
    rate: float
    most: float

    @cached_property
    def bursts(self) -> Bursts:
        """Of prompts."""
        return Bursts(self.loop, self.rate)

    @cached_property
    def rest(self) -> tuple[float, float]:
        """Seconds of the own batch, and of those after the own prompt before the next decode step, if slots do not end the burst."""
        bursts = self.bursts
        seen = bursts.seen(self.start(self.loop.seconds(0, 1)))
        own = found = total = so_far = 0.0
        for place, (number, seconds) in enumerate(zip(bursts.sizes, bursts.means, strict=True)):
            so_far += seconds
            one_step = number == 1 or number * self.loop.prompt <= self.loop.batching.token_budget
            behind = 0.0 if one_step else seconds - so_far / (place + 1)
            found += seen[place] * number * (behind + bursts.burst(seconds))
            own, total = own + seen[place] * number * seconds, total + seen[place] * number
        return (own / total, found / total) if total else (bursts.means[0], 0.0)

    @property
    def room(self) -> float:
        """Tokens of prompts in a step."""
        return self.loop.room(0)

    def start(self, seconds: float) -> list[float]:
        """Chance of each batch to come first after a decode step."""
        found = [0.0] * len(self.bursts.sizes)
        for place, chance in self.bursts.after(seconds):
            found[place] += chance
        return found

    def ended(self, before: float, burst: float, free: float) -> float:
        """Seconds of a ``burst`` of those that come from ``before`` it on, where it ends by itself or with so many."""
        whole = before + burst
        number = self.rate * whole
        return max(whole * (1 - exp(-free / number)) - before, 0.0) if number > 0 else burst

    def step(self, number: float) -> tuple[float, float, float]:
        """Seconds with so many sequences: of a decode step, of the burst after it, and of what is left of one after a first token."""
        loop, (own, rest) = self.loop, self.rest
        decode = loop.seconds(0, number)
        free = max((loop.slots - number + (number - 1) * loop.decoded / loop.steps) / loop.decoded, 1e-9)
        burst = self.bursts.burst(decode)
        short = max((loop.slots - number + (number - 1) * loop.decoded / loop.steps / 2) / loop.decoded, 1e-9)
        return decode, self.ended(decode, burst, free), self.ended(own, rest, short)

    @cached_property
    def steps(self) -> list[tuple[float, float, float]]:
        """The same of 1 up to all slots, straight lines between some."""
        nodes = ladder(self.loop.slots)
        known = [self.step(number) for number in nodes]
        found = [known[0]]
        for (low, one), (high, two) in zip(zip(nodes, known, strict=True), list(zip(nodes, known, strict=True))[1:], strict=False):
            for number in range(low + 1, high + 1):
                share = (number - low) / (high - low)
                found.append(tuple(a + share * (b - a) for a, b in zip(one, two, strict=True)))  # type: ignore[arg-type]
        return found

    @cached_property
    def numbers(self) -> list[float]:
        """Chance of each number of running requests, from none; the last has those that wait, too."""
        loop = self.loop
        own = self.bursts.means[0]
        logs = [0.0]
        for number, (decode, burst, rest) in enumerate(self.steps, 1):
            work = own + loop.steps * (decode + burst) + loop.decoded * (rest - burst)
            logs.append(logs[-1] + log(self.rate * work / number))
        top = max(logs)
        found = [exp(one - top) for one in logs]
        busy = min(self.rate / self.most, 0.999)
        found[-1] /= 1 - busy
        total = sum(found)
        return [one / total for one in found]

    def answer(self) -> Steady:
        """The figures."""
        loop, numbers = self.loop, self.numbers
        stays = [
            (chance / sum(found[:2]), number, found) for number, (chance, found) in enumerate(zip(numbers[1:], self.steps, strict=True), 1)
        ]
        often = sum(weight for weight, _, _ in stays)
        met = sum(weight * number for weight, number, _ in stays)
        decode, burst, rest = (sum(weight * number * found[k] for weight, number, found in stays) / met for k in range(3))
        plain, some = (sum(weight * found[k] for weight, _, found in stays) / often for k in range(2))
        found = self.for_a_slot(self.first(plain, some, numbers[0]), plain)
        users = sum(number * chance for number, chance in enumerate(numbers))
        step = decode + burst
        if numbers[-1] > FULL:
            step = min(step, (users / self.rate - self.rest[0] - loop.decoded * (rest - burst)) / loop.steps)
        share = 1 - exp(-self.rate * decode)
        chunk = self.rate * step * loop.prompt / share if share else 0.0
        return loop.result(users, 0.0, self.rate, step, share, chunk, found, loop.overhead.request_s, rest - burst)

    def for_a_slot(self, found: Weighted, plain: float) -> Weighted:
        """With the wait for a slot."""
        loop, (own, _) = self.loop, self.rest
        ends = loop.slots / loop.steps
        ended = sum(chance * exp(-free / (self.rate * whole)) for chance, free, whole in self.bounds)
        late = min(self.rate * own / ends * ended, 4 * self.numbers[-1], 1.0)
        varies = ((1 - loop.spread) / (1 + loop.spread)) ** 2 / 3
        full, wait = self.numbers[-1], (1 + varies) / 2 / (self.most - self.rate) * loop.steps * plain / (own + loop.steps * plain)
        if late * plain + late / 2 * (own + plain) > full * wait:
            return [(a + b, one * two) for a, one in found for b, two in ((0.0, 1 - late), (plain, late / 2), (own + 2 * plain, late / 2))]
        return [(a + b, one * two) for a, one in found for b, two in tail(wait, full)]

    @cached_property
    def bounds(self) -> list[tuple[float, float, float]]:
        """Chance of each number that runs, the slots that it leaves free, and the seconds from a decode step to the next."""
        loop = self.loop
        found = []
        for number, chance in enumerate(self.numbers):
            if number and chance > 1e-6:
                free = max((loop.slots - number + (number - 1) * loop.decoded / loop.steps) / loop.decoded, 1e-9)
                decode = self.steps[number - 1][0]
                found.append((chance, free, decode + self.bursts.burst(decode)))
        return found

    def first(self, plain: float, burst: float, idle: float) -> Weighted:
        """Seconds from sending to the first token, but for a slot."""
        from perfmodel.serving.steady import thin

        bursts, loop = self.bursts, self.loop
        alone, after = bursts.seen([float(number == 1) for number in bursts.sizes]), bursts.seen(self.start(plain))
        of_alone, of_after = (sum(n * often for n, often in zip(bursts.sizes, seen, strict=True)) for seen in (alone, after))
        cut = burst / max(bursts.burst(plain), burst, 1e-12)
        often = max(self.rate * (1 - idle * of_alone), 0.0) / (cut * of_after) if of_after else 0.0
        found: Weighted = [(loop.until(size, size, 0.0, self.room, 0.0), idle / POINTS) for size in loop.five()]
        lengths = [(plain, often * plain)]
        for place, ways in enumerate(bursts.batches):
            seen = idle * self.rate * alone[place] + cut * often * after[place]
            lengths += [(seconds, seen * seconds / len(ways)) for seconds in ways]
        total = sum(chance for _, chance in lengths)
        lengths = [lengths[0], *thin(sorted(one for one in lengths[1:] if one[1] > 1e-6 * total), 8)]
        for length, weight in lengths:
            chance = (1 - idle) * weight / total
            for number, one in thin([(float(number), each) for number, each in Arrivals(self.rate * length, inf, 1.0).chances()], POINTS):
                for point in range(POINTS):
                    part, size = (point + 0.5) / POINTS, loop.five()[2 * point % POINTS]
                    took = loop.until(size + number * part * loop.prompt, size, number * (1 - part) * loop.prompt, self.room, 0.0)
                    found.append(((1 - part) * length + took, chance * one / POINTS))
        return found
