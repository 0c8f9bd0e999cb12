"""The simulation of an engine's scheduler: small loads as counted by hand, and the rules of each engine one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.core.errors import UsageError
from perfmodel.serving.engine import Batching
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import ServingMetrics
from perfmodel.serving.scheduler import Pool, Worker
from perfmodel.serving.simulate import FEWEST_RUNS, MANY_STEPS, MOST_RUNS, SIMULATED_REQUESTS, Simulation, simulate


@dataclass(frozen=True)
class Formula:
    """Seconds of a step: weights or tokens, whichever takes longer, and the context of each sequence."""

    floor: float = 5e-3
    token: float = 1e-5
    context: float = 2e-8

    def seconds(self, step: Iteration) -> float:
        tokens = step.chunk + step.decodes * step.queries
        return max(self.floor, self.token * tokens) + self.context * step.decodes * step.context if tokens else 0.0


class Second:
    """Each step takes a second, and is kept."""

    def __init__(self) -> None:
        self.steps: list[Iteration] = []

    def seconds(self, step: Iteration) -> float:
        self.steps.append(step)
        return 1.0


def at_once(load: Load, requests: int, slots: int = 1024, **batching: object) -> ServingMetrics:
    """A benchmark whose steps take a second each."""
    return simulate(Pool(Second(), Batching(**batching), slots), load, requests=requests)  # type: ignore[arg-type]


@pytest.mark.parametrize("mixed", [True, False])
def test_one_user_waits_for_nobody(mixed: bool) -> None:
    """The first token takes its prompt's step, each other one a decode step."""
    times, load = Formula(), Load(1024, 65, 1)
    found = simulate(Pool(times, Batching(mixed=mixed), 8), load)
    assert found.mean_ttft_s == pytest.approx(times.seconds(Iteration(chunk=1024)))
    assert found.mean_tpot_s == pytest.approx(times.seconds(Iteration(decodes=1, context=1024 + 33)), rel=1e-3)


def test_a_request_alone_takes_the_sum_of_its_steps() -> None:
    """Decode steps run together; each has one token more of context."""
    times = Formula(floor=1e-4, context=1e-6)
    took = times.seconds(Iteration(chunk=100)) + sum(times.seconds(Iteration(decodes=1, context=100 + done)) for done in range(1, 60))
    assert 1 / simulate(Pool(times, Batching(), 8), Load(100, 60, 1), requests=1).requests_per_s == pytest.approx(took)


def test_one_token_has_no_time_per_token_and_each_further_one_a_step() -> None:
    assert [at_once(Load(10, osl, 1), 1).mean_tpot_s for osl in (1, 2, 3, 9)] == [None, 1.0, 1.0, 1.0]
    assert simulate(Pool(Formula(), Batching(), 8), Load(4096, 1, 8)).mean_tpot_s is None


def test_requests_that_are_sent_once_end_as_counted_by_hand() -> None:
    """Two slots, and five steps each, the prompt's with them: two requests end together, the third runs alone."""
    found = at_once(Load(10, 5, 3), 3, slots=2)
    assert (found.requests_per_s * 10, found.output_tokens_per_s * 10) == pytest.approx((3, 15))
    assert found.mean_ttft_s == pytest.approx((1 + 1 + 6) / 3)


def test_prompts_join_decoding_sequences_or_stop_them() -> None:
    """Three prompts of which a step holds two: mixed, the third runs beside the decoding two; else before them."""
    load = Load(10, 3, 3)
    mixed, first = (at_once(load, 3, token_budget=22, mixed=mixed) for mixed in (True, False))
    assert mixed.mean_ttft_s == first.mean_ttft_s == pytest.approx((1 + 1 + 2) / 3)
    assert mixed.mean_tpot_s == pytest.approx(1.0)  # steps 2 and 3, and 3 and 4
    assert first.mean_tpot_s == pytest.approx((1.5 + 1.5 + 1) / 3)  # steps 3 and 4 for all


def test_long_prompts_are_cut_or_run_whole() -> None:
    """25 tokens in steps of 10: three chunks, or one step where the engine cuts none."""
    assert at_once(Load(25, 2, 1), 1, token_budget=10).mean_ttft_s == 3.0
    assert at_once(Load(25, 2, 1), 1, token_budget=10, chunked=False).mean_ttft_s == 1.0
    assert at_once(Load(25, 9, 2), 2, token_budget=10, chunked=False).mean_ttft_s == 1.5, "no step has room, so it runs beside the first"


