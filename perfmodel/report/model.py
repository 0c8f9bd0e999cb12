"""The report of a whole model: rows by op, totals, time to the first and to the next token, memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfmodel.core.units import format_time
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table, of_cost
from perfmodel.report.model_first import answered, least, most, phase_before, title_of
from perfmodel.report.model_notes import notes, phases, stored_format
from perfmodel.report.op_common import head, with_steps
from perfmodel.report.power import of_power
from perfmodel.report.step import by_share, moved_bytes
from perfmodel.timing.predict import Prediction
from perfmodel.transformer.answer import Line, ModelAnswer
from perfmodel.transformer.estimate import CONVENTION, MIXED
from perfmodel.transformer.op import CACHE, WEIGHTS
from perfmodel.transformer.parallel import HELD_BACK, draft_bytes
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.step import DECODE, Request


def report(found: ModelAnswer, *, explained: bool = False, pictures: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1. ``explained``: with the formulas of its passes.

    ``pictures``: with the time of its ops, and their roofline.
    """
    r = found.request
    first = by_share([_op(line, found) for line in found.lines], BRIEF)
    plain = answered(Report(title_of(r), [], _tables(found), notes(found), data(found), brief=[first]), found, pictures)
    if not explained:
        return plain
    from perfmodel.transformer.explain import explain

    shown = {one.step.phase: one for one, _ in found.steps}  # of many decode steps the longest
    lengths = {phase: one.step.kv_len for phase, one in shown.items()}
    titles = {phase: f"{phase} at {kv_len:,} tokens" for phase, kv_len in lengths.items()}
    return with_steps(plain, [(titles[phase], {"phase": phase, "kv_len": lengths[phase]}, explain(one)) for phase, one in shown.items()])


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
        "kernels": asdict(r.kernels),
        "cuda_graph": {phase: r.in_graph(phase) for phase in phases(r)},
        "kv_cache": r.cached,
        "tensor_parallel": r.split.tp,
        "pipeline_parallel": r.split.pp,
        "expert_parallel": r.split.ep,
        "data_parallel": r.split.dp,
        "imbalance": r.imbalance,
        "reserve_bytes": r.reserve,
    }


