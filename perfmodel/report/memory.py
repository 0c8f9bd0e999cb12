"""The report of training memory: parts of the peak, tensors that layers keep, the timeline, and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.units import format_count, format_si
from perfmodel.report.answer import fit_sentence, headline
from perfmodel.report.charts.bars import FAR
from perfmodel.report.charts.draw import SERIES
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Chart, Limit, LineChart, Mark, Series
from perfmodel.report.document import SCREEN_ROWS, Figure, Meter, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, as_table, of_fields
from perfmodel.report.op_common import WIDTH, columns, head, memory_chart, unread_notes, with_steps
from perfmodel.transformer.training import korthikanti
from perfmodel.transformer.training.huggingface import WORKSPACES
from perfmodel.transformer.training.implementations import BACKWARD, FORWARD, HUGGINGFACE, OPTIMIZER, Kept, StepMoment
from perfmodel.transformer.training.memory import MemoryResult
from perfmodel.transformer.training.question import ALL, EVERY, FULL, MIXED, NONE, SELECTIVE, TrainingConfig
from perfmodel.transformer.training.state import StatePart

PARTS = ("weights", "gradients", "optimizer", "activations")
"""Parts of the memory, as JSON names them."""
BRIEF = {f"{place}.{name}": name for name in PARTS for place in ("bytes", "at_peak")} | {"together": "together"}
STATE = {"name": "", "parameters": "parameters", "bytes_per_parameter": "B each", "shards": "divided by", "bytes": "size"}
KEPT = {"part": "part", "name": "tensor", "bytes": "size", "freed_by": "until the backward pass of"}
"""Heads of the columns of the tables of state and of kept tensors, by key."""
MOMENTS = ("phase", "where", "start_bytes", "high_bytes", "end_bytes", "the most is reached in")
"""Columns of the table of moments."""
PHASES = {FORWARD: "forward pass", BACKWARD: "backward pass", OPTIMIZER: "optimizer's step"}
PARALLEL = {"zero": "zero", "tensor_parallel": "tp", "sequence_parallel": "sp", "pipeline_parallel": "pp", "interleave": "interleave"}
PARALLEL |= {"context_parallel": "cp", "expert_parallel": "ep", "data_parallel": "dp"}
"""Fields of the parallel layout by key of the JSON object."""
LARGEST = SERIES - 2
"""Most tensors that a chart shows separately."""


def report(result: MemoryResult, *, explained: bool = False, pictures: bool = False) -> Report:
    """``result`` as a Report with data of schema perfmodel.memory/1."""
    training, moment = result.training, result.peak.moment
    parts = parts_of(result, moment)
    largest = max(parts, key=lambda name: parts[name])
    share = percent(float(parts[largest] / result.peak.bytes))
    place = f" ({_place(moment)})" if moment.at else ""
    precision = f"{training.precision} precision" if training.precision == MIXED else training.precision
    plain = Report(
        f"Training memory of {training.model.name}: {training.batch:,} x {training.n:,} tokens, {precision}, {training.optimizer}",
        headline(
            _fitting(result),
            f"The peak is in the {PHASES[moment.phase]}{place}",
            f"Most of it is {largest}: {_size(parts[largest], 3)}, {share}",
        ),
        _tables(result),
        _notes(result),
        data(result),
        charts=_charts(result) if pictures else [],
        meters=_meters(result, parts, largest),
        metered=f"memory of each {result.device.name}" if training.parallel.gpus > 1 else f"memory of {result.device.name}",
        figures=_figures(result, parts, largest),
        brief=_brief(result),
    )
    if not explained:
        return plain
    from perfmodel.transformer.training.explain import explain

    return with_steps(plain, [("every number", {"model": training.model.name}, explain(result))])


def data(result: MemoryResult) -> dict[str, Any]:
    """The object of schema perfmodel.memory/1. ``bytes`` are those of the fullest GPU; ``at_peak`` adds up to ``peak``."""
    training, peak = result.training, result.peak
    inputs = question(training) | as_json(of_fields(training, "gradient_life", "fused_optimizer"))
    inputs["lora_targets"] = None if training.lora is None else training.lora_targets
    inputs["implementation"] = result.implementation.name
    literature = as_json(of_fields(result.literature, "layer", "layers", "ends", unit="B"))
    return {
        **head("memory", inputs, result.device),
        "parameters": result.parameters,
        "gpus": training.parallel.gpus,
        **as_json([*_complete(result), *_at_peak(result)]),
        "state": [as_json(_state(part)) for part in peak.state.parts],
        "kept": [as_json(_kept(row)) for row in result.kept],
        "literature": {"source": "Korthikanti et al. 2022", **literature, "describes_model": result.literature.applies},
        "timeline": [as_json(_moment(moment)) for moment in peak.moments],
        "max_micro_batch": result.largest,
        "max_batch": None if result.largest is None else result.largest * training.micro_batches * training.parallel.dp,
    }


def question(t: TrainingConfig) -> dict[str, Any]:
    """A training question by the names of its options."""
    return {
        "model": t.model.name,
        "architecture": t.model.architecture,
        "micro_batch": t.sequences,
        "recompute": recompute_text(t),
        **as_json(of_fields(t, "batch", "n", "precision", "optimizer", "flash", "dropout", "lora", "gradients")),
        **{name: getattr(t.parallel, short) for name, short in PARALLEL.items()},
    }


def recompute_text(t: TrainingConfig) -> str:
    """The value of ``--recompute`` as typed."""
    return f"{EVERY}:{t.recompute.every}" if t.recompute.kind == EVERY else t.recompute.kind


def _size(number: Number, digits: int = 4) -> str:
    """``number`` of bytes with a prefix."""
    return format_si(float(number), "B", digits)


def parts_of(result: MemoryResult, moment: StepMoment) -> dict[str, Number]:
    """Bytes by part at the peak of ``moment``, without empty parts."""
    state = result.peak.state
    parts = {"weights": state.weights, "optimizer state": state.optimizer, "gradients": moment.gradients}
    parts["activations"] = moment.high - sum(parts.values())
    return {name: size for name, size in parts.items() if size > 0}


def _complete(result: MemoryResult) -> list[Metric]:
    """Metrics of each part at its own largest, which are not all held at one moment."""
    peak, state = result.peak, result.peak.state
    return [
        Metric("bytes.weights", state.weights, "weights", "B"),
        Metric("bytes.gradients", state.gradients, "gradients", "B"),
        Metric("bytes.optimizer", state.optimizer, "optimizer", "B"),
        Metric("bytes.activations", peak.stored, "activations", "B"),
        Metric("bytes.peak", peak.bytes),
    ]


def _at_peak(result: MemoryResult) -> list[Metric]:
    """Metrics of the moment with the peak."""
    peak, state = result.peak, result.peak.state
    return [
        Metric("at_peak.moment", peak.moment.title),
        Metric("at_peak.phase", peak.moment.phase),
        Metric("at_peak.stage", peak.stage),
        Metric("at_peak.weights", state.weights, "weights", "B"),
        Metric("at_peak.gradients", peak.gradients, "gradients", "B"),
        Metric("at_peak.optimizer", state.optimizer, "optimizer", "B"),
        Metric("at_peak.activations", peak.activations, "activations", "B"),
        Metric("", peak.bytes, "together", "B"),
        Metric("memory.capacity_bytes", result.capacity, f"capacity of {result.device.id}", "B"),
        Metric("memory.fits", result.fits),
    ]


def _state(part: StatePart) -> list[Metric]:
    return [
        *of_fields(part, "name", "group"),
        Metric("parameters", part.elements),
        Metric("shards", part.shards),
        Metric("bytes", part.bytes, unit="B"),
        Metric("bytes_per_parameter", float(part.bytes * part.shards / part.elements)),
    ]


def _kept(row: Kept) -> list[Metric]:
    return [
        *(Metric(name, getattr(row, name), unit="text") for name in ("where", "part", "name")),
        Metric("bytes", row.bytes, unit="B"),
        Metric("count", row.count),
        Metric("total_bytes", row.bytes * row.count),
        Metric("freed_by", row.freed_by, unit="text"),
    ]


def _moment(moment: StepMoment) -> list[Metric]:
    return [
        Metric("phase", moment.phase, "phase", "text"),
        Metric("", moment.where or None, "where", "text"),
        Metric("where", moment.where, "where"),
        Metric("start_bytes", moment.start, "begins at", "B"),
        Metric("end_bytes", moment.bytes, "ends at", "B"),
        Metric("high_bytes", moment.high, "at most", "B"),
        Metric("high_at", moment.at),
        Metric("", moment.at or None, "the most is reached in", "text"),
        Metric("gradients_bytes", moment.gradients),
        Metric("blocks", moment.count),
    ]


def _together(name: str, numbers: Iterable[Number]) -> list[Metric]:
    return [Metric("name", name), Metric("bytes", sum(numbers), unit="B")]


def _place(moment: StepMoment) -> str:
    """Phrase on the phase, layer and operation of a moment, without repeated words."""
    return ", ".join(dict.fromkeys(moment.at.split(", ")))


def _fitting(result: MemoryResult) -> str:
    """Sentence on whether the peak fits, and on how many sequences at a time do."""
    gpus = result.training.parallel.gpus
    where = f" on the fullest of {gpus:,} GPUs" if gpus > 1 else ""
    note = ""
    if result.largest and result.fits:
        note = f"; up to --micro-batch {result.largest:,}"
    elif result.largest:
        note = f"; --micro-batch {result.largest:,} would fit"
    elif result.training.sequences > 1:
        note = "; one sequence at a time does not fit either"
    return fit_sentence(result.peak.bytes, result.device, where, note)


def _meters(result: MemoryResult, parts: Mapping[str, Number], largest: str) -> list[Meter]:
    """Meters: parts of the capacity at the peak; the largest limits if they do not fit."""
    capacity = result.capacity
    if not capacity:
        return []
    limit = largest if result.fits is False else ""
    return [Meter(name, float(size / capacity), _size(size, 3), name == limit) for name, size in parts.items()]


def _figures(result: MemoryResult, parts: Mapping[str, Number], largest: str) -> list[Figure]:
    capacity, most_sequences, moment = result.capacity, result.largest, result.peak.moment
    place = _place(moment) or moment.where
    return [
        Figure("peak of the fullest GPU", _size(result.peak.bytes, 3)),
        Figure("capacity", "unknown" if capacity is None else _size(capacity, 3)),
        Figure("when", f"{moment.phase}, {place}" if place else moment.phase),
        Figure(f"most of it: {largest}", _size(parts[largest], 3)),
        Figure("sequences at a time that fit", "unknown" if most_sequences is None else f"{most_sequences:,}"),
    ]


def _tables(result: MemoryResult) -> list[Table]:
    parts = result.peak.state.parts
    state = [*map(_state, parts), _together("all", [part.bytes for part in parts])]
    return [
        as_table("", {"full size": _complete(result), "held at the peak": _at_peak(result)}),
        as_rows("from step to step, one GPU", state, labels=STATE),
        *_kept_tables(result),
        _literature(result),
        _timeline(result),
        as_rows("parts of the step", map(_moment, result.peak.moments), labels=MOMENTS),
    ]


def _brief(result: MemoryResult) -> list[Table]:
    """The short tables: the peak by part, and the moments that hold the most."""
    moments = result.peak.moments
    room = SCREEN_ROWS - len(PARTS) - 1
    by_size = sorted(range(len(moments)), key=lambda place: -moments[place].high)
    shown = [_moment(moments[place]) for place in sorted(by_size[:room])]
    return [
        as_table("", {"full size": _complete(result), "held at the peak": _at_peak(result)}, labels=BRIEF),
        as_rows("parts of the step", shown, labels=MOMENTS[:-1]),
    ]


def _kept_tables(result: MemoryResult) -> list[Table]:
    """Tables of tensors that wait for their backward pass, per kind of layer and for the ends of the model."""
    batches = "one micro-batch" if result.training.parallel.pp == 1 else "all in flight"
    by_layer: dict[str, list[Kept]] = {}
    at_ends: list[Kept] = []
    for row in result.kept:
        rows = by_layer.setdefault(row.where, []) if row.where.startswith("layer") else at_ends
        rows.append(row)
    tables = []
    for where, rows in by_layer.items():
        metrics = [*map(_kept, rows), _together("together", [row.bytes for row in rows])]
        tables.append(as_rows(f"kept by each of {rows[0].count} x {where}, {batches}", metrics, labels=KEPT))
    if at_ends:
        labels = {"where": KEPT["part"], **{key: label for key, label in KEPT.items() if key != "part"}}
        tables.append(as_rows("kept at the ends of the model", map(_kept, at_ends), labels=labels))
    return tables


def _literature(result: MemoryResult) -> Table:
    """Table of one layer by the formulas of Korthikanti et al. 2022, beside the account above."""
    training, p = result.training, result.training.parallel
    sizes = (training.length, training.sequences, training.model.hidden, training.model.layers[0].attention.heads, p.tp)
    rows = []
    for kind in (NONE, SELECTIVE, FULL):
        kept = korthikanti.layer_bytes(*sizes, sp=p.sp, recompute=kind)
        rows.append([f"recompute {kind}", _formula(kind, p.tp, p.sp), _size(kept)])
    in_layers = [row for row in result.kept if row.where.startswith("layer")]
    first_layer = [row.bytes for row in in_layers if row.where == in_layers[0].where]
    rows.append(["the account above", "tensor by tensor", _size(sum(first_layer))])
    caveat = "" if result.literature.applies else "; meant for GPT, not for this model"
    return Table(f"one layer by Korthikanti et al. 2022, scores stored, dropout{caveat}", ["", "formula", "size"], rows, "llr")


def _formula(kind: str, t: int, sp: bool) -> str:
    """Table 2 of the paper.

    >>> _formula("none", 1, False), _formula("selective", 8, False), _formula("none", 8, True)
    ('sbh (34 + 5as/h)', 'sbh (10 + 24/t)', 'sbh (34/t + 5as/ht)')
    """
    if kind == FULL:
        return "2 sbh"
    if t == 1:
        linear, scores = "34", " + 5as/h"
    else:
        linear, scores = "34/t" if sp else "10 + 24/t", " + 5as/ht"
    return f"sbh ({linear})" if kind == SELECTIVE else f"sbh ({linear}{scores})"


def _blocks(result: MemoryResult) -> list[tuple[str, Number]]:
    """Phase and peak bytes of every block of the step in turn."""
    return [(moment.phase, high) for moment in result.peak.moments for high in moment.highs()]


def _timeline(result: MemoryResult) -> Table:
    """Drawing of bytes over the step: a column per block of each pass, as far as there is room."""
    blocks = _blocks(result)
    bars = columns([(place, high) for place, (_, high) in enumerate(blocks, 1)], WIDTH, whole_steps=True)
    last_column = {phase: round(place * len(bars) / len(blocks)) for place, (phase, _) in enumerate(blocks, 1)}
    forward = last_column[FORWARD]
    backward = last_column[BACKWARD] - forward
    optimizer = max(len(bars) - last_column[BACKWARD], 0)
    parts = [(forward, "forward"), (backward, "backward"), (optimizer, "optimizer" if optimizer >= len("optimizer") else "")]
    return memory_chart("memory over the step, each layer and pass as wide as the next", bars, result.peak.bytes, parts, _size)


def _charts(result: MemoryResult) -> list[Chart]:
    curve = over_step(result)
    activations = [series for series in curve.series if series.name == "activations"]
    return [curve, *(by_tensor(result, curve, series) for series in activations)]


def by_tensor(result: MemoryResult, curve: LineChart, activations: Series) -> LineChart:
    """Chart of the activations of ``curve``: the largest tensors that wait for their backward pass, others, and the running operation's."""
    saved = [moment.saved_in(index) for moment in result.peak.moments for index in range(moment.count)]
    names = dict.fromkeys(name for tensors in saved for name in tensors)
    sizes = {name: [float(tensors.get(name, 0)) for tensors in saved] for name in names}
    ordered = sorted(sizes, key=lambda name: -max(sizes[name]))
    areas = {name: sizes[name] for name in ordered[:LARGEST]}
    areas["other saved tensors"] = [sum(sizes[name][place] for name in ordered[LARGEST:]) for place in range(len(saved))]
    areas["operation at work"] = _remainder([float(y) for _, y in activations.points], areas)
    series = _areas(areas)
    marks = [replace(mark, y=None, label="memory peaks") if mark.y else mark for mark in curve.marks]
    return replace(
        curve, title="Activations over the step, by tensor", y_label="activations", series=series, marks=marks, limits=[], caption=""
    )


