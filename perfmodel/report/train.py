"""The report of a training step, part by part and kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import fit_sentence, headline
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Bar, BarChart
from perfmodel.report.document import Figure, Report, Table
from perfmodel.report.memory import question, shared_notes
from perfmodel.report.metrics import BOUND_WORDS, Metric, as_json, as_rows, as_table, of_cost
from perfmodel.report.model import DRAWN, STEP_LABELS, TIMES_OF_STEP, of_source
from perfmodel.report.op_common import head, unknown_rates, unread_notes, with_steps
from perfmodel.report.power import of_power, power_note, with_power
from perfmodel.report.saved import Interval
from perfmodel.report.step import StepPart, as_time, by_share, limit_text, longest, op_roofline, step_meters, time_bars, timeline, tokens
from perfmodel.transformer.op import COLLECTIVE, WEIGHTS
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.step_power import StepPower
from perfmodel.transformer.training.explain import explain_step
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.question import EVERY, FULL, MIXED
from perfmodel.transformer.training.step.estimate import TrainingEstimate, TrainingKernel
from perfmodel.transformer.training.step.flops import MEANING, MEGATRON, PALM, Counted, passes
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST
from perfmodel.transformer.training.step.system import inside_source

KERNELS = ("forward", "recompute", "backward", "gradients added up", "optimizer", "gradients cleared")
"""Parts of a step that consist of kernels."""
SLOWED = 1.02
"""Ratio of step times under a power limit and without, from which on it is mentioned."""
SYMBOLS = {"inputs": "dX", "weights": "dW", "biases": "db"}
BRIEF = ("name", "phase", "time", "share", "FLOP, run", "bytes", "count")
OPS = ("name", "phase", "count", "FLOP, run", "bytes", "time_s.lower", "time_s.predicted", "share", "source")
TOTALS = ("flops", "executed_flops", *TIMES_OF_STEP, "time_s.sustained", *DRAWN, "micro_batches", "tokens_per_s", "tokens_per_s_and_gpu")
LABELS = STEP_LABELS | {"flops": "FLOP, needed"}
SHARES = {"convention": "", "model_flops": "model", "hardware_flops": "with what runs again", "mfu": "of the peak", "hfu": "all that runs"}
SOURCES = {PALM: "PaLM: {}N + 12LHQT per token", MEGATRON: "Megatron-LM: matrices, attention, logits"}
RUN = "MFU and HFU: visible, executed"


def report(step: TrainingEstimate, *, explained: bool = False, pictures: bool = False, power: StepPower | None = None) -> Report:
    """``step`` as a Report with data of schema perfmodel.model/1. ``power``: power of steps in succession."""
    t, job, gpus = step.training, step.job, step.training.parallel.gpus
    dtype = job.micro_batch.forward.dtype
    where = f"{'' if gpus == 1 else f'{gpus:,} x '}{step.device.name}{'' if job.system is None else f', {job.system.name}'}"
    kernels = [StepPart(line.op.name, line.op, line.cost, line.interval, line.seconds) for line in step.lines]
    others = {name: seconds / step.seconds for name, seconds in step.time.parts.items() if name not in KERNELS and seconds}
    bar = Bar("step", [(name, seconds) for name, seconds in step.time.parts.items() if seconds])
    bars = [BarChart("Where a step goes", "s", [bar]), time_bars(kernels, "Time by kernel")] if pictures else []
    plain = Report(
        f"{t.model.name}: training step on {t.batch:,} x {t.n:,} tokens, {dtype.name}{' mixed' * (t.precision == MIXED)} on {where}",
        headline(_fitting(step), _time(step, power), limit_text(kernels, step.seconds, others)),
        _tables(step, power),
        [*_notes(step), *power_note(power)],
        data(step, power),
        charts=[*bars, *op_roofline(kernels, step.device, dtype)] if pictures else [],
        meters=with_power(step_meters(step.cost, kernels, step.seconds, others), power, t.batch * t.n),
        metered="predicted training step" if step.prediction else "training step, at roofs where not calibrated",
        figures=_figures(step),
        brief=[by_share([*(_op(line, step, short=True) for line in step.lines), *_others(step)], BRIEF)],
        reasons=_reasons(step, kernels),
        timeline=timeline(*_phases(step, kernels)) if gpus == 1 else [],
    )
    return with_steps(plain, [("every number of the step", {"phase": "train"}, explain_step(step))]) if explained else plain


def _phases(step: TrainingEstimate, kernels: Sequence[StepPart]) -> list[list[StepPart]]:
    """``kernels`` of each part of the step, in the order of the parts."""
    parts = dict.fromkeys(line.part for line in step.lines)
    return [[kernel for line, kernel in zip(step.lines, kernels, strict=True) if line.part == part] for part in parts]


def data(step: TrainingEstimate, power: StepPower | None = None) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs on one GPU: they add up to ``totals``."""
    job, model, ran = step.job, step.training.model, step.run
    inputs = {
        **question(step.training),
        "phase": "train",
        "dtype": job.micro_batch.forward.dtype.name,
        "implementation": step.implementation,
        "kernels": job.machine.kernels,
        "system": None if job.system is None else job.system.name,
        "overlap": job.overlap,
    }
    return {
        **head("model", inputs, step.device),
        "gpus": step.training.parallel.gpus,
        "parameters": {"total": total(model), "active": active(model), "parts": parts(model)},
        "ops": [as_json(op) for op in (*(_op(line, step) for line in step.lines), *_others(step))],
        "totals": as_json(_totals(step, power)),
        "parts_s": {name: seconds for name, seconds in step.time.parts.items() if seconds},
        "stage": step.time.stage,
        **as_json([Metric("bubble", step.time.bubble, unit="share")]),
        **as_json(_step_time(step)),
        **as_json(_rates(step)),
        "model_flops": ran.model,
        "mfu": step.utilization[0],
        "hfu": step.utilization[1],
        "flop_convention": MEANING,
        "needed_flops": ran.model,
        "executed_flops": ran.hardware,
        "conventions": {name: as_json(_shares(name, count, *step.shares[name])) for name, count in step.counted.items()},
        "times_from": "roofline" if step.prediction is None else "predicted",
        "memory": as_json(_memory(step)),
    }


