"""Two devices, algorithms or implementations over the same workloads: before and after, with ratio and verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.report.compare import DEFAULT_THRESHOLD, changes, summary, tables
from perfmodel.study.base import Scope, SectionResult
from perfmodel.study.operands import operands
from perfmodel.study.schema import Options
from perfmodel.study.workloads import Workload


@dataclass(frozen=True, slots=True)
class Section(Options):
    """``between``: two names, of devices, of attention algorithms or of implementations. ``device``: where algorithms run."""

    between: list[str]
    workloads: list[Workload] = field(default_factory=list)
    device: str | None = None
    threshold: float = DEFAULT_THRESHOLD
    title: str = ""

    def build(self, scope: Scope) -> SectionResult:
        """The table of changes; on one device also a roofline with arrows."""
        made = operands(self.between, self.workloads, self.device, scope)
        found = changes(made.before.metrics, made.after.metrics, self.threshold)
        title = self.title or f"{made.before.name} against {made.after.name}"
        charts = [made.chart] if made.chart is not None else []
        said = summary(found, made.before.name, made.after.name, self.threshold, (made.before.metrics, made.after.metrics))
        said = [f"{self.title}: {said[0]}", *said[1:]] if self.title else said
        return SectionResult([*said, *made.warnings], list(charts), tables(title, found, made.before.name, made.after.name), made.notes)
