"""The report of a serving engine: latencies, throughput, memory, power, and what limits it."""

from __future__ import annotations

from typing import Any

from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import headline, time_text
from perfmodel.report.charts.format_number import digits, percent, text
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.report.metrics import Metric, as_json, as_table
from perfmodel.report.op_common import guess_notes, head
from perfmodel.report.power import with_power
from perfmodel.report.saved import Interval
from perfmodel.report.serve_timeline import counters, timeline
from perfmodel.report.step import StepPart, by_share, moved_bytes, step_meters, time_bars, tokens
from perfmodel.serving.answer import ServingAnswer
from perfmodel.serving.engine import Engine
from perfmodel.serving.memory import LEFT_FREE, RUNTIME, Memory
from perfmodel.serving.metrics import ServingMetrics
from perfmodel.serving.steps import Times
from perfmodel.transformer.step import Split

LEAST_WAITING = 0.05
"""Least mean number of waiting requests that is mentioned."""
COLUMNS = ("name", "count", "bytes", "time", "of bound", "share")
POOLED = "Pools: memory and steps are those of one decode worker; the rest is of all."
BRIEF = (
    *("ttft_s.p50", "ttft_s.p99", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "requests_per_s", "running", "waiting"),
    *("memory.total", "memory.most_running", "power_w", "energy_per_token_j", "price_per_million"),
)


def report(answer: ServingAnswer, pictures: bool = False, timed: bool = False) -> Report:
    """``answer`` as a Report with data of schema perfmodel.serve/1. ``timed``: with the simulated steps over time."""
    step_pass, metrics, step = answer.decode_pass, _metrics(answer), answer.decode_step
    parts = [StepPart(row.op.name, row.op, row.cost, row.interval, row.seconds) for row in step_pass.rows]
    rows = [_row(part, step_pass.seconds) for part in parts]
    meters = step_meters(answer.cost, parts, step_pass.seconds)
    name = "prompt's step" if answer.tpot is None else f"decode step of {step.decodes:,} at {step.context:,} tokens"
    pooled = answer.pools is not None
    return Report(
        _title(answer),
        [*headline(_fitting(answer), _time(answer), _limited(answer)), *_unfitted(answer)],
        [as_table("", {"": metrics}), by_share(rows, COLUMNS)],
        _notes(answer),
        {**head("serve", _inputs(answer), answer.times.device), **as_json(metrics), "steps": {"decode": list(map(as_json, rows))}},
        charts=[time_bars(parts, f"Time of a {name}")] if pictures else [],
        meters=[*meters, *_power_of_pools(answer)] if pooled else with_power(meters, step_pass.power, token_j=answer.joules_per_token),
        metered=name,
        figures=_figures(answer),
        brief=[as_table("", {"": metrics}, labels=BRIEF)],
        timeline=timeline(answer) if timed else [],
        counters=counters(answer) if timed else [],
    )


def _inputs(answer: ServingAnswer) -> dict[str, Any]:
    load, split, batching, base = answer.load, answer.split, answer.engine.batching, answer.times.base_pass
    inputs: dict[str, Any] = {
        "model": answer.memory.model.name,
        "engine": answer.engine.id,
        "gpus": answer.gpus,
        **{"tensor_parallel": split.tp, "expert_parallel": split.ep, "attention_data_parallel": split.dp, "pipeline_parallel": split.pp},
        **{"isl": load.isl, "osl": load.osl, "concurrency": load.concurrency, "rate": load.rate, "prefix": load.prefix},
        **{"draft_tokens": load.draft_tokens, "acceptance": load.acceptance, "spread": answer.spread},
        **{"dtype": base.dtype.name, "weight_bits": base.weight_bits, "kv_bits": base.kv_bits, "imbalance": base.imbalance},
        **{"token_budget": batching.token_budget, "max_sequences": batching.max_sequences, "gpu_hour": answer.gpu_hour},
        **{"power_limit": answer.times.power.limit, "clock": answer.times.power.clock},
    }
    weights, host = _weights(answer), answer.times.host
    if weights:
        inputs["weights"] = weights
    if host:
        inputs |= {"gpu_layers": len(answer.times.model.layers), "host_memory": host.bandwidth}
    return inputs