def _op(line: TrainingKernel, step: TrainingEstimate, short: bool = False) -> list[Metric]:
    """Metrics of all runs of a kernel on one GPU. ``short``: gradients go by their symbols."""
    op, name = line.op, line.op.name
    for words, symbol in SYMBOLS.items() if short else ():
        name = name.replace(f"gradient of {words}", symbol)
    return [
        Metric("name", name, "kernel", "text"),
        Metric("phase", line.part, "part", "text"),
        Metric("group", op.group),
        Metric("", round(op.count), "count"),
        Metric("count", op.count, "count"),
        Metric("weight_bytes", op.count * op.bytes_of(WEIGHTS)),
        *of_cost(line.cost, line.interval and Interval(*line.interval), {"time_s.lower": "lower"}),
        Metric("", line.cost.executed_flops or None, "FLOP, run", "FLOP"),
        Metric("", line.seconds, "time", "s", before="" if line.interval else ">= "),
        Metric("share", line.seconds / step.seconds, "share", "share"),
        Metric("bytes", line.cost.dram.total, "bytes", "B"),
        *of_source(line.prediction, line.missing, "-"),
    ]


def _others(step: TrainingEstimate) -> list[list[Metric]]:
    """Metrics of exposed exchanges and waits: seconds only."""
    entries = []
    for name, seconds in step.time.parts.items():
        if name in KERNELS or not seconds:
            continue
        group = "waiting" if name in (BUBBLE, HOST) else COLLECTIVE
        entries.append(
            [
                Metric("name", name, "kernel", "text"),
                Metric("phase", group, "part", "text"),
                Metric("group", group),
                Metric("count", 1),
                *of_cost(Estimate(), Interval(seconds, seconds, seconds)),
                Metric("", seconds, "time", "s"),
                Metric("share", seconds / step.seconds, "share", "share"),
                Metric("weight_bytes", 0),
                Metric("bytes", 0),
                Metric("implementation", None),
            ]
        )
    return entries


def _totals(step: TrainingEstimate, power: StepPower | None) -> list[Metric]:
    """Metrics summed over all kernels of one GPU, and the power of a step."""
    return [*of_cost(step.cost, _predicted(step), LABELS), *of_power(power, step.training.batch * step.training.n)]


def _predicted(step: TrainingEstimate) -> Interval | None:
    """Predicted seconds, with an interval if such layouts were validated; None if a kernel has no prediction."""
    times = step.prediction
    return Interval(*(times if step.validated else times[:1])) if times else None


