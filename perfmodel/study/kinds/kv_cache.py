"""KV caches side by side: bytes over the length, and what fits a device beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Bar, BarChart, Limit, LineChart, Series
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.study.base import Part, Scope, on
from perfmodel.study.fields import Fields
from perfmodel.study.workloads import ModelOptions
from perfmodel.transformer.cache_plan import CacheResult, evaluate, workload
from perfmodel.transformer.explain import explain_cache
from perfmodel.transformer.kv_cache import CacheFormat, attention_kinds


@dataclass(frozen=True, slots=True)
class Cache:
    """A model's cache: ``kv_heads`` as if every layer had that many; ``dtype`` of its elements."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    model: str
    name: str = ""
    kv_heads: int | None = None
    dtype: str = "fp16"
    scale_group: int | None = None
    block_size: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """``caches`` at the lengths ``n``, of ``batch`` sequences; what fits is told at the last length."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    devices: list[str]
    caches: list[Annotated[Cache, Fields(Cache)]]
    n: list[int]
    batch: int = 1
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Part:
        """Bytes over the length, and weights and cache against the capacity of each device."""
        if not self.n or not self.caches:
            raise UsageError("n and caches: name at least one of each", "such as n: [2048, 8192]")
        devices = scope.devices(self.devices)
        lengths = sorted(set(self.n))
        found = {device.id: [(_name(c), [self._result(c, n, device) for n in lengths]) for c in self.caches] for device in devices}
        first = found[devices[0].id]
        bars = [self._bars(found[device.id], device, len(devices) > 1) for device in devices]
        return Part(
            [on(device, len(devices) > 1) + said for device in devices for said in self._sentences(found[device.id], device)],
            [self._lines(first, devices), *bars],
            [self._table(found, devices)],
            ["Nothing is set aside for the driver, the framework, activations or fragmentation."],
            [f for name, results in first for f in scope.explain("KV cache", f"KV cache of {name}", partial(explain_cache, results[-1]))],
        )

    def _result(self, cache: Cache, n: int, device: Device) -> CacheResult:
        spec = ModelOptions(cache.model, kv_heads=cache.kv_heads).spec()
        form = CacheFormat(cache.dtype, None, cache.block_size, cache.scale_group)
        return evaluate(workload(spec, n, self.batch, form, None), device)

    def _lines(self, caches: Sequence[tuple[str, list[CacheResult]]], devices: Sequence[Device]) -> LineChart:
        series = [Series(name, [(one.workload.n, one.total) for one in results]) for name, results in caches]
        limits = [Limit(f"{device.name}, all of its memory", device.dram.capacity.number) for device in devices if device.dram.capacity]
        words = "" if self.batch == 1 else f" of {self.batch} sequences"
        return LineChart(
            f"{self.title or 'KV cache'}: bytes{words} over the length",
            "tokens",
            "KV cache",
            series,
            "count",
            "B",
            limits=limits,
            caption=self.caption,
        )

    def _bars(self, caches: Sequence[tuple[str, list[CacheResult]]], device: Device, several: bool) -> BarChart:
        bars = [Bar(name, [("weights", results[-1].weights), ("KV cache", results[-1].total)]) for name, results in caches]
        limits = [Limit("memory", device.dram.capacity.number)] if device.dram.capacity else []
        what = f"{self.batch} x {max(self.n):,} tokens"
        return BarChart(f"{self.title or 'KV cache'}: memory with {what}" + (f" on {device.name}" if several else ""), "B", bars, limits)

    def _table(self, found: dict[str, list[tuple[str, list[CacheResult]]]], devices: Sequence[Device]) -> DataTable:
        several = len(devices) > 1
        columns = [
            Column("name", "cache"),
            Column("kind", "attention"),
            Column("n", "tokens", "count"),
            Column("token", "per token", "B"),
            Column("sequence", "per sequence", "B"),
            Column("total", f"of {self.batch}", "B"),
            Column("weights", "weights", "B"),
        ]
        for device in devices:
            where = f", {device.name}" if several else ""
            columns += [
                Column(f"batch_{device.id}", f"sequences that fit{where}", "count"),
                Column(f"context_{device.id}", f"longest that fits{where}", "count"),
            ]
        rows: list[list[Value]] = []
        for place, (name, results) in enumerate(found[devices[0].id]):
            for index, one in enumerate(results):
                kind = " + ".join(dict.fromkeys(attention.kind for attention, _ in attention_kinds(one.workload.spec)))
                held = [found[device.id][place][1][index] for device in devices]
                fits: list[Value] = [value for other in held for value in (other.batch, other.context)]
                rows.append([name, kind, one.workload.n, one.per_token, one.per_sequence, one.total, one.weights, *fits])
        return DataTable(self.title or "KV cache", columns, rows)

    def _sentences(self, caches: Sequence[tuple[str, list[CacheResult]]], device: Device) -> list[str]:
        """One per cache, against the first one."""
        first = caches[0][1][-1]
        said = []
        for name, results in caches:
            one = results[-1]
            ratio = first.per_token / one.per_token
            less = (
                ""
                if one is first
                else f", {ratio:.3g}x less than {caches[0][0]}"
                if ratio > 1
                else f", {1 / ratio:.3g}x more than {caches[0][0]}"
                if ratio < 1
                else ", as much"
            )
            said.append(f"{name} keeps {text(one.per_token, 'B')} per token{less}{_room(one, device)}.")
        return said


def _room(one: CacheResult, device: Device) -> str:
    """What the device holds, in words."""
    if one.room is None or one.batch is None:
        return ""
    if one.room <= 0:
        return f": {device.name} does not hold the weights ({text(one.weights, 'B')})"
    if one.batch == 0:
        return f": {device.name} holds one of {one.context or 0:,} tokens beside the weights, none of {one.workload.n:,}"
    return f": {device.name} holds {one.batch:,} sequences of {one.workload.n:,} tokens beside the weights"


def _name(cache: Cache) -> str:
    return cache.name or " ".join(filter(None, [cache.model, f"{cache.kv_heads} KV heads" if cache.kv_heads else "", cache.dtype]))
