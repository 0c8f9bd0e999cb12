"""Memory of training steps beside the capacity of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import NamedTuple

from perfmodel.catalog import find_model
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Limit
from perfmodel.report.device_names import short_name
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.report.saved import Number
from perfmodel.study.schema import Options, Scope
from perfmodel.study.workloads import check_no_device
from perfmodel.transformer.question import MemoryQuestion
from perfmodel.transformer.training.memory import MemoryResult, evaluate


@dataclass(frozen=True, slots=True)
class TrainingRun(Options, MemoryQuestion):
    """A training step of ``model``; ``name``: its name in the report."""

    name: str = ""
    model: str = field(kw_only=True)

    def evaluate(self, device: Device) -> _EvaluatedRun:
        """The run with its name, and its memory on ``device``."""
        check_no_device("runs", self)
        question = MemoryQuestion(self.model).updated(self.given())
        question.check_read()
        training = question.training(find_model(self.model))
        name = self.name or f"{self.model} b {training.batch} n {training.n}"
        return _EvaluatedRun(name, evaluate(training, device, self.implementation))


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
        runs = [run.evaluate(devices[0]) for run in self.runs]
        limits = [Limit(device.name, device.dram.capacity.number) for device in devices if device.dram.capacity]
        title = self.title or "memory of a training step"
        bars = [Bar(run.name, list(run.parts.items())) for run in runs]
        sentences = [_sentence(run, limits) for run in runs]
        fitting = {limit.label: sum(run.peak_bytes <= limit.value for run in runs) for limit in limits}
        counts = " and ".join(f"{count} fit the {short_name(name)}" for name, count in fitting.items())
        largest = max(runs, key=lambda run: run.peak_bytes)
        smallest = min(runs, key=lambda run: run.peak_bytes)
        answer = f"Of {len(runs)} steps {counts or 'all have a peak'}; {largest.name} needs most, {text(largest.peak_bytes, 'B')}."
        return Report(
            self.title,
            [answer, *sentences],
            [],
            charts=[BarChart(title, "B", bars, limits, self.caption)],
            data_tables=[_table(title, runs, devices[0])],
            figures=[
                Figure(f"most, {largest.name}", text(largest.peak_bytes, "B")),
                Figure(f"least, {smallest.name}", text(smallest.peak_bytes, "B")),
                *(Figure(f"fit {name}", f"{count} of {len(runs)}") for name, count in fitting.items()),
            ],
            reasons=sentences,
        )


class _EvaluatedRun(NamedTuple):
    """A run and its memory."""

    name: str
    result: MemoryResult

    @property
    def peak_bytes(self) -> Number:
        """Bytes at the peak."""
        size: Number = self.result.peak.bytes
        return size

    @property
    def parts(self) -> dict[str, Number]:
        """Bytes at the peak by part; what no other part holds is temporary."""
        peak = self.result.peak
        parts: dict[str, Number] = {
            "weights": peak.state.weights,
            "gradients": peak.gradients,
            "optimizer": peak.state.optimizer,
            "activations": peak.activations,
        }
        temporary = peak.bytes - sum(parts.values())
        if temporary > 0:
            parts[TEMPORARY] = temporary
        return parts


TEMPORARY = "temporary"
PARTS = ("weights", "gradients", "optimizer", "activations", TEMPORARY)


def _table(title: str, runs: Sequence[_EvaluatedRun], device: Device) -> DataTable:
    columns: list[tuple[Column, Callable[[_EvaluatedRun], Value]]] = [
        (Column("run", "run"), lambda run: run.name),
        *((Column(part, part, "B"), partial(_part, part)) for part in PARTS),
        (Column("peak", "peak", "B"), lambda run: run.peak_bytes),
        (Column("moment", "reached in"), lambda run: run.result.peak.moment.title),
        (Column("largest", f"sequences that fit {device.name}", "count"), lambda run: run.result.largest),
    ]
    return DataTable.of(title, runs, columns)


def _part(name: str, run: _EvaluatedRun) -> Value:
    return run.parts.get(name)


def _sentence(run: _EvaluatedRun, limits: Sequence[Limit]) -> str:
    """Sentence on the peak, its largest part, and which of ``limits`` it fits."""
    largest, size = max(run.parts.items(), key=lambda part: part[1])
    clauses = [f"{run.name} peaks at {text(run.peak_bytes, 'B')}, {size / run.peak_bytes:.0%} of it {largest}"]
    fits = [f"{'fits' if run.peak_bytes <= limit.value else 'does not fit'} {limit.label}" for limit in limits]
    return f"{'; '.join([*clauses, ', '.join(fits)] if fits else clauses)}."


SECTION = TrainingMemorySection
