"""The report of training memory: what is held, what each layer keeps, the timeline, and what fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.remat.timeline import columns
from perfmodel.report.document import Report, Table
from perfmodel.report.memory_words import notes, size, verdict
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table
from perfmodel.report.operation import head, with_steps
from perfmodel.report.timeline import axis, chart
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.activations import Kept
from perfmodel.transformer.training.explain import explain
from perfmodel.transformer.training.memory import BACKWARD, FORWARD, MemoryResult, StepMoment
from perfmodel.transformer.training.question import EVERY, FULL, MIXED, NONE, SELECTIVE, TrainingConfig
from perfmodel.transformer.training.state import StatePart

WIDTH, HEIGHT = 60, 8
"""Columns and rows of the chart: they fit a terminal of 80 columns."""


def report(result: MemoryResult, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.memory/1. ``explained``: with every formula."""
    training = result.training
    precision = f"{training.precision} precision" if training.precision == MIXED else training.precision
    title = f"Training memory of {training.model.name}: {training.batch:,} x {training.n:,} tokens, {precision}, {training.optimizer}"
    plain = Report(title, verdict(result), _tables(result), notes(result), data(result))
    return with_steps(plain, [("every number", {"model": training.model.name}, explain(result))]) if explained else plain


# The JSON object


def data(result: MemoryResult) -> dict[str, Any]:
    """The object of schema perfmodel.memory/1. ``bytes``: of the fullest GPU; ``at_peak`` adds up to ``peak``."""
    training, found = result.training, result.peak
    more = {name: getattr(training, name) for name in ("gradient_life", "fused_optimizer")}
    more |= {"lora_targets": training.lora_targets if training.lora is not None else None, "implementation": result.implementation.name}
    literature = {name: getattr(result.literature, name) for name in ("layer", "layers", "ends")}
    return {
        **head("memory", question(training) | more, result.device),
        "parameters": result.parameters,
        "gpus": training.parallel.gpus,
        **as_json([*_complete(result), *_at_peak(result)]),
        "state": [as_json(_state(part)) for part in found.state.parts],
        "kept": [as_json(_kept(row)) for row in result.kept],
        "literature": {"source": "Korthikanti et al. 2022", **literature, "describes_model": result.literature.meant},
        "timeline": [as_json(_moment(moment)) for moment in found.moments],
        "max_micro_batch": result.largest,
        "max_batch": None if result.largest is None else result.largest * training.micro_batches * training.parallel.dp,
    }


def question(t: TrainingConfig) -> dict[str, Any]:
    """A training question under the names of its options."""
    p = t.parallel
    return {
        "model": t.model.name,
        "architecture": t.model.architecture,
        "batch": t.batch,
        "n": t.n,
        "micro_batch": t.sequences,
        "precision": t.precision,
        "optimizer": t.optimizer,
        "recompute": recompute_text(t),
        "flash": t.flash,
        "dropout": t.dropout,
        "lora": t.lora,
        "gradients": t.gradients,
        "zero": p.zero,
        "tensor_parallel": p.tp,
        "sequence_parallel": p.sp,
        "pipeline_parallel": p.pp,
        "interleave": p.interleave,
        "context_parallel": p.cp,
        "expert_parallel": p.ep,
        "data_parallel": p.dp,
    }


def recompute_text(training: TrainingConfig) -> str:
    """The kind as the option writes it."""
    kind = training.recompute.kind
    return f"{kind}:{training.recompute.every}" if kind == EVERY else kind


# Numbers and their tables

KEPT = {"part": "part", "name": "tensor", "bytes": "size", "freed_by": "until the backward pass of"}
STATE = {"name": "", "parameters": "parameters", "bytes_per_parameter": "B each", "shards": "divided by", "bytes": "size"}
MOMENTS = {
    "phase": "phase",
    "where": "where",
    "start_bytes": "begins at",
    "high_bytes": "at most",
    "end_bytes": "ends at",
    "high_at": "the most is reached in",
}


def _complete(result: MemoryResult) -> list[Metric]:
    found, state = result.peak, result.peak.state
    return [
        *_sums("bytes", state.weights, state.gradients, state.optimizer, found.stored),
        Metric("bytes.peak", found.bytes),
    ]


def _at_peak(result: MemoryResult) -> list[Metric]:
    found, state = result.peak, result.peak.state
    return [
        Metric("at_peak.moment", found.moment.title),
        Metric("at_peak.phase", found.moment.phase),
        Metric("at_peak.stage", found.stage),
        *_sums("at_peak", state.weights, found.gradients, state.optimizer, found.activations),
        Metric("", found.bytes, "together", "B"),
        Metric("memory.capacity_bytes", result.capacity, f"capacity of {result.device.id}", "B"),
        Metric("memory.fits", result.fits),
    ]


def _sums(key: str, *sizes: Number) -> list[Metric]:
    names = ("weights", "gradients", "optimizer", "activations")
    return [Metric(f"{key}.{name}", number, name, "B") for name, number in zip(names, sizes, strict=True)]


def _state(part: StatePart) -> list[Metric]:
    return [
        Metric("name", part.name),
        Metric("group", part.group),
        Metric("parameters", part.elements),
        Metric("shards", part.shards),
        Metric("bytes", part.bytes, unit="B"),
        Metric("bytes_per_parameter", float(part.bytes * part.shards / part.elements)),
    ]