def _remainder(totals: Sequence[float], parts: Mapping[str, Sequence[float]]) -> list[float]:
    """What ``parts`` leave of ``totals``, place by place, but not below 0."""
    return [max(total - sum(values[place] for values in parts.values()), 0.0) for place, total in enumerate(totals)]


def _areas(parts: Mapping[str, Sequence[float]]) -> list[Series]:
    """A series per part that is not empty, by block of the step."""
    return [Series(name, list(enumerate(values, 1)), "area") for name, values in parts.items() if any(values)]


def over_step(result: MemoryResult) -> LineChart:
    """Chart of the peak bytes of every block of the step by part, with the peak marked.

    Gradients between two moments with known ones are interpolated linearly, as equal layers add equal amounts.
    """
    import numpy as np

    blocks = _blocks(result)
    totals = [float(high) for _, high in blocks]
    peak = max(totals)
    marks = [Mark(totals.index(peak) + 1, f"peak {_size(peak, 3)}", peak)]
    phases = [phase for phase, _ in blocks]
    if BACKWARD in phases:
        marks.append(Mark(phases.index(BACKWARD) + 1, f"{BACKWARD} begins"))
    limits, caption = list[Limit](), ""
    if result.capacity and result.capacity > FAR * result.peak.bytes:  # a line far above would leave no room below
        caption = f"{result.device.name} has {_size(result.capacity, 3)}, far above."
    elif result.capacity:
        limits = [Limit("capacity", result.capacity)]
    fullest_blocks, begin = list[int](), 0
    for moment in result.peak.moments:
        highs = list(map(float, moment.highs()))
        fullest_blocks.append(begin + highs.index(max(highs)))
        begin += len(highs)
    known_gradients = [float(moment.gradients) for moment in result.peak.moments]
    gradients = np.interp(range(len(blocks)), fullest_blocks, known_gradients)
    state = result.peak.state
    parts = {
        "weights": [float(state.weights)] * len(blocks),
        "optimizer state": [float(state.optimizer)] * len(blocks),
        "gradients": [float(size) for size in gradients],
    }
    parts["activations"] = _remainder(totals, parts)
    title, x = "Memory over the step", "block of the step: layers forward, then back"
    return LineChart(title, x, "memory", _areas(parts), "count", "B", "linear", "linear", marks, limits, caption)


