"""The report of throughput over batch size: a row per batch, the knee, what bounds each side, and where memory ends."""

from __future__ import annotations

from perfmodel.core.units import format_time
from perfmodel.report.answer import fit_phrase, upper_first
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.document import SCREEN_ROWS, Figure, Meter, Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.model import formats_of, gpus_of, inputs_of, kernels_note, split_of, weights_notes
from perfmodel.report.model_words import TIMES, at_least, at_most
from perfmodel.report.op_common import head, with_steps
from perfmodel.report.power import of_power, power_note, with_power
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import Side, ratio_notes, verdict_sentence
from perfmodel.report.step import StepPart, as_time, step_meters, tokens
from perfmodel.transformer.estimate import CONVENTION, PREDICTED
from perfmodel.transformer.generation import PAYS, BatchPoint, Curve
from perfmodel.transformer.parallel import smallest_split
from perfmodel.transformer.step import DECODE

PARTS = ("time_s.parts.weights", "time_s.parts.KV cache", "time_s.parts.compute")
BRIEF = ("batch", "tokens_per_s", "tpot_s", "time_s.lower", "sustained.energy_per_token_j", "memory_bytes", "bound")
COLUMNS = (
    *("batch", "tokens_per_s", "tpot_s", "time_s.lower", "time_s.predicted", *PARTS),
    *("sustained.power_w", "sustained.energy_per_token_j", "memory_bytes", "bound"),
)


def report(curve: Curve, *, explained: bool = False, pictures: bool = False) -> Report:
    """``curve`` as a Report with data of schema perfmodel.batch/1. Formulas are of the step at the knee, else the fastest."""
    r = curve.request
    title = f"{r.model.name}: decode at {r.kv_len:,} tokens by batch, {formats_of(r)} on {gpus_of(r)}"
    points = [_metrics(point, curve) for point in curve.points]
    inputs = {key: value for key, value in inputs_of(r).items() if key not in ("batch", "n", "phase", "kv_cache")}
    data = {
        **head("batch", inputs, r.device),
        "results": list(map(as_json, points)),
        "knee": curve.knee,
        "max_batch": curve.max_batch,
        "bound": {"smallest": curve.points[0].bound, "largest": curve.points[-1].bound},
    }
    reasons, (metered, meters) = _reasons(curve), _metered(curve)
    plain = Report(
        title,
        _verdict(curve),
        [as_rows("", points, labels=COLUMNS)],
        _notes(curve) + ratio_notes(reasons),
        data,
        charts=[_curve(curve)] if pictures else [],
        meters=meters,
        metered=metered,
        figures=_figures(curve),
        brief=[as_rows("", [points[place] for place in _listed(curve)], labels=BRIEF)],
        reasons=reasons,
    )
    if not explained:
        return plain
    from perfmodel.transformer.explain import explain

    at_knee = _at_knee(curve)
    return with_steps(plain, [(f"decode of batch {at_knee.batch}", {"batch": at_knee.batch}, explain(at_knee.step.steps[0][0]))])


def _metrics(point: BatchPoint, curve: Curve) -> list[Metric]:
    step, cost = point.step, point.step.cost
    seconds, low, high = step.prediction or (None, None, None)
    at_roof = all(other.step.times_from != PREDICTED for other in curve.points)  # the head of a column says so then
    return [
        Metric("batch", point.batch, "batch", after=" knee" if point.batch == curve.knee else ""),
        Metric("time_s.lower", cost.lower_s, "lower bound", "s"),
        Metric("time_s.lower_warm", cost.lower_warm_s, unit="s"),
        Metric("time_s.roofline", cost.roofline_s, unit="s"),
        Metric("time_s.predicted", seconds, "predicted", "s", low, high),
        Metric("time_s.at_least", step.seconds, unit="s"),
        *(Metric(f"time_s.parts.{name}", part, name, "s") for name, part in point.parts.items()),
        Metric("tokens_per_s", point.tokens_per_s, f"tokens/s{', at most' * at_roof}", before="" if at_roof else at_most(step.times_from)),
        Metric("tokens_per_s_bound", point.batch / cost.lower_s),
        Metric("tpot_s", step.seconds, f"per step{', at least' * at_roof}", "s", before="" if at_roof else at_least(step.times_from)),
        Metric("times_from", step.times_from),
        Metric("bound", point.bound, "bound by", "text"),
        Metric("mfu", step.mfu, unit="share"),
        Metric("flop_convention", CONVENTION),
        Metric("memory_bytes", point.memory, "memory", "B", after=" (too much)" if point.fits is False else ""),
        Metric("fits", point.fits),
        *of_power(step.power),
        *([] if step.power is None else [Metric("sustained.energy_per_token_j", step.power.joules / step.tokens, "per token", "J")]),
    ]


