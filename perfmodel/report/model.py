"""The report of a whole model: rows by op, totals, time to the first and to the next token, memory."""

from __future__ import annotations

from typing import Any

from perfmodel.report.document import Report
from perfmodel.report.metrics import as_json, of_cost
from perfmodel.report.model_formats import stored_format
from perfmodel.report.model_tables import memory_table, moved_bytes, notes, ops_table, share, totals_table, verdict
from perfmodel.report.operation import head, with_steps
from perfmodel.transformer.answer import Answer, Line
from perfmodel.transformer.estimate import CONVENTION, Pass
from perfmodel.transformer.op import CACHE, WEIGHTS
from perfmodel.transformer.parallel import draft_bytes
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.request import GENERATE, Request
from perfmodel.transformer.step import DECODE, PREFILL


def report(found: Answer, *, explained: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1. ``explained``: with the formulas of its passes."""
    tables = [ops_table(found), totals_table(found), memory_table(found)]
    plain = Report(title(found.request), verdict(found), tables, notes(found), data(found))
    if not explained:
        return plain
    from perfmodel.transformer.explain import explain

    shown = {one.step.phase: one for one, _ in found.steps}  # of many decode steps the longest
    parts = [(_explained(one), {"phase": phase, "kv_len": one.step.kv_len}, explain(one)) for phase, one in shown.items()]
    return with_steps(plain, parts)


def _explained(one: Pass) -> str:
    return f"{one.step.phase} at {one.step.kv_len:,} tokens"


def title(r: Request) -> str:
    """Model, phase, sizes, formats, device."""
    sizes = {
        PREFILL: f"prefill of {r.n:,} tokens",
        DECODE: f"decode at {r.kv_len:,} tokens",
        GENERATE: f"{r.kv_len - r.n:,} tokens after {r.n:,}",
    }[r.phase]
    gpus = "" if r.split.gpus == 1 else f"{r.split.gpus} x "
    return f"{r.model.name}: {sizes}, batch {r.batch:,}, {r.dtype.name} on {gpus}{r.device.name}"


# The JSON object


def inputs_of(r: Request) -> dict[str, Any]:
    """What was asked, with defaults filled in."""
    form = stored_format(r)
    return {
        "model": r.model.name,
        "architecture": r.model.architecture,
        "phase": r.phase,
        "batch": r.batch,
        "n": r.n if r.phase != DECODE else 1,
        "kv_len": r.kv_len,
        "dtype": r.dtype.name,
        "weight_bits": r.weight_bits if form is None else form.bits,
        "kv_bits": r.kv_bits,
        "integer_weights": r.integer_weights if form is None else form.is_integer,
        "integer_kv": r.integer_kv,
        "weights_from_file": r.model.quantized.words if r.model.quantized is not None and r.weights_from_file else None,
        "fused_elementwise": r.fused,
        "cuda_graph": {phase: r.in_graph(phase) for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE)},
        "kv_cache": r.cached,
        "tensor_parallel": r.split.tp,
        "pipeline_parallel": r.split.pp,
        "expert_parallel": r.split.ep,
    }


def data(found: Answer) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs: they add up to ``totals``."""
    r, cost, memory = found.request, found.cost, found.memory
    return {
        **head("model", inputs_of(r), r.device),
        "parameters": {"total": total(r.model), "active": active(r.model), "parts": parts(r.model)},
        "ops": [_entry(line, found) for line in found.lines],
        "totals": _with_times(as_json(of_cost(cost)), found.prediction, found.seconds),
        "model_flops": found.flops,
        "ttft_s": found.ttft_s,
        "tpot_s": found.tpot_s,
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "mfu_peaks": found.mfu_peaks,
        "flop_convention": CONVENTION,
        "times_from": found.times_from,
        "times_as_if_it_fitted": memory.fits is False,
        "memory": {
            "weights": memory.weights,
            "checkpoint": memory.weights + draft_bytes(r.model, True) if r.weights_from_file and r.split.gpus == 1 else None,
            "kv_cache": memory.kv_cache,
            "activations": memory.activations,
            "total": memory.total,
            "capacity": memory.capacity,
            "fits": memory.fits,
            "max_batch": memory.max_batch,
        },
    }


def _entry(line: Line, found: Answer) -> dict[str, Any]:
    op, times = line.row.op, line.times
    runs = line.count / op.count
    entry = {
        "name": op.name,
        "phase": line.phase,
        "group": op.group,
        "count": line.count,
        "weight_bytes": op.count * op.bytes_of(WEIGHTS) * runs,
        "kv_bytes": op.count * op.bytes_of(CACHE) * runs,
        **_with_times(as_json(of_cost(line.cost)), times, line.seconds),
        "share": share(line, found),
        "bytes": moved_bytes(line),
    }
    p = line.row.prediction
    if p is None or times is None:
        return {**entry, "implementation": None, "not_predicted": line.row.missing}
    source = {"kind": p.kind, "provenance": p.provenance, "model": p.calibration.model}
    return {**entry, "implementation": p.calibration.implementation, "prediction": source}


def _with_times(entry: dict[str, Any], times: tuple[float, float, float] | None, at_least: float) -> dict[str, Any]:
    """``at_least``: predictions where there are some, roofs elsewhere."""
    entry["time_s"]["at_least"] = at_least
    if times is not None:
        entry["time_s"] |= dict(zip(("predicted", "low", "high"), times, strict=True))
    return entry