@pytest.mark.parametrize("hold", range(5))
def test_a_prompt_is_held_for_so_many_steps(hold: int) -> None:
    """The second prompt has no room beside the first one, and would not fill the next step."""
    assert at_once(Load(10, 9, 2), 2, token_budget=19, chunked=False, hold_steps=hold).mean_ttft_s == (1 + 2 + hold) / 2


@pytest.mark.parametrize("prefix", range(26))
def test_cached_tokens_of_a_prompt_do_not_run(prefix: int) -> None:
    """One token runs at least: it gives the first one."""
    assert at_once(Load(25, 2, 1, prefix=prefix), 1, token_budget=1).mean_ttft_s == max(25 - prefix, 1)


def test_a_sequence_has_its_prompt_and_all_its_tokens_as_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "steps_until_change", lambda self: 1)
    times = Second()
    simulate(Pool(times, Batching(), 8), Load(10, 7, 1), requests=1)
    assert [step.context for step in times.steps if step.decodes][:6] == [11, 12, 13, 14, 15, 16]


def test_a_loop_begins_with_all_tokens_that_its_sequences_have() -> None:
    simulation = Simulation(Pool(Formula(), Batching(), 8), Load(64, 40, 8), 0.0, 0.5, 0)
    simulation.in_the_middle(8, 8)
    [worker] = simulation.workers
    assert worker.decoding
    assert worker.tokens == sum(request.isl + request.steps - end + worker.decode_steps for end, _, request in worker.decoding)


