"""A search over layouts and users of serving engines: the front of tokens/s per GPU and per user, and the best within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Report, Value
from perfmodel.report.serve_search import Searched, layout_words, picture, point_figures, searched, verdict
from perfmodel.report.step import tokens
from perfmodel.serving.question import ServeQuestion
from perfmodel.serving.search import Candidate
from perfmodel.study.schema import Options, Scope


@dataclass(frozen=True, slots=True)
class ServingSection(Options):
    """``model`` served by ``engines`` on up to ``gpus`` of each of ``devices``; limits are written as 500ms."""

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
        """The report: a front, a row per point, and the best candidate of each device."""
        if not self.engines:
            raise UsageError("engines: name at least one", "such as vllm")
        values = {field_.name: getattr(self, field_.name) for field_ in fields(ServeQuestion) if hasattr(self, field_.name)}
        question = ServeQuestion(self.model, search=True, **values)
        searches = [searched(question, device, self.engines, scope.fallbacks) for device in scope.some_devices(self.devices)]
        chosen_of = [(search, search.result.chosen) for search in searches if search.result.chosen is not None]
        best = [(search.device.name, verdict(search, chosen)[0]) for search, chosen in chosen_of]
        top_figures = [figure for search, chosen in chosen_of[:1] for figure in point_figures(search, chosen)[1:]]
        drawn, leader = [picture(search.result, search.result.chosen) for search in searches], searches[0]
        front = (f"{tokens(point.tokens_per_s_gpu)} per GPU at {tokens(point.tokens_per_s_user)} per user" for point in _ends(leader))
        asked_for = f"{self.model} under {' and '.join(self.engines)} on up to {self.gpus} GPUs"
        return Report(
            "",
            [f"On {a_device(name)}, {sentence[0].lower()}{sentence[1:]}" for name, sentence in best],
            [],
            charts=[*drawn],
            data_tables=[self._table(searches)],
            figures=top_figures,
            reasons=[f"{name}: {sentence}" for name, sentence in best],
            assumptions=[f"{asked_for}; prompts of {self.isl:,} tokens, answers of {self.osl:,}."],
            sensitivity=[f"Other limits: the front goes from {' to '.join(front)}."] * bool(leader.result.front),
        )

    def _table(self, searches: list[Searched]) -> DataTable:
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
        return DataTable.of(self.title or "front", [(search, point) for search in searches for point in search.result.front], columns)


def _ends(searched: Searched) -> list[Candidate]:
    """The points of the front with the most tokens/s per GPU and per user."""
    front = searched.result.front
    return [max(front, key=key) for key in (lambda point: point.tokens_per_s_gpu, lambda point: point.tokens_per_s_user)] if front else []


SECTION = ServingSection