def _step_time(step: TrainingEstimate) -> list[Metric]:
    """Metrics of the seconds of a step, the roof in place of missing predictions, and the ends of its interval."""
    times = _predicted(step)
    return [
        Metric("step_s", step.seconds, unit="s"),
        Metric("low_s", times and times.low, unit="s"),
        Metric("high_s", times and times.high, unit="s"),
    ]


def _rates(step: TrainingEstimate) -> list[Metric]:
    return [
        Metric("micro_batches", step.time.micro_batches, "micro-batches"),
        Metric("tokens_per_s", step.tokens_per_s, "tokens/s, all GPUs", ""),
        Metric("tokens_per_s_and_gpu", step.tokens_per_s / step.training.parallel.gpus, "tokens/s per GPU", ""),
    ]


def _shares(source: str, counted: Counted, mfu: float, hfu: float) -> list[Metric]:
    """Metrics of the FLOP of the whole step by one convention, and their share of the peak."""
    return [
        Metric("", source, "convention", "text"),
        Metric("model_flops", counted.model, unit="FLOP"),
        Metric("hardware_flops", counted.hardware, unit="FLOP"),
        Metric("mfu", mfu, unit="share"),
        Metric("hfu", hfu, unit="share"),
    ]


def _memory(step: TrainingEstimate) -> list[Metric]:
    """Metrics of the peak of the fullest GPU by part."""
    memory = step.memory
    metrics = [Metric("capacity", step.capacity, "capacity", "B"), Metric("fits", None if memory is None else step.fits)]
    if memory is None:
        return [Metric("peak", None), Metric("why", step.unknown), *metrics]
    return [
        Metric("weights", memory.state.weights, "weights", "B"),
        Metric("gradients", memory.gradients, "gradients", "B"),
        Metric("optimizer", memory.state.optimizer, "optimizer", "B"),
        Metric("activations", memory.activations, "activations", "B"),
        Metric("peak", memory.bytes, "peak", "B"),
        Metric("total", memory.bytes, unit="B"),
        *metrics,
    ]


def _fitting(step: TrainingEstimate) -> str:
    """Sentence on whether the peak of the fullest GPU fits."""
    if step.memory is None:
        return "Whether it fits is unknown: the memory of this layout is not."
    gpus, hint = step.training.parallel.gpus, "; try --search" * (step.fits is False and not step.notes)
    if step.capacity is None:
        return fit_sentence(step.memory.bytes, step.device, " at the peak")
    return fit_sentence(step.memory.bytes, step.device, f" on the fullest of {gpus:,} GPUs" if gpus > 1 else " at the peak", hint)


def _took(step: TrainingEstimate) -> str:
    return as_time(step.seconds, step.prediction if step.validated else None, "" if step.prediction else "at least ")


def _time(step: TrainingEstimate, power: StepPower | None) -> str:
    """Sentence on the time of a step, also under a lower power limit, and on its rate."""
    at_most = "" if step.prediction else "at most "
    takes = "takes" if step.fits is not False else "would take"
    slowed = power is not None and power.sustained_s > SLOWED * step.seconds
    under = f"; {format_time(power.sustained_s, 3)} under {power.limit_w:g} W" if power is not None and slowed else ""
    return f"A step {takes} {_took(step)}: {at_most}{tokens(step.tokens_per_s)}, MFU {step.utilization[0]:.1%}{under}."


def _figures(step: TrainingEstimate) -> list[Figure]:
    memory = step.memory
    memory_text = "unknown" if memory is None else format_si(memory.bytes, "B")
    (mfu, hfu), at_most = step.utilization, "" if step.prediction else "at most "
    return [
        Figure("time of a step", _took(step)),
        Figure("throughput", f"{at_most}{tokens(step.tokens_per_s)}"),
        Figure("MFU", f"{at_most}{mfu:.1%}"),
        Figure("HFU", f"{at_most}{hfu:.1%}"),
        Figure("memory of the fullest GPU", memory_text + (f" of {format_si(step.capacity, 'B')}" if step.capacity and memory else "")),
    ]


def _tables(step: TrainingEstimate, power: StepPower | None) -> list[Table]:
    times = {name: seconds for name, seconds in step.time.parts.items() if seconds} | {"step": step.seconds}
    parts_of_step = [
        [Metric("", name, "part", "text"), Metric("", seconds, "time", "s"), Metric("", seconds / step.seconds, "share", "share")]
        for name, seconds in times.items()
    ]
    counts = [(SOURCES[name].format(2 * passes(step.training)), count, *step.shares[name]) for name, count in step.counted.items()]
    conventions = [_shares(*row) for row in (*counts, (RUN, step.run, *step.utilization))]
    memory = [] if step.memory is None else [as_table("memory of the fullest GPU", {"bytes": _memory(step)})]
    return [
        as_rows("", parts_of_step),
        as_rows("kernels of one GPU", [_op(line, step) for line in step.lines], labels=OPS),
        as_table("totals", {"train": [*_totals(step, power), *_rates(step)]}, labels=TOTALS),
        as_rows("FLOP by convention, all GPUs", conventions, labels=SHARES),
        *memory,
    ]


