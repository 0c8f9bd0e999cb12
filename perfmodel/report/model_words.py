"""What the report of a whole model says in words: the verdict, what the numbers rest on, formats of weights and cache."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.core.units import format_si, format_time
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.report.operation import unknown_rates
from perfmodel.timing.base import find_model
from perfmodel.transformer.answer import Answer, Line
from perfmodel.transformer.estimate import CONVENTION, MIXED, PREDICTED, ROOF
from perfmodel.transformer.launch_correction import MODEL as STEP_MODEL
from perfmodel.transformer.launch_correction import launch_saving_s
from perfmodel.transformer.parallel import draft_bytes, joined_gpus
from perfmodel.transformer.request import GENERATE, Request, native_dtype
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, PREFILL
from perfmodel.transformer.weight_formats._base import MatrixFormat


def share(line: Line, found: Answer) -> float:
    """Part of the whole time, both of predictions as far as there are some, of roofs elsewhere."""
    return line.seconds / found.seconds


def least(times_from: str) -> str:
    """What goes before a time in which roofs stand for predictions."""
    return "" if times_from == PREDICTED else "at least "


def most(times_from: str) -> str:
    """What goes before a rate at such a time."""
    return "" if times_from == PREDICTED else "at most "


TIMES = {PREDICTED: "predicted", ROOF: "roof", MIXED: "predicted; roof where nothing is calibrated"}
"""Of what a time is made, in words."""


def verdict(found: Answer) -> list[str]:
    """How long, what for, how near to the bound, and whether it fits."""
    r, cost, made = found.request, found.cost, found.times_from
    largest = max(found.lines, key=lambda line: share(line, found))
    what = {PREFILL: "Prefill", DECODE: "A decode step", GENERATE: "Generation"}[r.phase]
    known = "" if found.prediction is None else f", {format_time(found.prediction[1], 3)} to {format_time(found.prediction[2], 3)}"
    memory = found.memory
    verb = "would take" if memory.fits is False else "takes"
    took = f"{verb} {least(made)}{format_time(found.seconds)} ({TIMES[made]}{known})"
    bound = f"the bound is {format_time(cost.lower_s)}; the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}"
    rate = f"{most(made)}{format_si(found.tokens_per_s)} tokens/s, MFU {most(made)}{100 * found.mfu:.3g} %{_peaks(found)}"
    sentence = f"{what} {took}; {bound}. {rate[:1].upper()}{rate[1:]}. {largest.row.op.name} takes {100 * share(largest, found):.3g} %."
    if memory.fits is not False:
        return [sentence]
    held = f"{format_si(memory.total, 'B')} of {format_si(memory.capacity or 0, 'B')} per GPU"
    return [f"It does not fit: {held}; {_spare(found)}. Times are those of a GPU with more memory.", sentence]


def _peaks(found: Answer) -> str:
    """Of which peaks the MFU is a share, where it is not that of the activations' format alone."""
    names = list(found.mfu_peaks)
    return (
        ""
        if names == [found.request.dtype.name]
        else f" of the {' and '.join(names)} peaks"
        if len(names) > 1
        else f" of the {names[0]} peak"
    )


def _spare(found: Answer) -> str:
    """What would fit instead."""
    r, memory = found.request, found.memory
    if memory.max_batch:
        return f"batch {memory.max_batch:,} would fit"
    if memory.weights >= (memory.capacity or 0):
        return "the weights alone are too large"
    return f"beside the weights not even one sequence of {max(r.n, r.kv_len):,} tokens fits"


def notes(found: Answer) -> list[str]:
    """What the numbers rest on."""
    r, words = found.request, []
    words.append(
        "Lower: each row a kernel of its own with operands in DRAM. Rows are sums over their runs"
        + (", of one GPU per stage." if r.split.gpus > 1 else ".")
    )
    words.append(
        "Time to the first token: the prefill. Time per output token: one decode step, which gives a token to every sequence"
        + ("; here the mean over the steps." if r.phase == GENERATE else ".")
    )
    longest = r.model.max_positions
    if longest is not None and max(r.n, r.kv_len) > longest:
        words.append(f"{r.model.name} was made for at most {longest:,} tokens.")
    if not r.cached:
        words.append("Without a KV cache a step computes all tokens so far anew.")
    if r.model.is_moe:
        words.append("Experts touched are the mean over batches whose tokens pick experts alike and independently.")
    return [*words, *format_notes(found), *_prediction_notes(found), *_split_notes(r), *unknown_rates([found.cost], r.device)]


