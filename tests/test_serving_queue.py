"""The loop of a serving engine: what its steady state says, a simulation of the scheduler does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from perfmodel.core.errors import UsageError
from perfmodel.serving.engine import Batching, Overhead
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.simulate import Scheduler, simulate
from perfmodel.serving.steady import steady


@dataclass(frozen=True)
class Formula:
    """Seconds of a step: weights or tokens, whichever takes longer, and the context of each sequence."""

    floor: float = 5e-3
    token: float = 1e-5
    context: float = 2e-8

    def seconds(self, step: Iteration) -> float:
        tokens = step.chunk + step.decodes * step.queries
        return max(self.floor, self.token * tokens) + self.context * step.decodes * step.context if tokens else 0.0


def test_one_user_waits_for_nobody() -> None:
    """The first token takes its prompt's step, each other one a decode step."""
    times, load = Formula(), Load(1024, 65, 1)
    for batching in (Batching(), Batching(mixed=False)):
        found = steady(times, load, batching, Overhead(), 8)
        assert found.ttft_s == pytest.approx(times.seconds(Iteration(chunk=1024)))
        assert found.tpot_s == pytest.approx(times.seconds(Iteration(decodes=1, context=1024 + 33)), rel=1e-3)


def test_one_token_has_no_time_per_token() -> None:
    assert steady(Formula(), Load(4096, 1, 8), Batching(), Overhead(), 8).tpot_s is None
    assert simulate(Formula(), Load(4096, 1, 8), Batching(), Overhead(), 8, requests=50).tpot_s is None


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("draft", [{}, {"draft_tokens": 3, "acceptance": 0.7}])
@pytest.mark.parametrize("users", [2, 16, 48])
def test_steady_state_is_that_of_the_simulation(mixed: bool, draft: dict[str, float], users: int) -> None:
    load, batching = Load(512, 64, users, **draft), Batching(mixed=mixed)  # type: ignore[arg-type]
    found = steady(Formula(), load, batching, Overhead(), 1024, 0.5)
    seen = simulate(Formula(), load, batching, Overhead(), 1024, spread=0.5, requests=600)
    assert found.tpot_s == pytest.approx(seen.tpot_s, rel=0.05)
    assert found.requests_per_s == pytest.approx(seen.requests_per_s, rel=0.05)


@pytest.mark.parametrize("users", [4, 64])
@pytest.mark.parametrize(
    "batching",
    [Batching(ahead=True), Batching(mixed=False, ahead=True), Batching(mixed=False, admit_every=10), Batching(hold_steps=20, ahead=True)],
)
def test_waits_for_the_scheduler_are_those_of_the_simulation(batching: Batching, users: int) -> None:
    """A step that is scheduled already, one in ten at which the engine looks, or one that others are to fill."""
    load = Load(1024, 128, users)
    found = steady(Formula(), load, batching, Overhead(), 1024, 0.8)
    seen = simulate(Formula(), load, batching, Overhead(), 1024, spread=0.8, requests=2000)
    assert found.ttft_s == pytest.approx(seen.ttft_s, rel=0.1)
    plain = steady(Formula(), load, replace(batching, ahead=False, admit_every=1, hold_steps=0), Overhead(), 1024, 0.8)
    assert found.ttft_s > plain.ttft_s + 0.9 * Formula().floor
    assert found.tpot_s == pytest.approx(seen.tpot_s, rel=0.05)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("users", [8, 64, 256])
@pytest.mark.parametrize("isl", [500, 8000])
def test_requests_that_come_late_come_in_crowds(isl: int, users: int, ahead: bool) -> None:
    """Prompts first: while those of a crowd run none ends, and all that ended before come too."""
    batching, overhead = Batching(mixed=False, ahead=ahead), Overhead(request_s=0.1)
    load = Load(isl, 200, users)
    one = steady(Formula(), load, batching, overhead, 1024, 0.5)
    seen = simulate(Formula(), load, batching, overhead, 1024, requests=20 * users, spread=0.5)
    assert (one.tpot_s, one.tokens_per_s) == pytest.approx((seen.tpot_s, seen.tokens_per_s), rel=0.06)
    assert one.ttft_s == pytest.approx(seen.ttft_s, rel=0.2)


@pytest.mark.parametrize("request_s", [1e-9, 1.0, 3600.0])
def test_a_closed_loop_with_any_delay(request_s: float) -> None:
    """Prompts first: no request gets its first token sooner than the delay and its prompt, and more users get no less."""
    found = [
        steady(Formula(), Load(500, 50, users), Batching(mixed=False), Overhead(request_s=request_s), 1024, 0.5) for users in (1, 2, 9, 900)
    ]
    least = request_s + Formula().seconds(Iteration(chunk=250, chunk_context=250))
    assert all(one.ttft_s >= least * (1 - 1e-9) and one.prompt_s > 0 and one.waiting == 0 for one in found)
    assert all(more.requests_per_s > fewer.requests_per_s for fewer, more in pairwise(found))


def test_a_rate_waits_for_the_scheduled_step_too() -> None:
    load = Load(1024, 128, rate=4.0)
    found = steady(Formula(), load, Batching(ahead=True), Overhead(), 1024, 0.8)
    assert found.ttft_s == pytest.approx(simulate(Formula(), load, Batching(ahead=True), Overhead(), 1024, spread=0.8).ttft_s, rel=0.1)


@pytest.mark.parametrize("batching", [Batching(ahead=True), Batching(mixed=False, admit_every=7), Batching(hold_steps=5)])
@pytest.mark.parametrize("load", [Load(700, 90, 12), Load(700, 90, rate=6.0), Load(900, 60, 9, draft_tokens=2, acceptance=0.5)])
def test_alike_steps_together_take_what_they_take_one_by_one(batching: Batching, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    together = simulate(Formula(), load, batching, Overhead(request_s=0.01), 6, spread=0.5, requests=200)
    monkeypatch.setattr(Scheduler, "alike", lambda self, took: 1)
    one_by_one = simulate(Formula(), load, batching, Overhead(request_s=0.01), 6, spread=0.5, requests=200)
    for name in ("ttft_s", "tpot_s", "itl_p99_s", "running", "waiting", "requests_per_s", "step_s", "prefill_share", "utilisation"):
        assert getattr(together, name) == pytest.approx(getattr(one_by_one, name), rel=0.02), name


@pytest.mark.parametrize("mixed", [True, False])
def test_tokens_given_are_tokens_asked(mixed: bool) -> None:
    """And users under way are those there are (Little's law), never more of them in slots than the cache holds."""
    seen = simulate(
        Formula(), Load(900, 40, 24, draft_tokens=2, acceptance=0.5), Batching(mixed=mixed), Overhead(), 7, spread=0.5, requests=400
    )
    assert seen.given == seen.asked
    assert seen.most_running <= 7
    assert seen.running + seen.waiting == pytest.approx(24)


def test_too_high_a_rate_says_the_highest() -> None:
    with pytest.raises(UsageError, match="is the most that this serves"):
        steady(Formula(), Load(4096, 64, rate=1e4), Batching(), Overhead(), 64)
