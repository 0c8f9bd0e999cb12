"""Tables and sentences of the report of a whole model."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.counts import BOUND_WORDS
from perfmodel.report.document import Table
from perfmodel.report.model_formats import format_notes
from perfmodel.report.operation import unknown_rates
from perfmodel.timing.base import find_model
from perfmodel.transformer.answer import Answer, Line
from perfmodel.transformer.estimate import MIXED, PREDICTED, ROOF
from perfmodel.transformer.in_step import MODEL as STEP_MODEL
from perfmodel.transformer.in_step import launch_saving_s
from perfmodel.transformer.op import ATTENTION, COLLECTIVE, MATMUL
from perfmodel.transformer.parallel import joined_gpus
from perfmodel.transformer.request import GENERATE, Request
from perfmodel.transformer.step import DECODE, PREFILL


def moved_bytes(line: Line) -> Number:
    """DRAM traffic of a row; of a collective its buffers."""
    op = line.row.op
    return op.kernel.bytes(READ) * line.count if op.group == COLLECTIVE else line.cost.dram.total


def share(line: Line, found: Answer) -> float:
    """Part of the whole time, both of predictions as far as there are some, of roofs elsewhere."""
    return line.seconds / found.seconds


def least(times_from: str) -> str:
    """What goes before a time in which roofs stand for predictions."""
    return "" if times_from == PREDICTED else "at least "


def most(times_from: str) -> str:
    """What goes before a rate at such a time."""
    return "" if times_from == PREDICTED else "at most "


TIMES = {PREDICTED: "predicted", ROOF: "roof", MIXED: "predicted; roof where nothing is calibrated"}
"""Of what a time is made, in words."""


def verdict(found: Answer) -> list[str]:
    """How long, what for, how near to the bound, and whether it fits."""
    r, cost, made = found.request, found.cost, found.times_from
    largest = max(found.lines, key=lambda line: share(line, found))
    what = {PREFILL: "Prefill", DECODE: "A decode step", GENERATE: "Generation"}[r.phase]
    known = "" if found.prediction is None else f", {format_time(found.prediction[1], 3)} to {format_time(found.prediction[2], 3)}"
    memory = found.memory
    verb = "would take" if memory.fits is False else "takes"
    took = f"{verb} {least(made)}{format_time(found.seconds)} ({TIMES[made]}{known})"
    bound = f"the bound is {format_time(cost.lower_s)}; the largest term of the roof is {BOUND_WORDS.get(cost.bound or '', 'unknown')}"
    rate = f"{most(made)}{format_si(found.tokens_per_s)} tokens/s, MFU {most(made)}{100 * found.mfu:.3g} %{_peaks(found)}"
    sentence = f"{what} {took}; {bound}. {rate[:1].upper()}{rate[1:]}. {largest.row.op.name} takes {100 * share(largest, found):.3g} %."
    if memory.fits is not False:
        return [sentence]
    held = f"{format_si(memory.total, 'B')} of {format_si(memory.capacity or 0, 'B')} per GPU"
    return [f"It does not fit: {held}; {_spare(found)}. Times are those of a GPU with more memory.", sentence]


def _peaks(found: Answer) -> str:
    """Of which peaks the MFU is a share, where it is not that of the activations' format alone."""
    names = list(found.mfu_peaks)
    return (
        ""
        if names == [found.request.dtype.name]
        else f" of the {' and '.join(names)} peaks"
        if len(names) > 1
        else f" of the {names[0]} peak"
    )


def _spare(found: Answer) -> str:
    """What would fit instead."""
    r, memory = found.request, found.memory
    if memory.max_batch:
        return f"batch {memory.max_batch:,} would fit"
    if memory.weights >= (memory.capacity or 0):
        return "the weights alone are too large"
    return f"beside the weights not even one sequence of {max(r.n, r.kv_len):,} tokens fits"


def ops_table(found: Answer) -> Table:
    """One row per op, with the phase where there are two."""
    columns = ["op", "count", "FLOP", "bytes", "lower", "predicted", "of bound", "share", "source"]
    phases = {line.phase for line in found.lines}
    rows = [_ops_row(line, found, len(phases) > 1) for line in found.lines]
    return Table("", columns, rows, "lrrrrrrrl")


def _ops_row(line: Line, found: Answer, with_phase: bool) -> list[str]:
    op, cost, times, p = line.row.op, line.cost, line.times, line.row.prediction
    known = p is not None and times is not None
    return [
        f"{line.phase}: {op.name}" if with_phase else op.name,
        format_count(line.count),
        format_si(cost.flops, "FLOP") if op.group in (MATMUL, ATTENTION) else "-",
        format_si(moved_bytes(line), "B"),
        format_time(cost.lower_s),
        format_time(times[0]) if times else "-",
        f"{100 * cost.lower_s / times[0]:.3g} %" if times else "-",
        f"{100 * share(line, found):.3g} %",
        f"{p.calibration.implementation}, {p.kind}" if known and p else f"roof, {format_time(line.seconds)}",
    ]


