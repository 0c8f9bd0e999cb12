"""The report of a training step: what it takes, part by part and kernel by kernel, FLOP by convention, memory."""

from __future__ import annotations

from typing import Any

from perfmodel.core.roofline import Estimate
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report, Table
from perfmodel.report.memory import question
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table, of_cost
from perfmodel.report.model import of_source
from perfmodel.report.operation import head, with_steps
from perfmodel.report.train_words import notes, verdict
from perfmodel.transformer.op import COLLECTIVE, WEIGHTS
from perfmodel.transformer.parameters import active, parts, total
from perfmodel.transformer.training.question import MIXED
from perfmodel.transformer.training.step.estimate import KernelLine, TrainingAnswer
from perfmodel.transformer.training.step.explain import explain
from perfmodel.transformer.training.step.flops import MEANING, MEGATRON, PALM, Counted, passes
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST

KERNELS = ("forward", "recompute", "backward", "gradients added up", "optimizer", "gradients cleared")
"""Parts of a step that are sums of kernels."""
WAITING = "waiting"


def report(found: TrainingAnswer, *, explained: bool = False) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.model/1."""
    plain = Report(title(found), verdict(found), _tables(found), notes(found), data(found))
    return with_steps(plain, [("every number of the step", {"phase": "train"}, explain(found))]) if explained else plain


def title(found: TrainingAnswer) -> str:
    """Model, tokens, formats, GPUs."""
    t, gpus = found.training, found.training.parallel.gpus
    form = found.found.job.frame.forward.dtype.name
    joined = found.found.job.system
    where = f"{'' if gpus == 1 else f'{gpus:,} x '}{found.device.name}{'' if joined is None else f', {joined.name}'}"
    return f"{t.model.name}: training step on {t.batch:,} x {t.n:,} tokens, {form if t.precision != MIXED else f'{form} mixed'} on {where}"


# The JSON object


def inputs_of(found: TrainingAnswer) -> dict[str, Any]:
    """What was asked, with defaults filled in."""
    job = found.found.job
    return {
        **question(found.training),
        "phase": "train",
        "dtype": job.frame.forward.dtype.name,
        "implementation": found.found.implementation,
        "system": None if job.system is None else job.system.name,
        "overlap": job.overlap,
    }


def data(found: TrainingAnswer) -> dict[str, Any]:
    """The object of schema perfmodel.model/1. Rows of ``ops`` are sums over ``count`` runs on one GPU: they add up to ``totals``."""
    step, model, ran = found.found, found.training.model, found.run
    ops = [*(_op(line, found) for line in step.lines), *_others(found)]
    return {
        **head("model", inputs_of(found), found.device),
        "gpus": found.training.parallel.gpus,
        "parameters": {"total": total(model), "active": active(model), "parts": parts(model)},
        "ops": [as_json(op) for op in ops],
        "totals": as_json(_totals(found)),
        "parts_s": {name: seconds for name, seconds in step.time.parts.items() if seconds},
        "stage": step.time.stage,
        "bubble": step.time.bubble,
        "step_s": step.seconds,
        **as_json(_rates(found)),
        "model_flops": ran.model,
        "mfu": found.utilization[0],
        "hfu": found.utilization[1],
        "flop_convention": MEANING,
        "needed_flops": ran.model,
        "executed_flops": ran.hardware,
        "conventions": {name: as_json(_shares(name, one, *found.shares[name])) for name, one in found.counted.items()},
        "times_from": "roofline" if step.prediction is None else "predicted",
        "memory": as_json(_memory(found)),
    }


# Numbers and their tables

OPS = {
    "name": "kernel",
    "phase": "part",
    "runs": "count",
    "products": "FLOP, run",
    "bytes": "bytes",
    "time_s.lower": "lower",
    "time_s.predicted": "predicted",
    "share": "share",
    "source": "source",
}
TOTALS = {
    "flops": "FLOP, needed",
    "executed_flops": "FLOP, executed",
    "traffic.dram.bytes": "DRAM traffic",
    "time_s.lower": "lower bound",
    "time_s.lower_warm": "  caches warm from the step before",
    "time_s.roofline": "roofline",
    "time_s.predicted": "predicted",
    "micro_batches": "micro-batches",
    "tokens_per_s": "tokens/s, all GPUs",
    "tokens_per_s_and_gpu": "tokens/s per GPU",
}
SHARES = {
    "convention": "",
    "model_flops": "model",
    "hardware_flops": "with what runs again",
    "mfu": "of the peak",
    "hfu": "all that runs",
}
SOURCES = {PALM: "PaLM: {}N + 12LHQT per token", MEGATRON: "Megatron-LM: matrices, attention, logits"}
RUN = "MFU and HFU: visible, executed"


def _op(line: KernelLine, found: TrainingAnswer) -> list[Metric]:
    op, p = line.row.op, line.prediction
    return [
        Metric("name", op.name, unit="text"),
        Metric("phase", line.part, unit="text"),
        Metric("group", op.group),
        Metric("count", op.count),
        Metric("", round(op.count), "runs"),
        Metric("weight_bytes", op.count * op.bytes_of(WEIGHTS)),
        *of_cost(line.cost, line.times and Interval(*line.times)),
        Metric("", line.cost.executed_flops or None, "products", "FLOP"),
        Metric("share", line.seconds / found.found.seconds, unit="share"),
        Metric("bytes", line.cost.dram.total, unit="B"),
        *of_source(p, line.missing, "-"),
    ]


def _others(found: TrainingAnswer) -> list[list[Metric]]:
    """Exchanges that nothing hides, and waits: seconds only."""
    entries = []
    for name, seconds in found.found.time.parts.items():
        if name in KERNELS or not seconds:
            continue
        group = WAITING if name in (BUBBLE, HOST) else COLLECTIVE
        entries.append(
            [
                *(Metric(key, value) for key, value in {"name": name, "phase": group, "group": group, "count": 1}.items()),
                *of_cost(Estimate(), Interval(seconds, seconds, seconds)),
                Metric("share", seconds / found.found.seconds),
                *(Metric(key, value) for key, value in {"weight_bytes": 0, "bytes": 0, "implementation": None}.items()),
            ]
        )
    return entries


def _totals(found: TrainingAnswer) -> list[Metric]:
    """Sums over all kernels of one GPU."""
    step = found.found
    known = None if step.prediction is None else Interval(*step.prediction) if step.validated else Interval(step.prediction[0])
    return of_cost(step.cost, known)


def _rates(found: TrainingAnswer) -> list[Metric]:
    step = found.found
    return [
        Metric("micro_batches", step.time.micro_batches),
        Metric("tokens_per_s", step.tokens_per_s, unit=""),
        Metric("tokens_per_s_and_gpu", step.tokens_per_s / found.training.parallel.gpus, unit=""),
    ]


def _shares(source: str, counted: Counted, mfu: float, hfu: float) -> list[Metric]:
    """FLOP of the whole step by one convention, and their share of the peak."""
    return [
        Metric("", source, "convention", "text"),
        Metric("model_flops", counted.model, unit="FLOP"),
        Metric("hardware_flops", counted.hardware, unit="FLOP"),
        Metric("mfu", mfu, unit="share"),
        Metric("hfu", hfu, unit="share"),
    ]


def _memory(found: TrainingAnswer) -> list[Metric]:
    """The peak of the fullest GPU, by what it is made of."""
    memory = found.memory
    known = [Metric("capacity", found.capacity, "capacity", "B"), Metric("fits", None if memory is None else found.fits)]
    if memory is None:
        return [Metric("peak", None), Metric("why", found.unknown), *known]
    return [
        Metric("weights", memory.state.weights, "weights", "B"),
        Metric("gradients", memory.gradients, "gradients", "B"),
        Metric("optimizer", memory.state.optimizer, "optimizer", "B"),
        Metric("activations", memory.activations, "activations", "B"),
        Metric("peak", memory.bytes, "peak", "B"),
        Metric("total", memory.bytes),
        *known,
    ]


def _tables(found: TrainingAnswer) -> list[Table]:
    step = found.found
    times = {name: seconds for name, seconds in step.time.parts.items() if seconds} | {"step": step.seconds}
    parts_of_step = [
        [Metric("", name, "part", "text"), Metric("", seconds, "time", "s"), Metric("", seconds / step.seconds, "share", "share")]
        for name, seconds in times.items()
    ]
    counts = [(SOURCES[name].format(2 * passes(found.training)), one, *found.shares[name]) for name, one in found.counted.items()]
    conventions = [_shares(*one) for one in (*counts, (RUN, found.run, *found.utilization))]
    memory = [] if found.memory is None else [as_table("memory of the fullest GPU", {"bytes": _memory(found)})]
    return [
        as_rows("", parts_of_step),
        as_rows("kernels of one GPU", [_op(line, found) for line in step.lines], labels=OPS),
        as_table("totals", {"train": [*_totals(found), *_rates(found)]}, labels=TOTALS),
        as_rows("FLOP by convention, all GPUs", conventions, labels=SHARES),
        *memory,
    ]