LIMITS = {"weights": "reading weights", "KV cache": "reading the KV cache"}
"""Phrases for the traffic that fills a step."""


def _verdict(curve: Curve) -> list[str]:
    """Verdict: how many sequences fit, where more stop paying, and what fills a step."""
    name = "knee at batch" if curve.knee else "most tokens/s at batch"
    start = f"With more memory, {name}" if curve.max_batch == 0 else upper_first(name)
    first, last = curve.points[0], curve.points[-1]
    limit, limit_at_last = LIMITS.get(first.bound, first.bound), LIMITS.get(last.bound, last.bound)
    limits = f"{limit} at every batch"
    if limit != limit_at_last:
        limits = f"{limit} at batch 1, by {limit_at_last} at batch {last.batch:,}"
    return [_fitting(curve), f"{start} {_at_knee(curve).batch:,}: {rates(curve)}.", f"Limited by {limits}."]


def rates(curve: Curve) -> str:
    """Sentence on tokens/s and step time at the knee, and on the highest tokens/s if another batch has them."""
    knee = _at_knee(curve)
    source = knee.step.times_from
    rate = f"{at_most(source)}{tokens(knee.tokens_per_s)}, {format_time(knee.step.seconds, 3)} a step"
    if source != PREDICTED:
        return f"{rate} or more"
    if curve.best is knee or curve.max_batch == 0:
        return rate
    return f"{rate}; best {tokens(curve.best.tokens_per_s)} at {curve.best.batch:,}"


def _fitting(curve: Curve) -> str:
    r, last = curve.request, curve.points[-1]
    gpu = " per GPU" if r.split.gpus > 1 else ""
    if curve.max_batch is None:
        return f"Whether it fits is unknown: the profile of {r.device.id} has no capacity."
    if curve.max_batch:
        return f"Fits up to batch {curve.max_batch:,}: {fit_phrase(last.memory, r.device).partition(': ')[2]}{gpu}."
    split = smallest_split(r.model, r.step(DECODE), r.device, r.reserve)
    needs = fit_phrase(curve.points[0].memory, r.device).partition(": ")[2]
    return f"Does not fit even at batch 1: {needs}{gpu}{f'; {split_of(split)} would fit' if split else ''}."


def _at_knee(curve: Curve) -> BatchPoint:
    """The point at the knee, else the one with the highest rate."""
    return next((point for point in curve.points if point.batch == curve.knee), curve.best)


def _figures(curve: Curve) -> list[Figure]:
    knee, source = _at_knee(curve), _at_knee(curve).step.times_from
    return [
        Figure("knee" if curve.knee else "most tokens/s", f"batch {knee.batch:,}"),
        Figure("throughput there", f"{at_most(source)}{tokens(knee.tokens_per_s)}"),
        Figure("time per output token there", as_time(knee.step.seconds, knee.step.prediction, at_least(source))),
        Figure("best throughput", f"{at_most(source)}{tokens(curve.best.tokens_per_s)} at batch {curve.best.batch:,}"),
        Figure("largest batch", "unknown" if curve.max_batch is None else f"{curve.max_batch:,}"),
    ]


