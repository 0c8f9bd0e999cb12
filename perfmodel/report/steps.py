"""An explanation as a table: every number with its formula in symbols, with values, and its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perfmodel.core.trace import Step
from perfmodel.report.document import Table


class Sources:
    """Sources by number, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cite(self, source: str) -> str:
        """``[3]``, the number of ``source``."""
        return f"[{self._numbers.setdefault(source, len(self._numbers) + 1)}]"

    def notes(self) -> list[str]:
        """One line per source."""
        return [f"[{number}] {source}" for source, number in self._numbers.items()]


def steps_table(title: str, steps: Iterable[Step], sources: Sources) -> Table:
    """One row per step: name, what it is, and formula = numbers = value; an input has a value only."""
    rows = [[step.name, step.meaning, sources.cite(step.source), _chain(step)] for step in steps]
    return Table(title, ["number", "", "source", "formula = with values = value"], rows, "llll")


def _chain(step: Step) -> str:
    parts = [step.formula, step.numbers if step.numbers != _value(step.value) else "", _value(step.value)]
    return " = ".join(part for part in parts if part)


def steps_data(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps as JSON objects."""
    return [
        {"name": s.name, "meaning": s.meaning, "formula": s.formula, "numbers": s.numbers, "value": s.value, "source": s.source}
        for s in steps
    ]


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else f"{value:.6g}"
