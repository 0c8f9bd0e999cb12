"""Parts of reports that several commands share: the head of the JSON object, explanations, notes, and memory drawn over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel import __version__
from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.core.trace import FormulaStep
from perfmodel.report.document import DOUBT, GUESSED, Report, Table
from perfmodel.report.metrics import BOUND_WORDS
from perfmodel.timing.base import CLEAN, STATE_WORDS, find_model
from perfmodel.timing.predict import Prediction

if TYPE_CHECKING:
    from perfmodel.kernels.fuse import ChainResult as Chained
    from perfmodel.transformer.spec import ModelSpec


def head(name: str, inputs: dict[str, Any] | None = None, device: Device | None = None) -> dict[str, Any]:
    """The first keys of a JSON object: schema, version, inputs and device."""
    content: dict[str, Any] = {"schema": f"perfmodel.{name}/1", "version": __version__}
    if inputs is not None:
        content["inputs"] = inputs
    if device is not None:
        content["hardware"] = {"id": device.id, "name": device.name}
    return content


class Sources:
    """Numbered sources in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cite(self, source: str) -> str:
        """The number of ``source``, as in ``[3]``."""
        return f"[{self._numbers.setdefault(source, len(self._numbers) + 1)}]"

    def notes(self) -> list[str]:
        """A note per source."""
        return [f"[{number}] {source}" for source, number in self._numbers.items()]


STEP_KEYS = ("name", "meaning", "formula", "numbers", "value", "source")
STEPS_COLUMN = "formula = with values = value"
"""Head of the last column of a table of steps, by which it is known among other tables."""
Explained = tuple[str, dict[str, Any], Sequence[FormulaStep]]
"""An explanation: (title of its table, keys that identify it in the JSON object, steps)."""


def with_steps(plain: Report, parts: Iterable[Explained], sources: Sources | None = None) -> Report:
    """``plain`` with the explanations ``parts``. ``sources``: sources cited so far, to which new ones are added."""
    sources, tables, objects = sources or Sources(), list(plain.tables), []
    for title, names, steps in parts:
        columns = ["number", "", "source", STEPS_COLUMN]
        rows = [[step.name, step.meaning, sources.cite(step.source), _chain(step)] for step in steps]
        tables.append(Table(title, columns, rows, "llll"))
        objects.append({**names, "steps": [{key: getattr(step, key) for key in STEP_KEYS} for step in steps]})
    notes = [*plain.notes, *sources.notes()]
    return replace(plain, tables=tables, notes=notes, data={**plain.data, "explanation": objects})


def _chain(step: FormulaStep) -> str:
    """Text ``formula = numbers = value``; only the value for an input."""
    value = f"{step.value:,}" if isinstance(step.value, int) and abs(step.value) < 10**15 else f"{step.value:.6g}"
    numbers = "" if step.numbers == value else step.numbers
    return " = ".join(filter(None, [step.formula, numbers, value]))