def _reasons(curve: Curve) -> list[str]:
    """Sentences on the time of a token at the largest batch against the smallest."""
    first, last = curve.points[0], curve.points[-1]
    slower = f"; a step takes {last.step.seconds / first.step.seconds:.3g}x as long"
    step = slower if first.step.prediction and last.step.prediction else ""
    return [f"Per token, {verdict_sentence(_side(first), _side(last))}{step}."] if first is not last else []


def _metered(curve: Curve) -> tuple[str, list[Meter]]:
    """Name of the step at the knee, and its meters."""
    knee = _at_knee(curve)
    rows = [StepPart(row.op.name, row.op, row.cost, row.interval, row.seconds) for row in knee.step.rows]
    meters = step_meters(knee.step.cost, rows, knee.step.seconds)
    return f"step at batch {knee.batch:,}", with_power(meters, knee.step.power, knee.step.tokens)


def _listed(curve: Curve) -> list[int]:
    """Places of the points in the short table: among them the ends, the knee and the best."""
    shown = {0, len(curve.points) - 1, curve.points.index(_at_knee(curve)), curve.points.index(curve.best)}
    others = [place for place in range(len(curve.points)) if place not in shown]
    room = min(SCREEN_ROWS - len(shown), len(others))
    evenly_spaced = [others[index * len(others) // room] for index in range(room)]
    return sorted({*shown, *evenly_spaced})


def _curve(curve: Curve) -> LineChart:
    """Chart of tokens/s against step time, predicted and at the bound."""
    predicted = [(point.step.seconds, point.tokens_per_s) for point in curve.points]
    bound = [(float(point.step.cost.lower_s), point.batch / float(point.step.cost.lower_s)) for point in curve.points]
    name = TIMES[curve.points[0].step.times_from]
    series = [Series(name, sorted(predicted)), Series("lower bound", sorted(bound), "dashed")]
    last = curve.points[-1].batch
    labels = {curve.points[0].batch: "batch 1", last: f"batch {last:,}"}
    if curve.best.batch < last:
        labels[curve.best.batch] = f"best at {curve.best.batch:,}"
    if curve.max_batch:
        labels[curve.max_batch] = f"memory ends at {curve.max_batch:,}"
    if curve.knee:
        labels[curve.knee] = f"knee at {curve.knee:,}"
    marks = [Mark(point.step.seconds, labels[point.batch], point.tokens_per_s) for point in curve.points if point.batch in labels]
    return LineChart("Tokens per second against time per step", "time per step", "tokens per second", series, "s", "tokens/s", marks=marks)


def _side(point: BatchPoint) -> Side:
    """Time per token as one side of a comparison."""
    prediction = point.step.prediction
    time = None if prediction is None else Interval(*(float(seconds) / point.batch for seconds in prediction))
    return Side(f"batch {point.batch:,}", float(point.step.cost.roofline_s) / point.batch, time)


def _notes(curve: Curve) -> list[str]:
    words = [
        f"Knee: the batch from which twice the batch brings less than {PAYS:.3g}x the tokens/s, by the lower bound; "
        "no larger than the one with most tokens/s.",
        "Weights and KV cache: their bytes at DRAM bandwidth; compute: needed FLOP at the highest clock. Per GPU, for one step.",
        kernels_note(curve.request),
        *weights_notes(curve.request),
    ]
    missing = [row.missing for point in curve.points for row in point.step.rows if row.prediction is None]
    if any(point.step.prediction is None for point in curve.points):
        words.append(f"At least, at most: the roof stands for rows of the step of which no time is predicted: {missing[0]}.")
    if curve.max_batch is not None and not curve.request.reserve:
        words.append("Nothing is held back as an engine does: --reserve 8GB would; perfmodel serve knows what each leaves free.")
    words += power_note(curve.points[0].step.power)
    if curve.max_batch is None:
        words.append(f"The profile of {curve.request.device.id} has no DRAM capacity: where memory ends is unknown.")
    return words
