"""The report of a profiled program: how busy the device is, its kernels beside the best known ones, what can be won, other devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from perfmodel.core.units import format_binary, format_time
from perfmodel.program.answer import OnDevice, ProgramAnswer
from perfmodel.program.calls import Operand, shown
from perfmodel.program.capture import Captured
from perfmodel.program.gains import Gain, gains
from perfmodel.program.price import OperatorGroup, Priced
from perfmodel.report.answer import capital, headline, taken
from perfmodel.report.charts.format_number import between, percent
from perfmodel.report.charts.schema import Bar, BarChart, Chart, Interval
from perfmodel.report.document import Figure, KernelSpan, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows, seconds
from perfmodel.report.op_common import head
from perfmodel.transformer.op import ATTENTION, COLLECTIVE, MATMUL

LISTED, DRAWN = 40, 24
"""Operators of the table and of the roofline, those that take the most time."""
ALIKE = 0.7
"""Share of the time of another profile whose operators and shapes are those of this one, from which on it is of the same program."""
ON_SCREEN = 4
"""Rows of each of the tables that a screen shows."""
FAMILIES = {MATMUL: "products", ATTENTION: "attention", COLLECTIVE: "collectives"}
"""Names of groups of operators; others pass over memory."""
PASSES, UNKNOWN = "passes over memory", "not known"
SAME = 0.02
"""OperatorChange of an operator's time up to which it is the same."""


def report(
    found: ProgramAnswer,
    name: str,
    moved: Sequence[OnDevice],
    prices: Mapping[str, float],
    other: ProgramAnswer | None = None,
    other_name: str = "",
    *,
    pictures: bool = False,
) -> Report:
    """``found`` as a Report; its data follows the schema perfmodel.trace/1.

    ``moved``: the program on other devices, ``prices`` of an hour by device. ``other``: another profile, called ``other_name``, to compare.
    """
    rows = {id(one.group): one for one in found.priced}
    operators = [_operator(group, rows.get(id(group))) for group in found.groups]
    metrics = _metrics(found)
    if found.captured is not None:
        operators = list(map(_unmeasured, operators))
        metrics = [*_unmeasured(metrics), *_captured(found, found.captured)]
    won = gains(found)
    gained = [
        [
            Metric("what", one.what, "what can be won", "text"),
            Metric("seconds", one.seconds, "of a step", "s"),
            Metric("why", one.why, "why", "text"),
        ]
        for one in won
    ]
    devices = [_device(one, prices) for one in moved]
    changes = _changes(found, other) if other is not None else []
    asked = [*([as_rows("on other devices", devices)] if devices else []), *([_changed(changes, other_name)] if changes else [])]
    more = [
        *([as_rows("what can be won, parts of it twice", gained)] if gained else []),
        as_rows("operators of a step", operators[:LISTED]),
    ]
    tables = [*asked, *more]
    brief = [*asked, *(replace(table, rows=table.rows[:ON_SCREEN]) for table in (more[:1] if asked else more))]
    data = {
        **head("trace", {"file": name}, found.device),
        **as_json(metrics),
        "operators": list(map(as_json, operators)),
        "gains": list(map(as_json, gained)),
        "devices": list(map(as_json, devices)),
    }
    if changes:
        data["changes"] = [as_json(change.metrics) for change in changes]
    return Report(
        f"Program {PurePath(name).name} on {found.device.name}",
        _headline(found, won, moved, other, other_name),
        tables,
        _notes(found),
        data,
        charts=_charts(found) if pictures else [],
        figures=_figures(found, moved),
        brief=brief,
        reasons=[f"{capital(_best_of(one, found))}; the host launches each kernel when it did." for one in moved],
        timeline=_timeline(found),
    )


def _timeline(found: ProgramAnswer) -> list[KernelSpan]:
    """The kernels as they were measured, and the operators one behind the other as they are predicted."""
    predicted = {one.group.call: one.prediction for one in found.predicted}
    spans, now = [KernelSpan(one.name, "measured", one.start_s, one.seconds) for one in found.profile.kernels], 0.0
    for one in found.profile.operators:
        known = predicted.get(one.call)
        if known is not None:
            spans.append(KernelSpan(one.call.name, "predicted", now, known.seconds, {"kernel": known.calibration.implementation}))
            now += known.seconds
    return spans


