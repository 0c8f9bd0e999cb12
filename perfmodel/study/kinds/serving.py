"""A serving engine on some GPUs: the front of tokens a second of a GPU and of a user over layouts and users, and the best in limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from perfmodel.report.document import Column, DataTable, Value
from perfmodel.report.serve_search import Searched, layout_words, picture, searched, verdict
from perfmodel.serving.question import ServeQuestion
from perfmodel.serving.search import Candidate
from perfmodel.study.schema import Options, Scope, SectionResult


@dataclass(frozen=True, slots=True)
class ServingSection(Options):
    """``model`` under ``engines`` on up to ``gpus`` of each of ``devices``; limits as typed, such as 500ms."""

    devices: list[str]
    model: str
    engines: list[str]
    gpus: int = 8
    isl: int = 1024
    osl: int = 1024
    ttft: str | None = None
    tpot: str | None = None
    gpu_hour: float | None = None
    weights_dtype: str | None = None
    disaggregated: bool = False
    title: str = ""

    def build(self, scope: Scope) -> SectionResult:
        """A front, a row per point and what is best, of each device."""
        same = {one.name: getattr(self, one.name) for one in fields(ServeQuestion) if hasattr(self, one.name)}
        asked = ServeQuestion(self.model, search=True, **same)
        found = [searched(asked, device, self.engines, scope.fallbacks) for device in scope.devices(self.devices)]
        words = [f"{one.device.name}: {verdict(one, point)[0]}" for one in found if (point := one.found.chosen) is not None]
        return SectionResult(words, [picture(one.found.front, one.found.chosen) for one in found], [self._table(found)], [])

    def _table(self, found: list[Searched]) -> DataTable:
        columns: list[tuple[Column, Callable[[tuple[Searched, Candidate]], Value]]] = [
            (Column("device", "device"), lambda row: row[0].device.name),
            (Column("engine", "engine"), lambda row: row[1].engine),
            (Column("layout", "layout"), lambda row: layout_words(row[1])),
            (Column("users", "users", "count"), lambda row: row[1].users),
            (Column("tokens_per_s_gpu", "per GPU", "tokens/s"), lambda row: row[1].tokens_per_s_gpu),
            (Column("tokens_per_s_user", "per user", "tokens/s"), lambda row: row[1].tokens_per_s_user),
            (Column("ttft_s", "first token", "s"), lambda row: row[1].ttft_s),
            (Column("tpot_s", "each after it", "s"), lambda row: row[1].tpot_s),
        ]
        return DataTable.of(self.title or "front", [(one, point) for one in found for point in one.found.front], columns)


SECTION = ServingSection
