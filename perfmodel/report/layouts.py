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
    best, capacity = search.layouts[0], search.machine.device.dram.capacity
    size, mfu = format_si(best.bytes, "B") + (f" of {format_si(capacity.number, 'B')}" if capacity else ""), _mfu(best, search)
    predicted = of_job(job_of(best.training, search.machine, search.system, half=search.half)).prediction is not None
    at_least, at_most = ("", "") if predicted else ("at least ", "at most ")  # where a kernel is not calibrated, its roof stands for it
    step, rate = f"{at_least}{format_time(best.seconds, 3)}", f"{at_most}{tokens(best.tokens_per_s)}"
    return replace(
        plain,
        verdict=headline(
            f"{'fits: ' * bool(capacity)}{size} on the fullest of {search.gpus:,} GPUs",
            f"a step takes {step}: {rate}, MFU {mfu:.1%}",
            f"fastest: {options(best.training)}",
        ),
        tables=[as_rows("", layouts)],
        charts=_charts(search) if pictures else [],
        meters=[Meter("matmul peak (MFU)", mfu), *([Meter("memory of a GPU", best.bytes / capacity.number, size)] if capacity else [])],
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
    listed = search.layouts[:SCREEN_ROWS]
    options = [_given(layout.training) for layout in listed]
    names = [name for name in options[0] if any(option[name] != ABSENT for option in options)]
    rows = [[metric for metric in _layout(layout, search) if metric.key in BRIEF] for layout in listed]
    cells = [[*(metric.brief for metric in row), *(option[name] for name in names)] for row, option in zip(rows, options, strict=True)]
    heads = [*(metric.label for metric in rows[0]), *(name.removeprefix("--").replace("-", " ") for name in names)]
    return Table("", heads, cells, "r" * len(heads))


def _given(t: TrainingConfig) -> dict[str, str]:
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
    return " ".join(name if value == YES else f"{name} {value}" for name, value in _given(t).items() if value != ABSENT)


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
    unsure = system is not None and any(over_network(system, layout.training.parallel) for layout in search.layouts)
    timed = f"{format_count(search.tried)} layouts timed in {format_time(search.took_s, 3)}"
    return [
        *["Times are bursts: run for seconds, the power limit may slow a step, by as much as its layout without --search shows."]
        * (search.machine.device.power is not None),
        *["Not validated: layouts with ZeRO 2 or 3 over a network, whose exchanges are taken to slow no kernel."] * unsure,
        f"{timed}, {digits(search.tried / search.took_s, 2)} a second; {format_count(search.refused)} faster ones do not fit.",
        "Searched: tensor parallelism within the innermost links, equal pipeline stages, parts of sequences from 1,024 tokens on, experts, "
        "ZeRO (stages 2 and 3 without a pipeline), micro-batches in powers of two, recomputation of nothing, attention or layers.",
    ]