# Numbers


MEASURED = frozenset(("span_s", "busy_s", "idle_share", "known_share", "predicted_share", "measured_s", "compared_s", "gain_s"))
"""Numbers that need a measured time, with the waits."""


def _unmeasured(metrics: Sequence[Metric]) -> list[Metric]:
    """``metrics`` of a program that ran nowhere."""
    return [replace(one, value=None, label="") if one.key in MEASURED or one.key.startswith("waits_s.") else one for one in metrics]


def _captured(found: ProgramAnswer, captured: Captured) -> list[Metric]:
    least, usual, most = captured.launch_s
    low, high = found.step_ends_s
    return [
        Metric("step.predicted_s", found.step_s, unit="s", low=low, high=high),
        Metric("launch.usual_s", usual, unit="s", low=least, high=most),
        Metric("peak_bytes", captured.peak_bytes, unit="B"),
        Metric("before_bytes", captured.before_bytes, unit="B"),
    ]


def _metrics(found: ProgramAnswer) -> list[Metric]:
    return [
        Metric("steps", found.profile.steps),
        Metric("span_s", found.step_s, unit="s"),
        Metric("busy_s", found.profile.busy_s / found.profile.steps, unit="s"),
        Metric("idle_share", 1 - found.profile.busy_s / found.profile.span_s if found.profile.span_s else 0.0, unit="share"),
        *(Metric(f"waits_s.{cause}", waited, unit="s") for cause, waited in found.waits.items()),
        Metric("kernels", sum(len(one.kernels) for one in found.profile.operators) / found.profile.steps),
        Metric("known_share", found.known_share, unit="share"),
        Metric("predicted_share", found.predicted_share, unit="share"),
        Metric("measured_s", found.measured_s, unit="s"),
        Metric("compared_s", found.compared_s, unit="s"),
        Metric("predicted_s", found.predicted_s(), unit="s"),
        Metric("low_s", found.predicted_s("low"), unit="s"),
        Metric("high_s", found.predicted_s("high"), unit="s"),
        Metric("lower_s", found.lower_s, unit="s"),
    ]


def _operator(group: OperatorGroup, priced: Priced | None) -> list[Metric]:
    """A row of the table of operators: measured beside predicted, bound, and what the difference to the prediction is."""
    known = seconds(priced.prediction) if priced else None
    predicted = known and Interval(*(group.count * float(end or 0.0) for end in (known.value, known.low, known.high)))
    shapes = [shown(one) for one in group.call.arguments if isinstance(one, (Operand, tuple))]
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
    """The first two shapes, and how many more there are."""
    return ", ".join(shapes[:2]) + (f" +{len(shapes) - 2}" if len(shapes) > 2 else "")


def _device(one: OnDevice, prices: Mapping[str, float]) -> list[Metric]:
    price = prices.get(one.device.id)
    return [
        Metric("id", one.device.id, "device", "text"),
        Metric("predicted_s", one.seconds, "a step takes", "s"),
        Metric("low_s", one.low, "from", "s"),
        Metric("high_s", one.high, "to", "s"),
        Metric("kernels_s", one.kernels_s, "its kernels", "s"),
        Metric("speedup", one.speedup, "speedup", "ratio"),
        Metric("same_kernels_share", one.same, "same kernels", "share"),
        Metric("predicted_share", one.predicted, "predicted", "share"),
        *([Metric("price", price * one.seconds / 3600 * 1e6, "price of 1M steps")] if price is not None else []),
    ]


# Words


