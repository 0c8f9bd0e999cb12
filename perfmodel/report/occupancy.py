"""The report of an occupancy question: blocks per multiprocessor, what limits them, sectors per request."""

from __future__ import annotations

from typing import Any

from perfmodel.core.occupancy import (
    LIMIT_WORDS,
    SOURCE,
    Result,
    cuda_major,
    explain,
)
from perfmodel.core.sectors import SECTOR_BYTES, SECTOR_SOURCE, Access, sector_efficiency, sectors_needed, sectors_per_request
from perfmodel.core.units import format_binary, format_count
from perfmodel.report.document import Report, Table
from perfmodel.report.operation import head, with_steps


def report(result: Result, *, explained: bool = False) -> Report:
    """``result`` as a Report; its data follows the schema perfmodel.occupancy/1. ``explained``: with every formula."""
    block = result.block
    parts = [f"{block.threads} threads", *([f"{block.registers} registers each"] if block.registers is not None else [])]
    title = f"Occupancy: {', '.join([*parts, f'{format_binary(int(block.sram_bytes))} of shared memory'])} on {result.device.name}"
    plain = Report(title, _verdict(result), _tables(result), _notes(result), data(result))
    return with_steps(plain, [("every number", {}, explain(result))]) if explained else plain


# The JSON object


def data(result: Result) -> dict[str, Any]:
    """The object of schema perfmodel.occupancy/1."""
    block, access, filled = result.block, result.access, result.occupancy
    inputs = {
        "threads": block.threads,
        "registers": block.registers,
        "sram_bytes": block.sram_bytes,
        "stride": access.stride if access else None,
        "element_bytes": access.element_bytes if access else None,
    }
    entry = {
        "blocks_per_multiprocessor": filled.blocks,
        "limits": filled.limits,
        "limited_by": filled.limited_by,
        "active_warps": filled.warps,
        "active_threads": filled.threads,
        "occupancy": share(result),
        "device": {
            "multiprocessors": result.sm.count,
            "active_blocks": _on_device(result, filled.blocks),
            "active_threads": _on_device(result, filled.threads),
            "max_active_threads": result.most_threads,
        },
        "request": None if access is None else _request(access, result.sm.warp),
    }
    return {**head("occupancy", inputs, result.device), "results": [entry]}


def share(result: Result) -> float | None:
    """Active threads over the most that a multiprocessor holds."""
    return None if result.sm.threads is None else result.occupancy.threads / result.sm.threads


def _on_device(result: Result, per_multiprocessor: int) -> int:
    return int(result.sm.count or 0) * per_multiprocessor


def _request(access: Access, warp: int) -> dict[str, Any]:
    touched = sectors_per_request(access.stride, access.element_bytes, warp)
    needed = sectors_needed(access.stride, access.element_bytes, warp)
    return {
        "sectors": touched,
        "bytes": touched * SECTOR_BYTES,
        "sectors_needed": needed,
        "coalesced": touched == needed,
        "efficiency": sector_efficiency(access.stride, access.element_bytes, warp),
    }


# Words


def _verdict(result: Result) -> list[str]:
    filled, full = result.occupancy, share(result)
    words = " and ".join(LIMIT_WORDS[name] for name in filled.limited_by)
    blocks = f"{filled.blocks} block{'s' if filled.blocks > 1 else ''}"
    of_all = "" if full is None else f" ({full:.1%} of {result.sm.threads:,} threads)"
    sentences = [f"{blocks} per multiprocessor{of_all}, limited by {words}."]
    if result.access is not None:
        found = _request(result.access, result.sm.warp)
        kind = "coalesced" if found["coalesced"] else "not coalesced"
        moved = f"a warp's load touches {found['sectors']} sectors where {found['sectors_needed']} would do"
        sentences.append(f"The access is {kind}: {moved}, so {found['efficiency']:.1%} of the bytes moved are used.")
    return sentences


def _tables(result: Result) -> list[Table]:
    filled = result.occupancy
    limits = [[LIMIT_WORDS[name], format_count(limit)] for name, limit in filled.limits.items()]
    active = [
        ["blocks", format_count(filled.blocks), format_count(_on_device(result, filled.blocks))],
        ["warps", format_count(filled.warps), format_count(_on_device(result, filled.warps))],
        ["threads", format_count(filled.threads), format_count(_on_device(result, filled.threads))],
        ["threads at most", _or_dash(result.sm.threads), _or_dash(result.most_threads)],
    ]
    tables = [
        Table("blocks per multiprocessor that each resource allows", ["resource", "blocks"], limits),
        Table("active at once", ["", "per multiprocessor", "on the device"], active),
    ]
    if result.access is not None:
        found = _request(result.access, result.sm.warp)
        rows = [[name.replace("_", " "), str(found[name])] for name in ("sectors", "sectors_needed", "bytes")]
        tables.append(Table("one load of a warp", ["", "value"], [*rows, ["efficiency", f"{found['efficiency']:.1%}"]]))
    return tables


def _or_dash(count: int | None) -> str:
    return "-" if count is None else format_count(count)


def _notes(result: Result) -> list[str]:
    sm, access = result.sm, result.access
    notes = [f"{SOURCE}."]
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