def _notes(result: MemoryResult) -> list[str]:
    training = result.training
    notes = [
        f"Activations are those of --model-code {result.implementation.name}: {result.implementation.title}.",
        "The peak is all that is allocated at the worst moment, as an allocator's maximum reports it; neither the context of the driver "
        "nor what an allocator holds in reserve.",
        f"Configuration: {training.model.source}.",
    ]
    if result.implementation.name == HUGGINGFACE:
        notes.append(f"With {_size(WORKSPACES)} of cuBLAS's workspaces on Hopper; no KV cache; the logits go with the model's output.")
        if training.precision == MIXED:
            modules = "Its modules hold 16-bit weights, the optimizer master weights"
            notes.append(f"{modules}: torch.autocast over fp32 weights keeps other tensors.")
    longest = training.model.max_positions
    if longest is not None and training.n > longest:
        notes.append(f"{training.n:,} tokens are more than the {longest:,} that {training.model.name} was made for.")
    notes += shared_notes(training)
    if training.lora is not None:
        targets = "Q and V" if training.lora_targets == "qv" else "all matrices of attention"
        if training.lora_targets == ALL:
            targets += " and MLP, experts without adapters" if training.model.is_moe else " and MLP"
        notes.append(f"Adapters on {targets}; a frozen matrix keeps no input, and frozen weights have no gradient and no state.")
    if training.flash and training.recompute.kind == SELECTIVE:
        notes.append("With FlashAttention selective recomputation frees the logsumexp only: scores are never stored.")
    return [*notes, *_parallel_notes(training), *unread_notes(training.model)]