def _headline(
    found: ProgramAnswer, won: Sequence[Gain], moved: Sequence[OnDevice], other: ProgramAnswer | None, other_name: str
) -> list[str]:
    """How busy the device is and what it waits for; its kernels beside the best known ones; what was asked for, else the largest gain."""
    busy = found.profile.busy_s / found.profile.steps
    waiting = [f"{format_time(waited, 3)} {WAITS[cause]}" for cause, waited in found.waits.items() if waited >= 0.01 * found.step_s]
    first = f"a step takes {format_time(found.step_s, 3)}, the GPU is busy {percent(busy / found.step_s) if found.step_s else '0%'} of it"
    if waiting:
        first += f" and waits {' and '.join(waiting)}"
    known = Interval(found.predicted_s(), found.predicted_s("low"), found.predicted_s("high"))
    if found.captured is None:
        second = _measured(found, known)
    else:
        step, before = Interval(found.step_s, *found.step_ends_s), format_binary(found.captured.before_bytes, 3)
        first = f"predicted, as no GPU ran it: {first.replace(format_time(found.step_s, 3), taken(step), 1)}"
        memory = f"memory: {format_binary(found.captured.peak_bytes, 3)} at most, {before} before the step"
        second = f"its {found.captured.launches:,} kernels take {taken(known)}; {memory}"
    if moved:
        return headline(first, second, "; ".join(_best_of(one, found) for one in moved[:2]))
    if other is not None:
        return headline(first, second, _compared(found, other, other_name))
    if found.known_share < 0.5 and found.captured is None:
        return headline(first, second, "most operators have no shapes: profile with record_shapes=True and ProfilerActivity.CPU")
    if not won:
        return headline(first, second, "nothing of 0.2% of the step or more can be won that is known here")
    best = won[0]
    return headline(first, second, f"the most can be won by this: {best.what}, {format_time(best.seconds, 3)}; {best.why}")


def _measured(found: ProgramAnswer, known: Interval) -> str:
    """The measured time of the kernels beside the predicted one."""
    if not found.predicted:
        return f"its kernels take {format_time(found.measured_s, 3)}; none of them is predicted"
    part = "" if found.predicted_share > 0.99 else f"the {percent(found.predicted_share)} of kernel time that has a prediction: "
    return f"{part or 'its kernels take '}{format_time(found.compared_s, 3)} measured, {taken(known)} predicted for the best known ones"


WAITS = {"host": "for the host", "launch": "between queued kernels"}


def _compared(found: ProgramAnswer, other: ProgramAnswer, name: str) -> str:
    """How the steps of two profiles compare, and whether they are of one program."""
    ratio = found.step_s / other.step_s if other.step_s else 0.0
    way = (
        "as fast" if abs(ratio - 1) <= SAME else f"{max(ratio, 1 / ratio):.3g}x {'faster' if ratio > 1 else 'slower'}" if ratio else "empty"
    )
    shapes = {one.call for one in found.groups}
    common = sum(one.measured_s for one in other.groups if one.call in shapes)
    said = f"a step of {PurePath(name).name} takes {format_time(other.step_s, 3)}, {way}"
    if other.device.id != found.device.id:
        said += f", on {other.device.name}"
    return said if common >= ALIKE * other.measured_s else f"{said}; few shapes are the same, as of another program"


def _best_of(one: OnDevice, found: ProgramAnswer) -> str:
    known, here = Interval(one.seconds, one.low, one.high), "measured" if found.captured is None else "predicted here"
    ratio = max(one.speedup, 1 / one.speedup)
    way = f"as long as {here}" if ratio <= 1 + SAME else f"{ratio:.3g}x {'faster' if one.speedup > 1 else 'slower'} than {here}"
    part = "" if one.predicted > 0.99 else f" ({percent(one.predicted)} of its kernels' time has a prediction there)"
    return f"on {one.device.name} a step is predicted at {taken(known)}, {way}{part}"


def _figures(found: ProgramAnswer, moved: Sequence[OnDevice]) -> list[Figure]:
    figures = [
        Figure("a step", format_time(found.step_s, 3)),
        Figure("busy", percent(found.profile.busy_s / found.profile.span_s) if found.profile.span_s else "0%"),
    ]
    if found.captured is not None:
        figures.append(Figure("memory at most", format_binary(found.captured.peak_bytes, 3)))
    elif found.predicted:
        figures.append(Figure("kernels, measured", format_time(found.compared_s, 3)))
        figures.append(Figure("kernels, predicted", format_time(found.predicted_s(), 3)))
    return [*figures, *(Figure(f"on {one.device.name}", f"{one.speedup:.3g}x") for one in moved[:2])]


