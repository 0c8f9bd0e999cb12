"""The report of a whole model: rows by operation, totals, time to the first and to the next token, memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfmodel.core.question import EAGER_ENGINE
from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import fit_sentence, headline
from perfmodel.report.charts.format_number import percent
from perfmodel.report.document import Figure, KernelSpan, Report, Table
from perfmodel.report.kernel_time import with_measured
from perfmodel.report.metrics import BOUND_WORDS, Metric, as_json, as_rows, as_table, of_cost, of_fields
from perfmodel.report.model_words import TIMES, at_least, at_most, file_notes
from perfmodel.report.op_common import guess_notes, head, unknown_rates, with_steps
from perfmodel.report.power import of_power, power_note, with_power
from perfmodel.report.saved import Interval
from perfmodel.report.step import (
    KERNELS,
    StepPart,
    as_time,
    by_share,
    limit_text,
    longest,
    moved_bytes,
    op_roofline,
    step_meters,
    time_bars,
    timeline,
    tokens,
)
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import Prediction
from perfmodel.transformer.answer import EagerRun, Line, ModelAnswer
from perfmodel.transformer.estimate import CONVENTION, MIXED, PREDICTED, ROOF
from perfmodel.transformer.gguf import MIXTURES
from perfmodel.transformer.host import FASTEST_US, SLOWEST_US
from perfmodel.transformer.op import CACHE, WEIGHTS
from perfmodel.transformer.op_time import LAUNCH_MODEL, launch_saving_s
from perfmodel.transformer.parallel import HELD_BACK, draft_bytes, joined_gpus
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, Request, Split
from perfmodel.transformer.weight_formats._base import MatrixFormat

STEPS = {PREFILL: "the prefill", DECODE: "a decode step", GENERATE: "the generation"}
BRIEF = ("name", "time", "share", "of bound", "FLOP", "bytes", "count")
OPS = ("name", "count", "FLOP", "bytes", "time_s.lower", "time_s.predicted", "of bound", "share", "source")
TIMES_OF_STEP = ("traffic.dram.bytes", "time_s.lower", "time_s.lower_warm", "time_s.roofline", "time_s.predicted")
LEAST_WAIT = 0.01
"""Least share of the time for which waits for the host are mentioned."""
DRAWN = ("sustained.power_w", "sustained.sm_hz", "sustained.energy_j", "sustained.energy_per_token_j")
TOTALS = ("flops", *TIMES_OF_STEP, "time_s.burst", "time_s.sustained", "time_s.at_least", *DRAWN, "ttft_s", "tpot_s", "tokens_per_s", "mfu")
STEP_LABELS = {"time_s.lower": "lower bound", "time_s.lower_warm": "  caches warm from the step before"}


def report(answer: ModelAnswer, *, explained: bool = False, pictures: bool = False, measured_s: float | None = None) -> Report:
    """``answer`` as a Report with data of schema perfmodel.model/1."""
    r, ops = answer.request, [_op(line, answer) for line in answer.lines]
    rows = [
        StepPart(f"{_phase_before(line, answer)}{line.row.op.name}", line.row.op, line.cost, line.times, line.seconds)
        for line in answer.lines
    ]
    noun = STEPS[r.phase].partition(" ")[2]
    metered = {ROOF: f"{noun} at its roof: this device is not calibrated", MIXED: f"{noun}, at roofs where not calibrated"}
    plain = Report(
        _title(r),
        _headline(answer, rows),
        _tables(answer, ops),
        _notes(answer),
        data(answer),
        charts=[time_bars(rows), *op_roofline(rows, r.device, r.dtype)] if pictures else [],
        meters=with_power(step_meters(answer.cost, rows, answer.seconds, _waits(answer)), answer.power, answer.tokens),
        metered=metered.get(answer.times_from, f"predicted {noun}"),
        figures=_figures(answer),
        brief=[by_share(ops, BRIEF)],
        reasons=_reasons(answer, rows),
        timeline=[] if r.phase == GENERATE else timeline(rows) if answer.eager is None else _launched(answer.eager),
    )
    predicted = Interval(*answer.prediction) if answer.prediction is not None else None
    plain = with_measured(plain, measured_s, answer.cost, predicted, "the library's kernels")
    if not explained:
        return plain
    from perfmodel.transformer.explain import explain

    explanations = []
    last_steps = {step.step.phase: step for step, _ in answer.steps}  # of many decode steps the longest
    for phase, step in last_steps.items():
        kv_len = step.step.kv_len
        explanations.append((f"{phase} at {kv_len:,} tokens", {"phase": phase, "kv_len": kv_len}, explain(step)))
    return with_steps(plain, explanations)


def _title(r: Request) -> str:
    """Title: model, phase, sizes, formats and GPUs."""
    sizes = {
        PREFILL: f"prefill of {r.n:,} tokens",
        DECODE: f"decode at {r.kv_len:,} tokens",
        GENERATE: f"{r.kv_len - r.n:,} new tokens after {r.n:,}",
    }[r.phase]
    return f"{r.model.name}: {sizes}, batch {r.batch:,}, {formats_of(r)} on {gpus_of(r)}"


def _waits(answer: ModelAnswer) -> dict[str, float]:
    """Share of the time in which the device waits for the host, if that is known."""
    return {} if answer.eager is None else {"waiting for the host": answer.eager.waits_s / answer.seconds}


def _launched(run: EagerRun) -> list[KernelSpan]:
    """The kernels of a step as the host launches them."""
    return [KernelSpan(name, KERNELS, start_s, seconds) for name, start_s, seconds in run.kernels]


def gpus_of(r: Request) -> str:
    """Phrase with the device and the number of GPUs."""
    return r.device.name if r.split.gpus == 1 else f"{r.split.gpus} x {r.device.name}"


def formats_of(r: Request) -> str:
    """Phrase with the format of activations, and those of weights and cache if they differ."""
    form, words = stored_format(r), r.dtype.name
    if form is not None:
        words += f", {form.name} weights" * (form.name != r.dtype.name)
    elif r.weight_bits != 8 * r.dtype.size:
        words += f", {'int' if r.integer_weights else 'fp'}{r.weight_bits} weights"
    return words + f", {'int' if r.integer_kv else 'fp'}{r.kv_bits} KV cache" * (r.kv_bits != 8 * r.dtype.size)


def inputs_of(r: Request) -> dict[str, Any]:
    """The inputs of a request, with defaults filled in."""
    form = stored_format(r)
    return {
        "model": r.model.name,
        "architecture": r.model.architecture,
        **as_json(of_fields(r, "phase", "batch", "kv_len", "kv_bits", "integer_kv", "imbalance")),
        "n": r.n if r.phase != DECODE else 1,
        "dtype": r.dtype.name,
        "weight_bits": r.weight_bits if form is None else form.bits,
        "integer_weights": r.integer_weights if form is None else form.is_integer,
        "weights_from_file": r.model.quantized.words if r.model.quantized is not None and r.weights_from_file else None,
        "fused_elementwise": r.fused,
        "kernels": asdict(r.kernels),
        "cuda_graph": {phase: r.in_graph(phase) for phase in phases(r)},
        "kv_cache": r.cached,
        "tensor_parallel": r.split.tp,
        "pipeline_parallel": r.split.pp,
        "expert_parallel": r.split.ep,
        "data_parallel": r.split.dp,
        "reserve_bytes": r.reserve,
    }


def data(answer: ModelAnswer) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs: they add up to ``totals``."""
    r = answer.request
    return {
        **head("model", inputs_of(r), r.device),
        "parameters": {"total": total(r.model), "active": active(r.model), "parts": parts(r.model)},
        "ops": [as_json(_op(line, answer)) for line in answer.lines],
        "totals": as_json(_totals(answer)),
        "model_flops": answer.flops,
        **as_json(_rates(answer)),
        **as_json([Metric("mfu_peaks", answer.mfu_peaks, unit="FLOP/s")]),
        "flop_convention": CONVENTION,
        "times_from": answer.times_from,
        "times_as_if_it_fitted": answer.memory.fits is False,
        "memory": as_json(_memory(answer)),
        **({} if answer.eager is None else as_json(_eager(answer.eager, answer.seconds))),
    }


