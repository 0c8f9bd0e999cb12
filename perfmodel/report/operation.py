"""What the reports of the single operations share: the head of the JSON object, rows of counts, and explanations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfmodel import __version__
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.trace import Step
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.report.counts import BOUND_WORDS, intensity
from perfmodel.report.document import Report
from perfmodel.report.steps import Sources, steps_data, steps_table


def head(name: str, inputs: dict[str, Any], device: Device) -> dict[str, Any]:
    """The keys that every JSON object starts with."""
    hardware = {"id": device.id, "name": device.name}
    return {"schema": f"perfmodel.{name}/1", "version": __version__, "inputs": inputs, "hardware": hardware}


def with_steps(plain: Report, parts: Iterable[tuple[str, dict[str, Any], Sequence[Step]]]) -> Report:
    """``plain`` with one table of steps per part: its title, what names it in the JSON object, its steps."""
    sources, tables, objects = Sources(), list(plain.tables), []
    for title, names, steps in parts:
        tables.append(steps_table(title, steps, sources))
        objects.append({**names, "steps": steps_data(steps)})
    notes = [*plain.notes, *sources.notes()]
    return replace(plain, tables=tables, notes=notes, data={**plain.data, "explanation": objects})


def fits(size: int, device: Device) -> bool | None:
    """Whether ``size`` bytes fit the DRAM of ``device``; None where that is unknown."""
    capacity = device.dram.capacity
    return None if capacity is None else size <= capacity.number


def count_rows(costs: Sequence[Estimate], *, matmul: bool) -> list[list[str]]:
    """Rows of counts and times, one column per estimate; ``matmul``: with FLOP and intensities."""

    def row(label: str, cell: Any) -> list[str]:
        return [label, *(cell(cost) for cost in costs)]

    flop = [
        row("FLOP", lambda c: format_si(c.flops, "FLOP")),
        row("FLOP, executed", lambda c: format_si(c.executed_flops, "FLOP")),
    ]
    intensities = [row(f"arithmetic intensity, {level.upper()}", lambda c, at=level: _intensity(c, at)) for level in ("sram", "dram")]
    return [
        *(flop if matmul else []),
        row("vector operations", lambda c: format_si(c.work.vector, "FLOP")),
        *([] if matmul else [row("exponentials", lambda c: format_si(c.work.sfu))]),
        row("accesses, two-level model", lambda c: f"{format_count(c.reads + c.writes)} elements"),
        row("SRAM traffic", lambda c: format_si(c.sram.total, "B")),
        row("DRAM traffic", lambda c: format_si(c.dram.total, "B")),
        *(intensities if matmul else []),
        row("lower bound, cold L2", lambda c: format_time(c.lower_s)),
        row("roofline", lambda c: format_time(c.roofline_s)),
        row("  without overlap", lambda c: format_time(c.no_overlap_s)),
        row("bound by", lambda c: c.bound or "-"),
    ]


def _intensity(cost: Estimate, level: str) -> str:
    value = intensity(cost, level)
    return "-" if value is None else f"{value:.4g} FLOP/B"


def unknown_rates(costs: Iterable[Estimate], device: Device) -> list[str]:
    """One note per rate that the profile lacks."""
    names = sorted(frozenset().union(*(cost.unknown for cost in costs)))
    return [f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is left out of the roof." for name in names]
