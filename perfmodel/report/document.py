"""A report before any format: what was found, the numbers, what they rest on, and the data behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells, ready to print; the first column holds labels."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Report:
    """``verdict``: sentences to read first. ``notes``: assumptions and sources. ``data``: the object that JSON prints."""

    title: str
    verdict: list[str]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