def _eager(run: EagerRun, seconds: float) -> list[Metric]:
    """Metrics of a program that is launched kernel by kernel: how busy the device is, and what it waits for."""
    return [
        Metric("engine", EAGER_ENGINE),
        Metric("busy_share", run.busy_s / seconds, unit="share"),
        Metric("waits_s.host", run.waits_s, unit="s"),
        Metric("first_time_s", seconds + run.plans_s, unit="s"),
    ]


def _op(line: Line, answer: ModelAnswer) -> list[Metric]:
    """Metrics of one row, with its phase if there are several."""
    op, times = line.row.op, line.times
    runs = line.count / op.count
    return [
        Metric("name", op.name, "op", "text", before=_phase_before(line, answer)),
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
        Metric("share", line.seconds / answer.seconds, "share", "share"),
        Metric("bytes", moved_bytes(op, line.cost, line.count), "bytes", "B"),
        *of_source(line.row.prediction if times else None, line.row.missing, f"roof, {format_time(line.seconds)}"),
    ]


def of_source(p: Prediction | None, missing: str, otherwise: str) -> list[Metric]:
    """Metrics of the kernel whose time it is, or of the reason why there is none; ``otherwise``: text of a table in that case."""
    if p is None:
        return [Metric("implementation", None), Metric("not_predicted", missing), Metric("", otherwise, "source", "text")]
    name, source = p.calibration.implementation, {"kind": p.kind, "provenance": p.provenance, "model": p.calibration.model}
    return [Metric("implementation", name), Metric("prediction", source), Metric("", f"{name}, {p.kind}", "source", "text")]


