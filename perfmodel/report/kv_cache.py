"""The report of a KV cache: sizes, what fits, and generation with and without it."""

from __future__ import annotations

from typing import Any

from perfmodel.report.document import Report, Table
from perfmodel.report.operation import head, with_steps
from perfmodel.transformer.cache_explain import explain
from perfmodel.transformer.cache_plan import CacheResult, compute_dtype, roofline_s
from perfmodel.transformer.generation import Generation, Measured, heads_at_every_token, score_flops
from perfmodel.transformer.kv_cache import LayerCache, equivalent_kv_heads, kind_label
from perfmodel.transformer.quantized import told
from perfmodel.transformer.spec import GroupedAttention
from perfmodel.units import format_binary, format_count, format_si, format_time


def report(result: CacheResult, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.kv_cache/1. ``explained``: with every formula."""
    w = result.workload
    title = f"KV cache of {w.spec.name}: {w.batch} x {w.n:,} tokens, {w.form.dtype} on {result.device.name}"
    tables = [_sizes(result), _layers(result), _memory(result), _generation(result)]
    plain = Report(title, _verdict(result), tables, _notes(result), data(result))
    return with_steps(plain, [("every number", {"model": w.spec.name}, explain(result))]) if explained else plain


# The JSON object


def data(result: CacheResult) -> dict[str, Any]:
    """The object of schema perfmodel.kv_cache/1."""
    w, form = result.workload, result.workload.form
    inputs = {"model": w.spec.name, "n": w.n, "batch": w.batch, "dtype": form.dtype, "block_size": form.block_size}
    inputs |= {"rope_dtype": form.rope_dtype, "scale_group": form.scale_group, "weights_dtype": w.weights_dtype, "reserve_bytes": w.reserve}
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
            "with_cache": _cost(result.cached, result),
            "without_cache": {
                **_cost(result.uncached, result),
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


def _cost(cost: Generation, result: CacheResult) -> dict[str, Any]:
    return {
        "flops": cost.flops,
        "layers_flops": cost.layers,
        "head_flops": cost.head,
        "attention_flops": cost.attention,
        "weights_read_bytes": cost.weights_read,
        "cache_read_bytes": cost.cache_read,
        "roofline_s": roofline_s(cost, result),
    }


# Words


def _both(size: int) -> str:
    """Decimal and binary: the two that are most often confused."""
    return f"{format_si(size, 'B')} ({format_binary(size)})" if size >= 1024 else f"{size} B"


def _verdict(result: CacheResult) -> list[str]:
    w = result.workload
    first = f"{w.spec.name} keeps {format_count(result.per_token)} B per token, {_both(result.total)} in all."
    if result.room is None:
        return [first]
    weights = f"{format_si(result.weights, 'B')} of {w.weights_dtype} weights"
    if result.room <= 0:
        if result.capacity is not None and result.weights < result.capacity:
            return [first, f"The {weights} and the reserve of {_both(w.reserve)} leave no room on {result.device.name}."]
        return [first, f"The {weights} alone leave no room on {result.device.name}."]
    lengths = "sequences of any length" if result.endless else f"contexts of up to {result.context:,} tokens"
    whom = "one sequence" if w.batch == 1 else f"{w.batch} sequences"
    return [first, f"Beside {weights}, {result.device.name} holds {result.batch:,} such sequences; {whom}: {lengths}."]


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


def _generation(result: CacheResult) -> Table:
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
    roofs = [roof for cost in pair if (roof := roofline_s(cost, result)) is not None]
    if len(roofs) == len(pair):
        rows.append(["roofline, no launches", *(format_time(roof) for roof in roofs), f"{roofs[1] / roofs[0]:.4g}x"])
    return Table(f"to generate {result.workload.n:,} tokens, one sequence", ["", "with cache", "without", "without / with"], rows)


def _notes(result: CacheResult) -> list[str]:
    w, multiplied = result.workload, compute_dtype(result.workload.weights_dtype, result.device)
    shares = [f"{cost.attention / cost.flops:.2%}" for cost in (result.cached, result.uncached)]
    notes = [
        "For n tokens of width d the cache turns O(n^2 d^2 + n^3 d) into O(n d^2 + n^2 d); attention, the term that n^2 d^2 and n d^2 "
        f"leave out, is {shares[0]} of the FLOP with it and {shares[1]} without.",
        f"Weights: {format_count(result.parameters)} parameters; {w.weights_dtype}, multiplied in {multiplied}.",
        f"Configuration: {w.spec.source}.",
    ]
    if result.peak is None or result.bandwidth is None:
        what = "DRAM bandwidth" if result.bandwidth is None else f"{multiplied} peak"
        notes.append(f"The profile of {result.device.id} has no {what}: no roofline of generation.")
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
    if w.weights_from_file:
        notes += told(w.spec, None if w.spec.quantized is None else w.spec.quantized.weights_dtype, w.weights_dtype)
    return notes + [_measured(row) for row in result.measured]


def _measured(row: Measured) -> str:
    cached, uncached = (f"{mean} +- {deviation} s" for mean, deviation in (row.cached_s, row.uncached_s))
    gain = f"{row.uncached_s[0] / row.cached_s[0]:.3g}x"
    return f"Measured on {row.device}, {row.tokens:,} tokens: {cached} with, {uncached} without a cache, {gain}; {row.source}."
