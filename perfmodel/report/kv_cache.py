"""The report of a KV cache: sizes, how many sequences fit, and generation with and without it."""

from __future__ import annotations

from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.units import format_binary, format_count, format_si, format_time
from perfmodel.report.answer import fit_sentence, headline
from perfmodel.report.charts.format_number import digits
from perfmodel.report.charts.schema import Bar, BarChart, Chart, Limit, LineChart, Mark, Series
from perfmodel.report.document import Figure, Meter, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table
from perfmodel.report.model_words import TIMES, at_least, file_notes
from perfmodel.report.op_common import head, with_steps
from perfmodel.transformer.answer import ModelAnswer
from perfmodel.transformer.cache_plan import CacheResult, smallest_tp
from perfmodel.transformer.estimate import MIXED, PREDICTED, ROOF
from perfmodel.transformer.explain import explain_cache
from perfmodel.transformer.generation import Generation, heads_at_every_token
from perfmodel.transformer.kv_cache import LayerCache, attention_kinds, batch_bytes, equivalent_kv_heads, kind_label
from perfmodel.transformer.op import MATMUL
from perfmodel.transformer.op_time import in_compute_dtype
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, score_flops

STOPS = 16
"""Number of lengths of the line over the context."""
BRIEF = (
    *("bytes_per_token", "bytes_per_sequence", "this cache", "memory.weights_bytes", "memory.reserve_bytes"),
    *("left for the cache", "memory.capacity_bytes", "max_batch", "longest context at this batch"),
)
Generated = tuple[ModelAnswer, ModelAnswer] | UnavailableError
"""A generation with a cache and without, or the reason why there is no time for it."""


def report(result: CacheResult, times: Generated, *, explained: bool = False, pictures: bool = False) -> Report:
    """``result`` as a Report with data of schema perfmodel.kv_cache/1."""
    w, gain, weights = result.workload, _generation_gain(result, times), weights_format(result)
    generated = _generation(result, times)
    formats = w.form.dtype if weights == w.form.dtype else f"{w.form.dtype}, {weights} weights"
    brief = as_table(
        "", {"": [*_sizes(result), *_memory(result)]}, "cache", labels=BRIEF, without=() if w.reserve else ["memory.reserve_bytes"]
    )
    plain = Report(
        f"KV cache of {w.spec.name}: {w.batch} x {w.n:,} tokens, {formats} on {f'{w.tp} x ' * (w.tp > 1)}{result.device.name}",
        headline(_fitting(result), _room(result), "" if result.fits is False else gain),
        _tables(result, *generated),
        _notes(result, times),
        _data(result, *generated),
        charts=_charts(result) if pictures else [],
        meters=_meters(result),
        metered=f"memory of {'each ' * (w.tp > 1)}{result.device.name}",
        figures=_figures(result),
        brief=[brief],
        reasons=[gain] if result.fits is False and gain else [],
    )
    return with_steps(plain, [("every number", {"model": w.spec.name}, explain_cache(result))]) if explained else plain


def _data(result: CacheResult, cached: list[Metric], uncached: list[Metric]) -> dict[str, Any]:
    """The object of schema perfmodel.kv_cache/1."""
    w, form = result.workload, result.workload.form
    inputs = {"model": w.spec.name, "n": w.n, "batch": w.batch, "dtype": form.dtype, "block_size": form.block_size}
    inputs |= {"rope_dtype": form.rope_dtype, "scale_group": form.scale_group, "weights_dtype": weights_format(result)}
    inputs |= {"weights_from_file": w.weights_from_file, "reserve_bytes": w.reserve, "tensor_parallel": w.tp}
    return {
        **head("kv_cache", inputs, result.device),
        "parameters": result.parameters,
        "elements_per_token": sum(cache.count * cache.elements_per_token for cache in result.layers),
        **as_json([*_sizes(result), *_memory(result)]),
        "any_context_fits": result.endless,
        "layers": [as_json(_layer(cache)) for cache in result.layers],
        "generation": {
            "tokens": w.n,
            "with_cache": as_json(cached),
            "without_cache": {**as_json(uncached), "head_flops_if_at_every_token": heads_at_every_token(w.spec, w.n)},
            "measured": [
                {"device": r.device, "tokens": r.tokens, "with_cache_s": r.cached_s, "without_cache_s": r.uncached_s, "source": r.source}
                for r in result.measured
            ],
        },
    }


def both(size: int) -> str:
    """``size`` with decimal and binary prefix, which are often confused."""
    return f"{format_si(size, 'B')} ({format_binary(size)})" if size >= 1024 else f"{size} B"


