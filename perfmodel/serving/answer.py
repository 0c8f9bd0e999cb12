"""What an engine on some GPUs delivers to its users: the question of ``perfmodel serve`` and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.power import PowerOptions
from perfmodel.core.roofline import Estimate
from perfmodel.serving.engine import Engine
from perfmodel.serving.host_layers import offloaded
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.layouts import layouts
from perfmodel.serving.load import Load
from perfmodel.serving.memory import Memory
from perfmodel.serving.metrics import ServingMetrics
from perfmodel.serving.pools import Pools, pool_of, transfer_s
from perfmodel.serving.question import ServeQuestion
from perfmodel.serving.scheduler import Pool
from perfmodel.serving.simulate import simulate
from perfmodel.serving.steps import KernelTimes, Times, has_guesses, mostly_predicted
from perfmodel.transformer.estimate import PassEstimate, PassRow
from perfmodel.transformer.op import ATTENTION, COLLECTIVE
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import ModelPass, Split
from perfmodel.transformer.step_power import under_power

WEIGHTS, CACHE, COMPUTE, LINKS, LATENCY = "reading weights", "reading the KV cache", "compute", "links between GPUs", "kernels' latency"
HOST, PROMPTS, POWER = "the engine's host", "prefill of other requests", "the power limit"
ON_HOST = "layers on the host"
"""Names of what the time between two tokens goes to."""
LATENT = 0.5
"""A kernel whose fullest resource needs less of its time than this share waits."""
HOUR, MILLION = 3600.0, 1e6
MOST_GPUS = 64
"""Most GPUs that a message proposes."""


@dataclass(frozen=True)
class ServingAnswer:
    """``metrics`` of ``load`` on ``times``, the steps of an engine. ``most_running``: sequences that it holds to their last token.

    With ``pools``, times, memory and sequences are those of one worker that decodes; metrics and GPUs are of all.
    """

    times: KernelTimes
    load: Load
    memory: Memory
    most_running: int
    metrics: ServingMetrics
    gpu_hour: float | None = None
    spread: float = 1.0
    pools: Pools | None = None

    @property
    def engine(self) -> Engine:
        """The engine preset with the question's options."""
        return self.times.engine

    @property
    def split(self) -> Split:
        """The layout of a replica, or of a worker that decodes."""
        return self.times.like.split

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.split.gpus if self.pools is None else self.pools.gpus

    @property
    def workers(self) -> int:
        """Workers that decode."""
        return 1 if self.pools is None else self.pools.workers

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second of all users."""
        return self.metrics.output_tokens_per_s

    @property
    def requests_per_s(self) -> float:
        """Requests a second of all users."""
        return self.metrics.requests_per_s

    @property
    def tokens_per_s_gpu(self) -> float:
        """Output tokens a second per GPU."""
        return self.tokens_per_s / self.gpus

    @property
    def tokens_per_s_user(self) -> float | None:
        """Tokens a second that a user sees after the first token; None where it is the only one."""
        return 1 / self.metrics.mean_tpot_s if self.metrics.mean_tpot_s else None

    @cached_property
    def decode_step(self) -> Iteration:
        """The mean decode step of a worker."""
        load = self.load
        sequences = max(round(self.metrics.decoding / self.workers), 1)
        return Iteration(decodes=sequences, context=load.isl + load.osl // 2, queries=load.queries)

    @cached_property
    def decode_s(self) -> float:
        """Seconds of the mean decode step without prompts."""
        return min(self.times.seconds(self.decode_step), self.metrics.mean_itl_s)

    @cached_property
    def prompt_step(self) -> Iteration:
        """A prompt in each group of a worker that runs prompts alone; else one, or as much of it as a step takes."""
        chunk = min(self.load.new_tokens, self.engine.batching.token_budget)
        groups = 1 if self.pools is None else self.pools.prefill.like.split.dp
        return Iteration(groups * chunk, self.load.prefix + chunk, groups)

    @cached_property
    def decode_pass(self) -> PassEstimate:
        """Rows of the mean decode step; of a prompt's step where nothing decodes. As they run for seconds, where power is known."""
        return under_power(self._decode_alone, self.times.power)

    @cached_property
    def _decode_alone(self) -> PassEstimate:
        return self.times.passed(self.decode_step if self.metrics.mean_tpot_s else self.prompt_step)

    @cached_property
    def prompt_pass(self) -> PassEstimate:
        """Rows of a prompt's step, as they run for seconds."""
        times = self.times if self.pools is None else self.pools.prefill
        return under_power(times.passed(self.prompt_step), times.power)

    @property
    def ttft(self) -> Times:
        """Mean seconds to the first token with the ends of their interval."""
        return self._ends("ttft", self.metrics.mean_ttft_s, self.prompt_step)

    @property
    def tpot(self) -> Times | None:
        """Mean seconds per output token after the first; None where there is one alone, or the second comes with it."""
        return self._ends("tpot", self.metrics.mean_tpot_s, self.decode_step) if self.metrics.mean_tpot_s else None

    def _ends(self, name: str, value: float, step: Iteration) -> Times:
        """``value`` with its interval: as wide as runs of the engine have shown, or as the kernels of ``step`` where those are guesses.

        Where no run of this kind of model was fitted, the seconds of a request may be none at all.
        """
        shown = self.engine.widths.get(self.kind, {}).get(name)
        if self.pools is not None and (apart := self.engine.widths.get("apart", {}).get(name)):
            return value, value * apart[0], value * apart[1]
        first, last = shown or (1.0, 1.0)
        if shown is None or has_guesses(self.times.passed(step)):
            seconds, low, high = self.times.interval(step)
            first, last = min(low / seconds, first), max(high / seconds, last)
        unsure = self.engine.overhead.before_s(self.load.isl) if name == "ttft" and not self.fitted else 0.0
        return value, max(value - unsure, 0.0) * first, value * last

    @property
    def kind(self) -> str:
        """``dense``, or ``experts`` of a model with experts: engines have seconds and widths for each."""
        return "experts" if self.memory.model.is_moe else "dense"

    @property
    def fitted(self) -> bool:
        """Whether the engine's seconds were fitted to runs of this kind of model, or are not fitted at all."""
        return self.kind in self.engine.overhead.kinds

    @cached_property
    def at_least(self) -> bool:
        """Whether the roof stands for a good part of a decode step, of which no time is predicted: the times are then the least."""
        return not mostly_predicted(self._decode_alone)

    @property
    def cost(self) -> Estimate:
        """Bound and roof of the mean decode step."""
        return self.decode_pass.cost

    @cached_property
    def bound(self) -> float:
        """Most output tokens a second that any schedule gets with as many sequences at a time as may run here.

        No decode step is shorter than its bound, and no request takes less arithmetic than its tokens do at the peak.
        """
        load, split, workers = self.load, self.split, self.workers
        arithmetic, by_step = self.prompt_pass.at_peak_s * load.new_tokens / (self.prompt_step.chunk / self.prompt_step.prompts), inf
        if self.metrics.mean_tpot_s is not None:
            steps = (load.osl - 1) / load.tokens_per_step
            arithmetic += steps * self.decode_pass.at_peak_s / self.decode_step.decodes
            most = max(self.most_running, ceil(self.metrics.running / workers))
            most = min(ceil(load.concurrency / workers), most) if load.concurrency else most
            least = float(self.times.passed(self.decode_step._replace(decodes=most)).cost.lower_warm_s)
            by_step = workers * split.pp * most / (steps * least) * load.osl if least else by_step
        return min(by_step, self.gpus / arithmetic * load.osl if arithmetic and self.pools is None else by_step)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the time between two tokens, the largest first: what kernels of a decode step wait for, the host, prompts.

        Where each request gets one token alone, shares of a prompt's step.
        """
        seconds, whole, sequences = self.decode_s, self.metrics.mean_itl_s, float(self.decode_step.decodes)
        if not self.metrics.mean_tpot_s or whole <= 0:
            seconds = whole = self.times.seconds(self.prompt_step)
            sequences = 1.0
        layers = self.times.host_s(self.decode_step if self.metrics.mean_tpot_s else self.prompt_step)
        own = min(self.times.own_seconds(sequences) + layers, seconds)
        found, one = (
            {HOST: max(own - layers, 0.0) / whole, ON_HOST: layers / whole, PROMPTS: max(whole - seconds, 0.0) / whole, POWER: 0.0},
            self.decode_pass,
        )
        alone = self._decode_alone.rows if self.times.power.given else one.rows
        for row, fast in zip(one.rows, alone, strict=True):
            for name, own_s in ((limit_of(fast), fast.seconds), (POWER, row.seconds - fast.seconds)):
                found[name] = found.get(name, 0.0) + own_s / one.seconds * (seconds - own) / whole
        return dict(sorted(((name, share) for name, share in found.items() if share > 0), key=lambda pair: -pair[1]))

    @property
    def joules_per_token(self) -> float | None:
        """Joules per output token of all GPUs, prompts included; None where the device has no power model."""
        watts = self.watts
        return None if watts is None else watts * self.gpus / self.tokens_per_s

    @property
    def watts(self) -> float | None:
        """Mean watts of a GPU over steps of prompts and of decoding sequences; idle where requests come too slowly."""
        load, rate, workers = self.load, self.requests_per_s, self.workers
        steps = rate / workers * max(load.osl - 1, 0) / load.tokens_per_step / self.decode_step.decodes
        decode, prompts = (steps, self.decode_pass), rate * load.new_tokens / self.prompt_step.chunk
        if self.pools is None:
            return mean_watts(self.times.device, [(prompts, self.prompt_pass), decode])
        before = mean_watts(self.times.device, [(prompts / self.pools.prefill_workers, self.prompt_pass)])
        after = mean_watts(self.times.device, [decode])
        if before is None or after is None:
            return None
        decoding = workers * self.split.gpus
        return ((self.gpus - decoding) * before + decoding * after) / self.gpus

    @property
    def price(self) -> float | None:
        """The price of a million output tokens, in the currency of ``gpu_hour``."""
        return None if self.gpu_hour is None else self.gpu_hour * self.gpus / HOUR / self.tokens_per_s * MILLION


def limit_of(row: PassRow) -> str:
    """What a row of a step waits for: bytes of weights or of the cache, arithmetic, links; latency where it is far from its roof.

    Tiles read from L2 what arithmetic and DRAM share: the fuller of these two names it.
    """
    terms = {name: float(term) for name, term in row.cost.terms.items()}
    name = max((one for one in terms if one != "l2"), key=lambda one: terms[one], default="")
    if row.op.group == COLLECTIVE:
        return LINKS
    if not name or max(terms.values()) < LATENT * row.seconds:
        return LATENCY
    return COMPUTE if name in ("tensor", "vector", "sfu", "sram") else CACHE if row.op.group == ATTENTION else WEIGHTS


def mean_watts(device: Device, passes: list[tuple[float, PassEstimate]]) -> float | None:
    """Watts of a GPU that runs each pass so many times a second and idles otherwise; None where ``device`` has no power model."""
    if device.power is None:
        return None
    busy = joules = 0.0
    for per_s, one in passes:
        if one.power is None:
            return None
        busy += per_s * one.seconds
        joules += per_s * one.seconds * one.power.watts
    return joules / max(busy, 1.0) + max(1 - busy, 0.0) * device.power.static_w


def answered(
    asked: ServeQuestion,
    model: ModelSpec,
    stored: str | None,
    device: Device,
    engine: Engine,
    times: Callable[[Engine, ModelPass], KernelTimes],
) -> ServingAnswer:
    """The answer to ``asked`` of one layout of ``engine``, whose steps take ``times``; ``stored`` as of ``hf.served_as``."""
    load, power = asked.load(engine.users), PowerOptions(asked.power_limit, asked.clock).check(device)
    asked.check_lengths(model)
    engine = asked.configured(engine)

    def steps(split: Split) -> KernelTimes:
        found = replace(times(engine, asked.like(model, device, split, stored)), power=power)
        if asked.gpu_layers is None:
            return found
        on_gpu, host = offloaded(found.model, found.like, device, asked.gpu_layers, asked.host_bandwidth())
        return replace(found, model=on_gpu, host=host)

    split = asked.split(model, engine.in_stages)
    if asked.prefill_workers is None:
        return serve(steps(split), load, asked.spread, asked.requests, asked.gpu_hour)
    pools = Pools(steps(asked.prefill_split(model)), steps(split), asked.prefill_workers, asked.workers)
    return serve_pools(pools, load, asked.spread, asked.requests, asked.gpu_hour)


def serve(times: KernelTimes, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> ServingAnswer:
    """The answer; UsageError where the model does not fit, with the fewest GPUs on which it does.

    ``spread`` and ``requests`` as of ``simulate``. Data-parallel groups of a model without experts wait for nothing of each other: each
    is an engine of its own with its share of the load.
    """
    engine, like, model = times.engine, times.like, times.model
    memory = Memory(model, times.device, engine, like)
    most = memory.most_running(load.isl + load.osl)
    if most < 1:
        raise UsageError(*_too_large(memory, like, load.isl + load.osl))
    groups, slots = 1 if model.is_moe else like.split.dp, memory.slots(load.isl, load.osl, spread)
    one = replace(like.split, dp=like.split.dp // groups)
    alone = times if groups == 1 else replace(times, like=replace(like, split=one), nodes={})
    own = load.among(groups)
    pool = Pool(alone, engine.batching.over(one), slots // groups)
    found = simulate(
        pool, own, engine.overhead.before_s(load.isl * (1 + spread) / 2), spread=spread, requests=requests and ceil(requests / groups)
    )
    copies = groups if load.concurrency is None or own.concurrency is None else load.concurrency / own.concurrency
    return ServingAnswer(times, load, memory, most, found.times(copies), gpu_hour, spread)


def serve_pools(pools: Pools, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> ServingAnswer:
    """What ``load.concurrency`` users of the pools see; UsageError where a worker does not hold a request, or there are no users."""
    if load.check().concurrency is None or load.osl < 2:
        raise UsageError("pools answer users, with two tokens or more", "give --concurrency in place of --rate, and a longer --osl")
    before, after = (Memory(one.model, one.device, one.engine, one.like) for one in (pools.prefill, pools.decode))
    length, prompted = load.isl + load.osl, before.most_running(load.isl + 1)
    most = after.most_running(length)
    for name, option, one, held in (("prefill", "--prefill-tp", before, prompted), ("decode", "--tp", after, most)):
        if held < 1:
            need = one.total(one.like.split.dp, length) / 1e9
            words = f"a {name} worker has {one.usable / 1e9:.1f} GB per GPU and needs {need:.1f} GB"
            raise UsageError(words, f"give it more GPUs, by {option}")
    slots, engine, split = after.slots(load.isl, load.osl, spread), pools.decode.engine, pools.decode.like.split
    first = pool_of(pools.prefill, pools.prefill.engine, pools.prefill.like.split, prompted, pools.prefill_workers)
    second = pool_of(pools.decode, engine, split, slots, pools.workers)
    isl = load.isl * (1 + spread) / 2
    cache = before.fit(max(round(isl), 1)).sequence
    moved_s = transfer_s(cache, pools.prefill.like.split, split, pools.decode.device, pools.gpus)
    found = simulate(second, load, engine.overhead.before_s(isl), spread=spread, requests=requests, prefill=first, transfer_s=moved_s)
    return ServingAnswer(pools.decode, load, after, most, found, gpu_hour, spread, pools)


def _too_large(memory: Memory, like: ModelPass, length: int) -> tuple[str, str]:
    """The error of a model that does not fit: what it lacks, and the option that would do."""
    need, have = memory.total(like.split.dp, length) / 1e9, memory.usable / 1e9
    words = (
        f"{memory.model.name} with one request of {length:,} tokens needs {need:.1f} GB per GPU, and {memory.engine.name} has {have:.1f} GB"
    )
    if memory.usable <= memory.engine.reserve + memory.activations:
        return words, "give a smaller --reserve or --token-budget"
    least, more = like.split.gpus, [1 << power for power in range(MOST_GPUS.bit_length())]
    for split in (one for gpus in more if gpus > least for one in layouts(memory.model, gpus, memory.device, like.weights_from_file)):
        alike = split.dp == like.split.dp and (split.ep > 1) == (like.split.ep > 1)
        if alike and replace(memory, like=replace(like, split=split)).most_running(length):
            return words, f"give {sizes_of(split)}{' or --gpu-layers' * memory.engine.in_stages}"
    joined = "" if memory.device.interconnect is not None else f"; {memory.device.id} has no interconnect in its profile for more GPUs"
    layers = f" or fewer --gpu-layers than {len(memory.model.layers)}" if memory.engine.in_stages else ""
    return words, f"give shorter requests, a narrower format{layers}{joined}"


def sizes_of(split: Split) -> str:
    """The layout, as it is typed; its GPUs where they share every matrix."""
    if split == Split(split.tp):
        return f"--gpus {split.gpus}"
    return " ".join(f"--{name} {getattr(split, name)}" for name in ("tp", "dp", "ep", "pp") if getattr(split, name) > 1)
