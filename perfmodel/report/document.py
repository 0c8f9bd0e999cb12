"""A report before any format: what was found, the numbers, what they rest on, and the data behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells, ready to print. ``align``: ``l`` or ``r`` per column; by default labels left, numbers right."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    align: str = ""

    @property
    def alignment(self) -> str:
        """One letter per column."""
        return self.align or "l" + "r" * (len(self.columns) - 1)


@dataclass(frozen=True, slots=True)
class Report:
    """``verdict``: sentences to read first. ``notes``: assumptions and sources. ``data``: the object that JSON prints.

    ``records``: the measurements that it rests on, if any, as objects of the record format. ``profile``: the text of a device
    profile that was made.
    """

    title: str
    verdict: list[str]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    profile: str = ""
