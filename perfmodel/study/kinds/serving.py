"""A serving engine on some GPUs: the front of tokens a second of a GPU and of a user over layouts and users, and the best in limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from perfmodel.core.errors import UsageError
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Report, Value
from perfmodel.report.serve_search import Searched, figures, layout_words, picture, searched, verdict
from perfmodel.report.step import tokens
from perfmodel.serving.question import ServeQuestion
from perfmodel.serving.search import Candidate
from perfmodel.study.schema import Options, Scope


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

    def build(self, scope: Scope) -> Report:
        """A front, a row per point and what is best, of each device."""
        if not self.engines:
            raise UsageError("engines: name at least one", "such as vllm")
        same = {one.name: getattr(self, one.name) for one in fields(ServeQuestion) if hasattr(self, one.name)}
        asked = ServeQuestion(self.model, search=True, **same)
        found = [searched(asked, device, self.engines, scope.fallbacks) for device in scope.some_devices(self.devices)]
        known = [(one, one.found.chosen) for one in found if one.found.chosen is not None]
        best = [(one.device.name, verdict(one, chosen)[0]) for one, chosen in known]
        shown = [figure for one, chosen in known[:1] for figure in figures(one, chosen)[1:]]
        drawn, leader = [picture(one.found, one.found.chosen) for one in found], found[0]
        front = (f"{tokens(one.tokens_per_s_gpu)} per GPU at {tokens(one.tokens_per_s_user)} per user" for one in _ends(leader))
        asked_for = f"{self.model} under {' and '.join(self.engines)} on up to {self.gpus} GPUs"
        return Report(
            "",
            [f"On {a_device(name)}, {said[0].lower()}{said[1:]}" for name, said in best],
            [],
            charts=[*drawn],
            data_tables=[self._table(found)],
            figures=shown,
            reasons=[f"{name}: {said}" for name, said in best],
            assumptions=[f"{asked_for}; prompts of {self.isl:,} tokens, answers of {self.osl:,}."],
            sensitivity=[f"Other limits: the front goes from {' to '.join(front)}."] * bool(leader.found.front),
        )

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


def _ends(searched: Searched) -> list[Candidate]:
    """The points of the front with most tokens per second of a GPU and of a user."""
    front = searched.found.front
    return [max(front, key=key) for key in (lambda one: one.tokens_per_s_gpu, lambda one: one.tokens_per_s_user)] if front else []


SECTION = ServingSection