def test_drawn_lengths_are_all_from_the_shortest_to_the_longest_alike() -> None:
    """And delays lie between 0 and twice their mean."""
    for load in (Load(8, 6, 3), Load(8, 6, rate=3.0)):
        drawn = [one.drawn() for one in [Simulation(Pool(Formula(), Batching(), 4), load, 0.25, 0.5, 0)] for _ in range(6000)]
        delays, *lengths = zip(*drawn, strict=True)
        assert (sum(delays) / len(delays), max(delays)) == pytest.approx((0.25, 0.5), rel=0.03)
        for found, longest in zip(lengths, (8, 6), strict=True):
            counts = Counter(found)
            assert set(counts) == set(range(longest // 2, longest + 1))
            assert min(counts.values()) > 0.85 * max(counts.values())


@pytest.mark.parametrize("users", [8, 32, 60])
def test_requests_that_warm_up_and_those_that_count_are_as_many_as_are_to_be_simulated(users: int) -> None:
    """Twice the users warm up each run."""
    counted = simulate(Pool(Formula(), Batching(), 64), Load(64, 16, users)).requests
    runs = (SIMULATED_REQUESTS - counted) / (2 * users)
    assert runs == pytest.approx(round(runs), abs=MOST_RUNS / (2 * users))
    assert FEWEST_RUNS <= round(runs) <= MOST_RUNS


def test_a_step_that_is_scheduled_ahead_misses_what_comes_in_it() -> None:
    """The second user's next request comes as a step ends, so with a step scheduled already it waits for one more."""
    waits = [at_once(Load(10, 4, 2), 4, ahead=ahead, token_budget=11).mean_ttft_s for ahead in (False, True)]
    assert waits[0] + 0.25 <= waits[1] <= waits[0] + 1


@pytest.mark.parametrize("users", [4, 64])
@pytest.mark.parametrize("more", [{"ahead": True}, {"admit_every": 10, "mixed": False}, {"hold_steps": 20}])
def test_waits_for_the_scheduler_lengthen_the_first_token(more: dict[str, bool | int], users: int) -> None:
    """A step that is scheduled already, one in ten at which the engine looks, or one that others are to fill."""
    load, plain = Load(1024, 128, users), Batching(mixed=bool(more.get("mixed", True)))
    found, before = (simulate(Pool(Formula(), one, 1024), load, spread=0.8) for one in (replace(plain, **more), plain))  # type: ignore[arg-type]
    assert found.mean_ttft_s > before.mean_ttft_s + 0.4 * Formula().floor


@pytest.mark.parametrize("batching", [Batching(ahead=True), Batching(mixed=False, admit_every=7), Batching(hold_steps=5)])
@pytest.mark.parametrize("load", [Load(700, 90, 12), Load(700, 90, rate=6.0), Load(900, 60, 9, draft_tokens=2, acceptance=0.5)])
def test_alike_steps_together_take_what_they_take_one_by_one(batching: Batching, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    together = simulate(Pool(Formula(), batching, 6), load, 0.01, spread=0.5)
    monkeypatch.setattr(Worker, "steps_until_change", lambda self: 1)
    one_by_one = simulate(Pool(Formula(), batching, 6), load, 0.01, spread=0.5)
    for name in ("mean_ttft_s", "mean_tpot_s", "mean_itl_s", "running", "waiting", "requests_per_s", "decoding"):
        assert getattr(together, name) == pytest.approx(getattr(one_by_one, name), rel=0.03, abs=1e-3), name


@given(first=st.floats(0.01, 1), growth=st.floats(0, 0.1), count=st.integers(2, 60), share=st.floats(0.01, 0.99))
def test_who_comes_in_between_waits_for_the_end_of_the_step_under_way(first: float, growth: float, count: int, share: float) -> None:
    """Of steps that grow: the first that ends at that moment or after it."""
    worker = Worker(Pool(Formula(), Batching(), 8), Load(8, 8, 1))
    worker.first_step_s, worker.growth_s, worker.count = first, growth, count
    now = share * worker.elapsed(count)
    end = worker.cut(now)
    assert end == worker.elapsed(worker.count)
    assert worker.elapsed(worker.count - 1) - 1e-9 <= now <= end + 1e-9


def test_chances_of_drafts_are_those_of_drawing_each() -> None:
    """Steps drawn at once for many tokens have the mean and the variance of those drawn one by one."""
    load = Load(8, 8, 1, draft_tokens=3, acceptance=0.7)
    assert load.tokens_variance == pytest.approx(_variance(load))
    one = Simulation(Pool(Formula(), Batching(), 4), load, 0.0, 1.0, 0)
    few, many = ([one.steps_for(tokens) for _ in range(2000)] for tokens in (64, 640))
    assert sum(many) / sum(few) == pytest.approx(10, rel=0.02)
    drawn = [one.steps_for(MANY_STEPS * load.queries + 1) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(_mean_steps(load, MANY_STEPS * load.queries + 1), abs=0.08)


def _chances(load: Load) -> list[float]:
    """Of 0, 1 and more accepted drafts of a step."""
    a, most = load.acceptance, load.draft_tokens
    return [a**k * (1 - a if k < most else 1) for k in range(most + 1)]


def _mean_steps(load: Load, tokens: int) -> float:
    """By the renewal equation: a step, and those for the tokens that it leaves."""
    steps = [0.0]
    for left in range(1, tokens + 1):
        steps.append(1 + sum(chance * steps[max(left - 1 - k, 0)] for k, chance in enumerate(_chances(load))))
    return steps[tokens]


def _variance(load: Load) -> float:
    """Of the tokens of a step, from the chance of each number."""
    chances = _chances(load)
    mean = sum(chance * (k + 1) for k, chance in enumerate(chances))
    return sum(chance * (k + 1 - mean) ** 2 for k, chance in enumerate(chances))


def test_users_beyond_all_counts_wait_for_a_slot() -> None:
    """Each request waits for all of them: those that are simulated and those that stand behind."""
    few, many = (simulate(Pool(Formula(), Batching(), 16), Load(64, 16, users)) for users in (1000, 1_000_000))
    assert many.waiting == pytest.approx(1e6 - 16)
    assert many.output_tokens_per_s == pytest.approx(few.output_tokens_per_s)
    assert many.mean_ttft_s - few.mean_ttft_s == pytest.approx(999_000 / few.requests_per_s)


def test_too_high_a_rate_says_the_highest() -> None:
    with pytest.raises(UsageError, match="is the most that this serves"):
        simulate(Pool(Formula(), Batching(), 64), Load(4096, 64, rate=1e4))


def test_a_benchmark_counts_its_start_and_its_end_in_every_figure() -> None:
    """All users at once: later first tokens, and at the end fewer tokens a second; of many requests both count little."""
    pool, load = Pool(Formula(), Batching(), 64), Load(4096, 64, 32)
    loop, short, long = (simulate(pool, load, requests=count, spread=0.5) for count in (None, 32, 3200))
    assert loop.mean_ttft_s < long.mean_ttft_s < short.mean_ttft_s
    assert loop.output_tokens_per_s == pytest.approx(long.output_tokens_per_s, rel=0.01)
    assert long.output_tokens_per_s > 1.1 * short.output_tokens_per_s
    assert long.mean_tpot_s == pytest.approx(loop.mean_tpot_s, rel=0.05)
    assert (short.requests, long.requests) == (8 * 32, 3200)


def test_pools_run_prompts_on_workers_of_their_own() -> None:
    """Prompt, transfer and the first decode step are before the first token; no prompt is between two others."""
    pool = Pool(Second(), Batching(mixed=False), 8)
    found = simulate(pool, Load(10, 6, 1), requests=1, prefill=pool, transfer_s=0.5)
    assert found.mean_ttft_s == pytest.approx(1 + 0.5 + 1)
    assert found.with_prompts == 0
    assert found.requests_per_s == pytest.approx(1 / (1 + 0.5 + 5))
