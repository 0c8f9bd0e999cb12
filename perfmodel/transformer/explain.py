"""Numbers of a pass or of a KV cache as their formulas, by running the same functions on a model whose sizes are traced numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import count
from typing import Any

from perfmodel.core.cost import Kernel
from perfmodel.core.explain import sourced
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, Rates, estimate, total, traced_rates
from perfmodel.core.trace import FormulaStep as Line
from perfmodel.core.trace import Trace, Traced
from perfmodel.kernels.collectives import Collective, collective_estimate, least_bytes, link_bandwidth
from perfmodel.transformer import parameters
from perfmodel.transformer.cache_plan import CacheResult
from perfmodel.transformer.estimate import PassEstimate, all_ops, pass_needs
from perfmodel.transformer.generation import cache_read, with_cache, without_cache
from perfmodel.transformer.kv_cache import SCALE_SIZE, CacheFormat, batch_bytes, largest_batch, sequence_bytes, token_bytes, weight_bytes
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import as_multiplied, scaled
from perfmodel.transformer.spec import ModelSpec

SOURCE = "each operand read once from DRAM, each result written once; perfmodel/transformer"
CACHE_SOURCE = "perfmodel/transformer/kv_cache.py: Pope et al. 2022, section 3.3; DeepSeek-V2, section 2.1.4; PagedAttention 2023"
GENERATION_SOURCE = "perfmodel/transformer/generation.py: matrix multiplications on visible scores"
FORMATS = "perfmodel/transformer/weight_formats: what the quantization_config of the model's file names"
PARAMETER_SOURCE = "perfmodel/transformer/parameters.py: modules of huggingface/transformers"

Symbols = dict[str, tuple[str, str]]
"""Symbol and meaning of each size of a model, by field."""
ENDS: Symbols = {"hidden": ("h", "hidden size"), "vocab": ("V", "vocabulary")}
PASS_SIZES: Symbols = ENDS | {
    name: (symbol, name.replace("_", " "))
    for name, symbol in {
        "heads": "H",
        "kv_heads": "H_kv",
        "head_dim": "d",
        "window": "window",
        "kv_lora_rank": "d_c",
        "q_lora_rank": "d_q",
        "qk_rope_head_dim": "d_rope",
        "qk_nope_head_dim": "d_nope",
        "v_head_dim": "d_v",
        "width": "w",
        "experts": "experts",
        "experts_per_token": "top_k",
        "shared_width": "w_shared",
    }.items()
}
SIZES: Symbols = ENDS | {
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


class RowsTrace(Trace):
    """A trace in which each row may use the names of an earlier one: the second T_n that differs is T_n_2."""

    def symbol(self, name: str, value: Any, meaning: str, source: str = "") -> Traced:
        """An input, under the first free form of ``name``."""
        return super().symbol(self._free(name, "", value), value, meaning, source)

    def define(self, name: str, meaning: str, result: Any, source: str = "") -> Any:
        """A definition, under the first free form of ``name``."""
        if not isinstance(result, Traced) or result.formula == name:
            return result
        return super().define(self._free(name, result.formula, result.value), meaning, result, source)

    def _free(self, name: str, formula: str, value: Any) -> str:
        for number in count(1):
            title = name if number == 1 else f"{name}_{number}"
            known = self.steps.get(title)
            if known is None or (known.formula, known.value) == (formula, value):
                return title
        raise AssertionError("count() does not end")


def explain(found: PassEstimate) -> list[Line]:
    """Steps of one pass; each rests on earlier ones."""
    trace = RowsTrace()
    model = traced(found.model, trace, PASS_SIZES, found.model.source or found.model.name)
    step = found.step
    step = replace(
        step,
        batch=trace.symbol("B", step.batch, "sequences", "given"),
        n=step.n if step.n == 1 else trace.symbol("N", step.n, "new tokens per sequence", "given"),
        kv_len=trace.symbol("N_kv", step.kv_len, "tokens of a sequence", "given"),
    )
    ops = all_ops(model, step)
    costs = _explained(trace, ops, found.device)
    cost = replace(total(costs), needs=pass_needs(list(zip(ops, costs, strict=True)), step.split.pp))
    sums = {"FLOP": cost.flops, "DRAM read bytes": cost.dram.read, "DRAM write bytes": cost.dram.write}
    times = {"lower bound": cost.lower_s, "roofline": cost.roofline_s}
    for name, value in {**sums, **times}.items():
        meaning = "s, of all rows as one workload" if name == "lower bound" else "sum over rows and their runs"
        trace.define(f"total {name}", meaning + (", s" if name == "roofline" else ""), value, SOURCE)
    return sourced(trace, SOURCE)


def _explained(trace: Trace, ops: Sequence[Op], device: Device) -> list[Estimate]:
    costs: list[Estimate] = []
    rates: dict[str, Rates] = {}
    seen: set[str] = set()
    for op in ops:
        label = f"[{op.name}] " if op.name not in seen else f"[{op.name} {len(seen)}] "
        seen.add(op.name)
        runs = trace.symbol(f"{label}runs", op.count, "runs of this kernel", SOURCE)
        if op.timed is not None and isinstance(op.timed.workload, Collective):
            cost = _explained_collective(trace, op.timed.workload, device, label)
        else:
            kernel = as_multiplied(op, device)
            form = kernel.dtype
            if form.name not in rates:
                rates[form.name] = traced_rates(trace, device, form)
            cost = estimate(_named(trace, kernel, label), device, rates[form.name], label)
        costs.append(scaled(cost, runs))
    return costs


def _explained_collective(trace: Trace, w: Collective, device: Device, label: str) -> Estimate:
    plain = collective_estimate(w, device)
    link = f"{device.id}: {device.sources[device.interconnect.bandwidth_per_direction.source]}" if device.interconnect else ""
    bandwidth = trace.symbol("BW_link", link_bandwidth(device), "B/s per direction", link)
    least = trace.define(f"{label}bytes", "bytes that a GPU has to receive", least_bytes(w), SOURCE)
    lower = trace.define(f"{label}lower bound", "s", least / bandwidth)
    roof = trace.symbol(
        f"{label}roofline", float(plain.roofline_s), "s, ring or tree by alpha and beta", "perfmodel/kernels/collectives.py"
    )
    return replace(plain, needs=Needs(link_s=lower), roofline_s=roof)


def _named(trace: Trace, kernel: Kernel, label: str) -> Kernel:
    """``kernel`` with every access a name of its own."""

    def name(index: int, access: Any) -> Any:
        title = f"{label}{access.tensor} {access.kind} {index}"
        elements = trace.define(title, f"elements of {access.element_size} B", access.elements, SOURCE)
        same = getattr(access.footprint, "formula", None) == getattr(access.elements, "formula", None)
        footprint = elements if same else trace.define(f"{title}, distinct", "elements, each counted once", access.footprint, SOURCE)
        return replace(access, elements=elements, footprint=footprint)

    return replace(kernel, accesses=tuple(name(index, access) for index, access in enumerate(kernel.accesses, 1)))


def explain_cache(result: CacheResult) -> list[Line]:
    """How every number of ``result`` comes about; each step rests on earlier ones."""
    trace, w = Trace(), result.workload
    spec = traced(w.spec, trace)
    here = spec if w.tp == 1 else traced(w.here, trace, source=f"configuration of {w.spec.name}, on one of {w.tp} GPUs")
    n: Any = trace.symbol("n", w.n, "tokens of a sequence", "given")
    batch = trace.symbol("B", w.batch, "sequences", "given")
    block: Any = trace.symbol("p", w.form.block_size, "tokens per block", "given")
    form = replace(w.form, block_size=block, scale_group=_group(result, trace))
    trace.define("bytes per token", "B in all layers", token_bytes(here, form), CACHE_SOURCE)
    trace.define("bytes per sequence", "B", sequence_bytes(here, n, form), CACHE_SOURCE)
    trace.define("bytes", "B of the batch", batch_bytes(here, n, batch, form), CACHE_SOURCE)
    _mark(trace, CACHE_SOURCE)
    every = parameters.total(spec)
    if w.weights_from_file or w.tp > 1:
        weights = trace.symbol("weights", result.weights, "B, with scales" if w.weights_from_file else "B on one GPU", FORMATS)
    else:
        weights = trace.define("weights", "B", weight_bytes(every, w.weights_dtype), PARAMETER_SOURCE)
    _mark(trace, PARAMETER_SOURCE)
    if result.capacity is not None:
        capacity = trace.symbol("capacity", result.capacity, "B of memory", f"profile of {result.device.id}")
        reserve = trace.symbol("reserve", w.reserve, "B", "given")
        room = trace.define("room", "B for the cache", capacity - weights - reserve, CACHE_SOURCE)
        if result.room is not None and result.room > 0:
            trace.define("max batch", "sequences", largest_batch(room, here, n, form), CACHE_SOURCE)
    _explain_generation(trace, result, spec, here, n, form)
    _mark(trace, GENERATION_SOURCE)
    return list(trace.steps.values())


def _group(result: CacheResult, trace: Trace) -> Any:
    group = result.workload.form.scale_group
    return None if group is None else trace.symbol("G", group, f"elements that share a scale of {SCALE_SIZE} B", "given")


def _explain_generation(trace: Trace, result: CacheResult, spec: ModelSpec, here: ModelSpec, n: Any, form: CacheFormat) -> None:
    w = result.workload
    costs = {"with": with_cache(spec, n, w.weights_dtype, form), "without": without_cache(spec, n, w.weights_dtype)}
    if w.weights_from_file or w.tp > 1:
        read: Any = trace.symbol("weights per token", result.cached.weights_read // w.n, "B, with scales", FORMATS)
        costs = {label: replace(cost, weights_read=n * read) for label, cost in costs.items()}
    for label, cost in costs.items():
        for part in ("layers", "head", "attention"):
            trace.define(f"{label} cache, {part}", "FLOP", getattr(cost, part))
        trace.define(f"{label} cache, weights read", "B", cost.weights_read)
    trace.define("with cache, cache read", "B", costs["with"].cache_read if w.tp == 1 else w.tp * cache_read(here, n, form))


def traced(spec: ModelSpec, trace: Trace, names: Symbols = SIZES, source: str = "") -> ModelSpec:
    """``spec`` with a symbol for each size in ``names``; sizes of one name that differ between layers are numbered."""

    def symbol(name: str, value: Any) -> Traced:
        base, meaning = names[name]
        titles = (base if number == 1 else f"{base}_{number}" for number in count(1))
        title = next(title for title in titles if title not in trace.steps or trace.steps[title].value == value)
        return trace.symbol(title, value, meaning, source or f"configuration of {spec.name}")

    def swap(record: Any) -> Any:
        changes = {}
        for name in (field.name for field in fields(record)):
            value = getattr(record, name)
            if name in names and value:
                changes[name] = symbol(name, value)
            elif name in ("attention", "mlp"):
                changes[name] = swap(value)
        return replace(record, **changes)

    kinds = {layer: swap(layer) for layer, _ in spec.layer_kinds}
    ends = [*ENDS, *(["max_positions"] if spec.learned_positions and "max_positions" in names else [])]
    sizes: dict[str, Any] = {name: symbol(name, getattr(spec, name)) for name in ends}
    return replace(spec, layers=tuple(kinds[one] for one in spec.layers), **sizes)


def _mark(trace: Trace, source: str) -> None:
    """Give every step that has no source ``source``."""
    for name, step in trace.steps.items():
        if not step.source:
            trace.steps[name] = replace(step, source=source)
