"""KV caches of several models: bytes over the length, and how many fit a device beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Limit, LineChart, Series
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Figure, Formula, Report, Value
from perfmodel.study.schema import Options, Scope, merged, on
from perfmodel.study.workloads import model_with
from perfmodel.transformer.cache_plan import CacheResult, evaluate, workload
from perfmodel.transformer.explain import explain_cache
from perfmodel.transformer.kv_cache import CacheFormat, attention_kinds


class _CacheResults(NamedTuple):
    """The results of one cache on one device, by length; ``last`` is that of the last length."""

    name: str
    by_length: list[CacheResult]

    @property
    def last(self) -> CacheResult:
        """The result at the last length."""
        return self.by_length[-1]


@dataclass(frozen=True, slots=True)
class CacheOptions(Options):
    """The cache of a model. ``kv_heads``: overrides those of every layer; ``dtype``: format of its elements."""

    model: str
    name: str = ""
    kv_heads: int | None = None
    dtype: str = "fp16"
    scale_group: int | None = None
    block_size: int = 1

    @property
    def title(self) -> str:
        """Name of the cache in the report."""
        return self.name or " ".join(filter(None, [self.model, f"{self.kv_heads} KV heads" if self.kv_heads else "", self.dtype]))


@dataclass(frozen=True, slots=True)
class KvCacheSection(Options):
    """``caches`` of ``batch`` sequences at the lengths ``n``; sentences are about the last length."""

    devices: list[str]
    caches: list[CacheOptions]
    n: list[int]
    batch: int = 1
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: bytes over the length, and weights and cache beside the capacity of each device."""
        if not self.n or not self.caches:
            raise UsageError("n and caches: name at least one of each", "such as n: [2048, 8192]")
        devices = scope.some_devices(self.devices)
        lengths = sorted(set(self.n))

        def results_on(device: Device) -> list[_CacheResults]:
            return [_CacheResults(cache.title, [self._result(cache, n, device) for n in lengths]) for cache in self.caches]

        by_device = [results_on(device) for device in devices]
        whole = merged([self._device_report(device, caches, len(devices) > 1) for device, caches in zip(devices, by_device, strict=True)])
        formulas = list[Formula]()
        for cache in by_device[0]:
            formulas += scope.explain("KV cache", f"KV cache of {cache.name}", partial(explain_cache, cache.last))
        return replace(
            whole,
            charts=[self._lines(by_device[0], devices), *whole.charts],
            data_tables=[self._table(by_device, devices)],
            title=self.title,
            notes=["Nothing is set aside for the driver, the framework, activations or fragmentation."],
            formulas=formulas,
        )

    def _result(self, cache: CacheOptions, n: int, device: Device) -> CacheResult:
        form = CacheFormat(cache.dtype, None, cache.block_size, cache.scale_group)
        return evaluate(workload(model_with(cache.model, cache.kv_heads), n, self.batch, form, None), device)

    def _device_report(self, device: Device, caches: Sequence[_CacheResults], several: bool) -> Report:
        """The report on ``device``: bars beside its capacity, and a sentence per cache, compared with the first one."""
        bars = [Bar(cache.name, [("weights", cache.last.weights), ("KV cache", cache.last.total)]) for cache in caches]
        limits = [Limit("memory", device.dram.capacity.number)] if device.dram.capacity else []
        title = f"{self.title or 'KV cache'}: memory with {self.batch} x {max(self.n):,} tokens" + f" on {device.name}" * several
        reasons = [on(device, several) + _sentence(cache, caches[0], device) for cache in caches]
        largest = max(caches, key=lambda cache: cache.last.per_token)
        smallest = min(caches, key=lambda cache: cache.last.per_token)
        answer = f"On {a_device(device.name)} {largest.name} keeps {text(largest.last.per_token, 'B')} per token"
        if smallest.name != largest.name:
            answer += f", {smallest.name} {text(smallest.last.per_token, 'B')}"
        figures = [Figure(f"per token, {cache.name}", text(cache.last.per_token, "B")) for cache in (largest, smallest)]
        fitting = [cache for cache in (largest, smallest) if cache.last.batch is not None]
        if fitting:
            counts = " and ".join(dict.fromkeys(f"{cache.last.batch:,}" for cache in fitting))
            answer += f"; beside the weights it has room for {counts} sequences of {max(self.n):,} tokens"
            figures += [Figure(f"sequences of {max(self.n):,} tokens, {cache.name}", f"{cache.last.batch:,}") for cache in fitting]
        return Report("", [f"{answer}."], [], charts=[BarChart(title, "B", bars, limits)], figures=figures, reasons=reasons)

    def _lines(self, caches: Sequence[_CacheResults], devices: Sequence[Device]) -> LineChart:
        series = [Series(cache.name, [(result.workload.n, result.total) for result in cache.by_length]) for cache in caches]
        limits = [Limit(f"{device.name}, all of its memory", device.dram.capacity.number) for device in devices if device.dram.capacity]
        words = "" if self.batch == 1 else f" of {self.batch} sequences"
        title = f"{self.title or 'KV cache'}: bytes{words} over the length"
        return LineChart(title, "tokens", "KV cache", series, "count", "B", limits=limits, caption=self.caption)

    def _table(self, by_device: Sequence[Sequence[_CacheResults]], devices: Sequence[Device]) -> DataTable:
        """Table with a row per cache and length, and how many fit each device."""
        sizes = {"n": "tokens", "token": "per token", "sequence": "per sequence", "total": f"of {self.batch}", "weights": "weights"}
        columns = [Column("name", "cache"), Column("kind", "attention")]
        columns += [Column(key, title, "count" if key == "n" else "B") for key, title in sizes.items()]
        for device in devices:
            where = f", {device.name}" * (len(devices) > 1)
            columns.append(Column(f"batch_{device.id}", f"sequences that fit{where}", "count"))
            columns.append(Column(f"context_{device.id}", f"longest that fits{where}", "count"))
        rows: list[list[Value]] = []
        for place, cache in enumerate(by_device[0]):
            for length, result in enumerate(cache.by_length):
                kind = " + ".join(dict.fromkeys(attention.kind for attention, _ in attention_kinds(result.workload.spec)))
                row: list[Value] = [cache.name, kind, result.workload.n]
                row += [result.per_token, result.per_sequence, result.total, result.weights]
                for caches in by_device:
                    on_device = caches[place].by_length[length]
                    row += [on_device.batch, on_device.context]
                rows.append(row)
        return DataTable(self.title or "KV cache", columns, rows)


def _sentence(cache: _CacheResults, first: _CacheResults, device: Device) -> str:
    """Sentence on the bytes of ``cache``, beside the first cache, and how many the device holds."""
    result = cache.last
    ratio = first.last.per_token / result.per_token
    comparison = ""
    if cache is not first:
        comparison = ", as much"
        if ratio > 1:
            comparison = f", {ratio:.3g}x less than {first.name}"
        elif ratio < 1:
            comparison = f", {1 / ratio:.3g}x more than {first.name}"
    return f"{cache.name} keeps {text(result.per_token, 'B')} per token{comparison}{_room(result, device)}."


def _room(result: CacheResult, device: Device) -> str:
    """Phrase on how many sequences the device holds."""
    if result.room is None or result.batch is None:
        return ""
    if result.room <= 0:
        return f": {device.name} does not hold the weights ({text(result.weights, 'B')})"
    if result.batch == 0:
        return f": {device.name} holds one of {result.context or 0:,} tokens beside the weights, none of {result.workload.n:,}"
    return f": {device.name} holds {result.batch:,} sequences of {result.workload.n:,} tokens beside the weights"


SECTION = KvCacheSection