def _notes(step: TrainingEstimate) -> list[str]:
    t = step.training
    words = [
        "Lower: needed work only, each kernel's operands in DRAM; nothing for what runs again, for exchanges or for waits.",
        f"{', '.join(f'{symbol}: gradient of {words}' for words, symbol in SYMBOLS.items())}.",
        "Backward: two matmuls for one, attention 2.5 times its forward FLOP executed, 2 needed.",
        f"{MEANING}. Conventions of publications count the whole square of scores under a causal mask, of which kernels run about half: "
        "their shares of the peak can be above HFU, and above 100 %.",
        f"Kernels as {step.implementation} runs them. Rows are sums over their runs on one GPU.",
    ]
    if step.memory is None:
        words.append(f"Memory is not known: {step.unknown}.")
    if step.notes:
        words += step.notes
    elif step.implementation == HUGGINGFACE:
        words.append("Launched one by one from Python: host times of GPT-2's layers, as measured beside an H200; another host has others.")
    else:
        words.append("The host is taken to keep ahead of the device.")
    missing = list(dict.fromkeys(f"{line.op.name} ({line.missing})" for line in step.lines if line.interval is None))
    if missing:
        words.append(
            f"At the roof, as not predicted: {'; '.join(missing[:3])}{f'; and {len(missing) - 3} more' if len(missing) > 3 else ''}."
        )
    longest = t.model.max_positions
    if longest is not None and t.n > longest:
        words.append(f"{t.model.name} was made for at most {longest:,} tokens.")
    if t.lora is not None and t.model.is_moe:
        words.append("Adapters on all matrices of attention and MLP; experts are without adapters.")
    return [*words, *shared_notes(t), *_parallel_notes(step), *unread_notes(t.model), *unknown_rates([step.cost], step.device)]


def _parallel_notes(step: TrainingEstimate) -> Iterator[str]:
    p, job = step.training.parallel, step.job
    if p.tp > 1:
        yield "Tensor parallel: partial sums are exchanged twice per layer and pass, with sequence parallelism as two halves."
    if p.pp > 1:
        yield f"Pipeline: 1F1B over {p.pp} stages; the slowest, number {step.time.stage + 1}, is shown."
        if step.training.recompute.kind in (FULL, EVERY):
            yield "What runs again counts to the backward pass of its stage."
    if p.cp > 1:
        yield "Context parallel: K and V go around a ring beside attention, whose causal work is shared evenly."
    if p.dp * p.cp > 1:
        when = "beside backward and forward passes" if job.overlap else "after the backward pass"
        yield f"Data parallel: gradients and weights are exchanged {when}."
    if job.system is not None and (source := inside_source(job.system, p, job.machine.device)):
        yield source
    if not step.validated:
        free = "as hidden behind kernels without slowing them" if job.overlap else "at the full rate of its links"
        yield (
            f"ZeRO {p.zero} over a network is not validated, so no interval is given: what is exchanged is taken {free}, and systems "
            "have been published that took several times as long (Narayanan et al. 2021, Table 2)."
        )


def _reasons(step: TrainingEstimate, kernels: list[StepPart]) -> list[str]:
    """Sentences on what takes most time, on the distance from the bound, on what shares count, and on waits."""
    spent, cost = step.time.parts, step.cost
    largest = max(spent, key=lambda name: spent[name])
    term = f"the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}"
    waits = [f"{name} takes {100 * spent[name] / step.seconds:.3g} %" for name in (BUBBLE, HOST) if spent[name] > 0.05 * step.seconds]
    return [
        f"{largest.capitalize()} takes {percent(spent[largest] / step.seconds)} of a step. {longest(kernels, step.seconds)}",
        f"The bound of its needed work is {format_time(cost.lower_s)}; {term}.",
        f"HFU {step.utilization[1]:.1%}; MFU: FLOP on visible scores, HFU: executed.",
        *([f"{'; '.join(waits).capitalize()}."] if waits else []),
    ]