def unknown_rates(costs: Iterable[Estimate | Chained], device: Device, left_out: str = "left out of the roof") -> list[str]:
    """A note per rate that the profile lacks."""
    names = sorted(frozenset().union(*(cost.unknown for cost in costs)))
    return [f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is {left_out}." for name in names]


def note(name: str, prediction: Prediction) -> str:
    """Note on a predicted time: the kernel, the calibration and the assumptions."""
    whose = f"{name} is predicted for {prediction.calibration.implementation}, with its 80 % interval"
    return f"{whose}; {prediction.provenance}. Assumed: {assumptions_of(prediction)}."


def guess_notes(predictions: Iterable[Prediction]) -> list[str]:
    """A note per reason why a predicted time is only a guess, such as estimated numbers."""
    numbers_by_reason: dict[str, list[str]] = {}
    for guess in dict.fromkeys(prediction.guess for prediction in predictions if prediction.guess):
        numbers, _, reason = guess.rpartition("; ")
        numbers_by_reason.setdefault(reason, []).append(numbers)
    notes = []
    for reason, phrases in numbers_by_reason.items():
        named = ", ".join(filter(None, phrases))
        sentence = f"{named}; {reason}" if named else reason
        notes.append(f"{sentence[:1].upper()}{sentence[1:]}: {GUESSED}")
    return notes


def assumptions_of(prediction: Prediction) -> str:
    """Phrase on what the model of ``prediction`` assumes about operands, caches and launches."""
    clean = STATE_WORDS[CLEAN]
    return find_model(prediction.calibration.model).assumes.replace(clean, STATE_WORDS.get(prediction.cache, clean))


def prediction_keys(prediction: Prediction | None, otherwise: str | None = None) -> dict[str, Any]:
    """JSON keys on the implementation and calibration of a prediction; without one only the implementation ``otherwise``."""
    if prediction is None:
        return {"implementation": otherwise}
    block = prediction.calibration
    grounds = {
        "kind": prediction.kind,
        "provenance": prediction.provenance,
        "model": block.model,
        "assumes": assumptions_of(prediction),
        "cache": prediction.cache,
    }
    return {"implementation": block.implementation, "prediction": grounds}


_EIGHTHS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT = 60, 8
"""Columns and rows of a chart in a terminal of 80 columns."""


def sparkline(values: Sequence[Number], top: Number) -> str:
    """One character per value, an eighth of ``top`` per step; never blank.

    >>> sparkline([1, 4, 8], 8)
    '▁▄█'
    """
    return "".join(_EIGHTHS[max(1, _eighths(value, top, 1))] for value in values)


def memory_chart(
    title: str, bars: Sequence[Number], top: Number, parts: Sequence[tuple[int, str]], label: Callable[[Number], str], rows: int = HEIGHT
) -> Table:
    """Drawing of memory bars up to ``top``, and below them ``parts``: number of columns and name of each."""
    lines = [*chart(bars, top, rows, label), *(["", line] for line in axis(parts))]
    return Table(title, ["memory", ""], lines, "rl", drawn=True)


def chart(values: Sequence[Number], top: Number, rows: int, label: Callable[[Number], str]) -> list[list[str]]:
    """Rows of a drawing from the top down: the memory at the row's height, and the columns.

    >>> for line in chart([1, 2, 4], 4, 2, str): print(line)
    ['4', '│  █']
    ['2', '│▄██']
    """
    heights = [_eighths(value, top, rows) for value in values]
    lines = []
    for row in range(rows, 0, -1):
        reach = top * row // rows if isinstance(top, int) else top * row / rows
        bars = "".join(_EIGHTHS[min(max(height - 8 * (row - 1), 0), 8)] for height in heights)
        lines.append([label(reach), f"│{bars.rstrip()}"])
    return lines


def axis(parts: Sequence[tuple[int, str]]) -> list[str]:
    """Two lines below a drawing: an axis with a mark where each part begins, and the names of ``parts`` (columns, name).

    >>> axis([(6, "ahead"), (8, "back")])
    ['└┬─────┬───────', ' ahead back']
    """
    line, names = "└", " "
    for width, name in parts:
        if width:
            line += "┬" + "─" * (width - 1)
        short = name if len(name) < width else name.split(",")[0][: max(width - 1, 0)]
        names += short.ljust(width)
    return [line, names.rstrip()]


def _eighths(value: Number, top: Number, rows: int) -> int:
    """Height in eighths of a row, at least one for a positive value."""
    if not top or value <= 0:
        return 0
    return max(1, round(float(value / top) * 8 * rows))


def columns(moments: Iterable[tuple[Number, Number]], width: int, *, whole_steps: bool = False) -> list[Number]:
    """Largest value in each of ``width`` equal parts of the time. ``moments``: pairs of end and value.

    ``whole_steps``: if the time is a number of steps that fit, all get equally many columns, perhaps fewer than ``width`` in all.

    >>> columns([(1, 5), (2, 7), (4, 3)], 4), columns([(1, 5), (2, 7), (4, 3)], 2), columns([(2, 5)], 3, whole_steps=True)
    ([5, 7, 3, 3], [7, 3], [5, 5])
    """
    moments = list(moments)
    total = moments[-1][0] if moments else 0
    if not total:
        return [max(size for _, size in moments)] if moments else []
    if whole_steps and total == int(total) <= width:
        width = width // int(total) * int(total)
    sizes: list[Number] = [0] * width
    first = 0
    for end, size in moments:
        place = end * width / total
        column = min(int(place), width - 1)
        reach = max(first, column - 1 if column == place else column)  # what ends where a column begins is not in it
        for index in range(first, reach + 1):
            if size > sizes[index]:  # noqa: PLR1730 - a call of max takes twice as long
                sizes[index] = size
        first = column
    return sizes


def unread_notes(model: ModelSpec, quantization: Sequence[str] = ()) -> list[str]:
    """Notes on fields of the model's file and of its quantization_config that no rule reads."""
    unread = [*model.unread, *(f"quantization_config.{name}" for name in quantization)]
    if not unread:
        return []
    return [f"No rule reads {', '.join(unread)} in the file of {model.name}: if they change its sizes, {DOUBT}"]
