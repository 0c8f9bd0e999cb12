"""Memory of a training step: what is held, what waits for the backward pass, against the capacity of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from perfmodel.catalog import find_model
from perfmodel.core.errors import UsageError
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Limit
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.study.base import Part, Scope
from perfmodel.study.fields import Fields
from perfmodel.transformer.training.checks import recompute_named
from perfmodel.transformer.training.memory import MemoryResult, evaluate
from perfmodel.transformer.training.question import Parallel, TrainingConfig


@dataclass(frozen=True, slots=True)
class Run:
    """A training step; names and meanings are those of ``training.question``."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    model: str
    batch: int
    n: int
    name: str = ""
    micro_batch: int | None = None
    precision: str = "mixed"
    optimizer: str = "adam"
    recompute: str = "none"
    flash: bool = True
    lora: int | None = None
    tp: int = 1
    sp: bool = False
    pp: int = 1
    dp: int = 1
    zero: int = 0

    def training(self) -> TrainingConfig:
        """The question that it asks."""
        return TrainingConfig(
            find_model(self.model),
            self.batch,
            self.n,
            micro_batch=self.micro_batch,
            precision=self.precision,
            optimizer=self.optimizer,
            recompute=recompute_named(self.recompute),
            flash=self.flash,
            lora=self.lora,
            parallel=Parallel(tp=self.tp, sp=self.sp, pp=self.pp, dp=self.dp, zero=self.zero),
        )

    @property
    def title(self) -> str:
        """How it is called in the report."""
        return self.name or f"{self.model} b {self.batch} n {self.n}"


@dataclass(frozen=True, slots=True)
class Section:
    """``runs`` on one of their GPUs, the fullest; capacities of ``devices`` beside them."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    devices: list[str]
    runs: list[Annotated[Run, Fields(Run)]] = field(default_factory=list)
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Part:
        """Bars of what the peak is made of."""
        devices = scope.devices(self.devices)
        if not self.runs or not devices:
            raise UsageError("runs and devices: name at least one of each")
        found = [(run.title, evaluate(run.training(), devices[0])) for run in self.runs]
        limits = [Limit(device.name, device.dram.capacity.number) for device in devices if device.dram.capacity]
        title = self.title or "memory of a training step"
        bars = [Bar(name, list(_parts(one).items())) for name, one in found]
        said = [_sentence(name, one, limits) for name, one in found]
        return Part(said, [BarChart(title, "B", bars, limits, self.caption)], [_table(title, found, devices[0].name)])


def _parts(one: MemoryResult) -> dict[str, int | float]:
    """What the peak holds; they add up to it."""
    peak = one.peak
    parts: dict[str, int | float] = {
        "weights": peak.state.weights,
        "gradients": peak.gradients,
        "optimizer": peak.state.optimizer,
        "activations": peak.activations,
    }
    rest = peak.bytes - sum(parts.values())
    return parts | ({"temporary": rest} if rest > 0 else {})


def _table(title: str, found: Sequence[tuple[str, MemoryResult]], device: str) -> DataTable:
    names = ("weights", "gradients", "optimizer", "activations", "temporary")
    columns = [Column("run", "run"), *(Column(name, name, "B") for name in names)]
    columns += [Column("peak", "peak", "B"), Column("moment", "reached in"), Column("largest", f"sequences that fit {device}", "count")]
    rows: list[list[Value]] = []
    for name, one in found:
        parts = _parts(one)
        rows.append([name, *(parts.get(part) for part in names), one.peak.bytes, one.peak.moment.title, one.largest])
    return DataTable(title, columns, rows)


def _sentence(name: str, one: MemoryResult, limits: Sequence[Limit]) -> str:
    parts = _parts(one)
    most = max(parts, key=lambda part: parts[part])
    fits = ", ".join(f"{'fits' if one.peak.bytes <= limit.value else 'does not fit'} {limit.label}" for limit in limits)
    return f"{name} peaks at {text(one.peak.bytes, 'B')}, {parts[most] / one.peak.bytes:.0%} of it {most}" + (f"; {fits}." if fits else ".")
