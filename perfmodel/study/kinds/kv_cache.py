"""KV caches side by side: bytes over the length, and what fits a device beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from perfmodel.core.errors import UsageError
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
"""Results by length of each cache, by its name, on one device."""


@dataclass(frozen=True, slots=True)
class CacheOptions(Options):
    """A model's cache: ``kv_heads`` as if every layer had that many; ``dtype`` of its elements."""

    model: str
    name: str = ""
    kv_heads: int | None = None
    dtype: str = "fp16"
    scale_group: int | None = None
    block_size: int = 1

    @property
    def title(self) -> str:
        """How it is called in the report."""
        return self.name or " ".join(filter(None, [self.model, f"{self.kv_heads} KV heads" if self.kv_heads else "", self.dtype]))


@dataclass(frozen=True, slots=True)
class KvCacheSection(Options):
    """``caches`` at the lengths ``n``, of ``batch`` sequences; sentences are on the last length."""

    devices: list[str]
    caches: list[CacheOptions]
    n: list[int]
    batch: int = 1
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """Bytes over the length, and weights and cache against the capacity of each device."""
        if not self.n or not self.caches:
            raise UsageError("n and caches: name at least one of each", "such as n: [2048, 8192]")
        devices, lengths = scope.some_devices(self.devices), sorted(set(self.n))
        found = [[(c.title, [self._result(c, n, device) for n in lengths]) for c in self.caches] for device in devices]
        whole = merged([self._on(device, own, len(devices) > 1) for device, own in zip(devices, found, strict=True)])
        explained = [scope.explain("KV cache", f"KV cache of {name}", partial(explain_cache, results[-1])) for name, results in found[0]]
        return replace(
            whole,
            charts=[self._lines(found[0], devices), *whole.charts],
            data_tables=[self._table(found, devices)],
            title=self.title,
            notes=["Nothing is set aside for the driver, the framework, activations or fragmentation."],
            formulas=list(chain.from_iterable(explained)),
        )

    def _result(self, cache: CacheOptions, n: int, device: Device) -> CacheResult:
        form = CacheFormat(cache.dtype, None, cache.block_size, cache.scale_group)
        return evaluate(workload(model_with(cache.model, cache.kv_heads), n, self.batch, form, None), device)

    def _on(self, device: Device, caches: _Caches, several: bool) -> Report:
        """Bars against the capacity of ``device``, and a sentence per cache, against the first one."""
        bars = [Bar(name, [("weights", results[-1].weights), ("KV cache", results[-1].total)]) for name, results in caches]
        limits = [Limit("memory", device.dram.capacity.number)] if device.dram.capacity else []
        title = f"{self.title or 'KV cache'}: memory with {self.batch} x {max(self.n):,} tokens" + f" on {device.name}" * several
        (first, of_first), *_ = caches
        sentences = [_sentence(name, results[-1], of_first[-1], first, device) for name, results in caches]
        answers, figures = self._first(device, caches)
        said, drawn = [on(device, several) + words for words in sentences], BarChart(title, "B", bars, limits)
        return Report("", answers, [], charts=[drawn], figures=figures, reasons=said)

    def _first(self, device: Device, caches: _Caches) -> tuple[list[str], list[Figure]]:
        """The largest cache against the smallest, and their numbers."""
        ends = [end(caches, key=lambda pair: pair[1][-1].per_token) for end in (max, min)]
        (most, (*_, large)), (least, (*_, small)) = ends
        kept = f"{most} keeps {text(large.per_token, 'B')} per token" + f", {least} {text(small.per_token, 'B')}" * (most != least)
        held = [(name, one) for name, (*_, one) in ends if one.batch is not None]
        counts = " and ".join(dict.fromkeys(f"{one.batch:,}" for _, one in held))
        room = f"; beside the weights it has room for {counts} sequences of {large.workload.n:,} tokens"
        figures = [Figure(f"per token, {name}", text(one.per_token, "B")) for name, (*_, one) in ends]
        figures += [Figure(f"sequences of {one.workload.n:,} tokens, {name}", f"{one.batch:,}") for name, one in held]
        return [f"On {a_device(device.name)} {kept}{room * bool(held)}."], figures

    def _lines(self, caches: _Caches, devices: Sequence[Device]) -> LineChart:
        series = [Series(name, [(one.workload.n, one.total) for one in results]) for name, results in caches]
        limits = [Limit(f"{device.name}, all of its memory", device.dram.capacity.number) for device in devices if device.dram.capacity]
        words = "" if self.batch == 1 else f" of {self.batch} sequences"
        title = f"{self.title or 'KV cache'}: bytes{words} over the length"
        return LineChart(title, "tokens", "KV cache", series, "count", "B", limits=limits, caption=self.caption)

    def _table(self, found: Sequence[_Caches], devices: Sequence[Device]) -> DataTable:
        """A row per cache and length; what fits per device."""
        sizes = {"n": "tokens", "token": "per token", "sequence": "per sequence", "total": f"of {self.batch}", "weights": "weights"}
        columns = [Column("name", "cache"), Column("kind", "attention")]
        columns += [Column(key, title, "count" if key == "n" else "B") for key, title in sizes.items()]
        for device in devices:
            where = f", {device.name}" * (len(devices) > 1)
            columns.append(Column(f"batch_{device.id}", f"sequences that fit{where}", "count"))
            columns.append(Column(f"context_{device.id}", f"longest that fits{where}", "count"))
        rows: list[list[Value]] = []
        for same in zip(*found, strict=True):  # one cache on every device
            for there in zip(*(results for _, results in same), strict=True):  # at one length
                one, fits = there[0], [value for other in there for value in (other.batch, other.context)]
                kind = " + ".join(dict.fromkeys(attention.kind for attention, _ in attention_kinds(one.workload.spec)))
                rows.append([same[0][0], kind, one.workload.n, one.per_token, one.per_sequence, one.total, one.weights, *fits])
        return DataTable(self.title or "KV cache", columns, rows)


def _sentence(name: str, one: CacheResult, first: CacheResult, of_first: str, device: Device) -> str:
    """What ``one`` keeps, beside the first cache, and what the device holds."""
    ratio = first.per_token / one.per_token
    less = f", {ratio:.3g}x less than {of_first}" if ratio > 1 else f", {1 / ratio:.3g}x more than {of_first}" if ratio < 1 else ", as much"
    return f"{name} keeps {text(one.per_token, 'B')} per token{'' if one is first else less}{_room(one, device)}."


def _room(one: CacheResult, device: Device) -> str:
    """What the device holds, in words."""
    if one.room is None or one.batch is None:
        return ""
    if one.room <= 0:
        return f": {device.name} does not hold the weights ({text(one.weights, 'B')})"
    if one.batch == 0:
        return f": {device.name} holds one of {one.context or 0:,} tokens beside the weights, none of {one.workload.n:,}"
    return f": {device.name} holds {one.batch:,} sequences of {one.workload.n:,} tokens beside the weights"


SECTION = KvCacheSection
