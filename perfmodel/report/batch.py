"""The report of throughput against batch: one row per batch, the knee, what bounds each side, where memory ends."""

from __future__ import annotations

from perfmodel.report.against import Side, against, ratio_notes
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.model import gpus_of, inputs_of, least, most, weights_notes
from perfmodel.report.op_common import head
from perfmodel.report.power import of_power, power_note
from perfmodel.transformer.estimate import CONVENTION
from perfmodel.transformer.generation import PAYS, BatchPoint, Curve

PARTS = ("time_s.parts.weights", "time_s.parts.KV cache", "time_s.parts.compute")
COLUMNS = (
    "batch",
    "tokens_per_s",
    "tpot_s",
    "time_s.lower",
    "time_s.predicted",
    *PARTS,
    "power_w",
    "energy_per_token_j",
    "memory_bytes",
    "bound",
)


def report(found: Curve) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.batch/1."""
    r = found.request
    title = f"{r.model.name}: decode at {r.kv_len:,} tokens against the batch, {r.dtype.name} on {gpus_of(r)}"
    summary, points = _summary(found), [_metrics(point, found) for point in found.points]
    inputs = {key: value for key, value in inputs_of(r).items() if key not in ("batch", "n", "phase", "kv_cache")}
    data = {
        **head("batch", inputs, r.device),
        "results": list(map(as_json, points)),
        "knee": found.knee,
        "max_batch": found.max_batch,
        "bound": {"smallest": found.points[0].bound, "largest": found.points[-1].bound},
    }
    return Report(title, summary, [as_rows("", points, labels=COLUMNS)], _notes(found) + ratio_notes(summary), data)


def _metrics(point: BatchPoint, found: Curve) -> list[Metric]:
    step, cost = point.step, point.step.cost
    seconds, low, high = step.prediction or (None, None, None)
    return [
        Metric("batch", point.batch, "batch", after=" knee" if point.batch == found.knee else ""),
        Metric("time_s.lower", cost.lower_s, "bound", "s"),
        Metric("time_s.lower_warm", cost.lower_warm_s, unit="s"),
        Metric("time_s.roofline", cost.roofline_s, unit="s"),
        Metric("time_s.predicted", seconds, "predicted", "s", low, high),
        Metric("time_s.at_least", step.seconds, unit="s"),
        *(Metric(f"time_s.parts.{name}", part, name, "s") for name, part in point.parts.items()),
        Metric("tokens_per_s", point.tokens_per_s, "tokens/s", "", before=most(step.times_from)),
        Metric("tokens_per_s_bound", point.batch / cost.lower_s),
        Metric("tpot_s", step.seconds, "per step", "s", before=least(step.times_from)),
        Metric("times_from", step.times_from),
        Metric("bound", point.bound, "filled by", "text"),
        Metric("mfu", step.mfu, unit="share"),
        Metric("flop_convention", CONVENTION),
        Metric("memory_bytes", point.memory, "memory", "B", after=" (too much)" if point.fits is False else ""),
        Metric("fits", point.fits),
        *of_power(step.power),
        *([] if step.power is None else [Metric("energy_per_token_j", step.power.joules / step.tokens, "per token", "J")]),
    ]


def _summary(found: Curve) -> list[str]:
    """Time of a token at the largest batch against the smallest, where more stops paying, and what fills a step."""
    first, last = found.points[0], found.points[-1]
    verb = "fill" if first.bound == "weights" else "fills"
    sides = f"{first.bound} {verb} most of the step at batch 1, {last.bound} at batch {last.batch:,}"
    sides = f"{sides[:1].upper()}{sides[1:]}."
    if found.max_batch == 0:
        return ["It does not fit, whatever the batch.", sides]
    if found.knee is None:
        stops = f"By the bound, more batch pays until memory ends at {last.batch:,}"
    else:
        ends = "" if found.max_batch is None else f"; memory ends at {found.max_batch:,}"
        stops = f"By the bound, more batch stops paying at {found.knee:,}{ends}"
    slower = f"; a step takes {last.step.seconds / first.step.seconds:.3g}x as long"
    step = slower if first.step.prediction and last.step.prediction else ""
    return [f"Per token, {against(_side(first), _side(last))}{step}. {stops}. {sides}"]


def _side(point: BatchPoint) -> Side:
    """Seconds per token."""
    known = point.step.prediction
    time = None if known is None else Interval(*(float(seconds) / point.batch for seconds in known))
    return Side(f"batch {point.batch:,}", float(point.step.cost.roofline_s) / point.batch, time)


def _notes(found: Curve) -> list[str]:
    words = [
        f"Knee: the batch from which twice the batch brings less than {PAYS:.3g}x the tokens/s, by the lower bound.",
        "Weights and KV cache: their bytes at DRAM bandwidth; compute: needed FLOP at the highest clock. Per GPU, for one step.",
        *weights_notes(found.request),
    ]
    missing = [row.missing for point in found.points for row in point.step.rows if row.prediction is None]
    if any(point.step.prediction is None for point in found.points):
        words.append(f"At least, at most: the roof stands for rows of the step of which no time is predicted: {missing[0]}.")
    words += power_note(found.points[0].step.power)
    if found.max_batch is None:
        words.append(f"The profile of {found.request.device.id} has no DRAM capacity: where memory ends is unknown.")
    return words
