"""The report of a profiled program: how busy the device is, its kernels beside the best known ones, possible gains, other devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from perfmodel.core.frozen import dataclass
from perfmodel.core.units import format_binary, format_time
from perfmodel.program.answer import OnDevice, ProgramAnswer
from perfmodel.program.calls import Operand, shown
from perfmodel.program.capture import PLAN_S, Captured, plans_attention
from perfmodel.program.gains import Gain, gains
from perfmodel.program.price import OperatorGroup, Priced
from perfmodel.report.answer import headline, time_text, upper_first
from perfmodel.report.charts.format_number import between, percent
from perfmodel.report.charts.schema import Bar, BarChart, Chart
from perfmodel.report.document import Figure, KernelSpan, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, seconds
from perfmodel.report.op_common import head
from perfmodel.report.saved import Interval
from perfmodel.transformer.op import ATTENTION, COLLECTIVE, MATMUL

LISTED, DRAWN = 40, 24
"""Most operators of the table, and of the roofline."""
ALIKE = 0.7
"""Least share of common operators and shapes in another profile's time for it to count as the same program."""
ON_SCREEN = 4
"""Most rows of each table on a screen."""
FAMILIES = {MATMUL: "products", ATTENTION: "attention", COLLECTIVE: "collectives"}
"""Names of families of operators; all others pass over memory."""
PASSES, UNKNOWN = "passes over memory", "not known"
SAME = 0.02
"""Relative difference up to which times of an operator are the same."""


def report(
    answer: ProgramAnswer,
    name: str,
    moved: Sequence[OnDevice],
    prices: Mapping[str, float],
    other: ProgramAnswer | None = None,
    other_name: str = "",
    *,
    pictures: bool = False,
) -> Report:
    """``answer`` as a Report with data of schema perfmodel.trace/1.

    ``moved``: the program on other devices; ``prices``: of an hour by device. ``other``: a profile to compare with, called ``other_name``.
    """
    rows = {id(row.group): row for row in answer.priced}
    operators = [operator_metrics(group, rows.get(id(group))) for group in answer.groups]
    metrics = step_metrics(answer)
    if answer.captured is not None:
        operators = list(map(_unmeasured, operators))
        metrics = [*_unmeasured(metrics), *_captured(answer, answer.captured)]
    won = gains(answer)
    gained = [
        [
            Metric("what", gain.what, "what can be won", "text"),
            Metric("seconds", gain.seconds, "of a step", "s"),
            Metric("why", gain.why, "why", "text"),
        ]
        for gain in won
    ]
    devices = [_device(elsewhere, prices) for elsewhere in moved]
    changes = changes_of(answer, other) if other is not None else []
    asked_tables = [
        *([as_rows("on other devices", devices)] if devices else []),
        *([changes_table(changes, other_name)] if changes else []),
    ]
    more = [
        *([as_rows("what can be won, parts of it twice", gained)] if gained else []),
        as_rows("operators of a step", operators[:LISTED]),
    ]
    tables = [*asked_tables, *more]
    brief = [*asked_tables, *(replace(table, rows=table.rows[:ON_SCREEN]) for table in (more[:1] if asked_tables else more))]
    data = {
        **head("trace", {"file": name}, answer.device),
        **as_json(metrics),
        "operators": list(map(as_json, operators)),
        "gains": list(map(as_json, gained)),
        "devices": list(map(as_json, devices)),
    }
    if changes:
        data["changes"] = [as_json(change.metrics) for change in changes]
    return Report(
        f"Program {PurePath(name).name} on {answer.device.name}",
        _headline(answer, won, moved, other, other_name),
        tables,
        _notes(answer),
        data,
        charts=_charts(answer) if pictures else [],
        figures=_figures(answer, moved),
        brief=brief,
        reasons=[f"{upper_first(_best_of(elsewhere, answer))}; the host launches each kernel when it did." for elsewhere in moved],
        timeline=_timeline(answer),
    )


