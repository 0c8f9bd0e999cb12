"""KV caches of several models: bytes over the length, and how many fit a device beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Limit, LineChart, Series
from perfmodel.report.device_names import a_device
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.study.schema import Options, Scope, merged, on
from perfmodel.study.workloads import model_with
from perfmodel.transformer.cache_plan import CacheResult, evaluate, workload
from perfmodel.transformer.explain import explain_cache
from perfmodel.transformer.kv_cache import CacheFormat, attention_kinds

_Caches = list[tuple[str, list[CacheResult]]]
"""For one device, each cache's name and its results by length."""


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
        devices, lengths = scope.some_devices(self.devices), sorted(set(self.n))
        by_device = [[(c.title, [self._result(c, n, device) for n in lengths]) for c in self.caches] for device in devices]
        whole = merged([self._device_report(device, caches, len(devices) > 1) for device, caches in zip(devices, by_device, strict=True)])
        steps = [scope.explain("KV cache", f"KV cache of {name}", partial(explain_cache, results[-1])) for name, results in by_device[0]]
        return replace(
            whole,
            charts=[self._lines(by_device[0], devices), *whole.charts],
            data_tables=[self._table(by_device, devices)],
            title=self.title,
            notes=["Nothing is set aside for the driver, the framework, activations or fragmentation."],
            formulas=list(chain.from_iterable(steps)),
        )

    def _result(self, cache: CacheOptions, n: int, device: Device) -> CacheResult:
        form = CacheFormat(cache.dtype, None, cache.block_size, cache.scale_group)
        return evaluate(workload(model_with(cache.model, cache.kv_heads), n, self.batch, form, None), device)

    def _device_report(self, device: Device, caches: _Caches, several: bool) -> Report:
        """The report on ``device``: bars beside its capacity, and a sentence per cache, compared with the first one."""
        bars = [Bar(name, [("weights", results[-1].weights), ("KV cache", results[-1].total)]) for name, results in caches]
        limits = [Limit("memory", device.dram.capacity.number)] if device.dram.capacity else []
        title = f"{self.title or 'KV cache'}: memory with {self.batch} x {max(self.n):,} tokens" + f" on {device.name}" * several
        (first, of_first), *_ = caches
        sentences = [_sentence(name, results[-1], of_first[-1], first, device) for name, results in caches]
        answers, figures = self._short_report(device, caches)
        reasons, drawn = [on(device, several) + words for words in sentences], BarChart(title, "B", bars, limits)
        return Report("", answers, [], charts=[drawn], figures=figures, reasons=reasons)

    def _short_report(self, device: Device, caches: _Caches) -> tuple[list[str], list[Figure]]:
        """The short report: the largest cache against the smallest, with figures."""
        ends = [end(caches, key=lambda pair: pair[1][-1].per_token) for end in (max, min)]
        (name, (*_, large)), (other, (*_, small)) = ends
        sentence = f"{name} keeps {text(large.per_token, 'B')} per token" + f", {other} {text(small.per_token, 'B')}" * (name != other)
        fitting = [(name, result) for name, (*_, result) in ends if result.batch is not None]
        counts = " and ".join(dict.fromkeys(f"{result.batch:,}" for _, result in fitting))
        room = f"; beside the weights it has room for {counts} sequences of {large.workload.n:,} tokens"
        figures = [Figure(f"per token, {name}", text(result.per_token, "B")) for name, (*_, result) in ends]
        figures += [Figure(f"sequences of {result.workload.n:,} tokens, {name}", f"{result.batch:,}") for name, result in fitting]
        return [f"On {a_device(device.name)} {sentence}{room * bool(fitting)}."], figures

    def _lines(self, caches: _Caches, devices: Sequence[Device]) -> LineChart:
        series = [Series(name, [(result.workload.n, result.total) for result in results]) for name, results in caches]
        limits = [Limit(f"{device.name}, all of its memory", device.dram.capacity.number) for device in devices if device.dram.capacity]
        words = "" if self.batch == 1 else f" of {self.batch} sequences"
        title = f"{self.title or 'KV cache'}: bytes{words} over the length"
        return LineChart(title, "tokens", "KV cache", series, "count", "B", limits=limits, caption=self.caption)

    def _table(self, by_device: Sequence[_Caches], devices: Sequence[Device]) -> DataTable:
        """Table with a row per cache and length, and how many fit each device."""
        sizes = {"n": "tokens", "token": "per token", "sequence": "per sequence", "total": f"of {self.batch}", "weights": "weights"}
        columns = [Column("name", "cache"), Column("kind", "attention")]
        columns += [Column(key, title, "count" if key == "n" else "B") for key, title in sizes.items()]
        for device in devices:
            where = f", {device.name}" * (len(devices) > 1)
            columns.append(Column(f"batch_{device.id}", f"sequences that fit{where}", "count"))
            columns.append(Column(f"context_{device.id}", f"longest that fits{where}", "count"))
        rows: list[list[Value]] = []
        for per_device in zip(*by_device, strict=True):  # one cache on every device
            for at_length in zip(*(results for _, results in per_device), strict=True):  # at one length
                cache, fits = at_length[0], [value for other in at_length for value in (other.batch, other.context)]
                kind = " + ".join(dict.fromkeys(attention.kind for attention, _ in attention_kinds(cache.workload.spec)))
                rows.append(
                    [per_device[0][0], kind, cache.workload.n, cache.per_token, cache.per_sequence, cache.total, cache.weights, *fits]
                )
        return DataTable(self.title or "KV cache", columns, rows)


def _sentence(name: str, result: CacheResult, first: CacheResult, of_first: str, device: Device) -> str:
    """Sentence on the bytes of ``result``, beside the first cache, and how many the device holds."""
    ratio = first.per_token / result.per_token
    less = f", {max(ratio, 1 / ratio):.3g}x {'less' if ratio > 1 else 'more'} than {of_first}" if ratio != 1 else ", as much"
    return f"{name} keeps {text(result.per_token, 'B')} per token{'' if result is first else less}{_room(result, device)}."


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
