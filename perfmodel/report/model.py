"""The report of a whole model: rows by op, totals, time to the first and to the next token, memory."""

from __future__ import annotations

from typing import Any

from perfmodel.core.cost import READ
from perfmodel.core.units import format_si, format_time
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import BOUND_WORDS, Metric, as_json, as_rows, as_table, of_cost
from perfmodel.report.op_common import head, unknown_rates, unread_notes, with_steps
from perfmodel.report.power import of_power, power_note
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import Prediction
from perfmodel.transformer.answer import Line, ModelAnswer
from perfmodel.transformer.estimate import CONVENTION, MIXED, PREDICTED, ROOF
from perfmodel.transformer.op import CACHE, COLLECTIVE, WEIGHTS
from perfmodel.transformer.op_time import MODEL as STEP_MODEL
from perfmodel.transformer.op_time import launch_saving_s
from perfmodel.transformer.parallel import draft_bytes, joined_gpus
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, Request, native_dtype
from perfmodel.transformer.weight_formats._base import MatrixFormat

TIMES = {PREDICTED: "predicted", ROOF: "roof", MIXED: "predicted; roof where nothing is calibrated"}
"""Of what a time is made, in words."""


def report(found: ModelAnswer, *, explained: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1. ``explained``: with the formulas of its passes."""
    r = found.request
    sizes = {
        PREFILL: f"prefill of {r.n:,} tokens",
        DECODE: f"decode at {r.kv_len:,} tokens",
        GENERATE: f"{r.kv_len - r.n:,} tokens after {r.n:,}",
    }[r.phase]
    title = f"{r.model.name}: {sizes}, batch {r.batch:,}, {r.dtype.name} on {gpus_of(r)}"
    plain = Report(title, _summary(found), _tables(found), _notes(found), data(found))
    if not explained:
        return plain
    from perfmodel.transformer.explain import explain

    shown = {one.step.phase: one for one, _ in found.steps}  # of many decode steps the longest
    lengths = {phase: one.step.kv_len for phase, one in shown.items()}
    titles = {phase: f"{phase} at {kv_len:,} tokens" for phase, kv_len in lengths.items()}
    return with_steps(plain, [(titles[phase], {"phase": phase, "kv_len": lengths[phase]}, explain(one)) for phase, one in shown.items()])


def gpus_of(r: Request) -> str:
    """The device, with how many of it."""
    return r.device.name if r.split.gpus == 1 else f"{r.split.gpus} x {r.device.name}"


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
        "cuda_graph": {phase: r.in_graph(phase) for phase in _phases(r)},
        "kv_cache": r.cached,
        "tensor_parallel": r.split.tp,
        "pipeline_parallel": r.split.pp,
        "expert_parallel": r.split.ep,
    }


def _phases(r: Request) -> list[str]:
    return [phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE)]


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
        "mfu_peaks": found.mfu_peaks,
        "flop_convention": CONVENTION,
        "times_from": found.times_from,
        "times_as_if_it_fitted": found.memory.fits is False,
        "memory": as_json(_memory(found)),
    }


OPS = ("name", "count", "FLOP", "bytes", "time_s.lower", "time_s.predicted", "of bound", "share", "source")
TIMES_OF_STEP = ("traffic.dram.bytes", "time_s.lower", "time_s.lower_warm", "time_s.roofline", "time_s.predicted")
DRAWN = ("power_w", "sm_hz", "energy_j", "energy_per_token_j")
TOTALS = ("flops", *TIMES_OF_STEP, "time_s.burst", "time_s.sustained", "time_s.at_least", *DRAWN, "ttft_s", "tpot_s", "tokens_per_s", "mfu")
STEP_LABELS = {"time_s.lower": "lower bound", "time_s.lower_warm": "  caches warm from the step before"}


def _op(line: Line, found: ModelAnswer) -> list[Metric]:
    """One row: with the phase where there are two."""
    op, times = line.row.op, line.times
    runs = line.count / op.count
    several = len({one.phase for one in found.lines}) > 1
    moved = op.kernel.bytes(READ) * line.count if op.group == COLLECTIVE else line.cost.dram.total  # of a collective its buffers
    return [
        Metric("name", op.name, "op", "text", before=f"{line.phase}: " if several else ""),
        Metric("phase", line.phase),
        Metric("group", op.group),
        Metric("count", line.count, "count"),
        Metric("weight_bytes", op.count * op.bytes_of(WEIGHTS) * runs),
        Metric("kv_bytes", op.count * op.bytes_of(CACHE) * runs),
        *of_cost(line.cost, times and Interval(*times), {"time_s.lower": "lower"}),
        Metric("", line.cost.flops or None, "FLOP", "FLOP"),
        Metric("time_s.at_least", line.seconds),
        Metric("", line.cost.lower_s / times[0] if times else None, "of bound", "share"),
        Metric("share", _share(line, found), "share", "share"),
        Metric("bytes", moved, "bytes", "B"),
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
    each = [] if power is None else [Metric("energy_per_token_j", power.joules / found.tokens, "energy per token", "J")]
    return [*of_power(power), *each]


def _rates(found: ModelAnswer) -> list[Metric]:
    made = found.times_from
    return [
        Metric("ttft_s", found.ttft_s, "time to the first token", "s", before=least(made)),
        Metric("tpot_s", found.tpot_s, "time per output token", "s", before=least(made)),
        Metric("tokens_per_s", found.tokens_per_s, "tokens/s", "", before=most(made)),
        Metric("mfu", found.mfu, "MFU", "share", before=most(made)),
    ]


def _memory(found: ModelAnswer) -> list[Metric]:
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


def least(times_from: str) -> str:
    """What goes before a time in which roofs stand for predictions."""
    return "" if times_from == PREDICTED else "at least "


def most(times_from: str) -> str:
    """What goes before a rate at such a time."""
    return "" if times_from == PREDICTED else "at most "


def _summary(found: ModelAnswer) -> list[str]:
    """How long, what for, how near to the bound, and whether it fits."""
    r, cost, made, memory = found.request, found.cost, found.times_from, found.memory
    what = {PREFILL: "Prefill", DECODE: "A decode step", GENERATE: "Generation"}[r.phase]
    known = "" if found.prediction is None else f", {format_time(found.prediction[1], 3)} to {format_time(found.prediction[2], 3)}"
    verb = "would take" if memory.fits is False else "takes"
    took = f"{what} {verb} {least(made)}{format_time(found.seconds)} ({TIMES[made]}{known})"
    bound = f"the bound is {format_time(cost.lower_s)}; the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}"
    names = list(found.mfu_peaks)  # of which peaks the MFU is a share, where it is not that of the activations' format alone
    peaks = "" if names == [r.dtype.name] else f" of the {' and '.join(names)} peak{'s' * (len(names) > 1)}"
    rate = f"{most(made)}{format_si(found.tokens_per_s)} tokens/s, MFU {most(made)}{100 * found.mfu:.3g} %{peaks}"
    largest = max(found.lines, key=lambda line: _share(line, found))
    share = f"{largest.row.op.name} takes {100 * _share(largest, found):.3g} %"
    sentence = f"{took}; {bound}. {rate[:1].upper()}{rate[1:]}. {share}."
    if memory.fits is not False:
        return [sentence]
    held = f"{format_si(memory.total, 'B')} of {format_si(memory.capacity or 0, 'B')} per GPU"
    return [f"It does not fit: {held}; {_spare(found)}. Times are those of a GPU with more memory.", sentence]


def _spare(found: ModelAnswer) -> str:
    """What would fit instead."""
    r, memory = found.request, found.memory
    if memory.max_batch:
        return f"batch {memory.max_batch:,} would fit"
    if memory.weights >= (memory.capacity or 0):
        return "the weights alone are too large"
    return f"beside the weights not even one sequence of {max(r.n, r.kv_len):,} tokens fits"


def _notes(found: ModelAnswer) -> list[str]:
    r = found.request
    stages = ", of one GPU per stage" if r.split.gpus > 1 else ""
    mean = "; here the mean over the steps" if r.phase == GENERATE else ""
    words = [
        f"Lower: each row a kernel of its own with operands in DRAM. Rows are sums over their runs{stages}.",
        f"Time to the first token: the prefill. Time per output token: one decode step, which gives a token to every sequence{mean}.",
    ]
    longest = r.model.max_positions
    if longest is not None and max(r.n, r.kv_len) > longest:
        words.append(f"{r.model.name} was made for at most {longest:,} tokens.")
    if not r.cached:
        words.append("Without a KV cache a step computes all tokens so far anew.")
    if r.model.is_moe:
        words.append("Experts touched are the mean over batches whose tokens pick experts alike and independently.")
    listed = ", ".join(f"{name} {format_si(peak, 'FLOP/s')}" for name, peak in found.mfu_peaks.items())
    apart = "" if list(found.mfu_peaks) == [r.dtype.name] else f", each row's over that of the format it runs in ({listed})"
    words += [*weights_notes(r), f"MFU: {CONVENTION}{apart}."]
    return [*words, *_prediction_notes(found), *power_note(found.power), *_split_notes(r), *unknown_rates([found.cost], r.device)]


def _prediction_notes(found: ModelAnswer) -> list[str]:
    r, words, within = found.request, [], found.steps[0][0].within
    missing = list(dict.fromkeys(f"{line.row.op.name} ({line.row.missing})" for line in found.lines if line.row.prediction is None))
    if missing:
        reasons = f"{'; '.join(missing[:3])}{'; ...' if len(missing) > 3 else ''}"
        words.append(f"No total is predicted: {reasons}. The roof stands for those rows, so times are the least and rates the most.")
    graphs = [phase for phase in _phases(r) if r.in_graph(phase)]
    if graphs and within.block is None and launch_saving_s(r.device) is None:
        words.append(f"The profile of {r.device.id} has no launch overhead in graphs: kernels are timed as launched one by one.")
    elif graphs and (saving := within.saving_s(graph=True)):
        words.append(f"CUDA graph in {' and '.join(graphs)}: each kernel takes {format_time(saving)} less than timed alone.")
    if within.block is not None:
        where = "here" if within.own else "on another architecture"
        words.append(f"What kernels take in a step beside alone was calibrated {where}, on {within.block.points} steps.")
    if len(graphs) < len(_phases(r)):
        words.append("Launched one by one: the host is taken to keep ahead of the device.")
    if found.prediction is not None:
        words.append(f"Assumed: {find_model(STEP_MODEL).assumes}.")
    return words


def _split_notes(r: Request) -> list[str]:
    words, joined = [], joined_gpus(r.device)
    if r.split.gpus > joined:
        joins = f"{r.split.gpus:,} GPUs are more than the {joined} that the links of {r.device.name} join"
        words.append(f"{joins}: exchanges are timed over those links all the same, and take longer over a network.")
    if r.split.tp > 1:
        words.append("Tensor parallel: two all-reduces per layer, ring or tree, whichever is faster; bound by a buffer per link.")
    if r.split.ep > 1:
        words.append("Expert parallel: groups divide the sequences; two all-to-alls per layer of experts carry tokens there and back.")
    if r.split.pp > 1:
        words.append("Pipeline: stages one after the other; several batches in flight would give more tokens/s, none of them sooner.")
    return words


# Formats of weights and cache


def weights_notes(r: Request) -> list[str]:
    """In what weights and cache are stored and multiplied."""
    words, form = file_notes(r.model, r.weights_from_file), stored_format(r)
    eight = form.name == "fp8" if form is not None else r.weight_bits == 8 and not r.integer_weights
    if eight and r.dtype.size == 2:
        inside = "activations are rounded to fp8 too, and products run in fp8 (W8A8)"
        outside = f"{r.device.id} does not multiply fp8; they are read as such and multiplied in {r.dtype.name}"
        words.append(f"fp8 weights: {inside if 'fp8' in r.device.peaks_of('tensor') else outside}.")
    elif r.integer_weights or (form is not None and form.bits < 8 * r.dtype.size):
        runs = form is not None and form.multiplied in r.device.peaks_of("tensor")
        how = f"products may run in {form.multiplied}" if form and runs else f"dequantised, and multiplied in {r.dtype.name}"
        words.append(f"{form.name if form is not None else f'int{r.weight_bits}'} weights: they alone are narrower; read as such, {how}.")
    if r.integer_kv:
        words.append(f"int{r.kv_bits} KV cache: read as such, dequantised, and multiplied in {r.dtype.name}.")
    return words


def stored_format(r: Request) -> MatrixFormat | None:
    """The format that the model's file names for most matrices, if they are stored so."""
    return r.model.quantized.main if r.weights_from_file and r.model.quantized is not None else None


def file_notes(model: ModelSpec, published: bool) -> list[str]:
    """What the model's file says of its weights, and what in it no rule reads. ``published``: weights are stored as it says."""
    words, quantized = [], model.quantized
    if published and quantized is not None:
        kept = f"its matrices are counted so, with their scales, the rest as {native_dtype(model)}"
        words.append(f"The file of {model.name} names {quantized.words} for its weights: {kept}; --weights-dtype says otherwise.")
    if model.draft:
        size = format_si(draft_bytes(model, published), "B")
        words.append(f"Of the checkpoint, {size} more predict a further token ({len(model.draft)} layer): not loaded.")
    return words + unread_notes(model, quantized.unread if published and quantized is not None else ())