def shared_notes(t: TrainingConfig) -> list[str]:
    """Notes on GPUs with fewer sequences than others, and on tokens per expert."""
    notes = []
    if t.batch % t.parallel.dp:
        idle = f"; {t.parallel.dp - t.batch:,} of them have none" if t.batch < t.parallel.dp else ""
        fullest = f"the fullest GPUs have {t.sequences * t.micro_batches:,}, and the others wait{idle}"
        notes.append(f"--dp {t.parallel.dp} does not divide the batch of {t.batch:,}: {fullest}.")
    if t.model.is_moe:
        notes.append("Every expert is taken to get as many tokens as any other.")
    return notes


def _parallel_notes(training: TrainingConfig) -> Iterator[str]:
    p = training.parallel
    if p.zero and p.dp * p.cp == 1:
        yield f"--zero {p.zero} divides nothing among one GPU: give --dp."
    if p.zero == 3:
        yield "With ZeRO's third stage the weights of one layer at a time are put together for a while; they count where they are used."
    if p.cp > 1:
        blocks = "Blocks of K and V on their way around the ring are not counted"
        yield f"Context-parallel GPUs keep their part of each sequence; ZeRO divides state among them too, as Megatron-LM does. {blocks}."
    if p.pp > 1:
        yield "1F1B: the first stage holds as many micro-batches as there are stages, and more with interleaving. What is sent on is freed."
    if training.micro_batches > 1:
        yield f"{format_count(int(training.micro_batches))} micro-batches per GPU: later ones meet the gradients of earlier ones."
    if training.recompute.kind != NONE and not training.flash:
        yield "What is recomputed stands in memory once more while its backward pass runs."