def _weights(answer: ServingAnswer) -> str:
    """The word for the format of quantized weights; empty if ``weight_bits`` says it."""
    quantized = answer.memory.model.quantized
    if quantized is None or not answer.times.base_pass.weights_from_file:
        return ""
    several_words = " " in quantized.words
    return quantized.main.name if several_words and quantized.main is not None else quantized.words


def _metrics(answer: ServingAnswer) -> list[Metric]:
    s, memory, load = answer.metrics, answer.memory, answer.load
    length = load.isl + load.osl
    return [
        _mean("ttft_s.mean", "first token, mean", answer.ttft, answer.at_least),
        Metric("ttft_s.p50", s.median_ttft_s, "first token, median", "s"),
        Metric("ttft_s.p99", s.p99_ttft_s, "first token, 99 %", "s"),
        _mean("tpot_s.mean", "per token after it", answer.tpot, answer.at_least),
        Metric("tokens_per_s", answer.tokens_per_s, "tokens/s"),
        Metric("tokens_per_s_bound", answer.bound, "tokens/s at most, by the bound"),
        Metric("tokens_per_s_per_gpu", answer.tokens_per_s_gpu, "tokens/s per GPU"),
        Metric("tokens_per_s_per_user", answer.tokens_per_s_user, "tokens/s per user"),
        Metric("shares", answer.shares),
        Metric("limited_by", next(iter(answer.shares))),
        Metric("at_least", answer.at_least),
        Metric("requests_per_s", answer.requests_per_s, "requests/s"),
        Metric("running", s.running, "requests running"),
        Metric("waiting", s.waiting, "requests waiting" if s.waiting >= LEAST_WAITING else ""),
        Metric("decoding", s.decoding),
        Metric("step_s.decode", answer.decode_s, "decode step alone", "s"),
        Metric("step_s.with_prompts", s.mean_itl_s, "between decode steps", "s"),
        Metric("prompt_s", s.prompt_s, "steps of a prompt", "s"),
        Metric("share_with_prompts", s.with_prompts, "steps with prompts", "share"),
        Metric("memory.weights", memory.weights, "weights", "B"),
        Metric("memory.activations", memory.activations, "activations", "B"),
        Metric("memory.runtime", memory.reserved[RUNTIME], "reserved for the runtime" if memory.reserved[RUNTIME] else "", "B"),
        Metric("memory.left_free", memory.reserved[LEFT_FREE], "left free by the engine", "B"),
        Metric("memory.sequence", memory.fit(length).sequence, "cache of a request", "B"),
        Metric("memory.total", memory.total(_held(answer), length), "memory per GPU", "B"),
        Metric("memory.usable", memory.usable, unit="B"),
        Metric("memory.most_running", answer.workers * answer.most_running, "requests that fit"),
        Metric("power_w", answer.watts, "power per GPU", "W"),
        Metric("energy_per_token_j", answer.joules_per_token, "energy per token", "J"),
        Metric("price_per_million", answer.price, "price per million tokens", "price"),
        Metric("standard_error.ttft", s.ttft_error),
        Metric("standard_error.tpot", s.tpot_error),
        Metric("requests_simulated", s.requests),
        Metric("time_s.lower", answer.cost.lower_s, unit="s"),
    ]


def _mean(key: str, label: str, times: Times | None, at_least: bool) -> Metric:
    """Metric of a mean time, with its interval unless it is a lower limit (``at_least``)."""
    value, low, high = times or (None, None, None)
    return Metric(key, value, label, "s") if at_least else Metric(key, value, label, "s", low, high)


def _took(answer: ServingAnswer, times: Times) -> str:
    return f"at least {format_time(times[0], 3)}" if answer.at_least else time_text(Interval(*times))


def _held(answer: ServingAnswer) -> int:
    """Mean number of sequences in the cache, at least one per group."""
    return min(max(int(answer.metrics.running / answer.workers), answer.split.dp), answer.most_running)