def weights_format(result: CacheResult) -> str:
    """The format of the weights; for a quantized checkpoint that of most matrices."""
    w = result.workload
    main = w.spec.quantized.main if w.weights_from_file and w.spec.quantized is not None else None
    return w.weights_dtype if main is None else main.name


def _parts(result: CacheResult) -> dict[str, int]:
    """Bytes of a GPU's memory by part."""
    parts = {"weights": result.weights, "KV cache": result.total, "held back": result.workload.reserve}
    return {name: size for name, size in parts.items() if size}


def _sizes(result: CacheResult) -> list[Metric]:
    return [
        Metric("bytes_per_token", result.per_token, "per token", after=" B"),
        Metric("bytes_per_sequence", result.per_sequence, "per sequence", after=" B"),
        Metric("bytes", result.total, "batch", after=" B"),
        Metric("unused_block_bytes", result.total - result.unpaged, "  of it unused parts of blocks", after=" B"),
    ]


def _memory(result: CacheResult) -> list[Metric]:
    capacity, room, reserve = result.capacity, result.room, result.workload.reserve
    return [
        _binary("memory.capacity_bytes", capacity, "" if capacity is None else "capacity"),
        Metric("", "not in the profile" if capacity is None else None, "" if capacity else "capacity", "text"),
        _binary("memory.weights_bytes", result.weights, "weights"),
        _binary("memory.reserve_bytes", reserve, "reserved" if reserve else ""),
        Metric("memory.room_bytes", room),
        Metric("", None if room is None else both(room) if room > 0 else "none", "left for the cache", "text"),
        Metric("", both(result.total), "this cache", "text", after=", does not fit" if result.fits is False else ""),
        Metric("memory.fits", result.fits),
        Metric("max_batch", result.batch, "largest batch at this length"),
        Metric("max_context", result.context),
        Metric("", "any" if result.endless else result.context, "longest context at this batch"),
    ]


def _binary(key: str, size: int | None, label: str) -> Metric:
    return Metric(key, size, label, "B", after="" if size is None or size < 1024 else f" ({format_binary(size)})")


def _layer(cache: LayerCache) -> list[Metric]:
    attention = cache.attention
    grouped = attention if isinstance(attention, GroupedAttention) else None
    read = cache.bytes_per_token - attention.index_bytes
    heads = equivalent_kv_heads(attention) if isinstance(attention, LatentAttention) else grouped and grouped.kv_heads
    if isinstance(attention, GroupedAttention):
        stored = f"K, V of {attention.kv_heads} x {attention.head_dim}"
    elif isinstance(attention, LatentAttention):
        stored = f"latent {attention.kv_lora_rank} + key {attention.qk_rope_head_dim}"
    else:
        stored = f"nothing; a state of {format_si(attention.state_bytes, 'B')}"
    if isinstance(attention, (GroupedAttention, LatentAttention)) and attention.indexer is not None:
        stored += f" + {'fp8 ' * (grouped is None)}index key {attention.indexer.head_dim}"
    return [
        Metric("", kind_label(attention), "attention", "text"),
        Metric("attention", attention.kind),
        Metric("count", cache.count, "layers"),
        Metric("window", attention.window),
        Metric("kv_heads", grouped and grouped.kv_heads),
        Metric("head_dim", grouped and grouped.head_dim),
        Metric("equivalent_kv_heads", heads),
        Metric("latent_dim", None if grouped else cache.elements_per_token),
        Metric("elements_per_token", cache.elements_per_token),
        Metric("", stored, "kept per token", "text"),
        Metric("bytes_per_token", cache.bytes_per_token, "B per token and layer"),
        Metric("tokens", cache.tokens, "tokens held"),
        Metric("state_bytes_per_sequence", attention.state_bytes),
        Metric("bytes_per_sequence", cache.bytes, "sequence", "B"),
        Metric("decode_intensity", float(score_flops(attention, cached=True) / read) if read else None, "FLOP/B in decode"),
    ]


def _generation(result: CacheResult, times: Generated) -> tuple[list[Metric], list[Metric]]:
    """Metrics of generation with a KV cache and without one."""
    answers = (None, None) if isinstance(times, UnavailableError) else times
    fitted = ", if it fitted" if result.fits is False else ""
    kinds = {answer.times_from for answer in answers if answer is not None} or {ROOF}
    label = "" if kinds == {ROOF} else f"{TIMES[MIXED if len(kinds) > 1 else kinds.pop()]}{fitted}"
    return _generated(result.cached, answers[0], fitted, label), _generated(result.uncached, answers[1], fitted, label)


