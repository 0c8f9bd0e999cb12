"""Memory of training steps beside the capacity of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial

from perfmodel.catalog import find_model
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Limit
from perfmodel.report.device_names import short_name
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.study.schema import Options, Scope
from perfmodel.study.workloads import check_no_device
from perfmodel.transformer.question import MemoryQuestion
from perfmodel.transformer.training.memory import MemoryResult, evaluate


@dataclass(frozen=True, slots=True)
class TrainingRun(Options, MemoryQuestion):
    """A training step of ``model``; ``name``: its name in the report."""

    name: str = ""
    model: str = field(kw_only=True)

    def evaluate(self, device: Device) -> tuple[str, MemoryResult]:
        """The title of the run, and its memory on ``device``."""
        check_no_device("runs", self)
        question = MemoryQuestion(self.model).updated(self.given())
        question.check_read()
        training = question.training(find_model(self.model))
        return self.name or f"{self.model} b {training.batch} n {training.n}", evaluate(training, device, self.implementation)


@dataclass(frozen=True, slots=True)
class TrainingMemorySection(Options):
    """Memory of ``runs`` on their fullest GPU, beside the capacities of ``devices``."""

    devices: list[str]
    runs: list[TrainingRun] = field(default_factory=list)
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: a bar per run with the parts of its peak."""
        devices = scope.some_devices(self.devices)
        if not self.runs:
            raise UsageError("runs: name at least one step", "such as - {model: gpt2}")
        results = [run.evaluate(devices[0]) for run in self.runs]
        limits = [Limit(device.name, device.dram.capacity.number) for device in devices if device.dram.capacity]
        title = self.title or "memory of a training step"
        bars = [Bar(name, list(_parts(result).items())) for name, result in results]
        columns: list[tuple[Column, Callable[[_Found], Value]]] = [
            (Column("run", "run"), lambda row: row[0]),
            *((Column(part, part, "B"), partial(_part, part)) for part in PARTS),
            (Column("peak", "peak", "B"), lambda row: row[1].peak.bytes),
            (Column("moment", "reached in"), lambda row: row[1].peak.moment.title),
            (Column("largest", f"sequences that fit {devices[0].name}", "count"), lambda row: row[1].largest),
        ]
        sentences = [_sentence(name, result, limits) for name, result in results]
        drawn, table = BarChart(title, "B", bars, limits, self.caption), DataTable.of(title, results, columns)
        counts = {limit.label: sum(result.peak.bytes <= limit.value for _, result in results) for limit in limits}
        largest, smallest = (end(results, key=lambda pair: pair[1].peak.bytes) for end in (max, min))
        fits = " and ".join(f"{count} fit the {short_name(name)}" for name, count in counts.items())
        answer = f"Of {len(results)} steps {fits or 'all have a peak'}; {largest[0]} needs most, {text(largest[1].peak.bytes, 'B')}."
        figures = [
            Figure(f"{word}, {name}", text(result.peak.bytes, "B")) for word, (name, result) in (("most", largest), ("least", smallest))
        ]
        figures += [Figure(f"fit {name}", f"{count} of {len(results)}") for name, count in counts.items()]
        return Report(self.title, [answer, *sentences], [], charts=[drawn], data_tables=[table], figures=figures, reasons=sentences)


PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")
_Found = tuple[str, MemoryResult]


def _parts(result: MemoryResult) -> dict[str, int | float]:
    """The parts of the peak, which add up to it."""
    peak = result.peak
    parts_of_peak = (peak.state.weights, peak.gradients, peak.state.optimizer, peak.activations)
    parts: dict[str, int | float] = dict(zip(PARTS, (*parts_of_peak, peak.bytes - sum(parts_of_peak)), strict=True))
    return parts if parts["temporary"] > 0 else {name: size for name, size in parts.items() if name != "temporary"}


def _part(name: str, row: _Found) -> Value:
    return _parts(row[1]).get(name)


def _sentence(name: str, result: MemoryResult, limits: Sequence[Limit]) -> str:
    parts = _parts(result)
    most = max(parts, key=lambda part: parts[part])
    fits = ", ".join(f"{'fits' if result.peak.bytes <= limit.value else 'does not fit'} {limit.label}" for limit in limits)
    return f"{name} peaks at {text(result.peak.bytes, 'B')}, {parts[most] / result.peak.bytes:.0%} of it {most}{'; ' * bool(fits)}{fits}."


SECTION = TrainingMemorySection
