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


def search_report(found: SearchResult, pictures: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1, with ``layouts``. ``pictures``: with their time and memory."""
    t, system = found.training, None if found.system is None else found.system.name
    where = "" if system is None else f", {system}"
    title = f"{t.model.name}: fastest layouts of {t.batch:,} x {t.n:,} tokens on {found.gpus:,} x {found.on.device.name}{where}"
    layouts = [_layout(layout, found) for layout in found.layouts]
    inputs = {**question(t), "phase": "train", "search": found.gpus, "system": system, "dtype": found.half}
    asked = [question(layout.training) for layout in found.layouts]
    data = {
        **head("model", inputs, found.on.device),
        **{name: getattr(found, name) for name in ("gpus", "tried", "refused", "took_s")},
        "flop_convention": MEANING,
        "layouts": [{"inputs": inputs, **as_json(layout)} for inputs, layout in zip(asked, layouts, strict=True)],
    }
    plain = Report(title, _refusal(found), [], _notes(found), data, metered="peaks, in the fastest layout")
    if not found.layouts:
        return plain
    best, capacity = found.layouts[0], found.on.device.dram.capacity
    size, mfu = format_si(best.bytes, "B") + (f" of {format_si(capacity.number, 'B')}" if capacity else ""), _mfu(best, found)
    predicted = of_job(job_of(best.training, found.on, found.system, half=found.half)).prediction is not None
    least, most = ("", "") if predicted else ("at least ", "at most ")  # where a kernel is not calibrated, its roof stands for it
    step, rate = f"{least}{format_time(best.seconds, 3)}", f"{most}{tokens(best.tokens_per_s)}"
    return replace(
        plain,
        verdict=headline(
            f"{'fits: ' * bool(capacity)}{size} on the fullest of {found.gpus:,} GPUs",
            f"a step takes {step}: {rate}, MFU {mfu:.1%}",
            f"fastest: {options(best.training)}",
        ),
        tables=[as_rows("", layouts)],
        charts=_charts(found) if pictures else [],
        meters=[Meter("matmul peak (MFU)", mfu), *([Meter("memory of a GPU", best.bytes / capacity.number, size)] if capacity else [])],
        figures=[
            Figure("fastest layout", options(best.training)),
            Figure("time of a step", step),
            Figure("throughput", rate),
            Figure("MFU", f"{most}{mfu:.1%}"),
            Figure("memory of the fullest GPU", size),
        ],
        brief=[_listed(found)],
    )


def _refusal(found: SearchResult) -> list[str]:
    """Why there is no layout, and what would help."""
    t = found.training
    if found.tried:
        return [f"Does not fit: none of {found.tried:,} layouts does.", "Give more GPUs, or a smaller batch or length."]
    divided = f"{t.batch:,} sequences and {t.model.name}'s heads and layers among {found.gpus:,} GPUs"
    return [f"No layout divides {divided}.", f"Give a --batch that is a multiple of {found.gpus:,}, or another number of GPUs."]


def _layout(layout: TimedLayout, found: SearchResult) -> list[Metric]:
    return [
        Metric("step_s", layout.seconds, "step", "s"),
        Metric("tokens_per_s", layout.tokens_per_s, "tokens/s", ""),
        Metric("mfu", _mfu(layout, found), "MFU", "share"),
        Metric("memory.peak", layout.bytes, "peak memory", "B"),
        Metric("options", options(layout.training), "layout", "text"),
    ]


def _mfu(layout: TimedLayout, found: SearchResult) -> float:
    """Model FLOP utilization of ``layout``, on visible scores."""
    job = job_of(layout.training, found.on, found.system, half=found.half)
    return run(job).shares(job, layout.seconds)[0]


def _listed(found: SearchResult) -> Table:
    """The fastest, with a column for each option that one of them gives: no width cuts a layout."""
    listed = found.layouts[:SCREEN_ROWS]
    given = [_given(layout.training) for layout in listed]
    names = [name for name in given[0] if any(one[name] != ABSENT for one in given)]
    rows = [[one for one in _layout(layout, found) if one.key in BRIEF] for layout in listed]
    cells = [[*(one.brief for one in row), *(one[name] for name in names)] for row, one in zip(rows, given, strict=True)]
    heads = [*(one.label for one in rows[0]), *(name.removeprefix("--").replace("-", " ") for name in names)]
    return Table("", heads, cells, "r" * len(heads))


def _given(t: TrainingConfig) -> dict[str, str]:
    """Options of a layout and their values, ``-`` where it does not give them."""
    p = t.parallel
    sizes = {"tp": p.tp, "pp": p.pp, "interleave": p.interleave, "cp": p.cp, "ep": p.ep, "dp": p.dp}
    found = {f"--{name}": str(value) if value > 1 else ABSENT for name, value in sizes.items()}
    found |= {"--sp": YES if p.sp else ABSENT, "--zero": str(p.zero or ABSENT), "--micro-batch": str(t.sequences)}
    return found | {"--recompute": recompute_text(t) if t.recompute.kind != "none" else ABSENT}


def options(t: TrainingConfig) -> str:
    """A layout as the options that make it.

    >>> from perfmodel.transformer.spec import ModelSpec
    >>> options(TrainingConfig(ModelSpec("small", "llama", 8, 8, ()), 8, 16, micro_batch=2))
    '--micro-batch 2'
    """
    return " ".join(name if value == YES else f"{name} {value}" for name, value in _given(t).items() if value != ABSENT)


def _charts(found: SearchResult) -> list[Chart]:
    """Each layout by the time of its step and its memory, with the capacity."""
    listed, capacity = found.layouts[:SCREEN_ROWS], found.on.device.dram.capacity
    spots = [(float(layout.bytes), float(layout.seconds)) for layout in listed]
    marks = [Mark(x, options(layout.training).replace("--", ""), y) for (x, y), layout in zip(spots, listed, strict=True)]
    marks += [Mark(float(capacity.number), f"capacity {format_si(capacity.number, 'B')}")] if capacity else []
    title, series = "Time of a step against the memory of the fullest GPU", [Series("layouts", sorted(spots), "markers")]
    return [LineChart(title, "memory of the fullest GPU", "time of a step", series, "B", "s", "linear", "linear", marks)]


def _notes(found: SearchResult) -> list[str]:
    system = found.system
    unsure = system is not None and any(over_network(system, layout.training.parallel) for layout in found.layouts)
    timed = f"{format_count(found.tried)} layouts timed in {format_time(found.took_s, 3)}"
    return [
        *["Times are bursts: run for seconds, the power limit may slow a step, by as much as its layout without --search shows."]
        * (found.on.device.power is not None),
        *["Not validated: layouts with ZeRO 2 or 3 over a network, whose exchanges are taken to slow no kernel."] * unsure,
        f"{timed}, {digits(found.tried / found.took_s, 2)} a second; {format_count(found.refused)} faster ones do not fit.",
        "Searched: tensor parallelism within the innermost links, equal pipeline stages, parts of sequences from 1,024 tokens on, experts, "
        "ZeRO (stages 2 and 3 without a pipeline), micro-batches in powers of two, recomputation of nothing, attention or layers.",
    ]
