"""A pass explained: bytes, FLOP and times of every row as formulas, by running the same functions on traced sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import count
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.cost import Kernel
from perfmodel.core.explain import sourced
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, Rates, estimate, total, traced_rates
from perfmodel.core.trace import Step as Line
from perfmodel.core.trace import Trace, Traced
from perfmodel.kernels.collectives import Collective, collective_estimate, least_bytes, link_bandwidth
from perfmodel.transformer.estimate import Pass, pass_needs
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import as_multiplied, scaled
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import hand_over
from perfmodel.transformer.spec import Layer, ModelSpec

SOURCE = "each operand read once from DRAM, each result written once; perfmodel/transformer"
NAMES = {
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
}
"""Symbols of the sizes of a layer."""


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


def explain(found: Pass) -> list[Line]:
    """Steps of one pass; each rests on earlier ones."""
    trace = RowsTrace()
    model, step = _traced_model(found.model, trace), found.step
    step = replace(
        step,
        batch=trace.symbol("B", step.batch, "sequences", "given"),
        n=step.n if step.n == 1 else trace.symbol("N", step.n, "new tokens per sequence", "given"),
        kv_len=trace.symbol("N_kv", step.kv_len, "tokens of a sequence", "given"),
    )
    ops = [*step_ops(model, step), *hand_over(model, step)]
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


def _traced_model(model: ModelSpec, trace: Trace) -> ModelSpec:
    """``model`` with its sizes as symbols; a size that differs between layers has one symbol per value."""

    def symbol(name: str, value: int, meaning: str) -> Number:
        return trace.symbol(name, value, meaning, model.source or model.name)

    def part(record: Any) -> Any:
        sizes = {f.name: getattr(record, f.name) for f in fields(record) if f.name in NAMES}
        traced = {name: symbol(NAMES[name], value, name.replace("_", " ")) for name, value in sizes.items() if value}
        return replace(record, **traced)

    def layer(one: Layer) -> Layer:
        return replace(one, attention=part(one.attention), mlp=part(one.mlp))

    kinds = {one: layer(one) for one, _ in model.layer_kinds}
    hidden, vocab = symbol("h", model.hidden, "hidden size"), symbol("V", model.vocab, "vocabulary")
    return replace(model, hidden=hidden, vocab=vocab, layers=tuple(kinds[one] for one in model.layers))
