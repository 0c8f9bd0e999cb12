"""What the report of a phase of a model says first: whether it fits and what would, how long it takes, what limits it, its charts."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import fitting
from perfmodel.report.document import Figure, Report
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.report.model_notes import stored_format
from perfmodel.report.power import with_power
from perfmodel.report.step import StepPart, limited, longest, op_roofline, step_meters, taken, time_bars, tokens
from perfmodel.transformer.answer import Line, ModelAnswer
from perfmodel.transformer.estimate import MIXED, PREDICTED, ROOF
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, Request, Split

TIMES = {PREDICTED: "predicted", ROOF: "roof", MIXED: "predicted; roof where nothing is calibrated"}
"""Words for the kind of a time."""
STEPS = {PREFILL: "Prefill", DECODE: "A decode step", GENERATE: "Generation"}
STEP_NAMES = {PREFILL: "prefill", DECODE: "decode step", GENERATE: "generation"}
TIME_OF = {PREFILL: "time of the prefill", DECODE: "time of a decode step", GENERATE: "time of the generation"}


def title_of(r: Request) -> str:
    """What was asked: of which model, how much of it, in which formats, on which GPUs."""
    sizes = {
        PREFILL: f"prefill of {r.n:,} tokens",
        DECODE: f"decode at {r.kv_len:,} tokens",
        GENERATE: f"{r.kv_len - r.n:,} new tokens after {r.n:,}",
    }[r.phase]
    return f"{r.model.name}: {sizes}, batch {r.batch:,}, {formats_of(r)} on {gpus_of(r)}"


def gpus_of(r: Request) -> str:
    """The device and the number of GPUs."""
    return r.device.name if r.split.gpus == 1 else f"{r.split.gpus} x {r.device.name}"


def formats_of(r: Request) -> str:
    """The format of activations, and those of weights and cache where they differ."""
    form, words = stored_format(r), r.dtype.name
    if form is not None:
        words += f", {form.name} weights" * (form.name != r.dtype.name)
    elif r.weight_bits != 8 * r.dtype.size:
        words += f", {'int' if r.integer_weights else 'fp'}{r.weight_bits} weights"
    return words + f", {'int' if r.integer_kv else 'fp'}{r.kv_bits} KV cache" * (r.kv_bits != 8 * r.dtype.size)


def answered(plain: Report, found: ModelAnswer, pictures: bool) -> Report:
    """``plain`` with what it says first, and its ``pictures``."""
    rows, r = _parts(found), found.request
    return replace(
        plain,
        verdict=_verdict(found, rows),
        reasons=_reasons(found, rows),
        meters=with_power(step_meters(found.cost, rows, found.seconds), found.power, found.tokens),
        metered=_metered(found),
        figures=_figures(found),
        charts=[time_bars(rows), *op_roofline(rows, r.device, r.dtype)] if pictures else [],
    )


def phase_before(line: Line, found: ModelAnswer) -> str:
    """The phase of a row, where there are two."""
    return f"{line.phase}: " if len({one.step.phase for one, _ in found.steps}) > 1 else ""


def _parts(found: ModelAnswer) -> list[StepPart]:
    return [
        StepPart(f"{phase_before(line, found)}{line.row.op.name}", line.row.op, line.cost, line.times, line.seconds) for line in found.lines
    ]


def least(times_from: str) -> str:
    """What goes before a time in which roofs stand for predictions."""
    return "" if times_from == PREDICTED else "at least "


def most(times_from: str) -> str:
    """What goes before a rate at such a time."""
    return "" if times_from == PREDICTED else "at most "


def _metered(found: ModelAnswer) -> str:
    name = STEP_NAMES[found.request.phase]
    at_roof = {ROOF: f"{name} at its roof: this device is not calibrated", MIXED: f"{name}, at roofs where not calibrated"}
    return at_roof.get(found.times_from, f"predicted {name}")


def _verdict(found: ModelAnswer, rows: list[StepPart]) -> list[str]:
    """Whether it fits, how long it takes, and what limits it."""
    r, made = found.request, found.times_from
    took, rate = taken(found.seconds, found.prediction, least(made)), f"{most(made)}{tokens(found.tokens_per_s)}"
    takes = "takes" if found.memory.fits is not False else "would take"
    said = f"{STEPS[r.phase]} {takes} {took}: {rate}, MFU {found.mfu:.1%}."
    if r.phase == GENERATE:
        first, further = format_time(found.ttft_s or 0, 3), format_time(found.tpot_s or 0, 3)
        said = f"{takes.capitalize()} {took}, {rate}: first token {first}, then {further}."
    if slow := _host_bound(found):
        return [slow, said, _fitting(found)] if found.memory.fits is not False else [_fitting(found), slow, said]
    return [_fitting(found), said, limited(rows, found.seconds)]


def _host_bound(found: ModelAnswer) -> str:
    """That the host, not the device, sets the pace; empty where it does not."""
    for one, _ in found.steps:
        if one.host_s is not None and one.on_device and one.host_s[0] > one.on_device[0]:
            host, device = format_time(one.host_s[0], 3), format_time(one.on_device[0], 3)
            return f"Limited by the host: {one.launches:,} launches take {host}, the kernels {device}."
    return ""


def _fitting(found: ModelAnswer) -> str:
    r, memory = found.request, found.memory
    held = fitting(memory.total, r.device)
    if not held:
        return f"{format_si(memory.total, 'B')} per GPU; the profile of {r.device.id} has no capacity."
    gpu = " per GPU" if r.split.gpus > 1 else ""
    if memory.fits is False:
        return f"{held}{gpu}; {_spare(found)}."
    beside = f"{format_si(r.reserve, 'B', 3)} reserved" if r.reserve else "activations"
    return f"{held}{gpu}, up to batch {memory.max_batch:,} beside {beside}."


def _spare(found: ModelAnswer) -> str:
    """What would fit instead."""
    memory, more = found.memory, found.smallest_split
    if memory.max_batch:
        return f"batch {memory.max_batch:,} would fit{f', or {split_of(more)}' if more else ''}"
    if more:
        return f"{split_of(more)} would fit"
    return "the weights alone are too large" if memory.weights >= (memory.capacity or 0) else "nor does one sequence"


def split_of(split: Split) -> str:
    """
    >>> split_of(Split(tp=8, pp=2)), split_of(Split(tp=2))
    ('--tp 8 --pp 2', '--tp 2')
    """
    return " ".join(f"--{name} {size}" for name in ("tp", "pp") if (size := getattr(split, name)) > 1)


def _figures(found: ModelAnswer) -> list[Figure]:
    made, r, memory = found.times_from, found.request, found.memory
    first = {
        "time to the first token": found.ttft_s if r.phase == GENERATE else None,
        "time per output token": found.tpot_s if r.phase == GENERATE else None,
    }
    return [
        Figure(TIME_OF[r.phase], taken(found.seconds, found.prediction, least(made))),
        *(Figure(label, f"{least(made)}{format_time(seconds, 3)}") for label, seconds in first.items() if seconds is not None),
        Figure("throughput", f"{most(made)}{tokens(found.tokens_per_s)}"),
        *([] if r.phase == GENERATE else [Figure("MFU", f"{most(made)}{found.mfu:.1%}")]),
        Figure("memory per GPU", format_si(memory.total, "B") + (f" of {format_si(memory.capacity, 'B')}" if memory.capacity else "")),
    ]


def _reasons(found: ModelAnswer, rows: list[StepPart]) -> list[str]:
    """What takes most, how near the time is to the bound, and what a rate is a share of."""
    cost, r = found.cost, found.request
    words = [longest(rows, found.seconds)]
    words += [f"Lower bound {format_time(cost.lower_s)}; the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}."]
    names = list(found.mfu_peaks)  # of which peaks the MFU is a share, where it is not that of the activations' format alone
    if r.phase == GENERATE:
        words.append(f"Throughput: {most(found.times_from)}{tokens(found.tokens_per_s)}, MFU {found.mfu:.1%}.")
    if names != [r.dtype.name]:
        words.append(f"MFU is of the {' and '.join(names)} peak{'s' * (len(names) > 1)}.")
    if found.memory.fits is False:
        words.append("Times are those of a GPU with more memory.")
    if found.times_from != PREDICTED:
        words.append(f"Times: {TIMES[found.times_from]}.")
    return words
