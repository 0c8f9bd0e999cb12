"""Two devices, algorithms or implementations over the same workloads: before and after, with ratio and verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.report.compare import DEFAULT_THRESHOLD, changes, summary, tables
from perfmodel.study.operands import operands
from perfmodel.study.schema import Options, Scope, SectionResult
from perfmodel.study.workloads import Workload


@dataclass(frozen=True, slots=True)
class ComparisonSection(Options):
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
        names, title = (made.before.name, made.after.name), self.title or f"{made.before.name} against {made.after.name}"
        first, *others = summary(found, *names, self.threshold, (made.before.metrics, made.after.metrics))
        sentences = [f"{self.title}: {first}" if self.title else first, *others, *made.warnings]
        return SectionResult(sentences, [made.chart] if made.chart else [], tables(title, found, *names), made.notes)


SECTION = ComparisonSection
