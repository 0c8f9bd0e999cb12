"""The steady state against the simulation on random loads; docs/serving.md says on how many they agree.

200 with any batching, and 200 with the batching and the seconds of the shipped engines.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from perfmodel.catalog import engine_names, find_engine
from perfmodel.serving.engine import Batching, Overhead
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.seen import Simulated
from perfmodel.serving.simulate import simulate
from perfmodel.serving.steady import Steady, steady

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
LOADS, CLOSE = 200, 0.05
STEPS = 20_000
"""Decode steps of a simulation, about."""
OUTSIDE = 5000
"""Requests of one at a rate: their number alone varies by its root."""


@dataclass(frozen=True)
class Steps:
    """Seconds: a start, the longer of weights and tokens, the cache that is read, and the square of prompts."""

    start: float
    floor: float
    token: float
    cached: float
    square: float

    def seconds(self, step: Iteration) -> float:
        tokens = step.chunk + step.decodes * step.queries
        work = (
            max(self.floor, self.token * tokens) + self.cached * step.decodes * step.context + self.square * step.chunk * step.chunk_context
        )
        return self.start + work if tokens else 0.0


def _log_uniform(draw: random.Random, low: int, high: int) -> int:
    return round(low * (high / low) ** draw.random())


def _steps(draw: random.Random) -> Steps:
    token = 10 ** draw.uniform(-5.5, -4)
    return Steps(
        draw.uniform(1e-3, 5e-3), draw.uniform(2e-3, 2e-2), token, 10 ** draw.uniform(-9, -7.5), token * 10 ** draw.uniform(-6, -4.5)
    )


Drawn = tuple[Steps, Load, Batching, Overhead, int, float]


def drawn(seed: int) -> Drawn:
    """Steps, load, batching, overhead, slots and spread."""
    draw = random.Random(seed)
    isl, osl, users = _log_uniform(draw, 1, 32_000), _log_uniform(draw, 1, 4000), _log_uniform(draw, 1, 512)
    times = _steps(draw)
    batching = Batching(draw.choice([512, 2048, 8192, 16384]), mixed=draw.random() < 0.6, chunked=draw.random() < 0.85)
    drafts, accepted = (draw.choice([1, 2, 3, 4]), draw.uniform(0.3, 0.9)) if draw.random() < 0.25 else (0, 0.0)
    prefix = draw.randrange(isl) if draw.random() < 0.2 else 0
    slots = max(1, round(users * draw.uniform(0.3, 1))) if draw.random() < 0.25 else 1024
    overhead, spread = Overhead(request_s=draw.choice([0, 0, 0, draw.uniform(0, 0.05)])), draw.choice([0.3, 0.5, 0.8])
    load = Load(isl, osl, users, None, prefix, drafts, accepted)
    if draw.random() < 0.25:
        most = steady(times, load.of(min(slots, 512)), batching, overhead, slots, spread).requests_per_s
        load = Load(isl, osl, None, most * draw.uniform(0.2, 0.8), prefix, drafts, accepted)
    return times, load, batching, overhead, slots, spread


def of_engines(seed: int) -> Drawn:
    """The same for a shipped engine, and users of requests whose lengths vary."""
    draw = random.Random(seed)
    engine = find_engine(draw.choice(engine_names()))
    load = Load(_log_uniform(draw, 64, 16_000), _log_uniform(draw, 32, 2000), _log_uniform(draw, 1, 512))
    times = _steps(draw)
    return times, load, engine.batching, engine.overhead, 1024, draw.choice([0.3, 0.5, 0.8])


def both(asked: Drawn, seed: int) -> tuple[Steady, Simulated]:
    """The steady state of a load, and its simulation."""
    times, load, batching, overhead, slots, spread = asked
    running = min(load.concurrency or 64, slots)
    requests = int(min(max(STEPS * running / load.osl, 4 * running, 40), 2000)) if load.rate is None else OUTSIDE
    found = steady(times, load, batching, overhead, slots, spread)
    return found, simulate(times, load, batching, overhead, slots, requests=requests, spread=spread, seed=seed + 1)


def of(asked: Drawn, load: Load) -> Steady:
    """The steady state of another load on the same engine."""
    return steady(asked[0], load, *asked[2:])


def agreeing(seeds: range, draw: Callable[[int], Drawn] = drawn) -> tuple[int, ...]:
    """On how many loads time per token, tokens per second and time to the first token are within ``CLOSE`` of each other."""
    found = [0, 0, 0]
    for seed in seeds:
        one, other = both(draw(seed), seed)
        pairs = ((one.tpot_s, other.tpot_s), (one.tokens_per_s, other.tokens_per_s), (one.ttft_s, other.ttft_s))
        for place, (mean, seen) in enumerate(pairs):
            found[place] += (mean or 0.0) == pytest.approx(seen or 0.0, rel=CLOSE)
    return tuple(found)


def _told() -> list[tuple[int, ...]]:
    words = ("time per token", "tokens per second", "first token")
    pattern = ", ".join(rf"(\d+) in {word}" for word in words)
    found = re.findall(pattern, " ".join(PAGE.read_text().split()))
    return [tuple(map(int, counts)) for counts in found]


@pytest.mark.parametrize("seed", range(0, LOADS, 8))
def test_more_users_get_no_less(seed: int) -> None:
    """Where prompts are cut and more than one token is asked, but for 2 %: steps are whole, mean values are not."""
    asked = drawn(seed)
    load, batching = asked[1], asked[2]
    if load.osl > 1 and batching.chunked:
        served = [of(asked, load.of(users)).requests_per_s for users in (1, 4, 16, 64, 256)]
        assert all(more >= 0.98 * fewer for fewer, more in pairwise(served))


@pytest.mark.parametrize("seed", range(0, LOADS, 4))
def test_a_higher_rate_never_gives_an_earlier_first_token(seed: int) -> None:
    asked = drawn(seed)
    if asked[1].rate is not None:
        waits = [of(asked, replace(asked[1], rate=asked[1].rate * share)).ttft_s for share in (0.2, 0.6, 1)]
        assert all(later >= 0.998 * sooner for sooner, later in pairwise(waits))


def test_some_loads() -> None:
    few = range(0, LOADS, 20)
    assert all(count >= 0.8 * len(few) for count in agreeing(few))


@pytest.mark.slow
def test_all_loads() -> None:
    assert [agreeing(range(LOADS)), agreeing(range(LOADS), of_engines)] == _told()
