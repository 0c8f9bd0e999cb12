"""What the reports of the single operations share: the head of the JSON object, rows of counts, and explanations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfmodel import __version__
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.trace import Step
from perfmodel.report.document import Report
from perfmodel.report.metrics import BOUND_WORDS
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


def unknown_rates(costs: Iterable[Estimate], device: Device) -> list[str]:
    """One note per rate that the profile lacks."""
    names = sorted(frozenset().union(*(cost.unknown for cost in costs)))
    return [f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is left out of the roof." for name in names]
