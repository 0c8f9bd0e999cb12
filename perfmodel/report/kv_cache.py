"""The report of a KV cache: sizes, what fits, and generation with and without it."""

from __future__ import annotations

from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.core.units import format_binary, format_count, format_si
from perfmodel.report.document import Report, Table
from perfmodel.report.kv_cache_first import Generated, answered, both, copies, weights_format
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table
from perfmodel.report.model import TIMES, file_notes, least
from perfmodel.report.op_common import head, with_steps
from perfmodel.transformer.answer import ModelAnswer
from perfmodel.transformer.cache_plan import CacheResult
from perfmodel.transformer.estimate import MIXED, ROOF
from perfmodel.transformer.explain import explain_cache
from perfmodel.transformer.generation import Generation, Measured, heads_at_every_token, score_flops
from perfmodel.transformer.kv_cache import LayerCache, equivalent_kv_heads, kind_label
from perfmodel.transformer.op import MATMUL
from perfmodel.transformer.op_time import as_multiplied
from perfmodel.transformer.spec import GroupedAttention, LatentAttention


def report(result: CacheResult, times: Generated, *, explained: bool = False, pictures: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.kv_cache/1. ``explained``: with every formula.

    ``pictures``: with the parts of the memory, and bytes over the length.
    """
    w, several = result.workload, f"{result.workload.tp} x " * (result.workload.tp > 1)
    title = f"KV cache of {w.spec.name}: {w.batch} x {w.n:,} tokens, {w.form.dtype} on {several}{result.device.name}"
    brief = as_table(
        "", {"": [*_sizes(result), *_memory(result)]}, "cache", labels=BRIEF, without=() if w.reserve else ["memory.reserve_bytes"]
    )
    plain = Report(title, [], _tables(result, times), _notes(result, times), data(result, times), brief=[brief])
    plain = answered(plain, result, times, pictures)
    return with_steps(plain, [("every number", {"model": w.spec.name}, explain_cache(result))]) if explained else plain


def data(result: CacheResult, times: Generated) -> dict[str, Any]:
    """The object of schema perfmodel.kv_cache/1."""
    w, form = result.workload, result.workload.form
    inputs = {"model": w.spec.name, "n": w.n, "batch": w.batch, "dtype": form.dtype, "block_size": form.block_size}
    inputs |= {"rope_dtype": form.rope_dtype, "scale_group": form.scale_group, "weights_dtype": weights_format(result)}
    inputs |= {"weights_from_file": w.weights_from_file, "reserve_bytes": w.reserve, "tensor_parallel": w.tp}
    cached, uncached = _generation(result, times)
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
    heads: Number | None
    read = cache.bytes_per_token - attention.index_bytes
    if isinstance(attention, GroupedAttention):
        heads, kept = attention.kv_heads, f"K, V of {attention.kv_heads} x {attention.head_dim}"
        kept += "" if attention.indexer is None else f" + index key {attention.indexer.head_dim}"
    elif isinstance(attention, LatentAttention):
        heads, kept = equivalent_kv_heads(attention), f"latent {attention.kv_lora_rank} + key {attention.qk_rope_head_dim}"
        kept += "" if attention.indexer is None else f" + fp8 index key {attention.indexer.head_dim}"
    else:
        heads, kept = None, f"nothing; a state of {format_si(attention.state_bytes, 'B')}"
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
        Metric("", kept, "kept per token", "text"),
        Metric("bytes_per_token", cache.bytes_per_token, "B per token and layer"),
        Metric("tokens", cache.tokens, "tokens held"),
        Metric("state_bytes_per_sequence", attention.state_bytes),
        Metric("bytes_per_sequence", cache.bytes, "sequence", "B"),
        Metric("decode_intensity", float(score_flops(attention, cached=True) / read) if read else None, "FLOP/B in decode"),
    ]


def _generation(result: CacheResult, times: Generated) -> tuple[list[Metric], list[Metric]]:
    """Metrics of generation with a KV cache, and without one."""
    if isinstance(times, UnavailableError):
        return _generated(result.cached, None, "", ""), _generated(result.uncached, None, "", "")
    kinds = {one.times_from for one in times}
    made = MIXED if len(kinds) > 1 else kinds.pop()
    fitted = ", if it fitted" if result.fits is False else ""
    roof, time = f"roofline, no launches{fitted}", "" if made == ROOF else f"{TIMES[made]}{fitted}"
    return _generated(result.cached, times[0], roof, time), _generated(result.uncached, times[1], roof, time)


def _generated(cost: Generation, found: ModelAnswer | None, roof: str, time: str) -> list[Metric]:
    """``roofline_s``, ``lower_s``: sums over the rows of ``perfmodel model``; ``seconds``: predicted ones, roofs elsewhere.

    ``roof``, ``time``: labels of the times that a table has.
    """
    known = None if found is None else found.prediction
    return [
        Metric("layers_flops", cost.layers, "matrices of the layers", "FLOP"),
        Metric("head_flops", cost.head, "head, last token only", "FLOP"),
        Metric("attention_flops", cost.attention, "attention", "FLOP"),
        Metric("flops", cost.flops, "all", "FLOP"),
        Metric("weights_read_bytes", cost.weights_read, "weights read", "B"),
        Metric("cache_read_bytes", cost.cache_read, "cache read", "B"),
        Metric("roofline_s", found and found.cost.roofline_s, roof, "s"),
        Metric("lower_s", found and found.cost.lower_s),
        Metric("predicted_s", known and known[0]),
        Metric("seconds", found and found.seconds, time, "s", before=least(found.times_from) if found else ""),
        Metric("times_from", found and found.times_from),
    ]


def _tables(result: CacheResult, times: Generated) -> list[Table]:
    cached, uncached = _generation(result, times)
    several = result.workload.tp > 1
    pairs = [(one, other) for one, other in zip(cached, uncached, strict=True) if one.label and one.value]
    ratios = [Metric("", other.value / one.value, one.label, after="x") for one, other in pairs]
    columns = {"with cache": cached, "without": uncached, "without / with": ratios}
    return [
        as_table("", {"size": _sizes(result)}, "cache of each GPU" if several else "cache"),
        as_rows("by kind of layer", map(_layer, result.layers)),
        as_table(f"memory of {'each ' * several}{result.device.id}", {"size": _memory(result)}),
        as_table(f"to generate {result.workload.n:,} tokens, one sequence{', all GPUs' * several}", columns),
    ]


BRIEF = (
    *("bytes_per_token", "bytes_per_sequence", "this cache", "memory.weights_bytes", "memory.reserve_bytes"),
    *("left for the cache", "memory.capacity_bytes", "max_batch", "longest context at this batch"),
)
"""Rows that a screen shows."""


def _notes(result: CacheResult, times: Generated) -> list[str]:
    w = result.workload
    shares = [f"{cost.attention / cost.flops:.2%}" for cost in (result.cached, result.uncached)]
    notes = [
        "For n tokens of width d the cache turns O(n^2 d^2 + n^3 d) into O(n d^2 + n^2 d); attention, the term that n^2 d^2 and n d^2 "
        f"leave out, is {shares[0]} of the FLOP with it and {shares[1]} without.",
        f"Weights: {format_count(result.parameters)} parameters; {weights_format(result)}, multiplied in {_multiplied(result, times)}.",
        f"Configuration: {w.spec.source}.",
    ]
    if isinstance(times, UnavailableError):
        notes.append(f"No time of generation: {times.message}.")
    else:
        asked = f"perfmodel model {w.spec.name} --phase generate --n 1 --kv-len {w.n + 1}{f' --tp {w.tp}' * (w.tp > 1)}"
        notes.append(f"Times of generation: kernels one after the other, as {asked} has them, with and without --no-kv-cache.")
    if w.spec.max_positions is not None and w.n > w.spec.max_positions:
        notes.append(f"{w.n:,} tokens are more than the {w.spec.max_positions:,} that {w.spec.name} was made for.")
    elif w.spec.max_positions is not None and (result.context or 0) > w.spec.max_positions:
        notes.append(f"The longest context is one of memory; {w.spec.name} was made for {w.spec.max_positions:,} tokens.")
    notes += [
        f"A latent is as large as grouped attention with {equivalent_kv_heads(cache.attention):.4g} KV heads."
        for cache in result.layers
        if isinstance(cache.attention, LatentAttention)
    ]
    notes += copies(result)
    if w.spec.is_moe:
        notes.append("Weights read are those of the experts that one token visits; all experts stay in memory.")
    notes += file_notes(w.spec, w.weights_from_file)
    return notes + [_measured(row) for row in result.measured]


def _multiplied(result: CacheResult, times: Generated) -> str:
    """The formats in which products with weights run."""
    if isinstance(times, UnavailableError):
        return result.workload.weights_dtype
    rows = [row.op for row in times[0].steps[0][0].rows if row.op.group == MATMUL]
    return " and ".join(dict.fromkeys(as_multiplied(op, result.device).dtype.name for op in rows))


def _measured(row: Measured) -> str:
    cached, uncached = (f"{mean} +- {deviation} s" for mean, deviation in (row.cached_s, row.uncached_s))
    gain = f"{row.uncached_s[0] / row.cached_s[0]:.3g}x"
    return f"Measured on {row.device}, {row.tokens:,} tokens: {cached} with, {uncached} without a cache, {gain}; {row.source}."
