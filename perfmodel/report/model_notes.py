"""Notes of a report of a model: what its numbers assume, where times are from, how weights and cache are stored."""

from __future__ import annotations

from perfmodel.core.units import format_si, format_time
from perfmodel.report.op_common import guessed, unknown_rates, unread_notes
from perfmodel.report.power import power_note
from perfmodel.timing.base import find_model
from perfmodel.transformer.answer import ModelAnswer
from perfmodel.transformer.estimate import CONVENTION
from perfmodel.transformer.host import FASTEST_US, SLOWEST_US
from perfmodel.transformer.op_time import MODEL as STEP_MODEL
from perfmodel.transformer.op_time import launch_saving_s
from perfmodel.transformer.parallel import draft_bytes, joined_gpus
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, Request, native_dtype
from perfmodel.transformer.weight_formats._base import MatrixFormat


def phases(r: Request) -> list[str]:
    """The kinds of passes that a request runs."""
    return [phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE)]


def notes(found: ModelAnswer) -> list[str]:
    """Everything that the numbers of ``found`` rest on."""
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
    words += [kernels_note(r), *weights_notes(r), f"MFU: {CONVENTION}{apart}."]
    return [*words, *_prediction_notes(found), *power_note(found.power), *_split_notes(r), *unknown_rates([found.cost], r.device)]


def kernels_note(r: Request) -> str:
    """Whose kernels are taken to run, as far as rows of ``r`` ask."""
    kernels = r.kernels
    asked = [("products", kernels.products)] + [("experts", kernels.experts)] * r.model.is_moe
    asked += [("all-reduce", kernels.all_reduce)] * (r.split.tp > 1)
    listed = "; ".join(f"{kind} {' or '.join(names)}" for kind, names in asked)
    return f"Kernels, of each the first that is calibrated: {listed}; element-wise work {'fused' if r.fused else 'unfused'}."


def _prediction_notes(found: ModelAnswer) -> list[str]:
    r, words, within = found.request, [], found.steps[0][0].within
    missing = list(dict.fromkeys(f"{line.row.op.name} ({line.row.missing})" for line in found.lines if line.row.prediction is None))
    if missing:
        reasons = f"{'; '.join(missing[:3])}{'; ...' if len(missing) > 3 else ''}"
        words.append(f"No total is predicted: {reasons}. The roof stands for those rows, so times are the least and rates the most.")
    words += guessed(line.row.prediction for line in found.lines if line.row.prediction is not None)
    graphs = [phase for phase in phases(r) if r.in_graph(phase)]
    if graphs and within.block is None and launch_saving_s(r.device) is None:
        words.append(f"The profile of {r.device.id} has no launch overhead in graphs: kernels are timed as launched one by one.")
    elif graphs and (saving := within.saving_s(graph=True)):
        words.append(f"CUDA graph in {' and '.join(graphs)}: each kernel takes {format_time(saving)} less than timed alone.")
    if within.block is not None:
        where = "here" if within.own else "on another architecture"
        words.append(f"What kernels take in a step beside alone was calibrated {where}, on {within.block.points} steps.")
    words += [_host_note(found)] if len(graphs) < len(phases(r)) else []
    if found.prediction is not None:
        words.append(f"Assumed: {find_model(STEP_MODEL).assumes}.")
    return words


def _host_note(found: ModelAnswer) -> str:
    """Who launches the kernels, and how long that takes."""
    [one, *_] = [one for one, _ in found.steps if one.host_s is not None]
    value, low, high = one.host_s or (0.0, 0.0, 0.0)
    if found.request.host_us is not None:
        return f"Launched one by one: {one.launches:,} kernels at {found.request.host_us:g} us of the host take {format_time(value)}."
    known = f"{one.launches:,} at {FASTEST_US:g} to {SLOWEST_US:g} us, as hosts differ, take {format_time(low)} to {format_time(high)}"
    return f"Launched one by one: {known}; --host-us says what yours takes."


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
        words.append(f"Weights of {model.name} are stored as {quantized.words}: {kept}; --weights-dtype says otherwise.")
    if model.draft:
        size = format_si(draft_bytes(model, published), "B")
        words.append(f"Of the checkpoint, {size} more predict a further token ({len(model.draft)} layer): not loaded.")
    return words + unread_notes(model, quantized.unread if published and quantized is not None else ())