def data(found: ModelAnswer) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs: they add up to ``totals``."""
    r = found.request
    return {
        **head("model", inputs_of(r), r.device),
        "parameters": {"total": total(r.model), "active": active(r.model), "parts": parts(r.model)},
        "ops": [as_json(_op(line, found)) for line in found.lines],
        "totals": as_json(_totals(found)),
        "model_flops": found.flops,
        **as_json(_rates(found)),
        **as_json([Metric("mfu_peaks", found.mfu_peaks, unit="FLOP/s")]),
        "flop_convention": CONVENTION,
        "times_from": found.times_from,
        "times_as_if_it_fitted": found.memory.fits is False,
        "memory": as_json(_memory(found)),
    }


BRIEF = ("name", "time", "share", "of bound", "FLOP", "bytes", "count")
OPS = ("name", "count", "FLOP", "bytes", "time_s.lower", "time_s.predicted", "of bound", "share", "source")
TIMES_OF_STEP = ("traffic.dram.bytes", "time_s.lower", "time_s.lower_warm", "time_s.roofline", "time_s.predicted")
DRAWN = ("sustained.power_w", "sustained.sm_hz", "sustained.energy_j", "sustained.energy_per_token_j")
TOTALS = ("flops", *TIMES_OF_STEP, "time_s.burst", "time_s.sustained", "time_s.at_least", *DRAWN, "ttft_s", "tpot_s", "tokens_per_s", "mfu")
STEP_LABELS = {"time_s.lower": "lower bound", "time_s.lower_warm": "  caches warm from the step before"}


def _op(line: Line, found: ModelAnswer) -> list[Metric]:
    """One row: with the phase where there are two."""
    op, times = line.row.op, line.times
    runs = line.count / op.count
    return [
        Metric("name", op.name, "op", "text", before=phase_before(line, found)),
        Metric("phase", line.phase),
        Metric("group", op.group),
        Metric("count", line.count, "count"),
        Metric("weight_bytes", op.count * op.bytes_of(WEIGHTS) * runs),
        Metric("kv_bytes", op.count * op.bytes_of(CACHE) * runs),
        *of_cost(line.cost, times and Interval(*times), {"time_s.lower": "lower"}),
        Metric("", line.cost.flops or None, "FLOP", "FLOP"),
        Metric("time_s.at_least", line.seconds),
        Metric("", line.seconds, "time", "s", before="" if times else ">= "),
        Metric("", line.cost.lower_s / times[0] if times else None, "of bound", "share"),
        Metric("share", _share(line, found), "share", "share"),
        Metric("bytes", moved_bytes(op, line.cost, line.count), "bytes", "B"),
        *of_source(line.row.prediction if times else None, line.row.missing, f"roof, {format_time(line.seconds)}"),
    ]


def of_source(p: Prediction | None, missing: str, otherwise: str) -> list[Metric]:
    """Whose time it is, or why there is none; ``otherwise``: what a table says then."""
    if p is None:
        return [Metric("implementation", None), Metric("not_predicted", missing), Metric("", otherwise, "source", "text")]
    name, source = p.calibration.implementation, {"kind": p.kind, "provenance": p.provenance, "model": p.calibration.model}
    return [Metric("implementation", name), Metric("prediction", source), Metric("", f"{name}, {p.kind}", "source", "text")]


def _totals(found: ModelAnswer) -> list[Metric]:
    """Sums over all rows."""
    at_least = Metric("time_s.at_least", found.seconds, "  roof where nothing is calibrated", "s", before="at least ")
    return [*of_cost(found.cost, found.prediction and Interval(*found.prediction), STEP_LABELS), at_least, *_power(found)]


def _power(found: ModelAnswer) -> list[Metric]:
    """What the answer draws, and per token."""
    power = found.power
    each = [] if power is None else [Metric("sustained.energy_per_token_j", power.joules / found.tokens, "energy per token", "J")]
    return [*of_power(power), *each]


def _rates(found: ModelAnswer) -> list[Metric]:
    made = found.times_from
    return [
        Metric("ttft_s", found.ttft_s, "time to the first token", "s", before=least(made)),
        Metric("tpot_s", found.tpot_s, "time per output token", "s", before=least(made)),
        Metric("tokens_per_s", found.tokens_per_s, "tokens/s", "", before=most(made)),
        *_host(found),
        Metric("mfu", found.mfu, "MFU", "share", before=most(made)),
    ]


def _host(found: ModelAnswer) -> list[Metric]:
    """Launches of the host over all passes, where kernels are launched one by one."""
    steps = [(one, times) for one, times in found.steps if one.host_s is not None]
    known = [Interval(*(sum(times * (one.host_s or (0, 0, 0))[end] for one, times in steps) for end in range(3)))] if steps else []
    return [
        Metric("host.launches", sum(one.launches * times for one, times in steps) if steps else None),
        Metric("host.seconds", known[0].value if known else None),
        Metric("host.low", known[0].low if known else None),
        Metric("host.high", known[0].high if known else None),
        Metric("host.us_per_launch", found.request.host_us),
    ]


def _memory(found: ModelAnswer) -> list[Metric]:
    r, memory = found.request, found.memory
    whole = memory.weights + draft_bytes(r.model, True) if r.weights_from_file and r.split.gpus == 1 else None
    return [
        Metric("weights", memory.weights, "weights", "B"),
        Metric("checkpoint", whole, unit="B"),
        Metric("kv_cache", memory.kv_cache, "KV cache", "B"),
        Metric("activations", memory.activations, "activations", "B"),
        Metric("reserve", r.reserve, unit="B"),
        Metric("", memory.reserved[HELD_BACK] or None, "held back besides", "B"),
        Metric("total", memory.total, "total", "B"),
        Metric("capacity", memory.capacity, "capacity", "B"),
        Metric("fits", memory.fits),
        Metric("max_batch", memory.max_batch, "" if memory.capacity is None else "largest batch"),
    ]


def _tables(found: ModelAnswer) -> list[Table]:
    title = "totals" + (" (times as if it fitted)" if found.memory.fits is False else "")
    hidden = set() if found.times_from == MIXED else {"time_s.at_least"}
    return [
        as_rows("", [_op(line, found) for line in found.lines], labels=OPS),
        as_table(title, {found.request.phase: [*_totals(found), *_rates(found)]}, labels=TOTALS, without=hidden),
        as_table("memory per GPU", {"bytes": _memory(found)}),
    ]


def _share(line: Line, found: ModelAnswer) -> float:
    """Part of the whole time, both of predictions as far as there are some, of roofs elsewhere."""
    return line.seconds / found.seconds
