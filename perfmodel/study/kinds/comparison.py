"""Two devices, algorithms or implementations over the same workloads: before and after, with ratio and verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from perfmodel.report.compare import DEFAULT_THRESHOLD, changes, summary, tables
from perfmodel.study.base import Part, Scope
from perfmodel.study.fields import Fields
from perfmodel.study.sides import sides
from perfmodel.study.workloads import Workload


@dataclass(frozen=True, slots=True)
class Section:
    """``between``: two names, of devices, of attention algorithms or of implementations. ``device``: where algorithms run."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    between: list[str]
    workloads: list[Annotated[Workload, Fields(Workload)]] = field(default_factory=list)
    device: str | None = None
    threshold: float = DEFAULT_THRESHOLD
    title: str = ""

    def build(self, scope: Scope) -> Part:
        """The table of changes; on one device also a roofline with arrows."""
        made = sides(self.between, self.workloads, self.device, scope)
        found = changes(made.before.metrics, made.after.metrics, self.threshold)
        title = self.title or f"{made.before.name} against {made.after.name}"
        charts = [made.chart] if made.chart is not None else []
        said = summary(found, made.before.name, made.after.name, self.threshold, (made.before.metrics, made.after.metrics))
        said = [f"{self.title}: {said[0]}", *said[1:]] if self.title else said
        return Part([*said, *made.warnings], list(charts), tables(title, found, made.before.name, made.after.name), made.notes)
