"""The report of a KV cache: sizes, what fits, and generation with and without it."""

from __future__ import annotations

from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.units import format_binary, format_count, format_si, format_time
from perfmodel.report.document import Report, Table
from perfmodel.report.model_words import TIMES, file_notes, least
from perfmodel.report.operation import head, with_steps
from perfmodel.transformer.answer import Answer
from perfmodel.transformer.cache_explain import explain
from perfmodel.transformer.cache_plan import CacheResult
from perfmodel.transformer.estimate import MIXED, ROOF
from perfmodel.transformer.generation import Generation, Measured, heads_at_every_token, score_flops
from perfmodel.transformer.kv_cache import LayerCache, equivalent_kv_heads, kind_label
from perfmodel.transformer.op import MATMUL
from perfmodel.transformer.op_time import as_multiplied
from perfmodel.transformer.spec import GroupedAttention

Generated = tuple[Answer, Answer] | UnavailableError
"""A generation with a cache and without, or why there is no time for it."""


def report(result: CacheResult, times: Generated, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.kv_cache/1. ``explained``: with every formula."""
    w = result.workload
    title = f"KV cache of {w.spec.name}: {w.batch} x {w.n:,} tokens, {w.form.dtype} on {result.device.name}"
    tables = [_sizes(result), _layers(result), _memory(result), _generation(result, times)]
    plain = Report(title, _verdict(result), tables, _notes(result, times), data(result, times))
    return with_steps(plain, [("every number", {"model": w.spec.name}, explain(result))]) if explained else plain


# The JSON object


def data(result: CacheResult, times: Generated) -> dict[str, Any]:
    """The object of schema perfmodel.kv_cache/1."""
    w, form = result.workload, result.workload.form
    cached, uncached = (None, None) if isinstance(times, UnavailableError) else times
    inputs = {"model": w.spec.name, "n": w.n, "batch": w.batch, "dtype": form.dtype, "block_size": form.block_size}
    inputs |= {
        "rope_dtype": form.rope_dtype,
        "scale_group": form.scale_group,
        "weights_dtype": _weights(result),
        "reserve_bytes": w.reserve,
    }
    return {
        **head("kv_cache", inputs, result.device),
        "parameters": result.parameters,
        "elements_per_token": sum(cache.count * cache.elements_per_token for cache in result.layers),
        "bytes_per_token": result.per_token,
        "bytes_per_sequence": result.per_sequence,
        "bytes": result.total,
        "unused_block_bytes": result.total - result.unpaged,
        "max_batch": result.batch,
        "max_context": result.context,
        "any_context_fits": result.endless,
        "layers": [_layer(cache) for cache in result.layers],
        "memory": {
            "capacity_bytes": result.capacity,
            "weights_bytes": result.weights,
            "reserve_bytes": w.reserve,
            "room_bytes": result.room,
            "fits": result.fits,
        },
        "generation": {
            "tokens": w.n,
            "with_cache": _cost(result.cached, cached),
            "without_cache": {
                **_cost(result.uncached, uncached),
                "head_flops_if_at_every_token": heads_at_every_token(w.spec, w.n),
            },
            "measured": [_row(row) for row in result.measured],
        },
    }


def _row(row: Measured) -> dict[str, Any]:
    times = {"with_cache_s": row.cached_s, "without_cache_s": row.uncached_s}
    return {"device": row.device, "tokens": row.tokens, **times, "source": row.source}


def _layer(cache: LayerCache) -> dict[str, Any]:
    attention = cache.attention
    grouped = isinstance(attention, GroupedAttention)
    return {
        "attention": attention.kind,
        "count": cache.count,
        "window": attention.window,
        "kv_heads": attention.kv_heads if isinstance(attention, GroupedAttention) else None,
        "head_dim": attention.head_dim if isinstance(attention, GroupedAttention) else None,
        "equivalent_kv_heads": attention.kv_heads if isinstance(attention, GroupedAttention) else equivalent_kv_heads(attention),
        "latent_dim": None if grouped else cache.elements_per_token,
        "elements_per_token": cache.elements_per_token,
        "bytes_per_token": cache.bytes_per_token,
        "tokens": cache.tokens,
        "bytes_per_sequence": cache.bytes,
        "decode_intensity": decode_intensity(cache),
    }


def decode_intensity(cache: LayerCache) -> float:
    """FLOP of attention per byte of the cache that a decode step reads."""
    return float(score_flops(cache.attention, cached=True) / cache.bytes_per_token)


def _cost(cost: Generation, found: Answer | None) -> dict[str, Any]:
    """``roofline_s``, ``lower_s``: sums over the rows of ``perfmodel model``; ``seconds``: predicted ones, roofs elsewhere."""
    known = None if found is None else found.prediction
    return {
        "flops": cost.flops,
        "layers_flops": cost.layers,
        "head_flops": cost.head,
        "attention_flops": cost.attention,
        "weights_read_bytes": cost.weights_read,
        "cache_read_bytes": cost.cache_read,
        "roofline_s": None if found is None else found.cost.roofline_s,
        "lower_s": None if found is None else found.cost.lower_s,
        "predicted_s": None if known is None else known[0],
        "seconds": None if found is None else found.seconds,
        "times_from": None if found is None else found.times_from,
    }


# Words


def _both(size: int) -> str:
    """Decimal and binary: the two that are most often confused."""
    return f"{format_si(size, 'B')} ({format_binary(size)})" if size >= 1024 else f"{size} B"


def _weights(result: CacheResult) -> str:
    """The format of the weights; of a quantized checkpoint that of most of its matrices."""
    w = result.workload
    main = w.spec.quantized.main if w.weights_from_file and w.spec.quantized is not None else None
    return w.weights_dtype if main is None else main.name


def _verdict(result: CacheResult) -> list[str]:
    """What does not fit comes first."""
    w = result.workload
    first = f"{w.spec.name} keeps {format_count(result.per_token)} B per token, {_both(result.total)} in all."
    if result.room is None:
        return [first]
    weights = f"{format_si(result.weights, 'B')} of {_weights(result)} weights"
    if result.room <= 0:
        if result.capacity is not None and result.weights < result.capacity:
            return [f"It does not fit: the {weights} and the reserve of {_both(w.reserve)} leave no room on {result.device.name}.", first]
        return [f"It does not fit: the {weights} alone leave no room on {result.device.name}.", first]
    lengths = "sequences of any length" if result.endless else f"contexts of up to {result.context:,} tokens"
    whom = "one sequence" if w.batch == 1 else f"{w.batch} sequences"
    held = f"Beside {weights}, {result.device.name} holds {result.batch:,} such sequences; {whom}: {lengths}."
    if not result.fits:
        return [f"It does not fit: beside {weights} there is room for {_both(result.room)} of cache on {result.device.name}.", first, held]
    return [first, held]


def _sizes(result: CacheResult) -> Table:
    rows = [
        ["per token", f"{format_count(result.per_token)} B"],
        ["per sequence", f"{format_count(result.per_sequence)} B"],
        ["batch", f"{format_count(result.total)} B"],
        ["  of it unused parts of blocks", f"{format_count(result.total - result.unpaged)} B"],
    ]
    return Table("", ["cache", "size"], rows)


def _layers(result: CacheResult) -> Table:
    columns = ["attention", "layers", "kept per token", "B per token and layer", "tokens held", "sequence", "FLOP/B in decode"]
    rows = [
        [
            kind_label(cache.attention),
            str(cache.count),
            _kept(cache),
            format_count(cache.bytes_per_token),
            format_count(cache.tokens),
            format_si(cache.bytes, "B"),
            f"{decode_intensity(cache):.4g}",
        ]
        for cache in result.layers
    ]
    return Table("by kind of layer", columns, rows)


def _kept(cache: LayerCache) -> str:
    attention = cache.attention
    if isinstance(attention, GroupedAttention):
        return f"K, V of {attention.kv_heads} x {attention.head_dim}"
    return f"latent {attention.kv_lora_rank} + key {attention.qk_rope_head_dim}"


def _memory(result: CacheResult) -> Table:
    if result.capacity is None or result.room is None:
        return Table("memory", ["", "size"], [["weights", format_si(result.weights, "B")], ["capacity", "not in the profile"]])
    rows = [
        ["capacity", _both(result.capacity)],
        ["weights", _both(result.weights)],
        *([["reserved", _both(result.workload.reserve)]] if result.workload.reserve else []),
        ["left for the cache", _both(result.room) if result.room > 0 else "none"],
        ["this cache", _both(result.total) + ("" if result.fits else " (does not fit)")],
        ["largest batch at this length", format_count(result.batch or 0)],
        ["longest context at this batch", "any" if result.endless else format_count(result.context or 0)],
    ]
    return Table(f"memory of {result.device.id}", ["", "size"], rows)


COUNTED = ("matrices", "head", "attention", "all", "weights", "cache")
"""What begins a row that is no time."""


def _generation(result: CacheResult, times: Generated) -> Table:
    pair = (result.cached, result.uncached)

    def row(label: str, part: str, unit: str = "FLOP") -> list[str]:
        values = [getattr(cost, part) for cost in pair]
        return [label, *(format_si(value, unit) for value in values), f"{values[1] / values[0]:.4g}x" if values[0] else "-"]

    rows = [
        row("matrices of the layers", "layers"),
        row("head, last token only", "head"),
        row("attention", "attention"),
        row("all", "flops"),
        row("weights read", "weights_read", "B"),
        row("cache read", "cache_read", "B"),
    ]
    if not isinstance(times, UnavailableError):
        roofs, seconds = [one.cost.roofline_s for one in times], [one.seconds for one in times]
        rows.append(["roofline, no launches", *map(format_time, roofs), f"{roofs[1] / roofs[0]:.4g}x"])
        kinds = {one.times_from for one in times}
        made = MIXED if len(kinds) > 1 else kinds.pop()
        if made != ROOF:
            said = [least(one.times_from) + format_time(one.seconds) for one in times]
            rows.append([TIMES[made], *said, f"{seconds[1] / seconds[0]:.4g}x"])
    if result.fits is False:
        rows = [[label if label.startswith(COUNTED) else f"{label}, if it fitted", *values] for label, *values in rows]
    return Table(f"to generate {result.workload.n:,} tokens, one sequence", ["", "with cache", "without", "without / with"], rows)


def _notes(result: CacheResult, times: Generated) -> list[str]:
    w = result.workload
    shares = [f"{cost.attention / cost.flops:.2%}" for cost in (result.cached, result.uncached)]
    notes = [
        "For n tokens of width d the cache turns O(n^2 d^2 + n^3 d) into O(n d^2 + n^2 d); attention, the term that n^2 d^2 and n d^2 "
        f"leave out, is {shares[0]} of the FLOP with it and {shares[1]} without.",
        f"Weights: {format_count(result.parameters)} parameters; {_weights(result)}, multiplied in {_multiplied(result, times)}.",
        f"Configuration: {w.spec.source}.",
    ]
    if isinstance(times, UnavailableError):
        notes.append(f"No time of generation: {times.message}.")
    else:
        asked = f"perfmodel model {w.spec.name} --phase generate --n 1 --kv-len {w.n + 1}"
        notes.append(f"Times of generation: kernels one after the other, as {asked} has them, with and without --no-kv-cache.")
    if w.spec.max_positions is not None and w.n > w.spec.max_positions:
        notes.append(f"{w.n:,} tokens are more than the {w.spec.max_positions:,} that {w.spec.name} was made for.")
    elif w.spec.max_positions is not None and (result.context or 0) > w.spec.max_positions:
        notes.append(f"The longest context is one of memory; {w.spec.name} was made for {w.spec.max_positions:,} tokens.")
    notes += [
        f"A latent is as large as grouped attention with {equivalent_kv_heads(cache.attention):.4g} KV heads."
        for cache in result.layers
        if not isinstance(cache.attention, GroupedAttention)
    ]
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
