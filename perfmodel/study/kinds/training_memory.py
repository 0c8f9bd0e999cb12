"""Memory of a training step: what is held, what waits for the backward pass, against the capacity of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from perfmodel.catalog import find_model
from perfmodel.core.errors import UsageError
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
    """A training step of ``model``; ``name``: how it is called in the report."""

    name: str = ""
    model: str = field(kw_only=True)

    def evaluate(self, device: Device) -> tuple[str, MemoryResult]:
        """Title of the run, and the memory that it takes on ``device``."""
        check_no_device("runs", self)
        asked = MemoryQuestion(self.model).updated(self.given())
        asked.check_read()
        training = asked.training(find_model(self.model))
        return self.name or f"{self.model} b {training.batch} n {training.n}", evaluate(training, device, self.implementation)


@dataclass(frozen=True, slots=True)
class TrainingMemorySection(Options):
    """``runs`` on one of their GPUs, the fullest; capacities of ``devices`` beside them."""

    devices: list[str]
    runs: list[TrainingRun] = field(default_factory=list)
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """Bars of what the peak is made of."""
        devices = scope.some_devices(self.devices)
        if not self.runs:
            raise UsageError("runs: name at least one step", "such as - {model: gpt2}")
        found = [run.evaluate(devices[0]) for run in self.runs]
        limits = [Limit(device.name, device.dram.capacity.number) for device in devices if device.dram.capacity]
        title = self.title or "memory of a training step"
        bars = [Bar(name, list(_parts(one).items())) for name, one in found]
        columns: list[tuple[Column, Callable[[_Found], Value]]] = [
            (Column("run", "run"), lambda row: row[0]),
            *((Column(part, part, "B"), partial(_part, part)) for part in PARTS),
            (Column("peak", "peak", "B"), lambda row: row[1].peak.bytes),
            (Column("moment", "reached in"), lambda row: row[1].peak.moment.title),
            (Column("largest", f"sequences that fit {devices[0].name}", "count"), lambda row: row[1].largest),
        ]
        sentences = [_sentence(name, one, limits) for name, one in found]
        drawn, table = BarChart(title, "B", bars, limits, self.caption), DataTable.of(title, found, columns)
        counts = {limit.label: sum(one.peak.bytes <= limit.value for _, one in found) for limit in limits}
        largest, least = (end(found, key=lambda pair: pair[1].peak.bytes) for end in (max, min))
        fits = " and ".join(f"{count} fit the {short_name(name)}" for name, count in counts.items())
        answer = f"Of {len(found)} steps {fits or 'all have a peak'}; {largest[0]} needs most, {text(largest[1].peak.bytes, 'B')}."
        figures = [Figure(f"{word}, {name}", text(one.peak.bytes, "B")) for word, (name, one) in (("most", largest), ("least", least))]
        figures += [Figure(f"fit {name}", f"{count} of {len(found)}") for name, count in counts.items()]
        return Report(self.title, [answer, *sentences], [], charts=[drawn], data_tables=[table], figures=figures, reasons=sentences)


PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")
_Found = tuple[str, MemoryResult]


def _parts(one: MemoryResult) -> dict[str, int | float]:
    """What the peak holds; they add up to it."""
    peak = one.peak
    held = (peak.state.weights, peak.gradients, peak.state.optimizer, peak.activations)
    parts: dict[str, int | float] = dict(zip(PARTS, (*held, peak.bytes - sum(held)), strict=True))
    return parts if parts["temporary"] > 0 else {name: size for name, size in parts.items() if name != "temporary"}


def _part(name: str, row: _Found) -> Value:
    return _parts(row[1]).get(name)


def _sentence(name: str, one: MemoryResult, limits: Sequence[Limit]) -> str:
    parts = _parts(one)
    most = max(parts, key=lambda part: parts[part])
    fits = ", ".join(f"{'fits' if one.peak.bytes <= limit.value else 'does not fit'} {limit.label}" for limit in limits)
    return f"{name} peaks at {text(one.peak.bytes, 'B')}, {parts[most] / one.peak.bytes:.0%} of it {most}" + (f"; {fits}." if fits else ".")


SECTION = TrainingMemorySection