def _power_of_pools(answer: ServingAnswer) -> list[Meter]:
    """The power meter over both pools, as a decode step has only some of their GPUs."""
    watts, joules, state = answer.watts, answer.joules_per_token, answer.decode_pass.power
    if watts is None or joules is None or state is None:
        return []
    all_w, limit_w = answer.gpus * watts, answer.gpus * state.limit_w
    return [Meter(f"power, {answer.gpus} GPUs", watts / state.limit_w, f"{all_w:,.0f} of {limit_w:,.0f} W, {text(joules, 'J')} a token")]


def _row(part: StepPart, step_s: float) -> list[Metric]:
    return [
        Metric("name", part.name, "op", "text"),
        Metric("count", int(part.op.count), "count"),
        Metric("bytes", moved_bytes(part.op, part.cost, part.op.count), "bytes", "B"),
        Metric("time", part.seconds, "time", "s"),
        Metric("of bound", float(part.cost.lower_s) / part.seconds if part.seconds else 0.0, "of bound", "share"),
        Metric("share", part.seconds / step_s, "share", "share"),
    ]


def counted(number: int, name: str) -> str:
    """Number and name, in the plural unless the number is 1.

    >>> counted(1, "user"), counted(5000, "user")
    ('1 user', '5,000 users')
    """
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def split_words(split: Split) -> str:
    """Phrase on the degrees of parallelism above 1.

    >>> split_words(Split(8, 8)), split_words(Split(1, 1, 2, 4)), split_words(Split())
    ('TP 8, EP 8', 'DP 4, PP 2', '')
    """
    sizes = (("TP", split.tp), ("DP", split.dp), ("EP", split.ep), ("PP", split.pp))
    return ", ".join(f"{name} {size}" for name, size in sizes if size > 1)


def _title(answer: ServingAnswer) -> str:
    device, load = answer.times.device, answer.load
    gpus = device.name if answer.gpus == 1 else f"{answer.gpus} x {device.name}"
    users = counted(load.concurrency or 0, "user") if load.rate is None else f"{load.rate:g} requests/s"
    layout = split_words(answer.split)
    pools = answer.pools
    if pools is not None:
        prefill = split_words(pools.prefill.base_pass.split) or "1 GPU"
        layout = f"{pools.prefill_workers} x ({prefill}) to {pools.decode_workers} x ({layout or '1 GPU'})"
    if answer.times.host is not None:
        on_gpu, on_host = len(answer.times.model.layers), len(answer.times.host.layers.layers)
        layout = f"{on_gpu} of {on_gpu + on_host} layers, the others on the host"
    if layout:
        gpus += f" ({layout})"
    weights = _weights(answer)
    model = f"{answer.memory.model.name}, {weights} weights" if weights else answer.memory.model.name
    return f"{model}: {answer.engine.name} on {gpus}, {load.isl:,} + {load.osl:,} tokens, {users}"


def _fitting(answer: ServingAnswer) -> str:
    """Sentence on how many requests fit beside the weights, and how many run and wait."""
    memory, running, waiting = answer.memory, answer.metrics.running, answer.metrics.waiting
    sequences = answer.workers * answer.most_running
    room = f"{counted(sequences, 'request')} of {answer.load.isl + answer.load.osl:,} tokens"
    fits = f"Fits: room for {room} beside {format_si(memory.weights, 'B', 4)} of weights per GPU{_reserved(memory)}"
    if waiting < LEAST_WAITING:
        return fits
    growing = " as they grow" if running > sequences + 0.5 else ""
    waiting_text = f"{waiting:,.0f}" if waiting >= 10 else digits(waiting, 2)
    return f"{fits}; {round(running):,} run{growing}, {waiting_text} wait"


def _time(answer: ServingAnswer) -> str:
    """Sentence on latencies, and on the throughput of all users."""
    first = f"First token after {_took(answer, answer.ttft)}"
    if answer.tpot is not None and answer.at_least:
        first += f", then one every {format_time(answer.tpot[0], 3)} or more"
    elif answer.tpot is not None:
        first += f", then one every {_took(answer, answer.tpot)}"
    elif answer.metrics.mean_tpot_s == 0:
        first += ", the second with it"
    rate = f"{tokens(answer.tokens_per_s)}, {digits(answer.tokens_per_s_gpu, 3)} per GPU"
    if answer.at_least:
        rate = f"at most {rate}"
    if answer.price is not None:
        rate += f", {answer.price:.3g} per million tokens at {answer.gpu_hour:g} a GPU-hour"
    return f"{first}: {rate}"


