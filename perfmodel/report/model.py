"""The report of a whole model: rows by op, totals, time to the first and to the next token, memory."""

from __future__ import annotations

from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ
from perfmodel.core.units import format_time
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table, of_cost
from perfmodel.report.model_words import least, most, notes, share, stored_format, verdict
from perfmodel.report.operation import head, with_steps
from perfmodel.timing.predict import Prediction
from perfmodel.transformer.answer import Answer, Line
from perfmodel.transformer.estimate import CONVENTION, MIXED, Pass
from perfmodel.transformer.op import CACHE, COLLECTIVE, WEIGHTS
from perfmodel.transformer.parallel import draft_bytes
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, Request


def report(found: Answer, *, explained: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1. ``explained``: with the formulas of its passes."""
    plain = Report(title(found.request), verdict(found), _tables(found), notes(found), data(found))
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
    r = found.request
    return {
        **head("model", inputs_of(r), r.device),
        "parameters": {"total": total(r.model), "active": active(r.model), "parts": parts(r.model)},
        "ops": [as_json(_op(line, found)) for line in found.lines],
        "totals": as_json(_totals(found)),
        "model_flops": found.flops,
        **as_json(_rates(found)),
        "mfu_peaks": found.mfu_peaks,
        "flop_convention": CONVENTION,
        "times_from": found.times_from,
        "times_as_if_it_fitted": found.memory.fits is False,
        "memory": as_json(_memory(found)),
    }


# Numbers and their tables

OPS = {
    "name": "op",
    "count": "count",
    "products": "FLOP",
    "bytes": "bytes",
    "time_s.lower": "lower",
    "time_s.predicted": "predicted",
    "of bound": "of bound",
    "share": "share",
    "source": "source",
}
TOTALS = {
    "flops": "FLOP",
    "traffic.dram.bytes": "DRAM traffic",
    "time_s.lower": "lower bound",
    "time_s.lower_warm": "  caches warm from the step before",
    "time_s.roofline": "roofline",
    "time_s.predicted": "predicted",
    "time_s.at_least": "  roof where nothing is calibrated",
    "ttft_s": "time to the first token",
    "tpot_s": "time per output token",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
}


def _op(line: Line, found: Answer) -> list[Metric]:
    """One row: with the phase where there are two."""
    op, times, p = line.row.op, line.times, line.row.prediction
    runs = line.count / op.count
    several = len({one.phase for one in found.lines}) > 1
    return [
        Metric("name", op.name, unit="text", before=f"{line.phase}: " if several else ""),
        Metric("phase", line.phase),
        Metric("group", op.group),
        Metric("count", line.count),
        Metric("weight_bytes", op.count * op.bytes_of(WEIGHTS) * runs),
        Metric("kv_bytes", op.count * op.bytes_of(CACHE) * runs),
        *of_cost(line.cost, times and Interval(*times)),
        Metric("", line.cost.flops or None, "products", "FLOP"),
        Metric("time_s.at_least", line.seconds),
        Metric("", line.cost.lower_s / times[0] if times else None, "of bound", "share"),
        Metric("share", share(line, found), unit="share"),
        Metric("bytes", moved_bytes(line), unit="B"),
        *of_source(p if times else None, line.row.missing, f"roof, {format_time(line.seconds)}"),
    ]


def of_source(p: Prediction | None, missing: str, otherwise: str) -> list[Metric]:
    """Whose time it is, or why there is none; ``otherwise``: what a table says then."""
    if p is None:
        return [Metric("implementation", None), Metric("not_predicted", missing), Metric("", otherwise, "source", "text")]
    source = {"kind": p.kind, "provenance": p.provenance, "model": p.calibration.model}
    name = p.calibration.implementation
    return [Metric("implementation", name), Metric("prediction", source), Metric("", f"{name}, {p.kind}", "source", "text")]


def moved_bytes(line: Line) -> Number:
    """DRAM traffic of a row; of a collective its buffers."""
    op = line.row.op
    return op.kernel.bytes(READ) * line.count if op.group == COLLECTIVE else line.cost.dram.total


def _totals(found: Answer) -> list[Metric]:
    """Sums over all rows."""
    known = found.prediction
    at_least = Metric("time_s.at_least", found.seconds, unit="s", before="at least ")
    return [*of_cost(found.cost, known and Interval(*known)), at_least]


def _rates(found: Answer) -> list[Metric]:
    made = found.times_from
    return [
        Metric("ttft_s", found.ttft_s, unit="s", before=least(made)),
        Metric("tpot_s", found.tpot_s, unit="s", before=least(made)),
        Metric("tokens_per_s", found.tokens_per_s, unit="", before=most(made)),
        Metric("mfu", found.mfu, unit="share", before=most(made)),
    ]


def _memory(found: Answer) -> list[Metric]:
    r, memory = found.request, found.memory
    whole = memory.weights + draft_bytes(r.model, True) if r.weights_from_file and r.split.gpus == 1 else None
    return [
        Metric("weights", memory.weights, "weights", "B"),
        Metric("checkpoint", whole),
        Metric("kv_cache", memory.kv_cache, "KV cache", "B"),
        Metric("activations", memory.activations, "activations", "B"),
        Metric("total", memory.total, "total", "B"),
        Metric("capacity", memory.capacity, "capacity", "B"),
        Metric("fits", memory.fits),
        Metric("max_batch", memory.max_batch, "" if memory.capacity is None else "largest batch"),
    ]


def _tables(found: Answer) -> list[Table]:
    title = "totals" + (" (times as if it fitted)" if found.memory.fits is False else "")
    totals = {found.request.phase: [*_totals(found), *_rates(found)]}
    hidden = set() if found.times_from == MIXED else {"time_s.at_least"}
    return [
        as_rows("", [_op(line, found) for line in found.lines], labels=OPS),
        as_table(title, totals, labels=TOTALS, without=hidden),
        as_table("memory per GPU", {"bytes": _memory(found)}),
    ]
