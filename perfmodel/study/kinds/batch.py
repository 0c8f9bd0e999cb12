"""Decode against the batch: throughput, what fills a step, where more batch stops paying and where memory ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from perfmodel.core.hardware import Device
from perfmodel.report.batch import report
from perfmodel.report.charts.schema import LineChart, Mark, Series
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.study.base import XY, Part, Scope
from perfmodel.study.fields import Fields
from perfmodel.study.workloads import ModelOptions
from perfmodel.transformer.batch import CACHE_PART, COMPUTE_PART, WEIGHTS_PART, Curve, curve
from perfmodel.transformer.step import DECODE

PARTS = (WEIGHTS_PART, CACHE_PART, COMPUTE_PART)


@dataclass(frozen=True, slots=True)
class _Line:
    """One model on one device."""

    name: str
    device: Device
    found: Curve


@dataclass(frozen=True, slots=True)
class Section:
    """``models``: each with the length at which it decodes (``kv_len``); their batch is what the picture goes over."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    devices: list[str]
    models: list[Annotated[ModelOptions, Fields(ModelOptions)]]
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Part:
        """Throughput, the parts of a step, and a row per batch."""
        lines = [self._line(model, device, scope) for device in scope.devices(self.devices) for model in self.models]
        verdict, notes = [], []
        for line in lines:
            told = report(line.found)
            verdict += [f"{line.name}: {said[:1].lower()}{said[1:]}" for said in told.verdict]
            notes += told.notes
        title = self.title or "decode against the batch"
        charts = [self._throughput(lines, title), *(self._parts(line, title) for line in lines[:2])]
        return Part(verdict, list(charts), [self._table(lines, title)], list(dict.fromkeys(notes)))

    def _line(self, options: ModelOptions, device: Device, scope: Scope) -> _Line:
        found = curve(replace(options, phase=DECODE).request(device), scope.fallback_devices)
        length = f", {found.request.kv_len:,} tokens" if len({model.kv_len for model in self.models}) > 1 else ""
        model = found.request.model.name if len({model.name for model in self.models}) > 1 or len(self.devices) == 1 else ""
        name = ", ".join(
            filter(None, [model + length if model else length.removeprefix(", "), device.name if len(self.devices) > 1 else ""])
        )
        return _Line(name, device, found)

    def _throughput(self, lines: Sequence[_Line], title: str) -> LineChart:
        series, marks = [], []
        for line in lines:
            points = line.found.points
            bound: XY = [(point.batch, point.batch / float(point.step.cost.lower_s)) for point in points]
            known = [(point, times) for point in points if (times := point.step.prediction) is not None]
            made: XY = [(point.batch, point.batch / times[0]) for point, times in known]
            band: XY = [(point.batch / times[2], point.batch / times[1]) for point, times in known]
            if made:
                series.append(Series(line.name, made, "line", band, line.name, line.device.id))
            series.append(Series(f"{line.name}, bound", bound, "dashed", group=line.name, device=line.device.id))
            marks += _marks(line, dict(made or bound), len(lines) > 1)
        return LineChart(
            f"{title}: tokens per second", "batch", "tokens per second", series, "count", "tokens/s", marks=marks, caption=self.caption
        )

    def _parts(self, line: _Line, title: str) -> LineChart:
        """What a step waits for, each part alone, and the step."""
        points = line.found.points
        parts: dict[str, XY] = {name: [(point.batch, point.parts[name]) for point in points] for name in PARTS}
        steps: XY = [(point.batch, point.step.seconds) for point in points]
        series = [*(Series(name, part) for name, part in parts.items()), Series("step, predicted or roof", steps, "markers")]
        return LineChart(f"{title}: what fills a step, {line.name}", "batch", "time of a step", series)

    def _table(self, lines: Sequence[_Line], title: str) -> DataTable:
        columns = [
            Column("name", "decode"),
            Column("batch", "batch", "count"),
            Column("tokens_per_s", "tokens/s", "tokens/s"),
            Column("predicted_s", "step, predicted", "s", "low_s", "high_s"),
            Column("low_s", "low", "s"),
            Column("high_s", "high", "s"),
            Column("lower_s", "step, bound", "s"),
            Column("weights_s", WEIGHTS_PART, "s"),
            Column("cache_s", CACHE_PART, "s"),
            Column("compute_s", COMPUTE_PART, "s"),
            Column("memory", "memory", "B"),
            Column("bound", "filled by"),
            Column("mark", "mark"),
        ]
        rows: list[list[Value]] = []
        for line in lines:
            for point in line.found.points:
                times: list[Value] = list(point.step.prediction or (None, None, None))
                parts: list[Value] = [point.parts[name] for name in PARTS]
                mark = "knee" if point.batch == line.found.knee else "memory ends" if point.batch == line.found.max_batch else ""
                lower, memory = float(point.step.cost.lower_s), int(point.memory)
                rows.append([line.name, point.batch, point.tokens_per_s, *times, lower, *parts, memory, point.bound, mark])
        return DataTable(title, columns, rows)


def _marks(line: _Line, rates: dict[int | float, int | float], several: bool) -> list[Mark]:
    group = line.name if several else ""
    found = []
    if line.found.knee is not None:
        found.append(Mark(line.found.knee, f"knee at {line.found.knee:,}", rates.get(line.found.knee), group))
    if line.found.max_batch:
        found.append(Mark(line.found.max_batch, f"memory ends at {line.found.max_batch:,}", rates.get(line.found.max_batch), group))
    return found