def _generated(cost: Generation, answer: ModelAnswer | None, fitted: str, label: str) -> list[Metric]:
    """Metrics of one generation: ``roofline_s`` and ``lower_s`` as in ``perfmodel model``, and ``seconds`` with ``label``."""
    prediction = None if answer is None else answer.prediction
    return [
        Metric("layers_flops", cost.layers, "matrices of the layers", "FLOP"),
        Metric("head_flops", cost.head, "head, last token only", "FLOP"),
        Metric("attention_flops", cost.attention, "attention", "FLOP"),
        Metric("flops", cost.flops, "all", "FLOP"),
        Metric("weights_read_bytes", cost.weights_read, "weights read", "B"),
        Metric("cache_read_bytes", cost.cache_read, "cache read", "B"),
        Metric("roofline_s", answer and answer.cost.roofline_s, f"roofline, no launches{fitted}", "s"),
        Metric("lower_s", answer and answer.cost.lower_s),
        Metric("predicted_s", prediction and prediction[0]),
        Metric("seconds", answer and answer.seconds, label, "s", before=at_least(answer.times_from) if answer else ""),
        Metric("times_from", answer and answer.times_from),
    ]


def _fitting(result: CacheResult) -> str:
    """Sentence on whether weights and cache fit, and on how many GPUs would hold them."""
    w = result.workload
    tp = smallest_tp(w, result.device) if result.fits is False else None
    needed, more = sum(_parts(result).values()), f"; --gpus {tp} would fit" if tp else ""
    return fit_sentence(needed, result.device, " per GPU" * (w.tp > 1), more, "")


def _room(result: CacheResult) -> str:
    """Sentence on how many sequences fit, and on how long those of the question can grow."""
    w = result.workload
    if result.room is None:
        return f"The cache takes {format_count(result.per_token)} B per token; the profile has no capacity."
    if result.room <= 0:
        alone = result.capacity is None or result.weights >= result.capacity
        return f"{'The weights alone' if alone else 'Weights and reserve'} leave no room for a cache."
    sequences = f"{result.batch:,} sequence{'s' * (result.batch != 1)} of {w.n:,} tokens"
    reserved = f"{format_si(w.reserve, 'B', 3)} reserved" if w.reserve else "nothing reserved"
    grows = f"{'one' if w.batch == 1 else f'{w.batch:,}'} can grow to {'any length' if result.endless else f'{result.context:,}'}"
    return f"Room for {sequences}, {reserved}; {grows}."


def _generation_gain(result: CacheResult, times: Generated) -> str:
    """Sentence on the time of a generation, and on the factor without a cache; empty if no time is known."""
    if isinstance(times, UnavailableError):
        return ""
    cached, uncached = times
    took, longer = (f"{at_least(time.times_from)}{format_time(time.seconds, 3)}" for time in times)
    if cached.times_from == uncached.times_from == PREDICTED and cached.seconds:
        longer = f"{digits(uncached.seconds / cached.seconds, 3)}x that time"
    return f"One sequence is generated in {took}; without a cache in {longer}{', with more memory' * (result.fits is False)}."


def _meters(result: CacheResult) -> list[Meter]:
    """Meters: parts of the capacity; the largest limits if they do not fit."""
    if result.capacity is None:
        return []
    parts = _parts(result)
    largest = max(parts, key=lambda name: parts[name])
    return [
        Meter(name, size / result.capacity, format_si(size, "B"), name == largest and result.fits is False) for name, size in parts.items()
    ]


def _figures(result: CacheResult) -> list[Figure]:
    w = result.workload
    gpu = " per GPU" * (w.tp > 1)
    return [
        Figure(f"cache per token{gpu}", f"{format_count(result.per_token)} B"),
        Figure(f"cache of {w.batch} x {w.n:,} tokens{gpu}", format_si(result.total, "B")),
        Figure(f"weights{gpu}", format_si(result.weights, "B")),
        *([] if result.batch is None else [Figure(f"sequences of {w.n:,} tokens that fit", f"{result.batch:,}")]),
        *([Figure(f"longest context of {w.batch}", f"{result.context:,} tokens")] if result.context else []),
    ]


def _tables(result: CacheResult, cached: list[Metric], uncached: list[Metric]) -> list[Table]:
    several = result.workload.tp > 1
    pairs = [(metric, other) for metric, other in zip(cached, uncached, strict=True) if metric.label and metric.value]
    ratios = [Metric("", other.value / metric.value, metric.label, after="x") for metric, other in pairs]
    columns = {"with cache": cached, "without": uncached, "without / with": ratios}
    return [
        as_table("", {"size": _sizes(result)}, "cache of each GPU" if several else "cache"),
        as_rows("by kind of layer", map(_layer, result.layers)),
        as_table(f"memory of {'each ' * several}{result.device.id}", {"size": _memory(result)}),
        as_table(f"to generate {result.workload.n:,} tokens, one sequence{', all GPUs' * several}", columns),
    ]