def _timeline(answer: ProgramAnswer) -> list[KernelSpan]:
    """Timeline of measured kernels, and of predicted operators one after another."""
    predicted = {row.group.call: row.prediction for row in answer.predicted}
    spans, now = [KernelSpan(kernel.name, "measured", kernel.start_s, kernel.seconds) for kernel in answer.profile.kernels], 0.0
    for operator in answer.profile.operators:
        prediction = predicted.get(operator.call)
        if prediction is not None:
            kernel = {"kernel": prediction.calibration.implementation}
            spans.append(KernelSpan(operator.call.name, "predicted", now, prediction.seconds, kernel))
            now += prediction.seconds
    return spans


# Numbers


MEASURED = frozenset(("span_s", "busy_s", "idle_share", "known_share", "predicted_share", "measured_s", "compared_s", "gain_s"))
"""Keys of metrics that need a measured time, like the waits."""


def _unmeasured(metrics: Sequence[Metric]) -> list[Metric]:
    """``metrics`` without measured values, for a captured program."""
    hidden = {metric.key for metric in metrics if metric.key in MEASURED or metric.key.startswith("waits_s.")}
    return [metric._replace(value=None, label="") if metric.key in hidden else metric for metric in metrics]


def _captured(answer: ProgramAnswer, captured: Captured) -> list[Metric]:
    fastest, usual, slowest = captured.launch_s
    low, high = answer.step_ends_s
    return [
        Metric("step.predicted_s", answer.step_s, unit="s", low=low, high=high),
        Metric("launch.usual_s", usual, unit="s", low=fastest, high=slowest),
        Metric("peak_bytes", captured.peak_bytes, unit="B"),
        Metric("before_bytes", captured.before_bytes, unit="B"),
    ]


def step_metrics(answer: ProgramAnswer) -> list[Metric]:
    """Metrics of a step: its time, idle time, kernels, and what is known and predicted of them."""
    return [
        Metric("steps", answer.profile.steps),
        Metric("span_s", answer.step_s, unit="s"),
        Metric("busy_s", answer.profile.busy_s / answer.profile.steps, unit="s"),
        Metric("idle_share", 1 - answer.profile.busy_s / answer.profile.span_s if answer.profile.span_s else 0.0, unit="share"),
        *(Metric(f"waits_s.{cause}", waited, unit="s") for cause, waited in answer.waits.items()),
        Metric("kernels", sum(len(operator.kernels) for operator in answer.profile.operators) / answer.profile.steps),
        Metric("known_share", answer.known_share, unit="share"),
        Metric("predicted_share", answer.predicted_share, unit="share"),
        Metric("measured_s", answer.measured_s, unit="s"),
        Metric("compared_s", answer.compared_s, unit="s"),
        Metric("predicted_s", answer.predicted_s(), unit="s"),
        Metric("low_s", answer.predicted_s("low"), unit="s"),
        Metric("high_s", answer.predicted_s("high"), unit="s"),
        Metric("lower_s", answer.lower_s, unit="s"),
    ]


def operator_metrics(group: OperatorGroup, priced: Priced | None) -> list[Metric]:
    """Metrics of an operator: measured and predicted time, bound, and the difference."""
    per_call = seconds(priced.prediction) if priced else None
    predicted = per_call and Interval(*(group.count * float(end or 0.0) for end in (per_call.value, per_call.low, per_call.high)))
    shapes = [shown(argument) for argument in group.call.arguments if isinstance(argument, (Operand, tuple))]
    return [
        Metric("name", group.call.name or group.kernels[0][:60], "operator", "text"),
        Metric("shapes", shapes),
        Metric("", _short(shapes), "shape", "text"),
        Metric("count", group.count, "calls", ""),
        Metric("measured_s", group.measured_s, "measured", "s"),
        Metric("predicted_s", predicted and predicted.value, "predicted", "s"),
        Metric("low_s", predicted and predicted.low, unit="s"),
        Metric("high_s", predicted and predicted.high, unit="s"),
        Metric("lower_s", (priced and priced.lower_s) or None, "at least", "s"),
        Metric("flops", group.flops if group.ops else None, unit="FLOP"),
        Metric("bytes", group.bytes if group.ops else None, unit="B"),
        Metric("bound", priced and priced.cost.bound, "bound by", "resource"),
        Metric("implementation", priced.prediction.calibration.implementation if priced and priced.prediction else None),
        Metric("gain_s", predicted and max(0.0, group.measured_s - float(predicted.value)), unit="s"),
        Metric("unknown", group.unknown or (priced.obstacle if priced else None) or None),
    ]


