"""Decode over the batch size: throughput, the parts of a step, the knee, and where memory ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
        reports = [(line, report(line.curve)) for line in lines]
        reasons = [f"{line.name}: {sentence[:1].lower()}{sentence[1:]}" for line, report in reports for sentence in report.verdict]
        title = self.title or "decode against the batch"
        charts = [self._throughput(lines, title), *(_parts(line, title) for line in lines[:2])]
        notes = list(dict.fromkeys(note for _, report in reports for note in report.notes))
        knees = [f"On {a_device(line.device.name)} {_pays(line.curve)}." for line in lines]
        figures = [figure for _, report in reports[:1] for figure in report.figures]
        tables = [_table(lines, title)]
        return Report("", [*knees, *reasons], [], notes, charts=[*charts], data_tables=tables, figures=figures, reasons=reasons)

    def _line(self, options: ModelOptions, device: Device, scope: Scope) -> _DecodeCurve:
        batches = curve(replace(options, phase=DECODE).request(device), scope.fallbacks)
        model = batches.request.model.name if len({model.name for model in self.models}) > 1 or len(self.devices) == 1 else ""
        length = f"{batches.request.kv_len:,} tokens" if len({model.kv_len for model in self.models}) > 1 else ""
        name = ", ".join(filter(None, [model, length, device.name if len(self.devices) > 1 else ""]))
        return _DecodeCurve(name, device, batches)

    def _throughput(self, lines: Sequence[_DecodeCurve], title: str) -> LineChart:
        series, marks = [], []
        for line in lines:
            points = line.curve.points
            bound: XY = [(point.batch, point.batch / float(point.step.cost.lower_s)) for point in points]
            predicted = [(point.batch, times) for point in points if (times := point.step.prediction) is not None]
            rates: XY = [(batch, batch / times[0]) for batch, times in predicted]
            band: XY = [(batch / times[2], batch / times[1]) for batch, times in predicted]
            if rates:
                series.append(Series(line.name, rates, "line", band, line.name, line.device.id))
            series.append(Series(f"{line.name}, bound", bound, "dashed", group=line.name, device=line.device.id))
            marks += line.marks(dict(rates or bound), line.name if len(lines) > 1 else "")
        title = f"{title}: tokens per second"
        return LineChart(title, "batch", "tokens per second", series, "count", "tokens/s", marks=marks, caption=self.caption)


def _pays(batches: Curve) -> str:
    """Sentence on where more sequences stop paying, with the rates there."""
    words = "more sequences stop paying at" if batches.knee else "most tokens per second come at"
    return f"{words} batch {batches.knee or batches.best.batch:,}: {rates(batches)}"


def _parts(line: _DecodeCurve, title: str) -> LineChart:
    """Chart of the parts of a step, each alone, and of the step."""
    points = line.curve.points
    series = [Series(name, [(point.batch, point.parts[name]) for point in points]) for name in PARTS]
    steps = Series("step, predicted or roof", [(point.batch, point.step.seconds) for point in points], "markers")
    return LineChart(f"{title}: what fills a step, {line.name}", "batch", "time of a step", [*series, steps])


_Row = tuple[_DecodeCurve, BatchPoint]


def _table(lines: Sequence[_DecodeCurve], title: str) -> DataTable:
    def predicted(end: int) -> Callable[[_Row], Value]:
        return lambda row: row[1].step.prediction[end] if row[1].step.prediction else None

    def mark(row: _Row) -> str:
        batches, batch = row[0].curve, row[1].batch
        return "knee" if batch == batches.knee else "memory ends" if batch == batches.max_batch else ""

    columns: list[tuple[Column, Callable[[_Row], Value]]] = [
        (Column("name", "decode"), lambda row: row[0].name),
        (Column("batch", "batch", "count"), lambda row: row[1].batch),
        (Column("tokens_per_s", "tokens/s", "tokens/s"), lambda row: row[1].tokens_per_s),
        (Column("predicted_s", "step, predicted", "s", "low_s", "high_s"), predicted(0)),
        (Column("low_s", "low", "s"), predicted(1)),
        (Column("high_s", "high", "s"), predicted(2)),
        (Column("lower_s", "step, bound", "s"), lambda row: float(row[1].step.cost.lower_s)),
        (Column("weights_s", WEIGHTS_PART, "s"), lambda row: row[1].parts[WEIGHTS_PART]),
        (Column("cache_s", CACHE_PART, "s"), lambda row: row[1].parts[CACHE_PART]),
        (Column("compute_s", COMPUTE_PART, "s"), lambda row: row[1].parts[COMPUTE_PART]),
        (Column("memory", "memory", "B"), lambda row: int(row[1].memory)),
        (Column("bound", "filled by"), lambda row: row[1].bound),
        (Column("mark", "mark"), mark),
    ]
    return DataTable.of(title, [(line, point) for line in lines for point in line.curve.points], columns)


SECTION = BatchSection
