"""Every number of a KV cache as its formula, by running the same functions on a model whose sizes are traced numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from perfmodel.core.trace import Step, Trace
from perfmodel.transformer.cache_plan import CacheResult
from perfmodel.transformer.generation import with_cache, without_cache
from perfmodel.transformer.kv_cache import SCALE_SIZE, CacheFormat, batch_bytes, largest_batch, sequence_bytes, token_bytes, weight_bytes
from perfmodel.transformer.parameters import total
from perfmodel.transformer.spec import ModelSpec

SOURCE = "perfmodel/transformer/kv_cache.py: Pope et al. 2022, section 3.3; DeepSeek-V2, section 2.1.4; PagedAttention 2023"
GENERATION_SOURCE = "perfmodel/transformer/generation.py: matrix multiplications on visible scores"
FORMATS = "perfmodel/transformer/weight_formats: what the quantization_config of the model's file names"
PARAMETER_SOURCE = "perfmodel/transformer/parameters.py: modules of huggingface/transformers"

_SYMBOLS = {
    "hidden": ("h", "hidden size"),
    "vocab": ("V", "vocabulary"),
    "max_positions": ("N_max", "positions"),
    "heads": ("H", "query heads"),
    "kv_heads": ("H_kv", "KV heads"),
    "head_dim": ("d", "features of a head"),
    "window": ("W", "tokens a layer sees"),
    "kv_lora_rank": ("r_kv", "features of the latent"),
    "q_lora_rank": ("r_q", "features of Q's latent"),
    "qk_rope_head_dim": ("d_rope", "rotated features"),
    "qk_nope_head_dim": ("d_nope", "unrotated features of a head"),
    "v_head_dim": ("d_v", "features of a value"),
    "width": ("f", "hidden features of an MLP"),
    "shared_width": ("f_shared", "hidden features of the shared experts"),
    "experts": ("n_experts", "experts"),
    "experts_per_token": ("k", "experts per token"),
    "router_extra": ("x", "biases and scales of a router"),
    "norms": ("norms", "norms of a layer"),
}


def explain(result: CacheResult) -> list[Step]:
    """How every number of ``result`` comes about; each step rests on earlier ones."""
    trace, w = Trace(), result.workload
    spec = traced(w.spec, trace)
    n: Any = trace.symbol("n", w.n, "tokens of a sequence", "given")
    batch = trace.symbol("B", w.batch, "sequences", "given")
    block: Any = trace.symbol("p", w.form.block_size, "tokens per block", "given")
    form = replace(w.form, block_size=block, scale_group=_group(result, trace))
    trace.define("bytes per token", "B in all layers", token_bytes(spec, form), SOURCE)
    trace.define("bytes per sequence", "B", sequence_bytes(spec, n, form), SOURCE)
    trace.define("bytes", "B of the batch", batch_bytes(spec, n, batch, form), SOURCE)
    _mark(trace, SOURCE)
    parameters = total(spec)
    if w.weights_from_file:
        weights = trace.symbol("weights", result.weights, "B, with scales", FORMATS)
    else:
        weights = trace.define("weights", "B", weight_bytes(parameters, w.weights_dtype), PARAMETER_SOURCE)
    _mark(trace, PARAMETER_SOURCE)
    if result.capacity is not None:
        capacity = trace.symbol("capacity", result.capacity, "B of memory", f"profile of {result.device.id}")
        reserve = trace.symbol("reserve", w.reserve, "B", "given")
        room = trace.define("room", "B for the cache", capacity - weights - reserve, SOURCE)
        if result.room is not None and result.room > 0:
            trace.define("max batch", "sequences", largest_batch(room, spec, n, form), SOURCE)
    _explain_generation(trace, result, spec, n, form)
    _mark(trace, GENERATION_SOURCE)
    return list(trace.steps.values())


def _group(result: CacheResult, trace: Trace) -> Any:
    group = result.workload.form.scale_group
    return None if group is None else trace.symbol("G", group, f"elements that share a scale of {SCALE_SIZE} B", "given")


def _explain_generation(trace: Trace, result: CacheResult, spec: ModelSpec, n: Any, form: CacheFormat) -> None:
    w = result.workload
    costs = {"with": with_cache(spec, n, w.weights_dtype, form), "without": without_cache(spec, n, w.weights_dtype)}
    if w.weights_from_file:
        read: Any = trace.symbol("weights per token", result.cached.weights_read // w.n, "B, with scales", FORMATS)
        costs = {label: replace(cost, weights_read=n * read) for label, cost in costs.items()}
    for label, cost in costs.items():
        for part in ("layers", "head", "attention"):
            trace.define(f"{label} cache, {part}", "FLOP", getattr(cost, part))
        trace.define(f"{label} cache, weights read", "B", cost.weights_read)
    trace.define("with cache, cache read", "B", costs["with"].cache_read)


def traced(spec: ModelSpec, trace: Trace) -> ModelSpec:
    """``spec`` with a symbol for each size; sizes of one name that differ between layers are numbered."""
    made: dict[Any, Any] = {}

    def swap(record: Any) -> Any:
        if record not in made:
            changes = {}
            for name in (field.name for field in fields(record)):
                value = getattr(record, name)
                if name in _SYMBOLS and value is not None and value != 0:
                    changes[name] = _symbol(trace, name, value, spec.name)
                elif name in ("attention", "mlp"):
                    changes[name] = swap(value)
            made[record] = replace(record, **changes)
        return made[record]

    layers = tuple(swap(layer) for layer in spec.layers)
    tops = {name: _symbol(trace, name, getattr(spec, name), spec.name) for name in ("hidden", "vocab")}
    if spec.learned_positions:
        tops["max_positions"] = _symbol(trace, "max_positions", spec.max_positions, spec.name)
    return replace(spec, layers=layers, **tops)


def _symbol(trace: Trace, name: str, value: Any, model: str) -> Any:
    base, meaning = _SYMBOLS[name]
    symbol, number = base, 1
    while symbol in trace.steps and trace.steps[symbol].value != value:
        number += 1
        symbol = f"{base}_{number}"
    return trace.symbol(symbol, value, meaning, f"configuration of {model}")


def _mark(trace: Trace, source: str) -> None:
    """Give every step that has no source ``source``."""
    for name, step in trace.steps.items():
        if not step.source:
            trace.steps[name] = replace(step, source=source)