def _short(shapes: Sequence[str]) -> str:
    """The first two shapes, and the number of others."""
    return ", ".join(shapes[:2]) + (f" +{len(shapes) - 2}" if len(shapes) > 2 else "")


def _device(moved: OnDevice, prices: Mapping[str, float]) -> list[Metric]:
    price = prices.get(moved.device.id)
    return [
        Metric("id", moved.device.id, "device", "text"),
        Metric("predicted_s", moved.seconds, "a step takes", "s"),
        Metric("low_s", moved.low, "from", "s"),
        Metric("high_s", moved.high, "to", "s"),
        Metric("kernels_s", moved.kernels_s, "its kernels", "s"),
        Metric("speedup", moved.speedup, "speedup", "ratio"),
        Metric("same_kernels_share", moved.same, "same kernels", "share"),
        Metric("predicted_share", moved.predicted, "predicted", "share"),
        *([Metric("price", price * moved.seconds / 3600 * 1e6, "price of 1M steps")] if price is not None else []),
    ]


# Words


def _headline(
    answer: ProgramAnswer, won: Sequence[Gain], moved: Sequence[OnDevice], other: ProgramAnswer | None, other_name: str
) -> list[str]:
    """The headline: how busy the device is, its waits, kernels beside the best known ones, and other devices or the largest gain."""
    busy = answer.profile.busy_s / answer.profile.steps
    waiting = [f"{format_time(waited, 3)} {WAITS[cause]}" for cause, waited in answer.waits.items() if waited >= 0.01 * answer.step_s]
    share = percent(busy / answer.step_s) if answer.step_s else "0%"
    first = f"a step takes {format_time(answer.step_s, 3)}, the GPU is busy {share} of it"
    if waiting:
        first += f" and waits {' and '.join(waiting)}"
    predicted = Interval(answer.predicted_s(), answer.predicted_s("low"), answer.predicted_s("high"))
    if answer.captured is None:
        second = _measured(answer, predicted)
    else:
        step, before = Interval(answer.step_s, *answer.step_ends_s), format_binary(answer.captured.before_bytes, 3)
        first = f"predicted, as no GPU ran it: {first.replace(format_time(answer.step_s, 3), time_text(step), 1)}"
        memory = f"memory: {format_binary(answer.captured.peak_bytes, 3)} at most, {before} before the step"
        second = f"its {answer.captured.launches:,} kernels take {time_text(predicted)}; {memory}"
    if moved:
        return headline(first, second, "; ".join(_best_of(device, answer) for device in moved[:2]))
    if other is not None:
        return headline(first, second, compared(answer, other, other_name))
    if answer.known_share < 0.5 and answer.captured is None:
        has_shapes = any(group.call.arguments for group in answer.groups)
        fix = "the operators have no shapes: profile with record_shapes=True and ProfilerActivity.CPU"
        return headline(first, second, "most of the kernels' time is in operators that are not known" if has_shapes else fix)
    if not won:
        return headline(first, second, "nothing of 0.2% of the step or more can be won that is known here")
    best = won[0]
    return headline(first, second, f"the most can be won by this: {best.what}, {format_time(best.seconds, 3)}; {best.why}")


def _measured(answer: ProgramAnswer, predicted: Interval) -> str:
    """Clause on the measured time of the kernels beside the predicted one."""
    if not answer.predicted:
        return f"its kernels take {format_time(answer.measured_s, 3)}; none of them is predicted"
    part = "" if answer.predicted_share > 0.99 else f"the {percent(answer.predicted_share)} of kernel time that has a prediction: "
    measured = f"{part or 'its kernels take '}{format_time(answer.compared_s, 3)} measured"
    return f"{measured}, {time_text(predicted)} predicted for the best known ones"


WAITS = {"host": "for the host", "launch": "between queued kernels"}


