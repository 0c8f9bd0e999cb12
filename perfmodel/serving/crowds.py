"""Prompts first in a closed loop whose requests come late: they come in crowds.

A user's next request comes D seconds after the last has ended (``request_s``), some decode steps of s seconds on. While prompts run no
sequence ends, but the requests of those that ended before come, and their prompts run too. So the share x of decoding follows the one of D
seconds before, x(t) = 1 - a x(t - D), with a the seconds of prompts that a second of decoding brings: from a = 1 on the loop swings
between decoding alone and prompts alone. One cycle, with m prompts per decode step on average:

* it decodes until prompts have come in a step, N of them, drawn as those of any step given that N > 0;
* while a batch of b seconds runs, m x b / s more come and run next, until all that ended in those D seconds are here, or none has come;
  where steps are scheduled ahead, a decode step lies between two batches;
* n prompts of a cycle are those of n / m decode steps.

x is 1 where the loop has decoded for D seconds before, else its mean over the cycle. The engine looks for requests at every step, and
every request decodes; where it does not, ``steady`` has the same requests come one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from perfmodel.serving.backlog import Arrivals
from perfmodel.serving.mixed import Mixed
from perfmodel.serving.weighted import Weighted, mean, thin

ROUNDS = 4
"""In which the cycle repeats itself."""
PARTS, VALUES = (1 / 6, 1 / 2, 5 / 6), 5
"""That stand for the moments in which prompts come, as shares of the time in which they do, and for the seconds of a batch's prompts."""
NEGLIGIBLE, RARE = 1e-3, 0.01
"""Share of a decode step's prompts that are not followed, and the chance of a batch that is not."""
MOST_BATCHES = 64
"""Of a burst."""


@dataclass(frozen=True, slots=True)
class Batch:
    """That follows another: its chance and mean prompts, which come in the last ``came`` seconds before ``since`` have passed."""

    chance: float
    prompts: float
    since: float
    came: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """``rate``: prompts per decode step of ``decode`` seconds, after which a user's next request comes ``late`` such steps on.

    ``alone`` prompts begin a cycle, in ``first_s`` seconds; ``none``: chance of a decode step without one. ``more`` follow in
    ``batches``, in ``more_s``.
    """

    rate: float
    decode: float
    late: float
    none: float
    alone: float
    first_s: float
    batches: tuple[Batch, ...]
    more: float
    more_s: float

    @property
    def steps(self) -> float:
        """Decode steps."""
        return (self.alone + self.more) / self.rate

    @property
    def burst(self) -> float:
        """Seconds of prompts."""
        return self.first_s + self.more_s

    @property
    def gaps(self) -> float:
        """Batches after the first."""
        return sum(one.chance for one in self.batches)


def cycle_of(loop: Mixed, users: float) -> Cycle:
    """The cycle of ``users``, at least two, all of whom hold a slot."""
    others, decode, ahead, delay = loop.others(users, False), loop.seconds(0, users), loop.batching.ahead, loop.overhead.request_s
    late, spent, share = loop.steps_late(decode) + ahead, 0.0, 1.0
    for _ in range(ROUNDS):
        rate = others / (loop.steps + spent)
        chances = _arrivals(loop, others, rate).chances()
        none = sum(chance for number, chance in chances if not number)
        none = min(none, 1 - min(rate, 0.5))  # of a rate that is too small for a chance, one prompt
        sizes = thin([(float(number), chance / (1 - none)) for number, chance in chances if number]) or [(1.0, 1.0)]
        first_s = mean([(_seconds(loop, number), chance) for number, chance in sizes])
        batches, more, more_s = _batches(loop, rate, decode, late, first_s, share)
        found = Cycle(rate, decode, late, none, rate / (1 - none), first_s, batches, more, more_s)
        decoding = found.steps * decode
        if decoding - ahead * found.gaps * decode < delay:
            share = decoding / (decoding + found.burst)
        spent = late * (found.alone + more / 2) / (found.alone + more)
    return found


def _batches(loop: Mixed, rate: float, decode: float, late: float, before: float, share: float) -> tuple[tuple[Batch, ...], float, float]:
    """Batches after one of ``before`` seconds, their prompts and their seconds; ``share``: of decoding, when those that come ended."""
    found, left, chance, more, more_s = list[Batch](), rate * late, 1.0, 0.0, 0.0
    while left > NEGLIGIBLE * rate and chance > RARE and len(found) < MOST_BATCHES:
        since = before + loop.batching.ahead * decode
        prompts = min(left, share * rate * since / decode)
        found.append(Batch(chance, prompts, since, prompts * decode / (share * rate)))
        some = 1 - exp(-prompts)
        before = _seconds(loop, prompts / some)
        more, more_s = more + chance * prompts, more_s + chance * some * before
        left, chance = left - prompts, chance * some
    return tuple(found), more, more_s


def crowded(loop: Mixed, users: float) -> tuple[float, float, Weighted, float, float, float]:
    """Seconds between decode steps, the share of these with prompts, times to the first token from when a prompt could run, prompts per
    decode step, the seconds by which those after the first token differ from as many mean steps, and those that requests which come in
    a burst need not wait for a decode step."""
    others, cycle = loop.others(users, False), cycle_of(loop, users)
    arrivals, all_of = _arrivals(loop, others, cycle.rate), cycle.alone + cycle.more
    begun, behind = cycle.alone / all_of, cycle.more / all_of
    own = _first(loop, arrivals)
    found = [(value, chance * begun) for value, chance in own]
    saved = behind * (cycle.late * cycle.decode - loop.overhead.request_s)
    for batch in cycle.batches:
        weight = batch.chance * batch.prompts / all_of / len(PARTS)
        times = _first(loop, _arrivals(loop, max(others - cycle.alone, batch.prompts), batch.prompts))
        for value, chance in thin(sorted(times), VALUES):
            found += [(value + batch.since - part * batch.came, weight * chance) for part in PARTS]
    with_own = mean([(_seconds(loop, number + 1), chance) for number, chance in thin([(float(n), c) for n, c in arrivals.chances()])])
    rest = begun * (with_own - mean(own) + cycle.more_s) + behind * cycle.more_s / 2
    # a burst stands behind the first token; those after it are a renewal process (Cox 1962) of cycles that vary with their first part
    varies = cycle.none / (1 - cycle.none) ** 2 / cycle.steps**2
    later = cycle.burst * ((varies - 1) / 2 - 1 / (2 * cycle.steps))
    share = min((1 + loop.batching.ahead * cycle.gaps) / cycle.steps, 1.0)
    return cycle.decode + cycle.burst / cycle.steps, share, found, cycle.rate, rest + later, saved


def _arrivals(loop: Mixed, users: float, rate: float) -> Arrivals:
    return Arrivals(rate, users, loop.prompt, loop.squared)


def _first(loop: Mixed, arrivals: Arrivals) -> Weighted:
    return loop.to_first(loop.alone(arrivals.rate, arrivals.users), arrivals, arrivals.users)


def _seconds(loop: Mixed, prompts: float) -> float:
    return loop.burst(prompts * loop.prompt, loop.room(0))
