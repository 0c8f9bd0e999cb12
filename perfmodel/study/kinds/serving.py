"""A search over layouts and users of serving engines: the front of tokens/s per GPU and per user, and the best within limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
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
        answers, reasons, figures = list[str](), list[str](), list[Figure]()
        for search in searches:
            chosen = search.result.chosen
            if chosen is not None:
                sentence = verdict(search, chosen)[0]
                answers.append(f"On {a_device(search.device.name)}, {sentence[0].lower()}{sentence[1:]}")
                reasons.append(f"{search.device.name}: {sentence}")
                figures = figures or point_figures(search, chosen)[1:]
        work = f"{self.model} under {' and '.join(self.engines)} on up to {self.gpus} GPUs"
        return Report(
            "",
            answers,
            [],
            charts=[picture(search.result, search.result.chosen) for search in searches],
            data_tables=[self._table(searches)],
            figures=figures,
            reasons=reasons,
            assumptions=[f"{work}; prompts of {self.isl:,} tokens, answers of {self.osl:,}."],
            sensitivity=_front_sentences(searches[0].result.front),
        )

    def _table(self, searches: list[Searched]) -> DataTable:
        columns: list[tuple[Column, Callable[[_DevicePoint], Value]]] = [
            (Column("device", "device"), lambda row: row.device.name),
            (Column("engine", "engine"), lambda row: row.point.engine),
            (Column("layout", "layout"), lambda row: layout_words(row.point)),
            (Column("users", "users", "count"), lambda row: row.point.users),
            (Column("tokens_per_s_gpu", "per GPU", "tokens/s"), lambda row: row.point.tokens_per_s_gpu),
            (Column("tokens_per_s_user", "per user", "tokens/s"), lambda row: row.point.tokens_per_s_user),
            (Column("ttft_s", "first token", "s"), lambda row: row.point.ttft_s),
            (Column("tpot_s", "each after it", "s"), lambda row: row.point.tpot_s),
        ]
        rows = [_DevicePoint(search.device, point) for search in searches for point in search.result.front]
        return DataTable.of(self.title or "front", rows, columns)


class _DevicePoint(NamedTuple):
    """A point of the front of a device."""

    device: Device
    point: Candidate


def _front_sentences(front: Sequence[Candidate]) -> list[str]:
    """A sentence on the ends of the front: the most tokens/s per GPU, and the most per user; none for an empty front."""
    if not front:
        return []
    most_per_gpu = max(front, key=lambda point: point.tokens_per_s_gpu)
    most_per_user = max(front, key=lambda point: point.tokens_per_s_user)
    ends = [
        f"{tokens(point.tokens_per_s_gpu)} per GPU at {tokens(point.tokens_per_s_user)} per user" for point in (most_per_gpu, most_per_user)
    ]
    return [f"Other limits: the front goes from {' to '.join(ends)}."]


SECTION = ServingSection