def _totals(answer: ModelAnswer) -> list[Metric]:
    """Sums over all rows."""
    at_least = Metric("time_s.at_least", answer.seconds, "  roof where nothing is calibrated", "s", before="at least ")
    cost = of_cost(answer.cost, answer.prediction and Interval(*answer.prediction), STEP_LABELS)
    return [*cost, at_least, *of_power(answer.power, answer.tokens)]


def _rates(answer: ModelAnswer) -> list[Metric]:
    source = answer.times_from
    return [
        Metric("ttft_s", answer.ttft_s, "time to the first token", "s", before=at_least(source)),
        Metric("tpot_s", answer.tpot_s, "time per output token", "s", before=at_least(source)),
        Metric("tokens_per_s", answer.tokens_per_s, "tokens/s", "", before=at_most(source)),
        *_host(answer),
        Metric("mfu", answer.mfu, "MFU", "share", before=at_most(source)),
    ]


def _host(answer: ModelAnswer) -> list[Metric]:
    """Metrics of the host's launches over all passes if kernels are launched one by one."""
    steps = [(step.launches, step.host_s, times) for step, times in answer.steps if step.host_s is not None]
    ends = [sum(times * host_s[end] for _, host_s, times in steps) if steps else None for end in range(3)]
    return [
        Metric("host.launches", sum(launches * times for launches, _, times in steps) if steps else None),
        *(Metric(f"host.{name}", value) for name, value in zip(("seconds", "low", "high"), ends, strict=True)),
        Metric("host.us_per_launch", answer.request.host_us),
    ]


def _memory(answer: ModelAnswer) -> list[Metric]:
    r, memory = answer.request, answer.memory
    unsharded = memory.weights + draft_bytes(r.model, True) if r.weights_from_file and r.split.gpus == 1 else None
    return [
        Metric("weights", memory.weights, "weights", "B"),
        Metric("checkpoint", unsharded, unit="B"),
        Metric("kv_cache", memory.kv_cache, "KV cache", "B"),
        Metric("activations", memory.activations, "activations", "B"),
        Metric("reserve", r.reserve, unit="B"),
        Metric("", memory.reserved[HELD_BACK] or None, "held back besides", "B"),
        Metric("total", memory.total, "total", "B"),
        Metric("capacity", memory.capacity, "capacity", "B"),
        Metric("fits", memory.fits),
        Metric("max_batch", memory.max_batch, "" if memory.capacity is None else "largest batch"),
    ]


