"""The answer of ``perfmodel serve``: what an engine on given GPUs delivers to its users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cached_property
from math import ceil, inf

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
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
from perfmodel.serving.scheduler import LoggedSteps, Pool
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
"""Names of the shares of the time between two tokens."""
LATENT = 0.5
"""A kernel is limited by latency if its fullest resource needs less than this share of its time."""
HOUR, MILLION = 3600.0, 1e6
MOST_GPUS = 64
"""Most GPUs that an error message proposes."""


@dataclass(frozen=True)
class ServingAnswer:
    """``metrics`` of ``load`` on an engine whose steps take ``times``. ``most_running``: sequences that it can hold until their last token.

    With ``pools``, times, memory and sequences are those of one decode worker; metrics and GPUs are of all workers. ``steps``: the first
    ones of the simulation, of one group if groups of a dense model run independently.
    """

    times: KernelTimes
    load: Load
    memory: Memory
    most_running: int
    metrics: ServingMetrics
    gpu_hour: float | None = None
    spread: float = 1.0
    pools: Pools | None = None
    steps: list[LoggedSteps] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        """The engine preset with the question's options."""
        return self.times.engine

    @property
    def split(self) -> Split:
        """The layout of a replica, or of a decode worker."""
        return self.times.base_pass.split

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.split.gpus if self.pools is None else self.pools.gpus

    @property
    def workers(self) -> int:
        """Number of decode workers."""
        return 1 if self.pools is None else self.pools.decode_workers

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
        """Tokens/s that a user sees after the first token; None if there is only one token."""
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
        """The step of one prompt, or of as much of it as fits in a step; in pools, of one prompt in each group of a prefill worker."""
        chunk = min(self.load.new_tokens, self.engine.batching.token_budget)
        groups = 1 if self.pools is None else self.pools.prefill.base_pass.split.dp
        return Iteration(groups * chunk, self.load.prefix + chunk, groups)

    @cached_property
    def decode_pass(self) -> PassEstimate:
        """Rows of the mean decode step, or of a prompt's step if nothing decodes; at the sustained clock if power is known."""
        return under_power(self._decode_alone, self.times.power)

    @cached_property
    def _decode_alone(self) -> PassEstimate:
        return self.times.passed(self.decode_step if self.metrics.mean_tpot_s else self.prompt_step)

    @cached_property
    def prompt_pass(self) -> PassEstimate:
        """Rows of a prompt's step, at the sustained clock if power is known."""
        times = self.times if self.pools is None else self.pools.prefill
        return under_power(times.passed(self.prompt_step), times.power)

    @property
    def ttft(self) -> Times:
        """Mean seconds to the first token with the ends of their interval."""
        return self._ends("ttft", self.metrics.mean_ttft_s, self.prompt_step)

    @property
    def tpot(self) -> Times | None:
        """Mean seconds per output token after the first with the ends of their interval; None if no token comes later."""
        return self._ends("tpot", self.metrics.mean_tpot_s, self.decode_step) if self.metrics.mean_tpot_s else None

    def _ends(self, name: str, value: float, step: Iteration) -> Times:
        """``value`` with its interval: as wide as measured runs of the engine show, or wider if kernels of ``step`` are guesses.

        If no run of this kind of model was fitted, the lower end leaves out the engine's seconds per request.
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
        """The kind of model, ``dense`` or ``experts``, for which engines have their own overhead and interval widths."""
        return "experts" if self.memory.model.is_moe else "dense"

    @property
    def fitted(self) -> bool:
        """Whether the engine's overhead applies to this kind of model."""
        return self.kind in self.engine.overhead.kinds

    @cached_property
    def at_least(self) -> bool:
        """Whether a good part of a decode step has only a roof, no prediction, so that the times are lower limits."""
        return not mostly_predicted(self._decode_alone)

    @property
    def cost(self) -> Estimate:
        """Bound and roof of the mean decode step."""
        return self.decode_pass.cost

    @cached_property
    def bound(self) -> float:
        """Upper bound on output tokens/s of any schedule with as many sequences at a time as may run here.

        No decode step is shorter than its bound, and no request takes less arithmetic than its tokens do at the peak.
        """
        load, split, workers = self.load, self.split, self.workers
        arithmetic, by_step = self.prompt_pass.at_peak_s * load.new_tokens / (self.prompt_step.chunk / self.prompt_step.prompts), inf
        if self.metrics.mean_tpot_s is not None:
            steps = (load.osl - 1) / load.tokens_per_step
            arithmetic += steps * self.decode_pass.at_peak_s / self.decode_step.decodes
            sequences = max(self.most_running, ceil(self.metrics.running / workers))
            sequences = min(ceil(load.concurrency / workers), sequences) if load.concurrency else sequences
            bound_s = float(self.times.passed(self.decode_step._replace(decodes=sequences)).cost.lower_warm_s)
            by_step = workers * split.pp * sequences / (steps * bound_s) * load.osl if bound_s else by_step
        return min(by_step, self.gpus / arithmetic * load.osl if arithmetic and self.pools is None else by_step)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the time between two tokens, the largest first: resources that limit kernels of a decode step, the host, prompts.

        If each request gets only one token, they are shares of a prompt's step.
        """
        seconds, gap_s, sequences = self.decode_s, self.metrics.mean_itl_s, float(self.decode_step.decodes)
        if not self.metrics.mean_tpot_s or gap_s <= 0:
            seconds = gap_s = self.times.seconds(self.prompt_step)
            sequences = 1.0
        layers = self.times.host_s(self.decode_step if self.metrics.mean_tpot_s else self.prompt_step)
        engine_s = min(self.times.own_seconds(sequences) + layers, seconds)
        seconds_of, decode_pass = (
            {HOST: max(engine_s - layers, 0.0) / gap_s, ON_HOST: layers / gap_s, PROMPTS: max(gap_s - seconds, 0.0) / gap_s, POWER: 0.0},
            self.decode_pass,
        )
        rows_alone = self._decode_alone.rows if self.times.power.given else decode_pass.rows
        for row, fast in zip(decode_pass.rows, rows_alone, strict=True):
            for name, own_s in ((limit_of(fast), fast.seconds), (POWER, row.seconds - fast.seconds)):
                seconds_of[name] = seconds_of.get(name, 0.0) + own_s / decode_pass.seconds * (seconds - engine_s) / gap_s
        return dict(sorted(((name, share) for name, share in seconds_of.items() if share > 0), key=lambda pair: -pair[1]))

    @property
    def joules_per_token(self) -> float | None:
        """Joules per output token of all GPUs, prompts included; None where the device has no power model."""
        watts = self.watts
        return None if watts is None else watts * self.gpus / self.tokens_per_s

    @property
    def watts(self) -> float | None:
        """Mean watts of a GPU over prompt steps, decode steps and idle time between requests."""
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
    """The resource that limits a row of a step: bytes of weights or of the cache, arithmetic, or links; latency if it is far from its roof.

    L2 never names the limit: tiles in L2 feed arithmetic and DRAM, of which the fuller one does.
    """
    terms = {name: float(term) for name, term in row.cost.terms.items()}
    name = max((name_ for name_ in terms if name_ != "l2"), key=lambda one: terms[one], default="")
    if row.op.group == COLLECTIVE:
        return LINKS
    if not name or max(terms.values()) < LATENT * row.seconds:
        return LATENCY
    return COMPUTE if name in ("tensor", "vector", "sfu", "sram") else CACHE if row.op.group == ATTENTION else WEIGHTS


def mean_watts(device: Device, passes: list[tuple[float, PassEstimate]]) -> float | None:
    """Watts of a GPU that runs each of ``passes`` at its rate per second and idles otherwise; None if ``device`` has no power model."""
    if device.power is None:
        return None
    busy = joules = 0.0
    for per_s, pass_ in passes:
        if pass_.power is None:
            return None
        busy += per_s * pass_.seconds
        joules += per_s * pass_.seconds * pass_.power.watts
    return joules / max(busy, 1.0) + max(1 - busy, 0.0) * device.power.static_w


def serving_answer(
    question: ServeQuestion,
    model: ModelSpec,
    stored: str | None,
    device: Device,
    engine: Engine,
    times: Callable[[Engine, ModelPass], KernelTimes],
) -> ServingAnswer:
    """The answer to ``question`` for one layout of ``engine``. ``times`` makes the step times; ``stored`` comes from ``hf.served_as``."""
    load, power = question.load(engine.users), PowerOptions(question.power_limit, question.clock).check(device)
    question.check_lengths(model)
    engine = question.configured(engine)

    def steps(split: Split) -> KernelTimes:
        on_device = replace(times(engine, question.base_pass(model, device, split, stored)), power=power)
        if question.gpu_layers is None:
            return on_device
        on_gpu, host = offloaded(on_device.model, on_device.base_pass, device, question.gpu_layers, question.host_bandwidth())
        return replace(on_device, model=on_gpu, host=host)

    split = question.split(model, engine.in_stages)
    if question.prefill_workers is None:
        return serve(steps(split), load, question.spread, question.requests, question.gpu_hour)
    pools = Pools(steps(question.prefill_split(model)), steps(split), question.prefill_workers, question.workers)
    return serve_pools(pools, load, question.spread, question.requests, question.gpu_hour)


def serve(times: KernelTimes, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> ServingAnswer:
    """The answer of a replica whose steps take ``times``. If the model does not fit, a UsageError names the fewest GPUs on which it does.

    ``spread`` and ``requests``: see ``simulate``. Data-parallel groups of a dense model run independently, each as an engine with its share
    of the load.
    """
    engine, base_pass, model = times.engine, times.base_pass, times.model
    memory = Memory(model, times.device, engine, base_pass)
    most_running = memory.most_running(load.isl + load.osl)
    if most_running < 1:
        raise UsageError(*_too_large(memory, base_pass, load.isl + load.osl))
    groups, slots = 1 if model.is_moe else base_pass.split.dp, memory.slots(load.isl, load.osl, spread)
    group_split = replace(base_pass.split, dp=base_pass.split.dp // groups)
    group_times = times if groups == 1 else replace(times, base_pass=replace(base_pass, split=group_split), nodes={})
    group_load = load.among(groups)
    pool = Pool(group_times, engine.batching.over(group_split), slots // groups)
    request_s, requests = engine.overhead.before_s(load.isl * (1 + spread) / 2), requests and ceil(requests / groups)
    steps: list[LoggedSteps] = []
    metrics = simulate(pool, group_load, request_s, spread=spread, requests=requests, log=steps)
    copies = groups if load.concurrency is None or group_load.concurrency is None else load.concurrency / group_load.concurrency
    return ServingAnswer(times, load, memory, most_running, metrics.times(copies), gpu_hour, spread, None, steps)


def serve_pools(pools: Pools, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> ServingAnswer:
    """The answer of pools with ``load.concurrency`` users; UsageError without users, or if a worker cannot hold a request."""
    if load.check().concurrency is None or load.osl < 2:
        raise UsageError("pools answer users, with two tokens or more", "give --concurrency in place of --rate, and a longer --osl")
    before, after = (Memory(worker.model, worker.device, worker.engine, worker.base_pass) for worker in (pools.prefill, pools.decode))
    length, prompted = load.isl + load.osl, before.most_running(load.isl + 1)
    most = after.most_running(length)
    for name, option, one, held in (("prefill", "--prefill-tp", before, prompted), ("decode", "--tp", after, most)):
        if held < 1:
            need = one.total(one.base_pass.split.dp, length) / 1e9
            words = f"a {name} worker has {one.usable / 1e9:.1f} GB per GPU and needs {need:.1f} GB"
            raise UsageError(words, f"give it more GPUs, by {option}")
    slots, engine, split = after.slots(load.isl, load.osl, spread), pools.decode.engine, pools.decode.base_pass.split
    first = pool_of(pools.prefill, pools.prefill.engine, pools.prefill.base_pass.split, prompted, pools.prefill_workers)
    second = pool_of(pools.decode, engine, split, slots, pools.decode_workers)
    isl = load.isl * (1 + spread) / 2
    cache = before.fit(max(round(isl), 1)).sequence
    moved_s = transfer_s(cache, pools.prefill.base_pass.split, split, pools.decode.device, pools.gpus)
    steps: list[LoggedSteps] = []
    before_s = engine.overhead.before_s(isl)
    metrics = simulate(second, load, before_s, spread=spread, requests=requests, prefill=first, transfer_s=moved_s, log=steps)
    return ServingAnswer(pools.decode, load, after, most, metrics, gpu_hour, spread, pools, steps)


def _too_large(memory: Memory, base_pass: ModelPass, length: int) -> tuple[str, str]:
    """Message and fix for a model that does not fit: the memory it lacks, and the option that would help."""
    need, have = memory.total(base_pass.split.dp, length) / 1e9, memory.usable / 1e9
    words = (
        f"{memory.model.name} with one request of {length:,} tokens needs {need:.1f} GB per GPU, and {memory.engine.name} has {have:.1f} GB"
    )
    if memory.usable <= memory.engine.reserve + memory.activations:
        return words, "give a smaller --reserve or --token-budget"
    published, larger = base_pass.weights_from_file, [1 << power for power in range(MOST_GPUS.bit_length())]
    larger = [gpus for gpus in larger if gpus > base_pass.split.gpus]
    for split in (split for gpus in larger for split in layouts(memory.model, gpus, memory.device, published)):
        alike = split.dp == base_pass.split.dp and (split.ep > 1) == (base_pass.split.ep > 1)
        if alike and replace(memory, base_pass=replace(base_pass, split=split)).most_running(length):
            return words, f"give {sizes_of(split)}{' or --gpu-layers' * memory.engine.in_stages}"
    joined = "" if memory.device.interconnect is not None else f"; {memory.device.id} has no interconnect in its profile for more GPUs"
    layers = f" or fewer --gpu-layers than {len(memory.model.layers)}" if memory.engine.in_stages else ""
    return words, f"give shorter requests, a narrower format{layers}{joined}"


def sizes_of(split: Split) -> str:
    """The layout as options; only its number of GPUs if they share every matrix."""
    if split == Split(split.tp):
        return f"--gpus {split.gpus}"
    return " ".join(f"--{name} {getattr(split, name)}" for name in ("tp", "dp", "ep", "pp") if getattr(split, name) > 1)