def _notes(found: ProgramAnswer) -> list[str]:
    """What is not known, and what predictions assume."""
    notes = [
        f"FLOP and bytes are known of {percent(found.known_share)} of the kernels' time, a prediction of {percent(found.predicted_share)}."
    ]
    missing = defaultdict[str, float](float)
    for group in found.groups:
        if not group.ops:
            missing[group.unknown] += group.measured_s
    notes += [f"Not counted: {why} ({format_time(spent, 3)})." for why, spent in sorted(missing.items(), key=lambda one: -one[1])[:5]]
    obstacles = dict.fromkeys(f"{one.group.call.name}: {one.obstacle}." for one in found.priced if one.obstacle)
    notes += list(obstacles)[:5]
    if found.captured is not None:
        least, _, most = (format_time(one, 2) for one in found.captured.launch_s)
        return [*notes, f"The interval of a step holds those of its kernels, and {between(least, most)} of the host for each launch."]
    if found.profile.graphs:
        notes.append(f"{found.profile.graphs} kernels were replayed by a CUDA graph: a profile does not say what launched them.")
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
        """Both times, and how they differ."""
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


def _changes(found: ProgramAnswer, other: ProgramAnswer) -> list[OperatorChange]:
    """Operators of both, those first whose time differs most."""
    here, there = _by_name(found), _by_name(other)
    changes = []
    for name in {**here, **there}:
        before, after = here.get(name, []), there.get(name, [])
        same = {one.call.arguments for one in before} == {one.call.arguments for one in after}
        count = sum(one.count for one in after) - sum(one.count for one in before)
        shapes = "the same" if same else "others"
        calls = f", {abs(count):.0f} calls {'more' if count > 0 else 'fewer'}" if abs(count) >= 1 else ""
        changes.append(OperatorChange(name, sum(one.measured_s for one in before), sum(one.measured_s for one in after), shapes + calls))
    return sorted(changes, key=lambda one: -abs(one.before_s - one.after_s))


def _by_name(found: ProgramAnswer) -> dict[str, list[OperatorGroup]]:
    groups = defaultdict[str, list[OperatorGroup]](list)
    for one in found.groups:
        groups[one.call.name or one.kernels[0][:60]].append(one)
    return groups


def _changed(changes: Sequence[OperatorChange], other: str) -> Table:
    return as_rows(f"here and in {PurePath(other).name}", [one.metrics for one in changes[:LISTED]])


# Pictures


def _charts(found: ProgramAnswer) -> list[Chart]:
    """Where the time goes, measured beside predicted and bound; the program's roofline, dots as large as their share of the time."""
    from perfmodel.report.roofline_chart import point, roofline

    parts: dict[str, list[tuple[str, float]]] = {"measured": [], "predicted": [], "at least": []}
    rows = {id(one.group): one for one in found.priced}
    families = defaultdict[str, list[OperatorGroup]](list)
    for group in found.groups:
        families[FAMILIES.get(group.ops[0].group, PASSES) if group.ops else UNKNOWN].append(group)
    for family, groups in sorted(families.items(), key=lambda one: -sum(group.measured_s for group in one[1])):
        known = [one for group in groups if (one := rows.get(id(group)))]
        parts["measured"].append((family, sum(group.measured_s for group in groups)))
        parts["predicted"].append((family, sum(one.group.count * one.prediction.seconds for one in known if one.prediction)))
        parts["at least"].append((family, sum(one.lower_s for one in known)))
    parts["measured"].append(("nothing runs", sum(found.waits.values())))
    if found.captured is not None:
        del parts["measured"]
    bars = [Bar(name, values) for name, values in parts.items()]
    points = []
    for number, one in enumerate([one for one in found.priced if one.group.measured_s][:DRAWN], 1):
        op = one.group.ops[0]
        dtype = op.kernel.dtype
        spent = Interval(one.group.measured_s / one.group.count) if found.captured is None else None
        drawn = point(
            number,
            f"{one.group.call.name.rpartition('::')[2]} {_short_shape(one.group)}",
            one.cost,
            found.device,
            dtype.name,
            dtype.matmul_unit,
            one.prediction,
            spent,
        )
        points.append(replace(drawn, share=one.group.measured_s / found.measured_s, group=FAMILIES.get(op.group, PASSES)))
    return [
        BarChart("Where the time of a step goes", "s", bars, caption="What nothing predicts is missing in the second bar."),
        roofline(found.device, points, "Roofline of the program", "A dot per operator and shape, as large as its share of the time."),
    ]


def _short_shape(group: OperatorGroup) -> str:
    largest = max(group.call.tensors(), key=lambda one: one.elements, default=None)
    return "x".join(map(str, largest.shape)) if largest is not None else ""