def _tables(answer: ModelAnswer, ops: list[list[Metric]]) -> list[Table]:
    title = "totals" + (" (times as if it fitted)" if answer.memory.fits is False else "")
    hidden = set() if answer.times_from == MIXED else {"time_s.at_least"}
    return [
        as_rows("", ops, labels=OPS),
        as_table(title, {answer.request.phase: [*_totals(answer), *_rates(answer)]}, labels=TOTALS, without=hidden),
        as_table("memory per GPU", {"bytes": _memory(answer)}),
    ]


def _phase_before(line: Line, answer: ModelAnswer) -> str:
    """Prefix with the phase of a row if there are several phases."""
    return f"{line.phase}: " if len({step.step.phase for step, _ in answer.steps}) > 1 else ""


def _headline(answer: ModelAnswer, rows: list[StepPart]) -> list[str]:
    """The headline: whether it fits, how long it takes, and what limits it; first a host that is slower than the GPU."""
    r, source, fits = answer.request, answer.times_from, _fits(answer)
    took, rate = as_time(answer.seconds, answer.prediction, at_least(source)), f"{at_most(source)}{tokens(answer.tokens_per_s)}"
    takes = "takes" if answer.memory.fits is not False else "would take"
    sentence = f"{STEPS[r.phase].removeprefix('the ')} {takes} {took}: {rate}, MFU {answer.mfu:.1%}"
    if r.phase == GENERATE:
        first, further = format_time(answer.ttft_s or 0, 3), format_time(answer.tpot_s or 0, 3)
        sentence = f"{takes} {took}, {rate}: first token {first}, then {further}"
    if answer.eager is not None and answer.eager.waits_s > LEAST_WAIT * answer.seconds:
        return headline(fits, sentence, _busy(answer.eager, answer))
    for step, _ in answer.steps:
        if step.host_s is not None and step.on_device and step.host_s[0] > step.on_device[0]:
            host, device = format_time(step.host_s[0], 3), format_time(step.on_device[0], 3)
            slow = f"limited by the host: {step.launches:,} launches take {host}, the kernels {device}"
            return headline(slow, sentence, fits) if answer.memory.fits is not False else headline(fits, slow, sentence)
    return headline(fits, sentence, limit_text(rows, answer.seconds))


def _busy(run: EagerRun, answer: ModelAnswer) -> str:
    """Sentence on how busy the device is, and on what the host does meanwhile."""
    launched = sum(step.launches * times for step, times in answer.steps)
    busy = f"the GPU is busy {percent(run.busy_s / answer.seconds)} of the time and waits {format_time(run.waits_s, 3)} for the host"
    first = f"; {format_time(answer.seconds + run.plans_s, 3)} the first time at such lengths" * (run.plans_s > LEAST_WAIT * answer.seconds)
    return f"{busy}: {launched:,} launches{first}"


def _fits(answer: ModelAnswer) -> str:
    """Sentence on whether it fits, and on which batch or number of GPUs would."""
    r, memory, split = answer.request, answer.memory, answer.smallest_split if answer.eager is None else None
    if memory.fits is not False:
        reserved = f"{format_si(r.reserve, 'B', 3)} reserved" if r.reserve else "activations"
        other = f", up to batch {memory.max_batch:,} beside {reserved}" if memory.fits else ""
    elif memory.max_batch:
        other = f"; batch {memory.max_batch:,} would fit{f', or {split_of(split)}' if split else ''}"
    elif split:
        other = f"; {split_of(split)} would fit"
    else:
        other = "; the weights alone are too large" if memory.weights >= (memory.capacity or 0) else "; one sequence does not fit either"
    return fit_sentence(memory.total, r.device, " per GPU" * (r.split.gpus > 1), other)


def split_of(split: Split) -> str:
    """A layout as command-line options.

    >>> split_of(Split(tp=8, pp=2)), split_of(Split(tp=2))
    ('--tp 8 --pp 2', '--tp 2')
    """
    return " ".join(f"--{name} {size}" for name in ("tp", "pp") if (size := getattr(split, name)) > 1)


