"""A workload over one of its sizes: which series is faster where, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find
from perfmodel.report.answer import time_text
from perfmodel.report.charts.format_number import between, text
from perfmodel.report.charts.roofline_metrics import SHORT, bound
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.device_names import one_of, short_names
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.report.speedup import PREDICTED, gain_text, interval_text
from perfmodel.report.swept_series import ROOF, Pairwise, SweptSeries, WorkloadAnswer, seconds, single_sentence, size, table, too_large
from perfmodel.study.points import answers, different_kernels
from perfmodel.study.schema import XY, Options, Scope, merged, on
from perfmodel.study.workloads import Workload

Show = Literal["time", "rate", "dram", "l2", "accesses", "memory"]
TIMED = ("time", "rate")
"""Quantities that need a time, so that a prediction is drawn beside the roof."""
MOST_VALUES = 200
KERNELS = 3
"""Most kernels of one series that a sentence names."""


class ShownQuantity(NamedTuple):
    """A quantity that a picture can show. ``of``: its value for an answer, with times on a basis, the prediction or the roof."""

    label: str
    unit: str
    of: Callable[[WorkloadAnswer, str], float | None]


def _rate(answer: WorkloadAnswer, basis: str) -> float | None:
    """FLOP/s; None if the time is unknown or there are no FLOP."""
    time_s = seconds(answer, basis)
    return answer.point.flops / time_s or None if time_s else None


QUANTITIES = {
    "time": ShownQuantity("time", "s", lambda answer, basis: seconds(answer, basis) or None),
    "rate": ShownQuantity("FLOP per second", "FLOP/s", _rate),
    "dram": ShownQuantity("bytes over DRAM", "B", lambda answer, _: answer.point.bytes.get("dram")),
    "l2": ShownQuantity("bytes through the L2", "B", lambda answer, _: answer.point.bytes.get("l2")),
    "accesses": ShownQuantity("accesses without a cache", "B", lambda answer, _: answer.accesses),
    "memory": ShownQuantity("memory", "B", lambda answer, _: answer.memory),
}
COLUMNS: list[tuple[Column, Callable[[WorkloadAnswer], Value]]] = [
    (
        Column("predicted_s", "predicted", "s", "low_s", "high_s"),
        lambda answer: answer.point.predicted.value if answer.point.predicted else None,
    ),
    (Column("low_s", "low", "s"), lambda answer: answer.point.predicted.low if answer.point.predicted else None),
    (Column("high_s", "high", "s"), lambda answer: answer.point.predicted.high if answer.point.predicted else None),
    (Column("roofline_s", "roofline", "s"), lambda answer: answer.point.roofline_s),
    (Column("lower_s", "lower bound", "s"), lambda answer: answer.point.lower_s),
    (Column("bound", "bound by"), lambda answer: SHORT.get(bound(answer.point) or "")),
    (Column("flops", "FLOP", "FLOP"), lambda answer: answer.point.flops),
    (Column("dram", "DRAM bytes", "B"), lambda answer: answer.point.bytes.get("dram")),
    (Column("l2", "L2 traffic", "B"), lambda answer: answer.point.bytes.get("l2")),
    (Column("accesses", "accesses without a cache", "B"), lambda answer: answer.accesses),
    (Column("memory", "memory", "B"), lambda answer: answer.memory),
    (Column("fits", "fits the memory"), lambda answer: None if answer.fits is None else "yes" if answer.fits else "NO"),
]


@dataclass(frozen=True, slots=True)
class SweepSection(Options):
    """``workload`` with each of ``values`` for its size ``over``. ``show``: quantities, each in a picture of its own."""

    devices: list[str]
    workload: Workload
    over: str
    values: list[int]
    show: list[Show] | None = None
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: pictures, a table and where the order turns, per device."""
        if len(self.values) < 2:
            raise UsageError("values: a sweep has at least two", "such as [512, 1024, 2048]")
        if len(self.values) > MOST_VALUES:
            fix = f"give at most {MOST_VALUES}, or see perfmodel sweep"
            raise UsageError(f"values: {len(self.values):,} are more than a picture shows", fix)
        self.workload.updated(self.over, self.values[0])
        by_device = [self._swept(device, scope) for device in scope.some_devices(self.devices)]
        all_swept = [swept for on_device in by_device for swept in on_device]
        several_devices = len(by_device) > 1
        names = short_names(on_device[0].device.name for on_device in by_device)
        parts = list[Report]()
        marks = list[Mark]()
        for on_device in sorted(by_device, key=lambda on_device: not all(swept.predicted for swept in on_device)):  # predicted ones first
            pairs = self._pairs(on_device, scope)
            parts.append(self._device_report(on_device, pairs, names, leads=not any(part.verdict for part in parts)))
            marks += _marks(on_device, pairs, f" ({names[on_device[0].device.name]})" if several_devices else "")
        different = different_kernels(
            (swept.name, swept.device, answer.kernels) for swept in all_swept for answer in swept.answers.values()
        )
        whole = merged(parts, self.title)
        return replace(
            whole,
            verdict=[*whole.verdict, *different],
            reasons=[*whole.reasons, *different],
            charts=[self._chart(show, all_swept, marks if show == "time" else [], several_devices) for show in self.show or ["time"]],
            data_tables=[self._table(all_swept, several_devices)],
            notes=list(dict.fromkeys(note for swept in all_swept for note in swept.notes)),
            brief=[table(all_swept, self.over)],
            assumptions=[f"Work: {self.workload.in_words({}, [self.over, 'algorithm'])}.", *map(_kernels, by_device)],
        )

    def at(self, value: int, device: Device, scope: Scope) -> dict[str, WorkloadAnswer]:
        """The answers at one value, by series."""
        return {answer.series: answer for answer in answers(self.workload.updated(self.over, value), device, scope)}

    def _swept(self, device: Device, scope: Scope) -> list[SweptSeries]:
        by_name = dict[str, SweptSeries]()
        failed = list[str]()
        for value in sorted(set(self.values)):
            try:
                for name, answer in self.at(value, device, scope).items():
                    by_name.setdefault(name, SweptSeries(name, device, {}, [], self.called(name))).answers[value] = answer
            except PerfmodelError as error:
                failed.append(f"{self.over} {value:,} on {device.name} is left out: {error.message}.")
        if not by_name:
            raise UsageError(failed[0], "give other values")
        for swept in by_name.values():
            swept.notes += failed + [missing for answer in swept.answers.values() for missing in answer.missing][:1]
        return list(by_name.values())

    def _pairs(self, on_device: Sequence[SweptSeries], scope: Scope) -> list[Pairwise]:
        """Pairs of the first series of a device and each other one with common values."""
        first, *later = on_device
        pairs = [Pairwise(first, other, self.over, lambda value: self.at(value, first.device, scope)) for other in later]
        return [pair for pair in pairs if pair.values]

    def _device_report(self, on_device: Sequence[SweptSeries], pairs: Sequence[Pairwise], names: Mapping[str, str], leads: bool) -> Report:
        """The report on one device. ``leads``: it is the first of all devices, and the sensitivity details its first pair."""
        first = on_device[0]
        several_devices = len(names) > 1
        name = names[first.device.name]
        device_words = one_of(name)
        where = f" ({name})" if several_devices else ""
        sensitivity = list[str]()
        if len(on_device) == 1:
            answers = [single_sentence(first, self.over)]
            sentences = list(answers)
            figures = _end_figures(first, self.over, where)
        else:
            answers = [f"{pair.answer()}." for pair in pairs]
            sentences = [pair.sentence() for pair in pairs]
            figures = [figure for pair in pairs for figure in _pair_figures(pair, where)]
            others, other_words = answers, "Another device"
            if leads and pairs:
                sensitivity = pairs[0].sensitivity()
                others, other_words = answers[1:], "Another pair"
            sensitivity += [f"{other_words}: on {device_words} {answer}" for answer in others]
        sentences += filter(None, (too_large(swept, self.over) for swept in on_device))
        reasons = [on(first.device, several_devices, self.title) + sentence for sentence in sentences]
        return Report(
            "", [f"On {device_words} {answer}" for answer in answers], [], figures=figures, reasons=reasons, sensitivity=sensitivity
        )

    def called(self, series: str) -> str:
        """Name of a series in sentences; an algorithm goes by the first words of its title."""
        return find(series.partition(" ")[0]).title.partition(",")[0] if self.workload.attention else series

    def _chart(self, show: str, all_swept: Sequence[SweptSeries], marks: list[Mark], several_devices: bool) -> LineChart:
        quantity = QUANTITIES[show]
        if several_devices and _same_on_all_devices(all_swept, quantity):
            all_swept = [swept for swept in all_swept if swept.device is all_swept[0].device]
            several_devices = False
        unpredicted = [swept for swept in all_swept if show in TIMED and not swept.predicted]
        some_unpredicted = 0 < len(unpredicted) < len(all_swept)
        with_roof = some_unpredicted or not several_devices
        lines = [line for swept in all_swept for line in _lines(show, swept, several_devices, with_roof)]
        title = f"{self.title}: {quantity.label}" if self.title else quantity.label
        captions = [self.caption] if self.caption else []
        if some_unpredicted:
            names = ", ".join(f"{swept.name} on {swept.device.name}" for swept in unpredicted)
            advice = "compare its roof (dashed) with the roofs of the others, not with their predictions (solid)"
            captions.append(f"No prediction is known of {names}: {advice}.")
        return LineChart(title, self.over, quantity.label, lines, "count", quantity.unit, marks=marks, caption=" ".join(captions))

    def _table(self, all_swept: Sequence[SweptSeries], several_devices: bool) -> DataTable:
        head = [Column("series", "workload"), *[Column("device", "device")] * several_devices, Column("value", self.over, "count")]
        rows: list[list[Value]] = [
            [swept.name, *[swept.device.id] * several_devices, value, *(cell(answer) for _, cell in COLUMNS)]
            for swept in all_swept
            for value, answer in swept.answers.items()
        ]
        return DataTable(self.title or f"{self.workload.kind} over {self.over}", [*head, *(column for column, _ in COLUMNS)], rows)


