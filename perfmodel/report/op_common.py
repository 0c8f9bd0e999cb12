"""What the reports of several commands share: the head of the JSON object, explanations, and notes on predictions and rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel import __version__
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.trace import FormulaStep
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import BOUND_WORDS, Metric
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import Prediction

if TYPE_CHECKING:
    from perfmodel.kernels.fuse import ChainResult as Chained


def head(name: str, inputs: dict[str, Any] | None = None, device: Device | None = None) -> dict[str, Any]:
    """The keys that JSON objects start with: those of what was asked where there is one."""
    found: dict[str, Any] = {"schema": f"perfmodel.{name}/1", "version": __version__}
    found |= {} if inputs is None else {"inputs": inputs}
    return found if device is None else {**found, "hardware": {"id": device.id, "name": device.name}}


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


def of_step(step: FormulaStep) -> Metric:
    """One line of an explanation as a metric: what it is, its formula in symbols and in numbers, its source."""
    return Metric(step.name, step.value, step.meaning, formula=step.formula, numbers=step.numbers, source=step.source)


Explained = tuple[str, dict[str, Any], Sequence[FormulaStep]]
"""Of an explanation: the title of its table, what names it in the JSON object, its steps."""


def with_steps(plain: Report, parts: Iterable[Explained], sources: Sources | None = None) -> Report:
    """``plain`` with every number of ``parts`` and its formula. ``sources``: those cited before, which go on."""
    sources, tables, objects = sources or Sources(), list(plain.tables), []
    for title, names, steps in parts:
        found = list(map(of_step, steps))
        columns = ["number", "", "source", "formula = with values = value"]
        rows = [[one.key, one.label, sources.cite(one.source), _chain(one)] for one in found]
        tables.append(Table(title, columns, rows, "llll"))
        objects.append({**names, "steps": list(map(_step_data, found))})
    notes = [*plain.notes, *sources.notes()]
    return replace(plain, tables=tables, notes=notes, data={**plain.data, "explanation": objects})


def _chain(one: Metric) -> str:
    """formula = numbers = value; an input has a value only."""
    value = f"{one.value:,}" if isinstance(one.value, int) and abs(one.value) < 10**15 else f"{one.value:.6g}"
    return " = ".join(filter(None, [one.formula, one.numbers if one.numbers != value else "", value]))


def _step_data(one: Metric) -> dict[str, Any]:
    names = {"name": one.key, "meaning": one.label}
    return {**names, "formula": one.formula, "numbers": one.numbers, "value": one.value, "source": one.source}


def unknown_rates(costs: Iterable[Estimate | Chained], device: Device, left_out: str = "left out of the roof") -> list[str]:
    """One note per rate that the profile lacks."""
    names = sorted(frozenset().union(*(cost.unknown for cost in costs)))
    return [f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is {left_out}." for name in names]


def note(what: str, prediction: Prediction) -> str:
    """For what, on which grounds, and under which assumptions a time is predicted."""
    whose = f"{what} is predicted for {prediction.calibration.implementation}, with its 80 % interval"
    return f"{whose}; {prediction.provenance}. Assumed: {assumes(prediction)}."


def assumes(prediction: Prediction) -> str:
    """What the model of ``prediction`` assumes of operands, caches and launches."""
    return find_model(prediction.calibration.model).assumes


def whose(prediction: Prediction | None, otherwise: str | None = None) -> dict[str, Any]:
    """The JSON keys that say whose time is predicted, and on what grounds; without a prediction the implementation ``otherwise``."""
    if prediction is None:
        return {"implementation": otherwise}
    block = prediction.calibration
    grounds = {"kind": prediction.kind, "provenance": prediction.provenance, "model": block.model, "assumes": assumes(prediction)}
    return {"implementation": block.implementation, "prediction": grounds}