def _figures(answer: ModelAnswer) -> list[Figure]:
    source, r, memory = answer.times_from, answer.request, answer.memory
    first = {"time to the first token": answer.ttft_s, "time per output token": answer.tpot_s} if r.phase == GENERATE else {}
    return [
        Figure(f"time of {STEPS[r.phase]}", as_time(answer.seconds, answer.prediction, at_least(source))),
        *(Figure(label, f"{at_least(source)}{format_time(seconds, 3)}") for label, seconds in first.items() if seconds is not None),
        Figure("throughput", f"{at_most(source)}{tokens(answer.tokens_per_s)}"),
        *([] if r.phase == GENERATE else [Figure("MFU", f"{at_most(source)}{answer.mfu:.1%}")]),
        Figure("memory per GPU", format_si(memory.total, "B") + (f" of {format_si(memory.capacity, 'B')}" if memory.capacity else "")),
    ]


def _reasons(answer: ModelAnswer, rows: list[StepPart]) -> list[str]:
    """Sentences on what takes most time, on the distance from the bound, and on the peak behind a share."""
    cost, r = answer.cost, answer.request
    words = [longest(rows, answer.seconds)]
    words += [f"Lower bound {format_time(cost.lower_s)}; the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}."]
    names = list(answer.mfu_peaks)  # of which peaks the MFU is a share, where it is not that of the activations' format alone
    if r.phase == GENERATE:
        words.append(f"Throughput: {at_most(answer.times_from)}{tokens(answer.tokens_per_s)}, MFU {answer.mfu:.1%}.")
    if names != [r.dtype.name]:
        words.append(f"MFU is of the {' and '.join(names)} peak{'s' * (len(names) > 1)}.")
    if answer.memory.fits is False:
        words.append("Times are those of a GPU with more memory.")
    if answer.times_from != PREDICTED:
        words.append(f"Times: {TIMES[answer.times_from]}.")
    return words


def phases(r: Request) -> list[str]:
    """The phases that a request runs."""
    return [phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE)]


def _notes(answer: ModelAnswer) -> list[str]:
    """Notes on everything that the numbers of ``answer`` rest on."""
    r = answer.request
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
    listed = ", ".join(f"{name} {format_si(peak, 'FLOP/s')}" for name, peak in answer.mfu_peaks.items())
    per_format = "" if list(answer.mfu_peaks) == [r.dtype.name] else f", each row's over that of the format it runs in ({listed})"
    if answer.eager is not None:
        words += [*answer.eager.notes, f"MFU: {CONVENTION}{per_format}."]
    else:
        words += [kernels_note(r), *weights_notes(r), f"MFU: {CONVENTION}{per_format}.", *_prediction_notes(answer)]
    return [*words, *power_note(answer.power), *_split_notes(r), *unknown_rates([answer.cost], r.device)]


def kernels_note(r: Request) -> str:
    """Note on the assumed kernels, as far as rows of ``r`` have them."""
    kernels = r.kernels
    named = [("products", kernels.products)] + [("experts", kernels.experts)] * r.model.is_moe
    named += [("all-reduce", kernels.all_reduce)] * (r.split.tp > 1)
    listed = "; ".join(f"{kind} {' or '.join(names)}" for kind, names in named)
    return f"Kernels, of each the first that is calibrated: {listed}; element-wise work {'fused' if r.fused else 'unfused'}."


def _prediction_notes(answer: ModelAnswer) -> list[str]:
    r, words, within = answer.request, [], answer.steps[0][0].within
    missing = list(dict.fromkeys(f"{line.row.op.name} ({line.row.missing})" for line in answer.lines if line.row.prediction is None))
    if missing:
        reasons = f"{'; '.join(missing[:3])}{f'; and {len(missing) - 3} more' if len(missing) > 3 else ''}"
        words.append(f"No total is predicted: {reasons}. The roof stands for those rows, so times are the least and rates the most.")
    words += guess_notes(line.row.prediction for line in answer.lines if line.row.prediction is not None)
    graphs = [phase for phase in phases(r) if r.in_graph(phase)]
    if graphs and within.block is None and launch_saving_s(r.device) is None:
        words.append(f"The profile of {r.device.id} has no launch overhead in graphs: kernels are timed as launched one by one.")
    elif graphs and (saving := within.saving_s(graph=True)):
        words.append(f"CUDA graph in {' and '.join(graphs)}: each kernel takes {format_time(saving)} less than timed alone.")
    if within.block is not None:
        where = "here" if within.own else "on another architecture"
        words.append(f"What kernels take in a step beside alone was calibrated {where}, on {within.block.points} steps.")
    words += [_host_note(answer)] if len(graphs) < len(phases(r)) else []
    if answer.prediction is not None:
        words.append(f"Assumed: {find_model(LAUNCH_MODEL).assumes}.")
    return words


