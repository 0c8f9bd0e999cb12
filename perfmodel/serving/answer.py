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

# What takes the time between two tokens, as ``ServingAnswer.shares`` names it
WEIGHTS, CACHE, COMPUTE, LINKS, LATENCY = "reading weights", "reading the KV cache", "compute", "links between GPUs", "kernels' latency"
HOST, PROMPTS, POWER = "the engine's host", "prefill of other requests", "the power limit"
ON_HOST = "layers on the host"

LATENT = 0.5
"""A kernel is limited by latency if its fullest resource needs less than this share of its time."""
HOUR, MILLION = 3600.0, 1e6
MOST_GPUS = 64
"""Most GPUs that an error message proposes."""


@dataclass(frozen=True)
class ServingAnswer:
    """What an engine delivers under ``load``: the ``metrics`` of a simulation in which its steps take ``times``.

    ``most_running``: sequences that the cache holds until their last token. ``gpu_hour``: price of a GPU's hour. ``spread``: shortest
    length over the longest. ``steps``: the first steps of the simulation; if groups of a dense model run independently, of one group.
    With ``pools``, times, memory and ``most_running`` describe one decode worker; metrics and GPUs count all workers.
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
        return under_power(self._decode_at_full_clock, self.times.power)

    @cached_property
    def _decode_at_full_clock(self) -> PassEstimate:
        return self.times.estimate(self.decode_step if self.metrics.mean_tpot_s else self.prompt_step)

    @cached_property
    def prompt_pass(self) -> PassEstimate:
        """Rows of a prompt's step, at the sustained clock if power is known."""
        times = self.times if self.pools is None else self.pools.prefill
        return under_power(times.estimate(self.prompt_step), times.power)

    @property
    def ttft(self) -> Times:
        """Mean seconds to the first token with the ends of their interval."""
        return self._interval("ttft", self.metrics.mean_ttft_s, self.prompt_step)

    @property
    def tpot(self) -> Times | None:
        """Mean seconds per output token after the first with the ends of their interval; None if no token comes later."""
        return self._interval("tpot", self.metrics.mean_tpot_s, self.decode_step) if self.metrics.mean_tpot_s else None

    def _interval(self, name: str, value: float, step: Iteration) -> Times:
        """``value`` with its interval: as wide as measured runs of the engine show, or wider if kernels of ``step`` are guesses.

        If no run of this kind of model was fitted, the lower end leaves out the engine's seconds per request.
        """
        widths = self.engine.widths
        if self.pools is not None and name in widths.get("apart", {}):
            low, high = widths["apart"][name]
            return value, value * low, value * high
        measured = widths.get(self.kind, {}).get(name)
        low, high = measured or (1.0, 1.0)
        if measured is None or has_guesses(self.times.estimate(step)):
            step_s, step_low_s, step_high_s = self.times.interval(step)
            low, high = min(step_low_s / step_s, low), max(step_high_s / step_s, high)
        unfitted_s = self.engine.overhead.before_s(self.load.isl) if name == "ttft" and not self.fitted else 0.0
        return value, max(value - unfitted_s, 0.0) * low, value * high

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
        return not mostly_predicted(self._decode_at_full_clock)

    @property
    def cost(self) -> Estimate:
        """Bound and roof of the mean decode step."""
        return self.decode_pass.cost

    @cached_property
    def bound(self) -> float:
        """Upper bound on output tokens/s of any schedule with as many sequences at a time as may run here.

        No decode step is shorter than its bound, and no request takes less arithmetic than its tokens do at the peak.
        """
        load, workers = self.load, self.workers
        tokens_of_prompt = self.prompt_step.chunk / self.prompt_step.prompts
        request_at_peak_s = self.prompt_pass.at_peak_s * load.new_tokens / tokens_of_prompt
        by_steps = inf
        if self.metrics.mean_tpot_s is not None:
            steps = (load.osl - 1) / load.tokens_per_step
            request_at_peak_s += steps * self.decode_pass.at_peak_s / self.decode_step.decodes
            sequences = max(self.most_running, ceil(self.metrics.running / workers))
            if load.concurrency:
                sequences = min(ceil(load.concurrency / workers), sequences)
            step_bound_s = float(self.times.estimate(self.decode_step._replace(decodes=sequences)).cost.lower_warm_s)
            if step_bound_s:
                by_steps = workers * self.split.pp * sequences / (steps * step_bound_s) * load.osl
        if self.pools is not None or not request_at_peak_s:
            return by_steps
        return min(by_steps, self.gpus / request_at_peak_s * load.osl)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the time between two tokens, the largest first: resources that limit kernels of a decode step, the host, prompts.

        If each request gets only one token, they are shares of a prompt's step.
        """
        step_s, gap_s, sequences = self.decode_s, self.metrics.mean_itl_s, float(self.decode_step.decodes)
        if not self.metrics.mean_tpot_s or gap_s <= 0:
            step_s = gap_s = self.times.seconds(self.prompt_step)
            sequences = 1.0
        host_layers_s = self.times.host_s(self.decode_step if self.metrics.mean_tpot_s else self.prompt_step)
        engine_s = min(self.times.overhead_s(sequences) + host_layers_s, step_s)
        kernels_s = step_s - engine_s
        shares = {
            HOST: max(engine_s - host_layers_s, 0.0) / gap_s,
            ON_HOST: host_layers_s / gap_s,
            PROMPTS: max(gap_s - step_s, 0.0) / gap_s,
            POWER: 0.0,
        }
        slowed = self.decode_pass
        rows_at_full_clock = self._decode_at_full_clock.rows if self.times.power.given else slowed.rows
        for slow_row, row in zip(slowed.rows, rows_at_full_clock, strict=True):
            for name, row_s in ((limit_of(row), row.seconds), (POWER, slow_row.seconds - row.seconds)):
                shares[name] = shares.get(name, 0.0) + row_s / slowed.seconds * kernels_s / gap_s
        positive = [(name, share) for name, share in shares.items() if share > 0]
        return dict(sorted(positive, key=lambda named: -named[1]))

    @property
    def joules_per_token(self) -> float | None:
        """Joules per output token of all GPUs, prompts included; None where the device has no power model."""
        watts = self.watts
        return None if watts is None else watts * self.gpus / self.tokens_per_s

    @property
    def watts(self) -> float | None:
        """Mean watts of a GPU over prompt steps, decode steps and idle time between requests."""
        load, device, workers = self.load, self.times.device, self.workers
        decode_steps_per_s = self.requests_per_s / workers * max(load.osl - 1, 0) / load.tokens_per_step / self.decode_step.decodes
        prompt_steps_per_s = self.requests_per_s * load.new_tokens / self.prompt_step.chunk
        decode = (decode_steps_per_s, self.decode_pass)
        if self.pools is None:
            return mean_watts(device, [(prompt_steps_per_s, self.prompt_pass), decode])
        prefill_watts = mean_watts(device, [(prompt_steps_per_s / self.pools.prefill_workers, self.prompt_pass)])
        decode_watts = mean_watts(device, [decode])
        if prefill_watts is None or decode_watts is None:
            return None
        decode_gpus = workers * self.split.gpus
        return ((self.gpus - decode_gpus) * prefill_watts + decode_gpus * decode_watts) / self.gpus

    @property
    def price(self) -> float | None:
        """The price of a million output tokens, in the currency of ``gpu_hour``."""
        return None if self.gpu_hour is None else self.gpu_hour * self.gpus / HOUR / self.tokens_per_s * MILLION


def limit_of(row: PassRow) -> str:
    """What limits a row of a step: links, arithmetic, or reading weights or the cache; latency if it is far from its roof.

    L2 is never the limit that is named: tiles in L2 feed arithmetic and DRAM, and the fuller of these two is named.
    """
    if row.op.group == COLLECTIVE:
        return LINKS
    seconds = {resource: float(term) for resource, term in row.cost.terms.items()}
    fullest = max((resource for resource in seconds if resource != "l2"), key=lambda resource: seconds[resource], default="")
    if not fullest or max(seconds.values()) < LATENT * row.seconds:
        return LATENCY
    if fullest in ("tensor", "vector", "sfu", "sram"):
        return COMPUTE
    return CACHE if row.op.group == ATTENTION else WEIGHTS


def mean_watts(device: Device, passes: list[tuple[float, PassEstimate]]) -> float | None:
    """Watts of a GPU that runs each of ``passes`` at its rate per second and idles otherwise; None if ``device`` has no power model."""
    if device.power is None:
        return None
    busy_share = busy_watts = 0.0
    for per_s, pass_ in passes:
        if pass_.power is None:
            return None
        busy_share += per_s * pass_.seconds
        busy_watts += per_s * pass_.seconds * pass_.power.watts
    return busy_watts / max(busy_share, 1.0) + max(1 - busy_share, 0.0) * device.power.static_w


def serving_answer(
    question: ServeQuestion,
    model: ModelSpec,
    stored: str | None,
    device: Device,
    engine: Engine,
    times: Callable[[Engine, ModelPass], KernelTimes],
) -> ServingAnswer:
    """The answer to ``question`` for one layout of ``engine``.

    ``times``: makes the step times of an engine and a pass; ``stored``: format of the weights, from ``hf.served_as``.
    """
    load, power = question.load(engine.users), PowerOptions(question.power_limit, question.clock).check(device)
    question.check_lengths(model)
    engine = question.configured(engine)

    def times_in(split: Split) -> KernelTimes:
        """Step times in the layout ``split``, with the power limit and the layers on the host that the question states."""
        all_on_gpu = replace(times(engine, question.base_pass(model, device, split, stored)), power=power)
        if question.gpu_layers is None:
            return all_on_gpu
        on_gpu, host = offloaded(all_on_gpu.model, all_on_gpu.base_pass, device, question.gpu_layers, question.host_bandwidth())
        return replace(all_on_gpu, model=on_gpu, host=host)

    split = question.split(model, engine.in_stages)
    if question.prefill_workers is None:
        return serve(times_in(split), load, question.spread, question.requests, question.gpu_hour)
    pools = Pools(times_in(question.prefill_split(model)), times_in(split), question.prefill_workers, question.workers)
    return serve_pools(pools, load, question.spread, question.requests, question.gpu_hour)


def serve(times: KernelTimes, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> ServingAnswer:
    """The answer of a replica whose steps take ``times``; ``spread`` and ``requests`` as of ``simulate``.

    Data-parallel groups of a dense model run independently, each as an engine with its share of the load. If the model does not fit, a
    UsageError names the fewest GPUs on which it does.
    """
    engine, base_pass, model = times.engine, times.base_pass, times.model
    memory = Memory(model, times.device, engine, base_pass)
    most_running = memory.most_running(load.isl + load.osl)
    if most_running < 1:
        raise _too_large(memory, base_pass, load.isl + load.osl)
    groups = 1 if model.is_moe else base_pass.split.dp  # groups of a model with experts run one step together
    slots = memory.slots(load.isl, load.osl, spread)
    group_split = replace(base_pass.split, dp=base_pass.split.dp // groups)
    group_times = times if groups == 1 else replace(times, base_pass=replace(base_pass, split=group_split), nodes={})
    group_load = load.of_fullest_group(groups)
    pool = Pool(group_times, engine.batching.of_replica(group_split), slots // groups)
    mean_isl = load.isl * (1 + spread) / 2
    if requests is not None:
        requests = ceil(requests / groups)
    steps: list[LoggedSteps] = []
    metrics = simulate(pool, group_load, engine.overhead.before_s(mean_isl), spread=spread, requests=requests, log=steps)
    copies: float = groups
    if load.concurrency is not None and group_load.concurrency is not None:
        copies = load.concurrency / group_load.concurrency
    return ServingAnswer(times, load, memory, most_running, metrics.times(copies), gpu_hour, spread, None, steps)


def serve_pools(pools: Pools, load: Load, spread: float = 1.0, requests: int | None = None, gpu_hour: float | None = None) -> ServingAnswer:
    """The answer of pools with ``load.concurrency`` users; UsageError without users, or if a worker cannot hold a request."""
    if load.check().concurrency is None or load.osl < 2:
        raise UsageError("pools answer users, with two tokens or more", "give --concurrency in place of --rate, and a longer --osl")
    prefill, decode = pools.prefill, pools.decode
    prefill_memory, decode_memory = (Memory(times.model, times.device, times.engine, times.base_pass) for times in (prefill, decode))
    length = load.isl + load.osl
    most_prompts, most_running = prefill_memory.most_running(load.isl + 1), decode_memory.most_running(length)
    if most_prompts < 1:
        raise _worker_too_small("prefill", "--prefill-tp", prefill_memory, length)
    if most_running < 1:
        raise _worker_too_small("decode", "--tp", decode_memory, length)
    prefill_split, decode_split = prefill.base_pass.split, decode.base_pass.split
    slots = decode_memory.slots(load.isl, load.osl, spread)
    mean_isl = load.isl * (1 + spread) / 2
    cache_bytes = prefill_memory.fit(max(round(mean_isl), 1)).sequence
    steps: list[LoggedSteps] = []
    metrics = simulate(
        pool_of(decode, decode.engine, decode_split, slots, pools.decode_workers),
        load,
        decode.engine.overhead.before_s(mean_isl),
        spread=spread,
        requests=requests,
        prefill=pool_of(prefill, prefill.engine, prefill_split, most_prompts, pools.prefill_workers),
        transfer_s=transfer_s(cache_bytes, prefill_split, decode_split, decode.device, pools.gpus),
        log=steps,
    )
    return ServingAnswer(decode, load, decode_memory, most_running, metrics, gpu_hour, spread, pools, steps)


def _worker_too_small(name: str, option: str, memory: Memory, length: int) -> UsageError:
    """The error for a worker called ``name`` that holds no request of ``length`` tokens; ``option`` gives it more GPUs."""
    need = memory.total(memory.base_pass.split.dp, length) / 1e9
    words = f"a {name} worker has {memory.usable / 1e9:.1f} GB per GPU and needs {need:.1f} GB"
    return UsageError(words, f"give it more GPUs, by {option}")


def _too_large(memory: Memory, base_pass: ModelPass, length: int) -> UsageError:
    """The error for a model that does not fit: the memory it lacks, and the option that would help."""
    need, have = memory.total(base_pass.split.dp, length) / 1e9, memory.usable / 1e9
    model, engine, device = memory.model, memory.engine, memory.device
    words = f"{model.name} with one request of {length:,} tokens needs {need:.1f} GB per GPU, and {engine.name} has {have:.1f} GB"
    if memory.usable <= engine.reserve + memory.activations:
        return UsageError(words, "give a smaller --reserve or --token-budget")
    larger = _larger_split(memory, base_pass, length)
    if larger is not None:
        return UsageError(words, f"give {_options_of(larger)}{' or --gpu-layers' if engine.in_stages else ''}")
    fix = "give shorter requests, a narrower format"
    if engine.in_stages:
        fix += f" or fewer --gpu-layers than {len(model.layers)}"
    if device.interconnect is None:
        fix += f"; {device.id} has no interconnect in its profile for more GPUs"
    return UsageError(words, fix)


def _larger_split(memory: Memory, base_pass: ModelPass, length: int) -> Split | None:
    """The layout on the fewest GPUs that holds a request and has the same groups, and experts cut or distributed as before."""
    before = base_pass.split
    gpus = 1 << before.gpus.bit_length()  # the next power of two
    while gpus <= MOST_GPUS:
        for split in layouts(memory.model, gpus, memory.device, base_pass.weights_from_file):
            alike = split.dp == before.dp and (split.ep > 1) == (before.ep > 1)
            if alike and replace(memory, base_pass=replace(base_pass, split=split)).most_running(length):
                return split
        gpus *= 2
    return None


def _options_of(split: Split) -> str:
    """The layout as options; only its number of GPUs if they share every matrix."""
    if split == Split(split.tp):
        return f"--gpus {split.gpus}"
    return " ".join(f"--{name} {getattr(split, name)}" for name in ("tp", "dp", "ep", "pp") if getattr(split, name) > 1)
