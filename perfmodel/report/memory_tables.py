"""Tables of training memory: sums, state by part, tensors kept, the literature's account, the timeline."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.units import format_count, format_si
from perfmodel.remat.timeline import columns
from perfmodel.report.document import Table
from perfmodel.report.timeline import axis, chart
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.memory import MemoryResult
from perfmodel.transformer.training.question import FULL, NONE, SELECTIVE
from perfmodel.transformer.training.timeline import BACKWARD, FORWARD

WIDTH, HEIGHT = 60, 8
"""Columns and rows of the chart: they fit a terminal of 80 columns."""


def size(number: Number) -> str:
    """Bytes with a prefix."""
    return format_si(float(number), "B")


def sums_table(result: MemoryResult) -> Table:
    """What there is in all, and at the worst moment."""
    found, state = result.peak, result.peak.state
    rows = [
        ["weights", size(state.weights), size(state.weights)],
        ["gradients", size(state.gradients), size(found.gradients)],
        ["optimizer", size(state.optimizer), size(state.optimizer)],
        ["activations", size(found.stored), size(found.activations)],
        ["together", "", size(found.bytes)],
    ]
    if result.capacity is not None:
        rows.append([f"capacity of {result.device.id}", "", size(result.capacity)])
    return Table("", ["", "when complete", "at the peak"], rows)


def state_table(result: MemoryResult) -> Table:
    """Weights, gradients and optimizer state by part."""
    rows = [
        [
            part.name,
            format_count(int(part.elements)),
            f"{float(part.bytes * part.shards / part.elements):.4g}",
            str(part.shards),
            size(part.bytes),
        ]
        for part in result.peak.state.parts
    ]
    total = sum(part.bytes for part in result.peak.state.parts)
    rows.append(["all", "", "", "", size(total)])
    return Table("from step to step, one GPU", ["", "parameters", "B each", "divided by", "size"], rows)


def kept_table(result: MemoryResult) -> list[Table]:
    """Tensors that wait for their backward pass, a table per kind of layer and one for the ends of the model."""
    places = list(dict.fromkeys(row.where for row in result.kept))
    layers = [where for where in places if where.startswith("layer")]
    tables = []
    for where in layers:
        rows = [row for row in result.kept if row.where == where]
        cells = [[row.part, row.name, size(row.bytes), row.freed_by] for row in rows]
        cells.append(["", "together", size(sum(row.bytes for row in rows)), ""])
        title = f"kept by each of {rows[0].count} x {where}, {'one micro-batch' if result.training.parallel.pp == 1 else 'all in flight'}"
        tables.append(Table(title, ["part", "tensor", "size", "until the backward pass of"], cells, "llrl"))
    ends = [row for row in result.kept if row.where not in layers]
    if ends:
        cells = [[row.where, row.name, size(row.bytes), row.freed_by] for row in ends]
        tables.append(Table("kept at the ends of the model", ["part", "tensor", "size", "until the backward pass of"], cells, "llrl"))
    return tables


def literature_table(result: MemoryResult) -> Table:
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


def timeline_table(result: MemoryResult) -> list[Table]:
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


def moments_table(result: MemoryResult) -> Table:
    """The same in numbers: each run of equal layers."""
    rows = [
        [moment.phase, moment.where, size(moment.start), size(moment.high), size(moment.bytes), moment.at] for moment in result.peak.moments
    ]
    return Table("parts of the step", ["phase", "where", "begins at", "at most", "ends at", "the most is reached in"], rows, "llrrrl")
