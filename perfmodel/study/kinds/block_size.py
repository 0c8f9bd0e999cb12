"""A tiled attention over the size of its blocks: what it moves and how long that takes, as FlashAttention's Figure 2 shows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import Step
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.evaluate import Result
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline_metrics import SHORT
from perfmodel.report.charts.schema import Limit, LineChart, Series
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.study.base import XY, Part, Scope, on
from perfmodel.study.fields import Fields
from perfmodel.study.workloads import shape_words


@dataclass(frozen=True, slots=True)
class Section:
    """``block_kv``: columns B_c of a tile, one evaluation each. ``rows``: B_r, by default min(B_c, d) as in the paper's algorithm."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    devices: list[str]
    attention: Annotated[AttentionQuestion, Fields(AttentionQuestion)]
    block_kv: list[int]
    algorithm: str = "flash1"
    rows: int | None = None
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Part:
        """Accesses and times over the block size, beside standard attention."""
        if find(self.algorithm).tiling is None:
            raise UsageError(f"algorithm: {self.algorithm} has no blocks", "give flash1 or flash2")
        devices = scope.devices(self.devices)
        parts = [self._of(device, scope, len(devices) > 1) for device in devices]
        return Part(
            [said for part in parts for said in part.verdict],
            [chart for part in parts for chart in part.charts],
            [table for part in parts for table in part.data_tables],
            [note for part in parts for note in part.notes],
            [formula for part in parts for formula in part.formulas],
        )

    def _of(self, device: Device, scope: Scope, several: bool) -> Part:
        standard = self._result(device, "standard", None)
        assert standard is not None
        found, notes = {}, []
        for columns in sorted(set(self.block_kv)):
            try:
                found[columns] = self._result(device, self.algorithm, columns)
            except UsageError as error:
                notes.append(f"B_c {columns}: {error.message}.")
        if not found:
            raise UsageError(f"block_kv: no block fits {device.id}: {notes[0]}", "give smaller ones")
        title = (self.title or f"{self.algorithm} over the block size") + (f", {device.name}" if several else "")
        return Part(
            [on(device, several) + self._sentence(found, standard)],
            [self._accesses(found, standard, title), self._times(found, standard, title)],
            [self._table(found, standard, title)],
            notes,
            scope.explain(
                self.algorithm, f"{self.algorithm}, B_c {max(found)} on {device.id}", partial(self._steps, device, found[max(found)])
            ),
        )

    def _result(self, device: Device, algorithm: str, columns: int | None) -> Result:
        width = self.attention.d or 0
        rows = None if columns is None else self.rows or min(columns, width)
        asked = self.attention.updated({"algorithm": algorithm, "block_q": rows, "block_kv": columns})
        return asked.compare(device).shown()[0]

    def _steps(self, device: Device, result: Result) -> list[Step]:
        from perfmodel.kernels.attention.explain import explain

        w = self.attention.workload()
        return [step for part in result.parts for step in explain(part, w, device)]

    def _accesses(self, found: dict[int, Result], standard: Result, title: str) -> LineChart:
        moved: XY = [(columns, float(result.total.access_bytes)) for columns, result in found.items()]
        limit = [Limit("standard", float(standard.total.access_bytes))]
        return LineChart(
            f"{title}: HBM accesses",
            "block size B_c",
            "HBM accesses",
            [Series(self.algorithm, moved)],
            "count",
            "B",
            limits=limit,
            caption=self.caption,
        )

    def _times(self, found: dict[int, Result], standard: Result, title: str) -> LineChart:
        at_roof: XY = [(c, float(r.total.roofline_s)) for c, r in found.items()]
        roof = Series(f"{self.algorithm}, roof", at_roof, "dashed", group="roof")
        bandwidth: XY = [(c, max(float(r.total.terms.get(level, 0.0)) for level in ("dram", "l2"))) for c, r in found.items()]
        compute: XY = [(c, max(float(r.total.terms.get(unit, 0.0)) for unit in ("tensor", "vector", "sfu"))) for c, r in found.items()]
        parts = [Series("memory alone", bandwidth), Series("arithmetic alone", compute)]
        limit = [Limit("standard, roof", float(standard.total.roofline_s))]
        return LineChart(f"{title}: time at the roof", "block size B_c", "time", [roof, *parts], "count", "s", limits=limit)

    def _table(self, found: dict[int, Result], standard: Result, title: str) -> DataTable:
        columns = [
            Column("algorithm", "algorithm"),
            Column("bc", "B_c", "count"),
            Column("br", "B_r", "count"),
            Column("accesses", "HBM accesses", "B"),
            Column("of_standard", "standard / this", "ratio"),
            Column("sram", "SRAM traffic", "B"),
            Column("dram", "DRAM traffic", "B"),
            Column("flops", "FLOP, executed", "FLOP"),
            Column("roofline_s", "roofline", "s"),
            Column("bound", "bound by"),
        ]
        rows = [self._row(result, standard) for result in [*found.values(), standard]]
        return DataTable(title, columns, rows)

    @staticmethod
    def _row(result: Result, standard: Result) -> list[Value]:
        cost = result.total
        tile = result.parts[0].tile
        moved = float(standard.total.access_bytes / cost.access_bytes)
        edges: list[Value] = [None, None] if tile is None else [int(tile.bc), int(tile.br)]
        counts: list[Value] = [int(cost.access_bytes), moved, int(cost.sram.total), int(cost.dram.total), int(cost.executed_flops)]
        return [result.algorithm.name, *edges, *counts, float(cost.roofline_s), SHORT.get(cost.bound or "")]

    def _sentence(self, found: dict[int, Result], standard: Result) -> str:
        small, large = min(found), max(found)
        a, b = found[small].total, found[large].total
        fewer = float(standard.total.access_bytes / b.access_bytes)
        turn = next((columns for columns, one in found.items() if one.total.bound not in ("dram", "l2")), None)
        stops = (
            f"beyond B_c {turn} {BOUND_WORDS.get(found[turn].total.bound or '', 'arithmetic')} binds and larger blocks buy no time"
            if turn
            else "memory binds at every size"
        )
        return (
            f"{self.algorithm}, {shape_words(self.attention.workload())}: blocks of {large} columns move {text(int(b.access_bytes), 'B')}, "
            f"{float(a.access_bytes / b.access_bytes):.3g}x fewer bytes than blocks of {small} and {fewer:.3g}x fewer than "
            f"standard attention ({text(int(standard.total.access_bytes), 'B')}); {stops}."
        )