def totals_table(found: Answer) -> Table:
    """Sums over all rows, and the times and rates that follow."""
    cost, known, made = found.cost, found.prediction, found.times_from
    predicted = "-" if known is None else f"{format_time(known[0])} ({format_time(known[1], 3)} to {format_time(known[2], 3)})"
    rows = [
        ["FLOP", format_si(cost.flops, "FLOP")],
        ["DRAM traffic", format_si(cost.dram.total, "B")],
        ["lower bound", format_time(cost.lower_s)],
        ["  caches warm from the step before", format_time(cost.lower_warm_s)],
        ["roofline", format_time(cost.roofline_s)],
        ["predicted", predicted],
        *([["  roof where nothing is calibrated", f"at least {format_time(found.seconds)}"]] if made == MIXED else []),
        ["time to the first token", "-" if found.ttft_s is None else least(made) + format_time(found.ttft_s)],
        ["time per output token", "-" if found.tpot_s is None else least(made) + format_time(found.tpot_s)],
        ["tokens/s", most(made) + format_si(found.tokens_per_s)],
        ["MFU", f"{most(made)}{100 * found.mfu:.3g} %"],
    ]
    return Table("totals" + (" (times as if it fitted)" if found.memory.fits is False else ""), ["", found.request.phase], rows)


def memory_table(found: Answer) -> Table:
    """What lies in memory, and how large a batch would fit."""
    memory = found.memory
    known = [("weights", memory.weights), ("KV cache", memory.kv_cache), ("activations", memory.activations), ("total", memory.total)]
    rows = [[name, format_si(size, "B")] for name, size in known]
    if memory.capacity is not None:
        rows.append(["capacity", format_si(memory.capacity, "B")])
        rows.append(["largest batch", format_count(memory.max_batch or 0)])
    return Table("memory per GPU", ["", "bytes"], rows)


def notes(found: Answer) -> list[str]:
    """What the numbers rest on."""
    r, words = found.request, []
    words.append(
        "Lower: each row a kernel of its own with operands in DRAM. Rows are sums over their runs"
        + (", of one GPU per stage." if r.split.gpus > 1 else ".")
    )
    words.append(
        "Time to the first token: the prefill. Time per output token: one decode step, which gives a token to every sequence"
        + ("; here the mean over the steps." if r.phase == GENERATE else ".")
    )
    longest = r.model.max_positions
    if longest is not None and max(r.n, r.kv_len) > longest:
        words.append(f"{r.model.name} was made for at most {longest:,} tokens.")
    if not r.cached:
        words.append("Without a KV cache a step computes all tokens so far anew.")
    if r.model.is_moe:
        words.append("Experts touched are the mean over batches whose tokens pick experts alike and independently.")
    return [*words, *format_notes(found), *_prediction_notes(found), *_split_notes(r), *unknown_rates([found.cost], r.device)]


def _prediction_notes(found: Answer) -> list[str]:
    r, words = found.request, []
    missing = list(dict.fromkeys(f"{line.row.op.name} ({line.row.missing})" for line in found.lines if line.row.prediction is None))
    if missing:
        reasons = f"{'; '.join(missing[:3])}{'; ...' if len(missing) > 3 else ''}"
        words.append(f"No total is predicted: {reasons}. The roof stands for those rows, so times are the least and rates the most.")
    graphs = [phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE) and r.in_graph(phase)]
    within = found.steps[0][0].within
    if graphs and within.block is None and launch_saving_s(r.device) is None:
        words.append(f"The profile of {r.device.id} has no launch overhead in graphs: kernels are timed as launched one by one.")
    elif graphs and (saving := within.saving_s(graph=True)):
        words.append(f"CUDA graph in {' and '.join(graphs)}: each kernel takes {format_time(saving)} less than timed alone.")
    if within.block is not None:
        where = "here" if within.own else "on another architecture"
        words.append(f"What kernels take in a step beside alone was calibrated {where}, on {within.block.points} steps.")
    if len(graphs) < len([phase for phase in (PREFILL, DECODE) if r.phase in (phase, GENERATE)]):
        words.append("Launched one by one: the host is taken to keep ahead of the device.")
    if found.prediction is not None:
        words.append(f"Assumed: {find_model(STEP_MODEL).assumes}.")
    return words


def _split_notes(r: Request) -> list[str]:
    words = []
    most = joined_gpus(r.device)
    if r.split.gpus > most:
        words.append(
            f"{r.split.gpus:,} GPUs are more than the {most} that the links of {r.device.name} join: exchanges are timed over those links "
            "all the same, and take longer over a network."
        )
    if r.split.tp > 1:
        words.append("Tensor parallel: two all-reduces per layer, ring or tree, whichever is faster; bound by a buffer per link.")
    if r.split.ep > 1:
        words.append("Expert parallel: groups divide the sequences; two all-to-alls per layer of experts carry tokens there and back.")
    if r.split.pp > 1:
        words.append("Pipeline: stages one after the other; several batches in flight would give more tokens/s, none of them sooner.")
    return words
