"""The report of an occupancy question: blocks per multiprocessor, what limits them, sectors per request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.occupancy import LIMIT_WORDS, SOURCE, cuda_major
from perfmodel.core.units import format_binary
from perfmodel.kernels.occupancy import (
    SECTOR_BYTES,
    SECTOR_SOURCE,
    Filling,
    StridedLoad,
    explain,
    sector_efficiency,
    sectors_needed,
    sectors_per_request,
)
from perfmodel.report.answer import headline
from perfmodel.report.charts.schema import Bar, BarChart
from perfmodel.report.document import Figure, Meter, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_table
from perfmodel.report.op_common import head, with_steps

LONGER = ("warps", "bytes")
"""Rows that the short table leaves out."""


def report(result: Filling, *, explained: bool = False, pictures: bool = False) -> Report:
    """``result`` as a Report with data of schema perfmodel.occupancy/1."""
    block = result.block
    registers = "" if block.registers is None else f", {block.registers} registers each"
    shared = f"{format_binary(int(block.sram_bytes)) if block.sram_bytes else 'no'} shared memory"
    tables = _tables(result)
    plain = Report(
        f"Occupancy: {block.threads} threads{registers}, {shared} on {result.device.name}",
        _headline(result),
        tables,
        _notes(result),
        data(result),
        charts=[_chart(result)] if pictures else [],
        meters=_meters(result),
        metered="blocks that each resource allows",
        figures=_figures(result),
        brief=[replace(table, rows=[row for row in table.rows if row[0] not in LONGER]) for table in tables[1:]],
    )
    return with_steps(plain, [("every number", {}, explain(result))]) if explained else plain


def data(result: Filling) -> dict[str, Any]:
    """The object of schema perfmodel.occupancy/1."""
    block, access, filled = result.block, result.access, result.occupancy
    inputs = {
        "threads": block.threads,
        "registers": block.registers,
        "sram_bytes": block.sram_bytes,
        "stride": None if access is None else access.stride,
        "element_bytes": None if access is None else access.element_bytes,
    }
    entry = {
        **as_json([*_active(result), *_on_device(result)]),
        "limits": filled.limits,
        "limited_by": filled.limited_by,
        **as_json([Metric("occupancy", _share(result), unit="share")]),
        "request": None if access is None else as_json(_request(access, result.sm.warp)),
    }
    return {**head("occupancy", inputs, result.device), "results": [entry]}


def _active(result: Filling) -> list[Metric]:
    """Metrics of what runs at once on a multiprocessor."""
    filled = result.occupancy
    return [
        Metric("blocks_per_multiprocessor", filled.blocks, "blocks"),
        Metric("active_warps", filled.warps, "warps"),
        Metric("active_threads", filled.threads, "threads"),
        Metric("max_threads", result.sm.threads, "threads at most"),
    ]


def _on_device(result: Filling) -> list[Metric]:
    filled, count = result.occupancy, int(result.sm.count or 0)
    return [
        Metric("device.multiprocessors", result.sm.count),
        Metric("device.active_blocks", count * filled.blocks, "blocks"),
        Metric("device.active_warps", count * filled.warps, "warps"),
        Metric("device.active_threads", count * filled.threads, "threads"),
        Metric("device.max_active_threads", result.most_threads, "threads at most"),
    ]


def _request(access: StridedLoad, warp: int) -> list[Metric]:
    touched = sectors_per_request(access.stride, access.element_bytes, warp)
    needed = sectors_needed(access.stride, access.element_bytes, warp)
    return [
        Metric("sectors", touched, "sectors"),
        Metric("sectors_needed", needed, "sectors needed"),
        Metric("bytes", touched * SECTOR_BYTES, "bytes"),
        Metric("coalesced", touched == needed),
        Metric("efficiency", sector_efficiency(access.stride, access.element_bytes, warp), "efficiency", "share"),
    ]


def _tables(result: Filling) -> list[Table]:
    limits = [Metric("", limit, LIMIT_WORDS[name]) for name, limit in result.occupancy.limits.items()]
    tables = [
        as_table("blocks per multiprocessor that each resource allows", {"blocks": limits}, "resource"),
        as_table("active at once", {"per multiprocessor": _active(result), "on the device": _on_device(result)}),
    ]
    if result.access is not None:
        tables.append(as_table("one load of a warp", {"value": _request(result.access, result.sm.warp)}))
    return tables


def _share(result: Filling) -> float | None:
    """Occupancy: active warps over the most that a multiprocessor holds. Source: CUDA C++ Best Practices Guide, section Occupancy."""
    warps = _most_warps(result)
    return None if warps is None else float(result.occupancy.warps / warps)


def _most_warps(result: Filling) -> int | None:
    """The most warps that a multiprocessor holds."""
    return None if result.sm.threads is None else int(result.sm.threads // result.sm.warp)


def _headline(result: Filling) -> list[str]:
    filled, share = result.occupancy, _share(result)
    blocks = f"{filled.blocks} block{'s' if filled.blocks > 1 else ''} per multiprocessor"
    if share is not None:
        blocks += f": {filled.warps} of {_most_warps(result)} warps ({share:.1%})"
    limits = " and ".join(LIMIT_WORDS[name] for name in filled.limited_by)
    sentences = headline("", blocks, f"limited by {limits}")
    if result.access is not None:
        request = as_json(_request(result.access, result.sm.warp))
        kind = "Coalesced" if request["coalesced"] else "Not coalesced"
        moved = f"a warp's load touches {request['sectors']} sectors where {request['sectors_needed']} would do"
        sentences.append(f"{kind}: {moved} ({request['efficiency']:.1%} used).")
    return sentences


def _meters(result: Filling) -> list[Meter]:
    """Meters: running blocks over those that each resource allows."""
    filled = result.occupancy
    return [
        Meter(LIMIT_WORDS[name], filled.blocks / most, f"{filled.blocks} of {most} block{'s' * (most > 1)}", name in filled.limited_by)
        for name, most in filled.limits.items()
    ]


def _figures(result: Filling) -> list[Figure]:
    filled, share = result.occupancy, _share(result)
    figures = [
        Figure("blocks per multiprocessor", str(filled.blocks)),
        Figure("limited by", " and ".join(LIMIT_WORDS[name] for name in filled.limited_by)),
    ]
    if share is not None:
        figures.append(Figure("occupancy", f"{share:.1%} of {_most_warps(result)} warps"))
    if result.access is not None:
        used = as_json(_request(result.access, result.sm.warp))["efficiency"]
        figures.append(Figure("bytes used of those moved", f"{used:.1%}"))
    return figures


def _chart(result: Filling) -> BarChart:
    """Chart of the blocks that each resource allows, of which the fewest run."""
    bars = [Bar(LIMIT_WORDS[name], [("blocks", blocks)]) for name, blocks in result.occupancy.limits.items()]
    return BarChart("Blocks per multiprocessor that each resource allows", "count", bars, caption=_headline(result)[1])


def _notes(result: Filling) -> list[str]:
    sm, access = result.sm, result.access
    if cuda_major(result.device) is not None:
        reserve = f", {sm.sram_reserve:,} B of each block kept by CUDA" if sm.sram_reserve else ""
        units = f"registers in units of {sm.register_unit} per warp from {sm.partitions} sub-partitions"
        notes = [f"{SOURCE}: {units}; shared memory in units of {sm.sram_unit} B{reserve}."]
    else:
        notes = [f"{result.device.id} is not an NVIDIA device: no allocation units, plain quotients."]
    notes.append("Most threads of the device: multiprocessors x threads per multiprocessor, not blocks x threads per block.")
    if access is not None:
        notes.append(f"{SECTOR_SOURCE}; aligned array, thread i reads element {access.stride} i of {access.element_bytes} B.")
    return notes