def compared(answer: ProgramAnswer, other: ProgramAnswer, name: str) -> str:
    """Sentence that compares the steps of two profiles, and says if they seem to be of different programs."""
    ratio = answer.step_s / other.step_s if other.step_s else 0.0
    phrase = (
        "as fast" if abs(ratio - 1) <= SAME else f"{max(ratio, 1 / ratio):.3g}x {'faster' if ratio > 1 else 'slower'}" if ratio else "empty"
    )
    shapes = {group.call for group in answer.groups}
    common = sum(group.measured_s for group in other.groups if group.call in shapes)
    sentence = f"a step of {PurePath(name).name} takes {format_time(other.step_s, 3)}, {phrase}"
    if other.device.id != answer.device.id:
        sentence += f", on {other.device.name}"
    return sentence if common >= ALIKE * other.measured_s else f"{sentence}; few shapes are the same, as of another program"


def _best_of(moved: OnDevice, answer: ProgramAnswer) -> str:
    predicted, here = Interval(moved.seconds, moved.low, moved.high), "measured" if answer.captured is None else "predicted here"
    ratio = max(moved.speedup, 1 / moved.speedup)
    phrase = f"as long as {here}" if ratio <= 1 + SAME else f"{ratio:.3g}x {'faster' if moved.speedup > 1 else 'slower'} than {here}"
    part = "" if moved.predicted > 0.99 else f" ({percent(moved.predicted)} of its kernels' time has a prediction there)"
    return f"on {moved.device.name} a step is predicted at {time_text(predicted)}, {phrase}{part}"


def _figures(answer: ProgramAnswer, moved: Sequence[OnDevice]) -> list[Figure]:
    figures = [
        Figure("a step", format_time(answer.step_s, 3)),
        Figure("busy", percent(answer.profile.busy_s / answer.profile.span_s) if answer.profile.span_s else "0%"),
    ]
    if answer.captured is not None:
        figures.append(Figure("memory at most", format_binary(answer.captured.peak_bytes, 3)))
    elif answer.predicted:
        figures.append(Figure("kernels, measured", format_time(answer.compared_s, 3)))
        figures.append(Figure("kernels, predicted", format_time(answer.predicted_s(), 3)))
    return [*figures, *(Figure(f"on {device.device.name}", f"{device.speedup:.3g}x") for device in moved[:2])]


def _notes(answer: ProgramAnswer) -> list[str]:
    """Notes on unknown parts, and on assumptions of predictions."""
    known, predicted = percent(answer.known_share), percent(answer.predicted_share)
    notes = [f"FLOP and bytes are known of {known} of the kernels' time, a prediction of {predicted}."]
    missing = defaultdict[str, float](float)
    for group in answer.groups:
        if not group.ops:
            missing[group.unknown] += group.measured_s
    notes += [f"Not counted: {why} ({format_time(spent, 3)})." for why, spent in sorted(missing.items(), key=lambda pair: -pair[1])[:5]]
    obstacles = dict.fromkeys(f"{row.group.call.name}: {row.obstacle}." for row in answer.priced if row.obstacle)
    notes += list(obstacles)[:5]
    if answer.captured is not None:
        fastest, _, slowest = (format_time(value, 2) for value in answer.captured.launch_s)
        planned = len(answer.captured.planned)
        if planned and plans_attention(answer.device):
            least, _, most = (format_time(value, 2) for value in PLAN_S)
            sizes = f"{planned} new size{'s' * (planned > 1)}"
            notes.append(f"In this step cuDNN plans attention of {sizes}, which takes the host {between(least, most)} each.")
        return [*notes, f"The interval of a step holds those of its kernels, and {between(fastest, slowest)} of the host for each launch."]
    if answer.profile.gpus > 1:
        notes.append(f"The file has kernels of {answer.profile.gpus} GPUs; only the busiest is shown.")
    if answer.profile.graphs:
        notes.append(f"{answer.profile.graphs} kernels were replayed by a CUDA graph: a profile does not say what launched them.")
    return [
        *notes,
        "A prediction is of the best known kernel of each shape; measured times are those of the profile, its own cost included.",
    ]


# Two profiles of one program


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """The time of one operator, over all its shapes, in two profiles."""

    name: str
    before_s: float
    after_s: float
    shapes: str

    @property
    def metrics(self) -> list[Metric]:
        """Metrics of both times and their difference."""
        ratio = self.before_s / self.after_s if self.before_s and self.after_s else None
        word = "ONLY BEFORE" if not self.after_s else "ONLY AFTER" if not self.before_s else "SAME"
        if ratio is not None and abs(ratio - 1) > SAME:
            word = "FASTER" if ratio > 1 else "SLOWER"
        return [
            Metric("name", self.name, "operator", "text"),
            Metric("before_s", self.before_s, "here", "s"),
            Metric("after_s", self.after_s, "there", "s"),
            Metric("won_s", self.before_s - self.after_s, "won", "s"),
            Metric("speedup", ratio, "speedup", "ratio"),
            Metric("change", word, "change", "text"),
            Metric("shapes", self.shapes, "shapes", "text"),
        ]