def _host_note(answer: ModelAnswer) -> str:
    """Note on who launches the kernels, and on how long that takes."""
    [step, *_] = [candidate for candidate, _ in answer.steps if candidate.host_s is not None]
    value, low, high = step.host_s or (0.0, 0.0, 0.0)
    if answer.request.host_us is not None:
        return f"Launched one by one: {step.launches:,} kernels at {answer.request.host_us:g} us of the host take {format_time(value)}."
    launches = f"{step.launches:,} at {FASTEST_US:g} to {SLOWEST_US:g} us, as hosts differ, take {format_time(low)} to {format_time(high)}"
    return f"Launched one by one: {launches}; --host-us says what yours takes."


def _split_notes(r: Request) -> list[str]:
    words, joined = [], joined_gpus(r.device)
    if r.split.gpus > joined:
        joins = f"{r.split.gpus:,} GPUs are more than the {joined} that the links of {r.device.name} join"
        words.append(f"{joins}: exchanges are timed over those links all the same, and take longer over a network.")
    if r.split.tp > 1:
        words.append("Tensor parallel: two all-reduces per layer, ring or tree, whichever is faster; bound by a buffer per link.")
    if r.split.dp > 1:
        exchange = "; two exchanges per layer of experts carry tokens there and back" if r.model.is_moe else ""
        words.append(f"Data parallel: {r.split.dp} groups of {r.split.tp} GPUs divide the sequences{exchange}.")
    elif r.split.ep > 1:
        words.append("Expert parallel: each GPU has all tokens and its own experts; the all-reduce after the MLP adds up.")
    if r.split.pp > 1:
        words.append("Pipeline: stages one after the other; several batches in flight would give more tokens/s, none of them sooner.")
    return words


def weights_notes(r: Request) -> list[str]:
    """Notes on the formats of stored and multiplied weights and cache."""
    words, form = file_notes(r.model, r.weights_from_file), stored_format(r)
    eight = form.name == "fp8" if form is not None else r.weight_bits == 8 and not r.integer_weights
    if eight and r.dtype.size == 2:
        inside = "activations are rounded to fp8 too, and products run in fp8 (W8A8)"
        outside = f"{r.device.id} does not multiply fp8; they are read as such and multiplied in {r.dtype.name}"
        words.append(f"fp8 weights: {inside if 'fp8' in r.device.peaks_of('tensor') else outside}.")
    elif r.integer_weights or (form is not None and form.bits < 8 * r.dtype.size):
        runs = form is not None and form.compute_dtype in r.device.products_of("tensor")
        how = f"products may run in {form.compute_dtype}" if form and runs else f"dequantised, and multiplied in {r.dtype.name}"
        words.append(f"{form.name if form is not None else f'int{r.weight_bits}'} weights: they alone are narrower; read as such, {how}.")
    if r.weights_from_file and r.model.quantized is not None and r.model.quantized.words in MIXTURES:
        words.append("Kernels are those named here: perfmodel serve --engine llama.cpp has the times of llama.cpp's own.")
    if r.integer_kv:
        words.append(f"int{r.kv_bits} KV cache: read as such, dequantised, and multiplied in {r.dtype.name}.")
    return words


def stored_format(r: Request) -> MatrixFormat | None:
    """The format of most matrices in the model's file, if they are stored as there."""
    return r.model.quantized.main if r.weights_from_file and r.model.quantized is not None else None
