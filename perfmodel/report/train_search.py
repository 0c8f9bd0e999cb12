"""The report of a search for the fastest layout of a training step."""

from __future__ import annotations

from typing import Any

from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.document import Report
from perfmodel.report.memory import question, recompute_text
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.operation import head
from perfmodel.transformer.training.question import TrainingConfig
from perfmodel.transformer.training.step.flops import MEANING, utilization
from perfmodel.transformer.training.step.job import job_of
from perfmodel.transformer.training.step.search import SearchResult, TimedLayout
from perfmodel.transformer.training.step.system import over_network


def report(found: SearchResult) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1, with ``layouts``."""
    t = found.training
    where = "" if found.system is None else f", {found.system.name}"
    title = f"{t.model.name}: fastest layouts of {t.batch:,} x {t.n:,} tokens on {found.gpus:,} x {found.on.device.name}{where}"
    tables = [as_rows("", [_metrics(layout, found) for layout in found.layouts])] if found.layouts else []
    return Report(title, _verdict(found), tables, _notes(found), data(found))


def mfu(layout: TimedLayout, found: SearchResult) -> float:
    """On visible scores."""
    return utilization(job_of(layout.training, found.on, found.system, half=found.half), layout.seconds)[0]


def _verdict(found: SearchResult) -> list[str]:
    if not found.tried:
        t = found.training
        return [
            f"No layout divides {t.batch:,} sequences and {t.model.name}'s heads and layers among {found.gpus:,} GPUs: "
            f"give a --batch that is a multiple of {found.gpus:,}, or another number of GPUs."
        ]
    if not found.layouts:
        return [f"None of {found.tried:,} layouts fits {found.on.device.name}: give more GPUs, or a smaller batch or length."]
    best = found.layouts[0]
    return [
        f"Fastest of {found.tried:,} layouts: {words(best.training)}: {format_time(best.seconds)} a step, "
        f"{format_si(best.tokens_per_s)} tokens/s, MFU {100 * mfu(best, found):.3g} % (FLOP on visible scores), "
        f"{format_si(best.bytes, 'B')} at the peak."
    ]


def words(t: TrainingConfig) -> str:
    """A layout as the options that make it.

    >>> from perfmodel.transformer.spec import ModelSpec
    >>> words(TrainingConfig(ModelSpec("small", "llama", 8, 8, ()), 8, 16, micro_batch=2))
    '--micro-batch 2'
    """
    p = t.parallel
    sizes = {"tp": p.tp, "pp": p.pp, "interleave": p.interleave, "cp": p.cp, "ep": p.ep, "dp": p.dp}
    found = [f"--{name} {value}" for name, value in sizes.items() if value > 1]
    found += ["--sp"] * p.sp + [f"--zero {p.zero}"] * (p.zero > 0) + [f"--micro-batch {t.sequences}"]
    return " ".join([*found, *([f"--recompute {recompute_text(t)}"] if t.recompute.kind != "none" else [])])


def _metrics(layout: TimedLayout, found: SearchResult) -> list[Metric]:
    return [
        Metric("step_s", layout.seconds, "step", "s"),
        Metric("tokens_per_s", layout.tokens_per_s, "tokens/s", ""),
        Metric("mfu", mfu(layout, found), "MFU", "share"),
        Metric("memory.peak", layout.bytes, "peak memory", "B"),
        Metric("options", words(layout.training), "layout", "text"),
    ]


def _notes(found: SearchResult) -> list[str]:
    rate = found.tried / found.took_s
    system = found.system
    unsure = system is not None and any(over_network(system, layout.training.parallel) for layout in found.layouts)
    return [
        *(["Not validated: layouts with ZeRO 2 or 3 over a network, whose exchanges are taken to slow no kernel."] if unsure else []),
        f"{format_count(found.tried)} layouts timed in {format_time(found.took_s, 3)}, {format_si(rate, digits=2)} a second; "
        f"{format_count(found.refused)} faster ones do not fit.",
        "Searched: tensor parallelism within the innermost links, equal pipeline stages, parts of sequences from 1,024 tokens on, experts, "
        "ZeRO (stages 2 and 3 without a pipeline), micro-batches in powers of two, recomputation of nothing, attention or layers.",
    ]


def data(found: SearchResult) -> dict[str, Any]:
    """The object of schema perfmodel.model/1."""
    system = None if found.system is None else found.system.name
    inputs = {**question(found.training), "phase": "train", "search": found.gpus, "system": system, "dtype": found.half}
    return {
        **head("model", inputs, found.on.device),
        "gpus": found.gpus,
        "tried": found.tried,
        "refused": found.refused,
        "took_s": found.took_s,
        "flop_convention": MEANING,
        "layouts": [{"inputs": question(layout.training), **as_json(_metrics(layout, found))} for layout in found.layouts],
    }