def _kept(row: Kept) -> list[Metric]:
    return [
        Metric("where", row.where, unit="text"),
        Metric("part", row.part, unit="text"),
        Metric("name", row.name, unit="text"),
        Metric("bytes", row.bytes, unit="B"),
        Metric("count", row.count),
        Metric("total_bytes", row.bytes * row.count),
        Metric("freed_by", row.freed_by, unit="text"),
    ]


def _moment(moment: StepMoment) -> list[Metric]:
    return [
        Metric("phase", moment.phase, unit="text"),
        Metric("where", moment.where, unit="text"),
        Metric("start_bytes", moment.start, unit="B"),
        Metric("end_bytes", moment.bytes, unit="B"),
        Metric("high_bytes", moment.high, unit="B"),
        Metric("high_at", moment.at, unit="text"),
        Metric("gradients_bytes", moment.gradients),
        Metric("blocks", moment.count),
    ]


def _together(name: str, numbers: Sequence[Number]) -> list[Metric]:
    return [Metric("name", name), Metric("bytes", sum(numbers), unit="B")]


def _tables(result: MemoryResult) -> list[Table]:
    parts = result.peak.state.parts
    state = [*map(_state, parts), _together("all", [part.bytes for part in parts])]
    return [
        as_table("", {"when complete": _complete(result), "at the peak": _at_peak(result)}),
        as_rows("from step to step, one GPU", state, labels=STATE),
        *_kept_tables(result),
        _literature(result),
        *_timeline(result),
        as_rows("parts of the step", map(_moment, result.peak.moments), labels=MOMENTS),
    ]


def _kept_tables(result: MemoryResult) -> list[Table]:
    """Tensors that wait for their backward pass, a table per kind of layer and one for the ends of the model."""
    places = list(dict.fromkeys(row.where for row in result.kept))
    layers = [where for where in places if where.startswith("layer")]
    tables = []
    for where in layers:
        rows = [row for row in result.kept if row.where == where]
        title = f"kept by each of {rows[0].count} x {where}, {'one micro-batch' if result.training.parallel.pp == 1 else 'all in flight'}"
        tables.append(as_rows(title, [*map(_kept, rows), _together("together", [row.bytes for row in rows])], labels=KEPT))
    ends = [_kept(row) for row in result.kept if row.where not in layers]
    if ends:
        at_ends = {"where" if key == "part" else key: head for key, head in KEPT.items()}
        tables.append(as_rows("kept at the ends of the model", ends, labels=at_ends))
    return tables


def _literature(result: MemoryResult) -> Table:
    """One layer by the formulas of Korthikanti et al. 2022, beside the account above."""
    training, p = result.training, result.training.parallel
    heads = training.model.layers[0].attention.heads
    rows = []
    for kind in (NONE, SELECTIVE, FULL):
        bytes_ = korthikanti.layer_bytes(training.length, training.sequences, training.model.hidden, heads, p.tp, sp=p.sp, recompute=kind)
        rows.append([f"recompute {kind}", _formula(kind, p.tp, p.sp), size(bytes_)])
    of_layer = [row for row in result.kept if row.where.startswith("layer")]
    ours = sum(row.bytes for row in of_layer if row.where == of_layer[0].where) if of_layer else 0
    rows.append(["the account above", "tensor by tensor", size(ours)])
    meant = "" if result.literature.meant else "; meant for GPT, not for this model"
    return Table(f"one layer by Korthikanti et al. 2022, scores stored, dropout{meant}", ["", "formula", "size"], rows, "llr")


def _formula(kind: str, t: int, sp: bool) -> str:
    """Table 2 of the paper.

    >>> _formula("none", 1, False), _formula("selective", 8, False), _formula("none", 8, True)
    ('sbh (34 + 5as/h)', 'sbh (10 + 24/t)', 'sbh (34/t + 5as/ht)')
    """
    if kind == FULL:
        return "2 sbh"
    scores = "" if kind == SELECTIVE else " + 5as/h" if t == 1 else " + 5as/ht"
    linear = "34" if t == 1 else "34/t" if sp else "10 + 24/t"
    return f"sbh ({linear}{scores})"


def _timeline(result: MemoryResult) -> list[Table]:
    """Bytes over the step: a column per block of each pass, as wide as there is room."""
    points: list[tuple[Number, Number]] = []
    ends: dict[str, int] = {}
    for moment in result.peak.moments:
        for high in moment.highs():
            points.append((len(points) + 1, high))
        ends[moment.phase] = len(points)
    bars = columns(points, WIDTH, whole_steps=True)
    scale = len(bars) / len(points)
    forward, backward = round(ends[FORWARD] * scale), round(ends[BACKWARD] * scale)
    last = max(len(bars) - backward, 0)
    parts = axis([(forward, "forward"), (backward - forward, "backward"), (last, "optimizer" if last > 8 else "")])
    lines = [*chart(bars, result.peak.bytes, HEIGHT, size), *(["", line] for line in parts)]
    return [Table("memory over the step, each layer and pass as wide as the next", ["memory", ""], lines, "rl")]