def _unfitted(answer: ServingAnswer) -> list[str]:
    """Sentence if the engine's overhead was fitted to another kind of model, else empty."""
    models = {"dense": "dense model", "experts": "model with experts"}[answer.kind]
    return [] if answer.fitted else [f"No {models} was fitted for {answer.engine.name}: the intervals are wide."]


def _reserved(memory: Memory) -> str:
    """Note on memory reserved beside weights: activations of the largest step, the runtime, and memory left free."""
    words = {RUNTIME: "for the runtime", LEFT_FREE: f"({1 - memory.engine.memory_share:.0%}) that {memory.engine.name} leaves free"}
    sizes = {"of activations": memory.activations, **{words[name]: size for name, size in memory.reserved.items()}}
    *first, last = (f"{format_si(size, 'B', 3)} {name}" for name, size in sizes.items() if size)
    return f", {', '.join(first)} and {last}" if first else f" and {last}"


def _limited(answer: ServingAnswer) -> str:
    """Sentence on the largest shares of the time between two tokens."""
    (name, share), *others = answer.shares.items()
    between = "of the time between tokens" if answer.tpot is not None else "of the time"
    words = f"Limited by {name}: {percent(share)} {between}"
    if others:
        second_name, second_share = others[0]
        words += f"; {second_name} {percent(second_share)}"
    return f"{words}."


def _figures(answer: ServingAnswer) -> list[Figure]:
    return [
        Figure("time to first token", _took(answer, answer.ttft)),
        Figure("time per token", "one token only" if answer.tpot is None else _took(answer, answer.tpot)),
        Figure("throughput", f"{tokens(answer.tokens_per_s)}, {digits(answer.tokens_per_s_gpu, 3)} per GPU"),
        Figure("requests that fit", f"{answer.workers * answer.most_running:,}"),
        *([] if answer.price is None else [Figure("price per million tokens", f"{answer.price:.3g}")]),
    ]


def _notes(answer: ServingAnswer) -> list[str]:
    engine, b = answer.engine, answer.engine.batching
    steps = "prompts and decoding sequences share steps" if b.mixed else "waiting prompts run before decode steps"
    chunks = "long prompts in chunks" if b.chunked else "whole prompts"
    words = [
        f"{engine.name}: {steps}, {chunks}, at most {b.token_budget:,} tokens a step and {b.max_sequences:,} sequences; "
        f"{engine.memory_share:.0%} of the memory.",
        *([POOLED] if answer.pools is not None else []),
        _simulated(answer.metrics),
        _overhead(engine),
    ]
    words += guess_notes(row.prediction for row in answer.decode_pass.rows if row.prediction is not None)
    missing = [row.missing for row in answer.decode_pass.rows if row.prediction is None]
    if missing:
        words.append(f"At least: the roof stands for {len(missing)} kernels of which no time is predicted: {missing[0]}.")
    return [*words, *(f"{name}: {source}." for name, source in engine.sources.items())]


def _simulated(metrics: ServingMetrics) -> str:
    """Note on the number of simulated requests and the standard errors of their means."""
    errors = f"{metrics.ttft_error:.1%} of the first token" + (f" and {metrics.tpot_error:.1%} per token" if metrics.mean_tpot_s else "")
    return f"Simulated step by step: means of {metrics.requests:,} requests, with standard errors of {errors}."


def _overhead(engine: Engine) -> str:
    """Note on the engine's overhead and its source."""
    o = engine.overhead
    parts = (
        ("step", o.step_s),
        ("step more where it has prompts", o.prompt_s),
        ("layer of experts of a step with prompts", o.expert_layer_s),
        ("kernel", o.kernel_s),
        ("sequence", o.sequence_s),
        ("request", o.request_s),
        ("token of its prompt", o.request_token_s),
    )
    times = ", ".join(f"{format_time(seconds, 3)} a {name}" for name, seconds in parts if seconds)
    if not times:
        return "No time of the engine itself beside its kernels is counted."
    return f"The engine itself: {times}{f'; fitted to {o.fitted}' if o.fitted else ''}."
