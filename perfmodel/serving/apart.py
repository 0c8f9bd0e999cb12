"""Users of given pools: ``x`` workers that run prompts alone, ``y`` that only decode, in steady state.

A closed loop of N users over three stations: the prefill workers' queue, the cache on its way, and the decode workers with n sequences
in all, at most their slots. Each n gives a rate, n / (steps of an answer x time of a step with n / y sequences), the rate gives the wait
before prefill, and by Little's law (1961) n + rate x (wait + prompt + transfer) users are under way; n is the one for which these are N.
Users beyond the slots wait for one. The first token goes out with the decode worker's first step, so all that is before counts as time to
it (ai-dynamo/dynamo, docs, "Disaggregated Serving": the decode worker streams the answer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfmodel.core.errors import UsageError
from perfmodel.core.power import PowerAsked
from perfmodel.serving.answer import ServingAnswer, mean_watts
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.memory import Memory
from perfmodel.serving.mixed import HALVINGS
from perfmodel.serving.pools import link
from perfmodel.serving.steady import Loop, Steady
from perfmodel.serving.steps import KernelTimes
from perfmodel.serving.steps import Times as Ends
from perfmodel.transformer.step_power import under_power

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.serving.engine import Engine
    from perfmodel.serving.question import ServeQuestion
    from perfmodel.transformer.spec import ModelSpec
    from perfmodel.transformer.step import ModelPass


@dataclass(frozen=True)
class Pools:
    """Steps of a ``prefill`` and of a ``decode`` worker, and how many there are of each."""

    prefill: KernelTimes
    decode: KernelTimes
    prefill_workers: int = 1
    workers: int = 1

    @property
    def gpus(self) -> int:
        """Of all workers."""
        return self.prefill_workers * self.prefill.like.split.gpus + self.workers * self.decode.like.split.gpus


@dataclass(frozen=True, slots=True)
class Prefill:
    """Of all prefill workers: seconds of one prompt alone, prompts a second at most, and what a request takes before."""

    prompt_s: float
    most_per_s: float
    request_s: float

    def first_s(self, rate: float) -> float:
        """Mean seconds until a prompt has run, at so many a second: M/D/1 at the rate of full steps (Pollaczek 1930)."""
        busy = rate / self.most_per_s
        return self.request_s + self.prompt_s * (1 + busy / 2) + busy / (2 * (1 - busy)) / self.most_per_s

    def crowd_s(self, users: int) -> float:
        """The same on average if so many come at once."""
        return self.request_s + self.prompt_s + (users - 1) / 2 / self.most_per_s


@dataclass(frozen=True)
class PooledAnswer(ServingAnswer):
    """``found``, ``memory`` and ``most_running`` are of one decode worker of ``pools``; figures per GPU and in all are of all GPUs."""

    pools: Pools = field(kw_only=True)

    @property
    def gpus(self) -> int:
        """Of both pools."""
        return self.pools.gpus

    @property
    def workers(self) -> int:
        """Workers that decode, each in the state of ``found``."""
        return self.pools.workers

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all users."""
        return self.pools.workers * self.found.tokens_per_s

    @property
    def requests_per_s(self) -> float:
        """Of all users."""
        return self.pools.workers * self.found.requests_per_s

    @property
    def bound(self) -> float:
        """No decode step is shorter than its bound."""
        most = max(int(min(-(-(self.load.concurrency or 1) // self.pools.workers), self.most_running)), 1)
        least = float(self.times.passed(replace(self.decode_step, decodes=most)).cost.lower_warm_s)
        steps = (self.load.osl - 1) / self.load.tokens_per_step
        return self.pools.workers * most / (steps * least) * self.load.osl

    @property
    def watts(self) -> float | None:
        """Of one GPU, on average over all of both pools; None where the device has no power model."""
        p, load = self.pools, self.load
        prefill, groups = p.prefill.like.split.gpus, p.prefill.like.split.dp
        chunk = self.prompt_step.chunk
        step = under_power(p.prefill.passed(Iteration(groups * chunk, load.prefix + chunk, groups)), p.prefill.power)
        prompts = self.requests_per_s / p.prefill_workers / groups * load.new_tokens / chunk
        before = mean_watts(p.prefill.device, [(prompts, step)])
        after = mean_watts(p.decode.device, [(self._decode_steps_per_s, self.decode_pass)])
        if before is None or after is None:
            return None
        return (p.prefill_workers * prefill * before + p.workers * self.split.gpus * after) / self.gpus

    def _ends(self, name: str, value: float, step: Iteration) -> Ends:
        """By the widths that runs of pools have shown, else those of any run."""
        low, high = self.engine.widths.get("apart", {}).get(name, (0.0, 0.0))
        return (value, value * low, value * high) if high else super()._ends(name, value, step)


def prefill_of(pools: Pools, loop: Loop) -> Prefill:
    """Prompts of the mean length: one in each group, and as many as the engine's step holds."""
    times = pools.prefill
    engine, groups, length = times.engine, times.like.split.dp, max(round(loop.prompt), 1)
    together = max(engine.batching.token_budget // length, 1)

    def seconds(prompts: int) -> float:
        budget = max(engine.batching.token_budget, 1) if engine.batching.chunked else length * prompts
        done, total = 0, 0.0
        while done < length:
            part = min(max(budget // prompts, 1), length - done)
            done += part
            total += times.seconds(Iteration(part * prompts * groups, loop.load.prefix + done, prompts * groups))
        return total

    most = max(groups * many / seconds(many) for many in {1, together}) * pools.prefill_workers
    return Prefill(seconds(1), most, engine.overhead.request_s)


def transfer_s(pools: Pools, cache: float) -> float:
    """Of a prompt's cache, ``cache`` bytes on each GPU of a prefill group, by as many links as the narrower group has."""
    before, after = pools.prefill.like.split.tp, pools.decode.like.split.tp
    return cache * before / (min(before, after) * link(pools.decode.device, pools.gpus))


def serve_apart(pools: Pools, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> PooledAnswer:
    """What ``load.concurrency`` users of the pools see; UsageError where a worker does not hold a request, or there are no users.

    ``requests``: as of ``answer.serve``.
    """
    users = load.check().concurrency
    if users is None or load.osl < 2:
        raise UsageError("pools answer users, with two tokens or more", "give --concurrency in place of --rate, and a longer --osl")
    decode = pools.decode
    memory, length = Memory(decode.model, decode.device, decode.engine, decode.like), load.isl + load.osl
    before = Memory(pools.prefill.model, pools.prefill.device, pools.prefill.engine, pools.prefill.like)
    most = memory.most_running(length)
    for name, one, held in (("prefill", before, before.most_running(load.isl + 1)), ("decode", memory, most)):
        if held < 1:
            need = one.total(one.like.split.dp, length) / 1e9
            raise UsageError(f"a {name} worker has {one.usable / 1e9:.1f} GB per GPU and needs {need:.1f} GB", "give it more GPUs")
    loop = Loop(decode, load, replace(decode.engine.batching.over(decode.like.split), mixed=False), decode.engine.overhead, most, spread)
    prefill, moved = prefill_of(pools, loop), transfer_s(pools, before.fit(round(loop.isl)).sequence)
    found = _closed(loop, prefill, moved, users, pools.workers)
    if requests is not None:
        found = _started(found, loop, prefill, moved, users, requests, pools.workers)
    return PooledAnswer(decode, load, memory, most, found, gpu_hour, spread, pools=pools)


def answered_apart(
    asked: ServeQuestion,
    model: ModelSpec,
    stored: str | None,
    device: Device,
    engine: Engine,
    times: Callable[[Engine, ModelPass], KernelTimes],
) -> PooledAnswer:
    """The answer to ``asked`` with its pools; arguments as of ``answer.answered``."""
    load, power = asked.load(), PowerAsked(asked.power_limit, asked.clock).check(device)
    asked.check_lengths(model)
    engine = asked.configured(engine)
    first, second = (asked.like(model, device, split, stored) for split in (asked.prefill_split(model), asked.split(model)))
    before, after = (replace(times(engine, like), power=power) for like in (first, second))
    assert asked.prefill_workers is not None
    return serve_apart(Pools(before, after, asked.prefill_workers, asked.workers), load, asked.spread, asked.requests, asked.gpu_hour)


def _closed(loop: Loop, prefill: Prefill, moved: float, users: int, workers: int) -> Steady:
    """One decode worker of the steady state."""
    most = min(float(users), float(loop.slots * workers))

    def rate_of(decoding: float) -> float:
        return decoding / (loop.steps * _step(loop, decoding / workers))

    def under_way(decoding: float) -> float:
        rate = rate_of(decoding)
        return float("inf") if rate >= prefill.most_per_s else decoding + rate * (prefill.first_s(rate) + moved)

    low, high = 0.0, most
    if under_way(most) > users:
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if under_way(middle) > users else (middle, high)
    else:
        low = most
    decoding = low
    rate, step = rate_of(decoding), _step(loop, decoding / workers)
    wait = max(users - decoding, 0.0) / rate  # by Little's law: before prefill, on the way or for a slot
    first = max(wait, prefill.request_s + prefill.prompt_s + moved) + step
    tail = first + 3.6 * max(first - prefill.prompt_s - prefill.request_s - moved - step, 0.0)
    waiting = max(users - under_way(decoding), 0.0) / workers if decoding == most else 0.0
    shared = (rate / workers, round(loop.osl), decoding / workers, users / workers - waiting, waiting, step, step, prefill.prompt_s, 0.0)
    return Steady(loop.per_token * step, first, first, tail, *shared, round(loop.prompt), loop.osl)


def _step(loop: Loop, sequences: float) -> float:
    """A worker with less than one sequence on average decodes one at a time."""
    return loop.seconds(0, max(sequences, 1.0))


def _started(found: Steady, loop: Loop, prefill: Prefill, moved: float, users: int, requests: int, workers: int) -> Steady:
    """With the crowd that starts a benchmark in the mean time to the first token; those beyond the slots wait for one."""
    behind = max(users - loop.slots * workers, 0)
    crowd = prefill.crowd_s(users) + moved + found.step_s + behind / users * behind / 2 / (found.requests_per_s * workers)
    share = min(users / requests, 1.0)
    mean = share * crowd + (1 - share) * found.ttft_s
    last = 2 * crowd if share > 0.01 else found.ttft_p99_s
    return replace(found, ttft_s=mean, ttft_p99_s=max(last, found.ttft_p99_s))