def _prediction_notes(found: Answer) -> list[str]:
    r, words = found.request, []
    missing = list(dict.fromkeys(f"{line.row.op.name} ({line.row.missing})" for line in found.lines if line.row.prediction is None))
    if missing:
        reasons = f"{'; '.join(missing[:3])}{'; ...' if len(missing) > 3 else ''}"
        words.append(f"No total is predicted: {reasons}. The roof stands for those rows, so times are the least and rates the most.")
    graphs = [phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE) and r.in_graph(phase)]
    within = found.steps[0][0].within
    if graphs and within.block is None and launch_saving_s(r.device) is None:
        words.append(f"The profile of {r.device.id} has no launch overhead in graphs: kernels are timed as launched one by one.")
    elif graphs and (saving := within.saving_s(graph=True)):
        words.append(f"CUDA graph in {' and '.join(graphs)}: each kernel takes {format_time(saving)} less than timed alone.")
    if within.block is not None:
        where = "here" if within.own else "on another architecture"
        words.append(f"What kernels take in a step beside alone was calibrated {where}, on {within.block.points} steps.")
    if len(graphs) < len([phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE)]):
        words.append("Launched one by one: the host is taken to keep ahead of the device.")
    if found.prediction is not None:
        words.append(f"Assumed: {find_model(STEP_MODEL).assumes}.")
    return words


def _split_notes(r: Request) -> list[str]:
    words = []
    most = joined_gpus(r.device)
    if r.split.gpus > most:
        words.append(
            f"{r.split.gpus:,} GPUs are more than the {most} that the links of {r.device.name} join: exchanges are timed over those links "
            "all the same, and take longer over a network."
        )
    if r.split.tp > 1:
        words.append("Tensor parallel: two all-reduces per layer, ring or tree, whichever is faster; bound by a buffer per link.")
    if r.split.ep > 1:
        words.append("Expert parallel: groups divide the sequences; two all-to-alls per layer of experts carry tokens there and back.")
    if r.split.pp > 1:
        words.append("Pipeline: stages one after the other; several batches in flight would give more tokens/s, none of them sooner.")
    return words


# Formats


def format_notes(found: Answer) -> list[str]:
    """In what weights and cache are stored and multiplied, and of which peaks the MFU is a share."""
    peaks = found.mfu_peaks
    listed = ", ".join(f"{name} {format_si(peak, 'FLOP/s')}" for name, peak in peaks.items())
    apart = "" if list(peaks) == [found.request.dtype.name] else f", each row's over that of the format it runs in ({listed})"
    return [*weights_notes(found.request), f"MFU: {CONVENTION}{apart}."]


def weights_notes(r: Request) -> list[str]:
    """Of weights and cache."""
    words, form = file_notes(r.model, r.weights_from_file), stored_format(r)
    if form is not None and form.name == "fp8" and r.dtype.size == 2:
        words.append(_fp8_weights(r))
    elif r.integer_weights or (form is not None and form.bits < 8 * r.dtype.size):
        named = form.name if form is not None else f"int{r.weight_bits}"
        inside = form is not None and form.multiplied in r.device.peaks_of("tensor")
        how = f"products may run in {form.multiplied}" if form and inside else f"dequantised, and multiplied in {r.dtype.name}"
        words.append(f"{named} weights: they alone are narrower; read as such, {how}.")
    elif r.weight_bits == 8 and r.dtype.size == 2:
        words.append(_fp8_weights(r))
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


def unread_notes(model: ModelSpec, quantization: Sequence[str] = ()) -> list[str]:
    """The fields of the model's file, and of its quantization_config, that no rule reads."""
    unread = [*model.unread, *(f"quantization_config.{name}" for name in quantization)]
    if not unread:
        return []
    return [f"No rule reads {', '.join(unread)} in the file of {model.name}: if they change its sizes, the counts here are wrong."]


def _fp8_weights(r: Request) -> str:
    if "fp8" in r.device.peaks_of("tensor"):
        return "fp8 weights: activations are rounded to fp8 too, and products run in fp8 (W8A8)."
    return f"fp8 weights: {r.device.id} does not multiply fp8; they are read as such and multiplied in {r.dtype.name}."