def _marks(on_device: Sequence[SweptSeries], pairs: Sequence[Pairwise], where: str) -> list[Mark]:
    """Marks where the order of each pair turns, and where a series stops fitting the memory."""
    marks = []
    for pair in pairs:
        words = "faster" if pair.basis == PREDICTED else "has the lower roof"
        for turn in pair.turns:
            leader = pair.other if turn.rises else pair.first
            marks.append(Mark(turn.at, f"{leader.name} {words} from {turn.at:,}{where}", turn.seconds))
    for swept in on_device:
        at = swept.unfit_from
        if at is not None:
            marks.append(Mark(at, f"{swept.name} does not fit from {at:,}{where}", seconds(swept.answers[at])))
    return marks


def _kernels(on_device: Sequence[SweptSeries]) -> str:
    """Sentence on the kernels whose times are predicted on a device."""
    phrases = []
    for swept in on_device:
        kernels = dict.fromkeys(kernel for answer in swept.answers.values() for kernel in answer.kernels.values())
        if kernels:
            phrases.append(f"{swept.name} by {' or '.join([*kernels][:KERNELS])}")
    device_name = on_device[0].device.name
    if not phrases:
        return f"Nothing is predicted on {device_name}: roofs stand for times."
    return f"Kernels on {device_name}: {'; '.join(phrases)}."


