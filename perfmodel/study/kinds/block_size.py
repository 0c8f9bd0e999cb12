"""HBM accesses and time of a tiled attention algorithm against its block size, like Figure 2 of FlashAttention (Dao et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.evaluate import AttentionResult
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.roofline_metrics import SHORT
from perfmodel.report.charts.schema import Limit, LineChart, Series
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.study.points import attention_steps
from perfmodel.study.schema import XY, Options, Scope, merged, on
from perfmodel.study.workloads import AttentionOptions, shape_words

X_LABEL = "block size B_c"


@dataclass(frozen=True, slots=True)
class BlockSizeSection(Options):
    """A tiled algorithm over ``block_kv``, the values of B_c (keys per tile). ``rows``: B_r, by default min(B_c, d) as in the paper."""

    devices: list[str]
    attention: AttentionOptions
    block_kv: list[int]
    algorithm: str = "flash1"
    rows: int | None = None
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: HBM accesses (B) and roofline times (s) for each block size and for standard attention."""
        if find(self.algorithm).tiling is None:
            raise UsageError(f"algorithm: {self.algorithm} has no blocks", "give flash1 or flash2")
        devices = scope.some_devices(self.devices)
        return merged([self._section(device, scope, len(devices) > 1) for device in devices])

    def _section(self, device: Device, scope: Scope, several: bool) -> Report:
        standard = self._result(device, "standard", None)
        results, notes = dict[int, AttentionResult](), []
        for columns in sorted(set(self.block_kv)):
            try:
                results[columns] = self._result(device, self.algorithm, columns)
            except UsageError as error:
                notes.append(f"B_c {columns}: {error.message}.")
        if not results:
            raise UsageError(f"block_kv: no block fits {device.id}: {notes[0]}", "give smaller ones")
        title = self.title or f"{self.algorithm} over the block size"
        if several:
            title += f", {device.name}"
        sentence = self._sentence(results, standard)
        largest = results[max(results)]
        group = f"{self.algorithm}, B_c {max(results)} on {device.id}"
        return Report(
            "",
            [f"On {a_device(device.name)} {sentence}."],
            [],
            notes,
            charts=[self._accesses(results, standard, title), self._times(results, standard, title)],
            data_tables=[_table([*results.values(), standard], standard, title)],
            formulas=scope.explain(self.algorithm, group, partial(attention_steps, largest, self.attention.workload(), device)),
            figures=_figures(results, standard),
            reasons=[f"{on(device, several)}{self.algorithm}, {shape_words(self.attention.workload())}: {sentence}."],
        )

    def _result(self, device: Device, algorithm: str, columns: int | None) -> AttentionResult:
        rows = self.rows
        if columns is None:
            rows = None
        elif not rows:
            rows = min(columns, self.attention.d or 0)
        question = self.attention.updated({"algorithm": algorithm, "block_q": rows, "block_kv": columns})
        return question.compare(device).shown()[0]

    def _accesses(self, results: dict[int, AttentionResult], standard: AttentionResult, title: str) -> LineChart:
        series = [Series(self.algorithm, [(columns, float(result.total.access_bytes)) for columns, result in results.items()])]
        limits, caption = [Limit("standard", float(standard.total.access_bytes))], self.caption
        return LineChart(
            f"{title}: accesses without a cache", X_LABEL, "accesses without a cache", series, "count", "B", limits=limits, caption=caption
        )

    def _times(self, results: dict[int, AttentionResult], standard: AttentionResult, title: str) -> LineChart:
        def longest(*resources: str) -> XY:
            return [(columns, max(float(r.total.terms.get(name, 0.0)) for name in resources)) for columns, r in results.items()]

        at_roof: XY = [(columns, float(result.total.roofline_s)) for columns, result in results.items()]
        series = [Series(f"{self.algorithm}, roof", at_roof, "dashed", group="roof")]
        series += [Series("memory alone", longest("dram", "l2")), Series("arithmetic alone", longest("tensor", "vector", "sfu"))]
        limits = [Limit("standard, roof", float(standard.total.roofline_s))]
        return LineChart(f"{title}: time at the roof", X_LABEL, "time", series, "count", "s", limits=limits)

    def _sentence(self, results: dict[int, AttentionResult], standard: AttentionResult) -> str:
        small, large = min(results), max(results)
        small_bytes, large_bytes = results[small].total.access_bytes, results[large].total.access_bytes
        standard_bytes = standard.total.access_bytes
        limit = "memory binds at every size"
        for columns, result in results.items():
            if result.total.bound not in ("dram", "l2"):
                binding = BOUND_WORDS.get(result.total.bound or "", "arithmetic")
                limit = f"beyond B_c {columns} {binding} binds and larger blocks buy no time"
                break
        return (
            f"blocks of {large} columns move {text(int(large_bytes), 'B')}, "
            f"{float(small_bytes / large_bytes):.3g}x fewer bytes than blocks of {small} and "
            f"{float(standard_bytes / large_bytes):.3g}x fewer than standard attention ({text(int(standard_bytes), 'B')}); {limit}"
        )


def _figures(results: dict[int, AttentionResult], standard: AttentionResult) -> list[Figure]:
    """Figures: bytes with the largest block, with the smallest, and of standard attention."""
    named = {f"blocks of {columns}": results[columns] for columns in (max(results), min(results))}
    named["standard attention"] = standard
    return [Figure(f"accesses, {name}", text(int(result.total.access_bytes), "B")) for name, result in named.items()]


def _table(results: Sequence[AttentionResult], standard: AttentionResult, title: str) -> DataTable:
    """A row per block size, then standard attention."""

    def edge(name: str) -> Callable[[AttentionResult], Value]:
        return lambda result: int(getattr(result.parts[0].tile, name)) if result.parts[0].tile else None

    columns: list[tuple[Column, Callable[[AttentionResult], Value]]] = [
        (Column("algorithm", "algorithm"), lambda result: result.algorithm.name),
        (Column("bc", "B_c", "count"), edge("bc")),
        (Column("br", "B_r", "count"), edge("br")),
        (Column("accesses", "accesses without a cache", "B"), lambda result: int(result.total.access_bytes)),
        (Column("of_standard", "standard / this", "ratio"), lambda result: float(standard.total.access_bytes / result.total.access_bytes)),
        (Column("sram", "L2 traffic", "B"), lambda result: int(result.total.sram.total)),
        (Column("dram", "DRAM traffic", "B"), lambda result: int(result.total.dram.total)),
        (Column("flops", "FLOP, executed", "FLOP"), lambda result: int(result.total.executed_flops)),
        (Column("roofline_s", "roofline", "s"), lambda result: float(result.total.roofline_s)),
        (Column("bound", "bound by"), lambda result: SHORT.get(result.total.bound or "")),
    ]
    return DataTable.of(title, results, columns)


SECTION = BlockSizeSection
