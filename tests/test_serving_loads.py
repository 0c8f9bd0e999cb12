"""Laws of the simulation over random loads, within the error that it states."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from perfmodel.catalog import engine_names, find_engine
from perfmodel.core.errors import UsageError
from perfmodel.serving.engine import Batching
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import ServingMetrics
from perfmodel.serving.scheduler import Pool
from perfmodel.serving.simulate import simulate

FEW, MANY = 24, 10_000
NOISE = 4
"""Standard errors by which two means of a law may differ."""


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


@dataclass(frozen=True)
class Drawn:
    """A load on an engine with formulas for times."""

    pool: Pool
    load: Load
    request_s: float
    spread: float

    def of(self, load: Load) -> ServingMetrics:
        return simulate(self.pool, load, self.request_s, spread=self.spread)


def _log_uniform(draw: random.Random, low: int, high: int) -> int:
    return round(low * (high / low) ** draw.random())


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    token = 10 ** draw.uniform(-5.5, -4)
    steps = Steps(
        draw.uniform(1e-3, 5e-3), draw.uniform(2e-3, 2e-2), token, 10 ** draw.uniform(-9, -7.5), token * 10 ** draw.uniform(-6, -4.5)
    )
    isl, osl, users = _log_uniform(draw, 1, 32_000), _log_uniform(draw, 1, 4000), _log_uniform(draw, 1, 512)
    batching = find_engine(draw.choice(engine_names())).batching
    if draw.random() < 0.5:
        batching = Batching(draw.choice([512, 2048, 16384]), mixed=draw.random() < 0.6, chunked=draw.random() < 0.85)
    drafts, accepted = (draw.choice([1, 2, 3, 4]), draw.uniform(0.3, 0.9)) if draw.random() < 0.25 else (0, 0.0)
    prefix = draw.randrange(isl) if draw.random() < 0.2 else 0
    slots = max(1, round(users * draw.uniform(0.3, 1))) if draw.random() < 0.25 else 1024
    load = Load(isl, osl, users, None, prefix, drafts, accepted)
    return Drawn(Pool(steps, batching, slots), load, draw.choice([0.0, draw.uniform(0, 0.1)]), draw.choice([0.3, 0.5, 0.8, 1.0]))


def users_are_somewhere(asked: Drawn) -> None:
    """Little's law and conservation: all users run or wait, no more than the slots run, and tokens are those of the requests."""
    found, load = asked.of(asked.load), asked.load
    users = load.concurrency or 0
    assert found.running + found.waiting == pytest.approx(users)
    assert found.running <= asked.pool.slots * (1 + 1e-6)
    low = max(int(load.osl * asked.spread), 1)
    assert low * found.requests_per_s * (1 - 1e-9) <= found.output_tokens_per_s <= load.osl * found.requests_per_s * (1 + 1e-9)
    if found.mean_tpot_s is not None and load.osl > 1 and asked.spread == 1:
        stay = found.mean_ttft_s + (load.osl - 1) * found.mean_tpot_s
        assert found.requests_per_s * stay == pytest.approx(users, rel=1e-6)


def more_users_get_no_less(asked: Drawn) -> None:
    """More users, no fewer tokens a second and no earlier first token; but for prompts that are not cut, of which two may not fit."""
    if not asked.pool.batching.chunked or asked.load.osl == 1:
        return
    found = [asked.of(asked.load.with_users(users)) for users in (1, 4, 16, 64)]
    for fewer, more in pairwise(found):
        error = NOISE * (fewer.tpot_error + more.tpot_error) + 0.02
        assert more.output_tokens_per_s >= (1 - error) * fewer.output_tokens_per_s
        error = NOISE * (fewer.ttft_error + more.ttft_error) + 0.02
        assert more.mean_ttft_s >= (1 - error) * fewer.mean_ttft_s


def a_rate_is_delivered(asked: Drawn) -> None:
    """A rate that can be served is, and a higher one gives no earlier first token."""
    most = asked.of(asked.load.with_users(min(asked.pool.slots, 512))).requests_per_s
    found = []
    for share in (0.2, 0.6):
        try:
            found.append(asked.of(replace(asked.load, concurrency=None, rate=share * most)))
        except UsageError:
            return
        assert found[-1].requests_per_s == share * most
    slower, faster = found
    assert faster.mean_ttft_s >= (1 - NOISE * (slower.ttft_error + faster.ttft_error) - 0.02) * slower.mean_ttft_s


LAWS = (users_are_somewhere, more_users_get_no_less, a_rate_is_delivered)


@pytest.mark.parametrize("seed", [247, 358])
def test_loads_that_broke_a_law_once(seed: int) -> None:
    for law in LAWS:
        law(drawn(seed))


@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)])
def test_laws(seeds: range) -> None:
    for seed in seeds:
        LAWS[seed % len(LAWS)](drawn(seed))


@pytest.mark.parametrize("seed", range(8))
def test_stated_errors_are_those_of_other_seeds(seed: int) -> None:
    """The mean of one load under longer runs is within the stated errors of the short ones."""
    asked = drawn(seed)
    assert asked.of(asked.load).tpot_error < 0.02
    assert asked.of(asked.load).ttft_error < 0.1