def _pair_figures(pair: Pairwise, where: str) -> list[Figure]:
    """Figures: gain and time at the last value, and the memory of a series that does not fit."""
    last = pair.values[-1]
    name = pair.other.spoken
    gain = pair.gain(last)
    at = f"{size(pair.over, last)}{where}"
    prediction = pair.other.answers[last].point.predicted
    unfit = pair.unfit()
    figures = [Figure(f"{name} against {pair.first.spoken}, {at}", f"{gain_text(gain.value)}{interval_text(gain)}")] if gain else []
    figures += [Figure(f"{name}, {at}", time_text(prediction))] if prediction else []
    if unfit is not None:
        series, value = unfit
        capacity = series.device.dram.capacity
        limit = text(capacity.number, "B") if capacity else ""
        needs = between(text(float(series.answers[value].memory or 0), "B"), limit, "of")
        figures.append(Figure(f"memory of {series.spoken}, {size(pair.over, value)}{where}", needs))
    return figures


def _end_figures(swept: SweptSeries, over: str, where: str) -> list[Figure]:
    """Figures of the times at the first value and the last."""
    timed = [(value, swept.answers[value].point.predicted) for value in (min(swept.runs), max(swept.runs))]
    return [Figure(f"{swept.name}, {over} {value:,}{where}", time_text(time)) for value, time in timed if time]


def _lines(show: str, swept: SweptSeries, several_devices: bool, with_roof: bool) -> list[Series]:
    """The chart's lines of a swept series: its values, and its roof for a time or a rate. An unpredicted series has only its roof.

    ``with_roof``: draw the roof beside a prediction too. A predicted time has a band; a rate on one device has no roof.
    """
    name = f"{swept.name}, {swept.device.name}" if several_devices else swept.name
    device = swept.device.id
    points = _points(show, swept, PREDICTED)
    if not points:
        return []
    if show in TIMED and not swept.predicted:
        return [Series(f"{name}, roof", points, "dashed", group=name, device=device)]
    roof = Series(f"{name}, roof", _points(show, swept, ROOF), "dashed", group=name, device=device)
    if show != "time":
        return [Series(name, points, group=name, device=device), *[roof] * (show in TIMED and several_devices and with_roof)]
    predictions = [answer.point.predicted for answer in swept.answers.values() if answer.point.predicted]
    band: XY = [(p.low or p.value, p.high or p.value) for p in predictions]
    return [Series(name, points, "line", band, name, device), *[roof] * with_roof]


def _points(show: str, swept: SweptSeries, basis: str) -> XY:
    """Pairs of the swept size and the quantity ``show``, where that is known."""
    values = {at: QUANTITIES[show].of(answer, basis) for at, answer in swept.answers.items()}
    return [(at, float(value)) for at, value in values.items() if value is not None]


def _same_on_all_devices(all_swept: Sequence[SweptSeries], quantity: ShownQuantity) -> bool:
    """Whether all devices have the same values, such as bytes that do not depend on the device."""
    values_of: dict[str, list[float | None]] = {}
    for swept in all_swept:
        values = [quantity.of(answer, PREDICTED) for answer in swept.answers.values()]
        if values_of.setdefault(swept.name, values) != values:
            return False
    return True


SECTION = SweepSection
