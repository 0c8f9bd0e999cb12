"""The report of a search for the fastest layout of a training step."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.answer import headline
from perfmodel.report.charts.format_number import ABSENT, digits
from perfmodel.report.charts.schema import Chart, LineChart, Mark, Series
from perfmodel.report.document import SCREEN_ROWS, Figure, Meter, Report, Table
from perfmodel.report.memory import question, recompute_text
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import head
from perfmodel.report.step import tokens
from perfmodel.transformer.training.question import TrainingConfig
from perfmodel.transformer.training.step.estimate import of_job
from perfmodel.transformer.training.step.flops import MEANING, run
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.search import SearchResult, TimedLayout
from perfmodel.transformer.training.step.system import over_network

YES = "yes"
BRIEF = ("step_s", "mfu", "memory.peak")


def search_report(search: SearchResult, pictures: bool = False) -> Report:
    """``search`` as a Report with data of schema perfmodel.model/1 and ``layouts``."""
    t, system = search.training, None if search.system is None else search.system.name
    where = "" if system is None else f", {system}"
    title = f"{t.model.name}: fastest layouts of {t.batch:,} x {t.n:,} tokens on {search.gpus:,} x {search.machine.device.name}{where}"
    layouts = [_layout(layout, search) for layout in search.layouts]
    inputs = {
        **question(t),
        "phase": "train",
        "search": search.gpus,
        "system": system,
        "dtype": search.half,
        "kernels": search.machine.kernels,
    }
    questions = [question(layout.training) for layout in search.layouts]
    data = {
        **head("model", inputs, search.machine.device),
        **{name: getattr(search, name) for name in ("gpus", "tried", "refused", "took_s")},
        "flop_convention": MEANING,
        "layouts": [{"inputs": inputs, **as_json(layout)} for inputs, layout in zip(questions, layouts, strict=True)],
    }
    plain = Report(title, _refusal(search), [], _notes(search), data, metered="peaks, in the fastest layout")
    if not search.layouts:
        return plain
    best = search.layouts[0]
    mfu = _mfu(best, search)
    meters = [Meter("matmul peak (MFU)", mfu)]
    size, fits = format_si(best.bytes, "B"), ""
    capacity = search.machine.device.dram.capacity
    if capacity:
        size, fits = f"{size} of {format_si(capacity.number, 'B')}", "fits: "
        meters.append(Meter("memory of a GPU", best.bytes / capacity.number, size))
    at_least = at_most = ""
    if of_job(job_of(best.training, search.machine, search.system, half=search.half)).prediction is None:
        at_least, at_most = "at least ", "at most "  # where a kernel is not calibrated, its roof stands for it
    step, rate = f"{at_least}{format_time(best.seconds, 3)}", f"{at_most}{tokens(best.tokens_per_s)}"
    return replace(
        plain,
        verdict=headline(
            f"{fits}{size} on the fullest of {search.gpus:,} GPUs",
            f"a step takes {step}: {rate}, MFU {mfu:.1%}",
            f"fastest: {options(best.training)}",
        ),
        tables=[as_rows("", layouts)],
        charts=_charts(search) if pictures else [],
        meters=meters,
        figures=[
            Figure("fastest layout", options(best.training)),
            Figure("time of a step", step),
            Figure("throughput", rate),
            Figure("MFU", f"{at_most}{mfu:.1%}"),
            Figure("memory of the fullest GPU", size),
        ],
        brief=[_listed(search)],
    )


def _refusal(search: SearchResult) -> list[str]:
    """Sentences on why there is no layout, and on what would help."""
    t = search.training
    if search.tried:
        return [f"Does not fit: none of {search.tried:,} layouts does.", "Give more GPUs, or a smaller batch or length."]
    divided = f"{t.batch:,} sequences and {t.model.name}'s heads and layers among {search.gpus:,} GPUs"
    return [f"No layout divides {divided}.", f"Give a --batch that is a multiple of {search.gpus:,}, or another number of GPUs."]


def _layout(layout: TimedLayout, search: SearchResult) -> list[Metric]:
    return [
        Metric("step_s", layout.seconds, "step", "s"),
        Metric("tokens_per_s", layout.tokens_per_s, "tokens/s", ""),
        Metric("mfu", _mfu(layout, search), "MFU", "share"),
        Metric("memory.peak", layout.bytes, "peak memory", "B"),
        Metric("options", options(layout.training), "layout", "text"),
    ]


def _mfu(layout: TimedLayout, search: SearchResult) -> float:
    """Model FLOP utilization of ``layout``, on visible scores."""
    job = job_of(layout.training, search.machine, search.system, half=search.half)
    return run(job).shares(job, layout.seconds)[0]


def _listed(search: SearchResult) -> Table:
    """Table of the fastest layouts, with a column per option that one of them sets."""
    layouts = search.layouts[:SCREEN_ROWS]
    values_by_option = [_option_values(layout.training) for layout in layouts]
    shown = [option for option in values_by_option[0] if any(values[option] != ABSENT for values in values_by_option)]
    heads, rows = list[str](), list[list[str]]()
    for layout, values in zip(layouts, values_by_option, strict=True):
        metrics = [metric for metric in _layout(layout, search) if metric.key in BRIEF]
        rows.append([*(metric.brief for metric in metrics), *(values[option] for option in shown)])
        heads = [*(metric.label for metric in metrics), *(option.removeprefix("--").replace("-", " ") for option in shown)]
    return Table("", heads, rows, "r" * len(heads))


def _option_values(t: TrainingConfig) -> dict[str, str]:
    """Options of a layout and their values; ``-`` for an option that it does not set."""
    p = t.parallel
    sizes = {"tp": p.tp, "pp": p.pp, "interleave": p.interleave, "cp": p.cp, "ep": p.ep, "dp": p.dp}
    options = {f"--{name}": str(value) if value > 1 else ABSENT for name, value in sizes.items()}
    options |= {"--sp": YES if p.sp else ABSENT, "--zero": str(p.zero or ABSENT), "--micro-batch": str(t.sequences)}
    return options | {"--recompute": recompute_text(t) if t.recompute.kind != "none" else ABSENT}


def options(t: TrainingConfig) -> str:
    """A layout as command-line options.

    >>> from perfmodel.transformer.spec import ModelSpec
    >>> options(TrainingConfig(ModelSpec("small", "llama", 8, 8, ()), 8, 16, micro_batch=2))
    '--micro-batch 2'
    """
    values = {name: value for name, value in _option_values(t).items() if value != ABSENT}
    return " ".join(name if value == YES else f"{name} {value}" for name, value in values.items())


def _charts(search: SearchResult) -> list[Chart]:
    """Chart of layouts by step time and memory, with the capacity."""
    listed, capacity = search.layouts[:SCREEN_ROWS], search.machine.device.dram.capacity
    spots = [(float(layout.bytes), float(layout.seconds)) for layout in listed]
    marks = [Mark(x, options(layout.training).replace("--", ""), y) for (x, y), layout in zip(spots, listed, strict=True)]
    marks += [Mark(float(capacity.number), f"capacity {format_si(capacity.number, 'B')}")] if capacity else []
    title, series = "Time of a step against the memory of the fullest GPU", [Series("layouts", sorted(spots), "markers")]
    return [LineChart(title, "memory of the fullest GPU", "time of a step", series, "B", "s", "linear", "linear", marks)]


def _notes(search: SearchResult) -> list[str]:
    system = search.system
    notes = []
    if search.machine.device.power is not None:
        notes.append("Times are bursts: run for seconds, the power limit may slow a step, by as much as its layout without --search shows.")
    if system is not None and any(over_network(system, layout.training.parallel) for layout in search.layouts):
        notes.append("Not validated: layouts with ZeRO 2 or 3 over a network, whose exchanges are taken to slow no kernel.")
    timed = f"{format_count(search.tried)} layouts timed in {format_time(search.took_s, 3)}"
    return [
        *notes,
        f"{timed}, {digits(search.tried / search.took_s, 2)} a second; {format_count(search.refused)} faster ones do not fit.",
        "Searched: tensor parallelism within the innermost links, equal pipeline stages, parts of sequences from 1,024 tokens on, experts, "
        "ZeRO (stages 2 and 3 without a pipeline), micro-batches in powers of two, recomputation of nothing, attention or layers.",
    ]
