"""Formulas of the numbers of a pass or a KV cache, recorded by running the same functions on a model with traced sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from perfmodel.core.explain import named_access, sourced
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, Rates, estimate, rates_of, total
from perfmodel.core.trace import FormulaStep, Trace, Traced, show
from perfmodel.kernels.collectives import Collective, least_bytes, link_bandwidth
from perfmodel.transformer.cache_plan import CACHE_SOURCE, PARAMETER_SOURCE, CacheResult, evaluate
from perfmodel.transformer.estimate import PassEstimate, all_ops, pass_needs
from perfmodel.transformer.kv_cache import SCALE_SIZE
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import in_compute_dtype, scaled
from perfmodel.transformer.spec import BlockIndexer, Indexer, ModelSpec

SOURCE = "each operand read once from DRAM, each result written once; perfmodel/transformer"
GENERATION_SOURCE = "perfmodel/transformer/generation.py: matrix multiplications on visible scores"

Symbols = dict[str, tuple[str, str]]
"""Symbol and meaning of each size of a model, by field."""
ENDS: Symbols = {"hidden": ("h", "hidden size"), "vocab": ("V", "vocabulary")}
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
    "index_heads": ("H_I", "heads of an indexer"),
    "index_head_dim": ("d_I", "features of an indexer's head"),
    "index_topk": ("N_top", "tokens that an indexer picks"),
    "index_blocks": ("N_blocks", "blocks that an indexer picks"),
    "index_block": ("w_block", "tokens of a block"),
    "key_heads": ("H_k", "heads of Q and K in linear attention"),
    "value_heads": ("H_v", "heads of V in linear attention"),
    "key_head_dim": ("d_k", "features of a linear key"),
    "value_head_dim": ("d_lin", "features of a linear value"),
    "groups": ("G", "groups of B and C"),
    "state_size": ("d_state", "features of B and C"),
    "conv_kernel": ("w_conv", "tokens of a convolution"),
    "chunk": ("C", "tokens of a chunk"),
    "width": ("f", "hidden features of an MLP"),
    "shared_width": ("f_shared", "hidden features of the shared experts"),
    "experts": ("n_experts", "experts"),
    "experts_per_token": ("k", "experts per token"),
    "router_extra": ("x", "biases and scales of a router"),
    "norms": ("norms", "norms of a layer"),
}
OWN_SYMBOLS = {"window": "window", "kv_lora_rank": "d_c", "q_lora_rank": "d_q", "width": "w", "shared_width": "w_shared"}
OWN_SYMBOLS |= {"experts": "experts", "experts_per_token": "top_k"}
"""Symbols of sizes in a pass, where the usual ones have other meanings."""
PARTS = ("attention", "mlp", "indexer")
"""Fields of a record that are records."""
UNUSED = ("max_positions", "router_extra", "norms")
PASS_SIZES = {name: (OWN_SYMBOLS.get(name, known[0]), name.replace("_", " ")) for name, known in SIZES.items() if name not in UNUSED} | ENDS


class RowsTrace(Trace):
    """A trace whose rows may repeat names of earlier rows: a second T_n that differs is called T_n_2."""

    def symbol(self, name: str, value: Any, meaning: str, source: str = "") -> Traced:
        """An input, under the first free form of ``name``."""
        return super().symbol(_free(self, name, "", value), value, meaning, source)

    def define(self, name: str, meaning: str, result: Any, source: str = "") -> Any:
        """A definition, under the first free form of ``name``."""
        if not isinstance(result, Traced) or result.formula == name:
            return result
        return super().define(_free(self, name, result.formula, result.value), meaning, result, source)


def _free(trace: Trace, name: str, formula: str, value: Any) -> str:
    """The first of name, name_2, name_3, ... that has no other meaning in ``trace``."""
    free, number = name, 1
    while free in trace.steps and (trace.steps[free].formula, trace.steps[free].value) != (formula, value):
        number += 1
        free = f"{name}_{number}"
    return free


def explain(estimate: PassEstimate) -> list[FormulaStep]:
    """Steps of one pass; each rests on earlier ones."""
    trace = RowsTrace()
    model = traced(estimate.model, trace, PASS_SIZES, estimate.model.source or estimate.model.name)
    step = estimate.step
    step = replace(
        step,
        batch=trace.symbol("B", step.batch, "sequences", "given"),
        n=step.n if step.n == 1 else trace.symbol("N", step.n, "new tokens per sequence", "given"),
        kv_len=trace.symbol("N_kv", step.kv_len, "tokens of a sequence", "given"),
    )
    ops = all_ops(model, step)
    costs = _explained(trace, ops, estimate.device)
    cost = replace(total(costs), needs=pass_needs(list(zip(ops, costs, strict=True)), step.split.pp))
    for name, value in {"FLOP": cost.flops, "DRAM read bytes": cost.dram.read, "DRAM write bytes": cost.dram.write}.items():
        trace.define(f"total {name}", "sum over rows and their runs", value, SOURCE)
    trace.define("total lower bound", "s, of all rows as one workload", cost.lower_s, SOURCE)
    trace.define("total roofline", "sum over rows and their runs, s", cost.roofline_s, SOURCE)
    return [*sourced(trace, SOURCE), *_time_steps(estimate)]


def _time_steps(estimate: PassEstimate) -> list[FormulaStep]:
    """The predicted time of each row, by the time model of its kernel, and their sum."""
    predicted = [(row.op.name, row.prediction) for row in estimate.rows if row.prediction is not None]
    steps = [
        FormulaStep(f"[{name}] predicted", f"s, {p.calibration.implementation} by {p.calibration.model}", "", "", p.seconds, p.provenance)
        for name, p in predicted
    ]
    if len(predicted) < len(estimate.rows) or estimate.on_device is None:
        return steps
    formula, numbers = " + ".join(step.name for step in steps), " + ".join(show(float(step.value)) for step in steps)
    kernels_s, _, _ = estimate.on_device
    name = "total predicted" if estimate.host_s is None else "kernels predicted"
    steps.append(FormulaStep(name, "s, of all rows and their runs", formula, numbers, kernels_s, "the sum of its kernels"))
    if estimate.host_s is None:
        return steps
    host_s, _, _ = estimate.host_s
    numbers = f"max({show(kernels_s)}, {show(host_s)})"
    return [
        *steps,
        FormulaStep("host", "s, to launch them", "", "", host_s, "host_us of the device, or --host-us"),
        FormulaStep("total predicted", "s", "max(kernels predicted, host)", numbers, max(kernels_s, host_s), "the slower of both"),
    ]


def _explained(trace: Trace, ops: Sequence[Op], device: Device) -> list[Estimate]:
    """Bound and roof of all runs of each op, with their formulas in ``trace``."""
    costs: list[Estimate] = []
    rates: dict[str, Rates] = {}
    names: set[str] = set()
    for op in ops:
        label = f"[{op.name} {len(names)}] " if op.name in names else f"[{op.name}] "
        names.add(op.name)
        runs = trace.symbol(f"{label}runs", op.count, "runs of this kernel", SOURCE)
        if op.exchange is not None:
            costs.append(scaled(_explained_collective(trace, op.exchange, device, label), runs))
            continue
        kernel = in_compute_dtype(op, device)
        if kernel.dtype.name not in rates:
            rates[kernel.dtype.name] = rates_of(device, kernel.dtype, trace)
        numbered = enumerate(kernel.accesses, 1)
        accesses = tuple(named_access(trace, access, f"{label}{access.tensor} {access.kind} {index}", SOURCE) for index, access in numbered)
        cost = estimate(kernel._replace(accesses=accesses), device, rates[kernel.dtype.name], label)
        costs.append(scaled(cost, runs))
    return costs


def _explained_collective(trace: Trace, w: Collective, device: Device, label: str) -> Estimate:
    plain = w.estimate(device)
    link = f"{device.id}: {device.sources[device.interconnect.bandwidth_per_direction.source]}" if device.interconnect else ""
    bandwidth = trace.symbol("BW_link", link_bandwidth(device, w.world), "B/s per direction", link)
    least = trace.define(f"{label}bytes", "bytes that a GPU has to receive", least_bytes(w), SOURCE)
    lower = trace.define(f"{label}lower bound", "s", least / bandwidth)
    roof = trace.symbol(
        f"{label}roofline", float(plain.roofline_s), "s, ring or tree by alpha and beta", "perfmodel/kernels/collectives.py"
    )
    return replace(plain, needs=Needs(link_s=lower), roofline_s=roof)


def explain_cache(result: CacheResult) -> list[FormulaStep]:
    """Formulas of all numbers of ``result``, as steps that use the results of earlier ones."""
    trace, w = Trace(), result.workload
    spec = traced(w.spec, trace)
    n: Any = trace.symbol("n", w.n, "tokens of a sequence", "given")
    batch: Any = trace.symbol("B", w.batch, "sequences", "given")
    block, group = trace.symbol("p", w.form.block_size, "tokens per block", "given"), w.form.scale_group
    shared = None if group is None else trace.symbol("G", group, f"elements that share a scale of {SCALE_SIZE} B", "given")
    form = w.form._replace(block_size=block, scale_group=shared)
    traced_result = evaluate(w, result.device, replace(w, spec=spec, n=n, batch=batch, form=form))
    for name, cost in {"with": traced_result.cached, "without": traced_result.uncached}.items():
        for part in ("layers", "head", "attention"):
            trace.define(f"{name} cache, {part}", "FLOP", getattr(cost, part))
        trace.define(f"{name} cache, weights read", "B", cost.weights_read)
    trace.define("with cache, cache read", "B", traced_result.cached.cache_read)
    return [step._replace(source=step.source or _cache_source(step.name)) for step in trace.steps.values()]


def _cache_source(name: str) -> str:
    if name.split(maxsplit=1)[0] == "P":
        return PARAMETER_SOURCE
    return CACHE_SOURCE if name.endswith(("per token", " tokens", " sequence")) else GENERATION_SOURCE


def traced(spec: ModelSpec, trace: Trace, names: Symbols = SIZES, source: str = "") -> ModelSpec:
    """``spec`` with a symbol for each size in ``names``; sizes that differ between layers are numbered."""

    def symbol(name: str, value: Any) -> Traced:
        base, meaning = names[name]
        return trace.symbol(_free(trace, base, "", value), value, meaning, source or f"configuration of {spec.name}")

    def with_symbols(record: Any) -> Any:
        prefix = "index_" if isinstance(record, Indexer | BlockIndexer) else ""
        symbols: dict[str, Any] = {}
        for field in fields(record):
            value = getattr(record, field.name)
            if field.name in PARTS and value is not None:
                symbols[field.name] = with_symbols(value)
            elif prefix + field.name in names and value:
                symbols[field.name] = symbol(prefix + field.name, value)
        return replace(record, **symbols)

    kinds = {layer: with_symbols(layer) for layer, _ in spec.layer_kinds}
    ends = [*ENDS]
    if spec.learned_positions and "max_positions" in names:
        ends.append("max_positions")
    sizes: dict[str, Any] = {name: symbol(name, getattr(spec, name)) for name in ends}
    return replace(spec, layers=tuple(kinds[layer] for layer in spec.layers), **sizes)
