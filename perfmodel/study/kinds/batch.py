"""Decode over the batch size: throughput, the parts of a step, the knee, and where memory ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.report.batch import rates, report
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Report, Value
from perfmodel.report.saved import Number
from perfmodel.study.schema import XY, Options, Scope
from perfmodel.study.workloads import ModelOptions
from perfmodel.transformer.generation import CACHE_PART, COMPUTE_PART, WEIGHTS_PART, BatchPoint, Curve, curve
from perfmodel.transformer.step import DECODE

PARTS = (WEIGHTS_PART, CACHE_PART, COMPUTE_PART)


@dataclass(frozen=True, slots=True)
class _DecodeCurve:
    """Decode of one model on one device over the batch size."""

    name: str
    device: Device
    curve: Curve

    def marks(self, rates: dict[Number, Number], group: str) -> list[Mark]:
        """Marks on the line through ``rates``: where a larger batch stops paying, and where memory ends."""
        marks = {"knee": self.curve.knee, "memory ends": self.curve.max_batch or None}
        return [Mark(at, f"{name} at {at:,}", rates.get(at), group) for name, at in marks.items() if at is not None]


@dataclass(frozen=True, slots=True)
class BatchSection(Options):
    """Decode over the batch size. ``models``: each with the length at which it decodes (``kv_len``), without a batch."""

    devices: list[str]
    models: list[ModelOptions]
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: throughput, the parts of a step, and a row per batch size."""
        if not self.models:
            raise UsageError("models: name at least one", "such as - {name: llama-3-8b, kv_len: 2048}")
        lines = [self._line(model, device, scope) for device in scope.some_devices(self.devices) for model in self.models]
        reports = [report(line.curve) for line in lines]
        reasons = []
        for line, line_report in zip(lines, reports, strict=True):
            reasons += [f"{line.name}: {sentence[:1].lower()}{sentence[1:]}" for sentence in line_report.verdict]
        knees = [f"On {a_device(line.device.name)} {_knee_phrase(line.curve)}." for line in lines]
        title = self.title or "decode against the batch"
        return Report(
            "",
            [*knees, *reasons],
            [],
            list(dict.fromkeys(note for line_report in reports for note in line_report.notes)),
            charts=[self._throughput(lines, title), *(_parts(line, title) for line in lines[:2])],
            data_tables=[_table(lines, title)],
            figures=reports[0].figures,
            reasons=reasons,
        )

    def _line(self, options: ModelOptions, device: Device, scope: Scope) -> _DecodeCurve:
        """The curve of a model on a device, named by what differs between the curves."""
        batches = curve(replace(options, phase=DECODE).request(device), scope.fallbacks)
        several_models = len({model.name for model in self.models}) > 1
        several_lengths = len({model.kv_len for model in self.models}) > 1
        several_devices = len(self.devices) > 1
        words = []
        if several_models or not several_devices:
            words.append(batches.request.model.name)
        if several_lengths:
            words.append(f"{batches.request.kv_len:,} tokens")
        if several_devices:
            words.append(device.name)
        return _DecodeCurve(", ".join(words), device, batches)

    def _throughput(self, lines: Sequence[_DecodeCurve], title: str) -> LineChart:
        series, marks = [], []
        for line in lines:
            bound: XY = []
            rates: XY = []
            band: XY = []
            for point in line.curve.points:
                bound.append((point.batch, point.batch / float(point.step.cost.lower_s)))
                if point.step.prediction is not None:
                    seconds, low, high = point.step.prediction
                    rates.append((point.batch, point.batch / seconds))
                    band.append((point.batch / high, point.batch / low))
            if rates:
                series.append(Series(line.name, rates, "line", band, line.name, line.device.id))
            series.append(Series(f"{line.name}, bound", bound, "dashed", group=line.name, device=line.device.id))
            marks += line.marks(dict(rates or bound), line.name if len(lines) > 1 else "")
        title = f"{title}: tokens per second"
        return LineChart(title, "batch", "tokens per second", series, "count", "tokens/s", marks=marks, caption=self.caption)


def _knee_phrase(batches: Curve) -> str:
    """Phrase on the batch from which more sequences stop paying, else on the best batch, with the rates there."""
    if batches.knee:
        return f"more sequences stop paying at batch {batches.knee:,}: {rates(batches)}"
    return f"most tokens per second come at batch {batches.best.batch:,}: {rates(batches)}"


def _parts(line: _DecodeCurve, title: str) -> LineChart:
    """Chart of the parts of a step, each alone, and of the step."""
    points = line.curve.points
    series = [Series(name, [(point.batch, point.parts[name]) for point in points]) for name in PARTS]
    steps = Series("step, predicted or roof", [(point.batch, point.step.seconds) for point in points], "markers")
    return LineChart(f"{title}: what fills a step, {line.name}", "batch", "time of a step", [*series, steps])


class _CurvePoint(NamedTuple):
    """A row of the table: a point of a curve."""

    line: _DecodeCurve
    point: BatchPoint

    def predicted(self, place: int) -> float | None:
        """Seconds of the step (0), or the low (1) or high (2) end of their interval; None if not predicted."""
        return self.point.step.prediction[place] if self.point.step.prediction else None

    @property
    def mark(self) -> str:
        """What is special about the batch."""
        if self.point.batch == self.line.curve.knee:
            return "knee"
        return "memory ends" if self.point.batch == self.line.curve.max_batch else ""


def _table(lines: Sequence[_DecodeCurve], title: str) -> DataTable:
    columns: list[tuple[Column, Callable[[_CurvePoint], Value]]] = [
        (Column("name", "decode"), lambda row: row.line.name),
        (Column("batch", "batch", "count"), lambda row: row.point.batch),
        (Column("tokens_per_s", "tokens/s", "tokens/s"), lambda row: row.point.tokens_per_s),
        (Column("predicted_s", "step, predicted", "s", "low_s", "high_s"), lambda row: row.predicted(0)),
        (Column("low_s", "low", "s"), lambda row: row.predicted(1)),
        (Column("high_s", "high", "s"), lambda row: row.predicted(2)),
        (Column("lower_s", "step, bound", "s"), lambda row: float(row.point.step.cost.lower_s)),
        (Column("weights_s", WEIGHTS_PART, "s"), lambda row: row.point.parts[WEIGHTS_PART]),
        (Column("cache_s", CACHE_PART, "s"), lambda row: row.point.parts[CACHE_PART]),
        (Column("compute_s", COMPUTE_PART, "s"), lambda row: row.point.parts[COMPUTE_PART]),
        (Column("memory", "memory", "B"), lambda row: int(row.point.memory)),
        (Column("bound", "filled by"), lambda row: row.point.bound),
        (Column("mark", "mark"), lambda row: row.mark),
    ]
    return DataTable.of(title, [_CurvePoint(line, point) for line in lines for point in line.curve.points], columns)


SECTION = BatchSection