def _charts(result: CacheResult) -> list[Chart]:
    """Charts of the memory against its capacity, and over the length."""
    w, parts, here = result.workload, _parts(result), result.workload.local_model
    limits = [Limit("capacity", result.capacity)] if result.capacity else []
    longest = max(w.n, min(result.context or w.n, 4 * w.n))
    lengths = sorted({*(longest * place // STOPS for place in range(STOPS + 1)), w.n, longest} - {0})
    others = result.weights + w.reserve
    sizes = [1] if w.batch == 1 else [1, w.batch]
    series = [Series(f"{b} sequence{'s' * (b > 1)}", [(n, others + int(batch_bytes(here, n, b, w.form))) for n in lengths]) for b in sizes]
    marks = [Mark(w.n, f"{w.n:,} tokens", others + result.total)]
    if result.context and w.n < result.context <= longest:
        full = others + int(batch_bytes(here, result.context, w.batch, w.form))
        marks.append(Mark(result.context, f"memory ends at {result.context:,}", full))
    title, caption = "Memory of each GPU" if w.tp > 1 else "Memory", f"With weights{' and what is held back' * (w.reserve > 0)}."
    bars = BarChart(title, "B", [Bar(f"{w.batch} x {w.n:,} tokens", list(parts.items()))], limits)
    title = f"{title} over the context"
    return [bars, LineChart(title, "tokens", "memory", series, "count", "B", "linear", "linear", marks, limits, caption)]


def _notes(result: CacheResult, times: Generated) -> list[str]:
    w = result.workload
    with_cache, without = (f"{cost.attention / cost.flops:.2%}" for cost in (result.cached, result.uncached))
    notes = [
        "For n tokens of width d the cache turns O(n^2 d^2 + n^3 d) into O(n d^2 + n^2 d); attention, the term that n^2 d^2 and n d^2 "
        f"leave out, is {with_cache} of the FLOP with it and {without} without.",
        f"Weights: {format_count(result.parameters)} parameters; {weights_format(result)}, multiplied in {_multiplied(result, times)}.",
        f"Configuration: {w.spec.source}.",
    ]
    if isinstance(times, UnavailableError):
        notes.append(f"No time of generation: {times.message}.")
    else:
        command = f"perfmodel model {w.spec.name} --phase generate --n 1 --kv-len {w.n + 1}{f' --tp {w.tp}' * (w.tp > 1)}"
        notes.append(f"Times of generation: kernels one after the other, as {command} has them, with and without --no-kv-cache.")
    if w.spec.max_positions is not None and w.n > w.spec.max_positions:
        notes.append(f"{w.n:,} tokens are more than the {w.spec.max_positions:,} that {w.spec.name} was made for.")
    elif w.spec.max_positions is not None and (result.context or 0) > w.spec.max_positions:
        notes.append(f"The longest context is one of memory; {w.spec.name} was made for {w.spec.max_positions:,} tokens.")
    notes += [
        f"A latent is as large as grouped attention with {equivalent_kv_heads(cache.attention):.4g} KV heads."
        for cache in result.layers
        if isinstance(cache.attention, LatentAttention)
    ]
    notes += _copies(result)
    if w.spec.is_moe:
        notes.append("Weights read are those of the experts that one token visits; all experts stay in memory.")
    notes += file_notes(w.spec, w.weights_from_file)
    for row in result.measured:
        cached, uncached = (f"{mean} +- {deviation} s" for mean, deviation in (row.cached_s, row.uncached_s))
        measured = f"{cached} with, {uncached} without a cache, {row.uncached_s[0] / row.cached_s[0]:.3g}x"
        notes.append(f"Measured on {row.device}, {row.tokens:,} tokens: {measured}; {row.source}.")
    return notes


def _multiplied(result: CacheResult, times: Generated) -> str:
    """Notes on the formats in which products with weights run."""
    if isinstance(times, UnavailableError):
        return result.workload.weights_dtype
    rows = [row.op for row in times[0].steps[0][0].rows if row.op.group == MATMUL]
    return " and ".join(dict.fromkeys(in_compute_dtype(op, result.device).dtype.name for op in rows))


def _copies(result: CacheResult) -> list[str]:
    """Notes on what several GPUs keep more than once."""
    w, words = result.workload, []
    for attention, _ in attention_kinds(w.spec) if w.tp > 1 else ():
        if isinstance(attention, LatentAttention):
            words.append(f"Each of the {w.tp} GPUs keeps the whole latent: all heads read it.")
        elif isinstance(attention, GroupedAttention) and w.tp > attention.kv_heads:
            words.append(f"{attention.kv_heads} KV heads on {w.tp} GPUs: each is kept {w.tp // attention.kv_heads} times.")
    return list(dict.fromkeys(words))