def changes_of(answer: ProgramAnswer, other: ProgramAnswer) -> list[OperatorChange]:
    """Changes of all operators of both profiles, the largest first."""
    here, their = _by_name(answer), _by_name(other)
    changes = []
    for name in {**here, **their}:
        before, after = here.get(name, []), their.get(name, [])
        same_shapes = {group.call.arguments for group in before} == {group.call.arguments for group in after}
        count = sum(group.count for group in after) - sum(group.count for group in before)
        shapes = "the same" if same_shapes else "others"
        calls = f", {abs(count):.0f} calls {'more' if count > 0 else 'fewer'}" if abs(count) >= 1 else ""
        before_s, after_s = (sum(group.measured_s for group in groups) for groups in (before, after))
        changes.append(OperatorChange(name, before_s, after_s, shapes + calls))
    return sorted(changes, key=lambda change: -abs(change.before_s - change.after_s))


def _by_name(answer: ProgramAnswer) -> dict[str, list[OperatorGroup]]:
    groups = defaultdict[str, list[OperatorGroup]](list)
    for group in answer.groups:
        groups[group.call.name or group.kernels[0][:60]].append(group)
    return groups


def changes_table(changes: Sequence[OperatorChange], other: str) -> Table:
    """The table of the largest ``changes`` to the profile ``other``."""
    return as_rows(f"here and in {PurePath(other).name}", [change.metrics for change in changes[:LISTED]])


# Pictures


def _charts(answer: ProgramAnswer) -> list[Chart]:
    """Charts of time by family, measured, predicted and bound; and the roofline with dots sized by share of the time."""
    from perfmodel.report.roofline_chart import point, roofline

    parts: dict[str, list[tuple[str, float]]] = {"measured": [], "predicted": [], "at least": []}
    rows = {id(row.group): row for row in answer.priced}
    families = defaultdict[str, list[OperatorGroup]](list)
    for group in answer.groups:
        families[FAMILIES.get(group.ops[0].group, PASSES) if group.ops else UNKNOWN].append(group)
    for family, groups in sorted(families.items(), key=lambda entry: -sum(group.measured_s for group in entry[1])):
        priced_rows = [row for group in groups if (row := rows.get(id(group)))]
        parts["measured"].append((family, sum(group.measured_s for group in groups)))
        parts["predicted"].append((family, sum(row.group.count * row.prediction.seconds for row in priced_rows if row.prediction)))
        parts["at least"].append((family, sum(row.lower_s for row in priced_rows)))
    parts["measured"].append(("nothing runs", sum(answer.waits.values())))
    if answer.captured is not None:
        del parts["measured"]
    bars = [Bar(name, values) for name, values in parts.items()]
    points = []
    for number, row in enumerate([row for row in answer.priced if row.group.measured_s][:DRAWN], 1):
        op = row.group.ops[0]
        dtype = op.kernel.dtype
        spent = Interval(row.group.measured_s / row.group.count) if answer.captured is None else None
        drawn = point(
            number,
            f"{row.group.call.name.rpartition('::')[2]} {_short_shape(row.group)}",
            row.cost,
            answer.device,
            dtype.name,
            dtype.matmul_unit,
            row.prediction,
            spent,
        )
        points.append(replace(drawn, share=row.group.measured_s / answer.measured_s, group=FAMILIES.get(op.group, PASSES)))
    return [
        BarChart("Where the time of a step goes", "s", bars, caption="What nothing predicts is missing in the second bar."),
        roofline(answer.device, points, "Roofline of the program", "A dot per operator and shape, as large as its share of the time."),
    ]


def _short_shape(group: OperatorGroup) -> str:
    largest = max(group.call.tensors(), key=lambda tensor: tensor.elements, default=None)
    return "x".join(map(str, largest.shape)) if largest is not None else ""
