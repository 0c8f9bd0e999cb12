"""Kinds of workload that can be swept: inputs, result columns, and the evaluation of one block of the grid.

An input is a choice or a number. A choice (a device, a number format, a switch) decides which formulas apply; each combination of
choices is a ``SweepVariant``. Numbers are arrays, over which the formulas of a variant run unchanged.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache, partial
from typing import Any, Literal

from perfmodel import catalog
from perfmodel.core.arith import Number, minimum
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import PerfmodelError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.question import DEFAULT_DEVICE
from perfmodel.core.workload import LARGEST_SIZE

FITS = "fits"
"""Column: 1 if the workload of a row fits the device's memory, 0 if not, empty if unknown."""

Kind = Literal["whole", "number", "name", "flag"]
"""Kinds of inputs: a whole number (of bytes if the unit is B), a real number, a word, true or false."""


@dataclass(frozen=True, slots=True)
class SweepInput:
    """An option of the workload's command. ``default``: a value, an expression, or None if the variant chooses.

    ``kind`` and a missing default come from the field of the workload's question. ``choice``: whether it decides which formulas apply.
    ``names``: gives the values that ``all`` means; ``canonical``: gives the spelling that rows have. Range of a number: ``least`` <= x <=
    ``most``, x < ``below``. ``varies``: the default depends on the choices (``SweepWorkload.defaults``). ``pointwise``: if it is given,
    every column is computed row by row. ``columns``: the only columns that depend on it; empty if all may. ``typed``: its name on the
    command line if rows have another one.
    """

    name: str
    meaning: str
    default: Any = None
    kind: Kind = "whole"
    choice: bool = False
    required: bool = False
    names: Callable[[], Sequence[str]] | None = None
    canonical: Callable[[str], str] | None = None
    least: float = 1
    most: float = LARGEST_SIZE
    below: float | None = None
    unit: str = ""
    varies: bool = False
    pointwise: bool = False
    columns: tuple[str, ...] = ()
    typed: str = ""

    @property
    def size(self) -> bool:
        """Whether it is a number of bytes, which is written with its unit."""
        return self.unit == "B"

    @property
    def option(self) -> str:
        """Name on the command line, such as ``--kv-len``."""
        return f"--{self.typed or self.name.replace('_', '-')}"


choice = partial(SweepInput, choice=True)


def with_question_defaults(question: type[Any], *inputs: SweepInput) -> tuple[SweepInput, ...]:
    """``inputs`` with the kinds and defaults of the fields of ``question``."""
    question_fields = {field_.name: field_ for field_ in fields(question)}
    field_names = getattr(question, "OPTION_NAMES", {})

    def filled(axis: SweepInput) -> SweepInput:
        field_ = question_fields.get(field_names.get(axis.name, axis.name))
        if field_ is None:
            return axis
        kind = "whole" if axis.size else next(kind for word, kind in _KINDS.items() if word in str(field_.type))
        default = axis.default
        if default is None and field_.default is not MISSING:
            default = field_.default
        return replace(axis, kind=kind, default=default)

    return tuple(map(filled, inputs))


_KINDS: dict[str, Kind] = {"bool": "flag", "int": "whole", "float": "number", "str": "name"}
"""Kinds of inputs by a word in the type of their field."""


@dataclass(frozen=True, slots=True)
class SweepColumn:
    """A result column. ``whole``: whether it is an integer count. ``pointwise``: whether each row needs a slow calculation of its own.

    ``of``: function that reads it off an estimate or an answer, if any. ``more``: whether more of it is better, if its unit does not say.
    """

    name: str
    unit: str
    meaning: str
    whole: bool = False
    pointwise: bool = False
    of: Callable[[Any], Number] | None = None
    more: bool = False

    @property
    def better(self) -> int:
        """Which direction is better: 1 for more, -1 for less, 0 for neither."""
        if self.more or self.unit.endswith("/s"):
            return 1
        return -1 if self.unit in ("s", "B", "FLOP", "OP", "elements") else 0


class SweepVariant(ABC):
    """One combination of choices. Only ``point`` must be written; the other methods default to nothing."""

    __slots__ = ()

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs that the variant adds for a block, such as tile sizes; and masks of rows without an answer, by reason.

        ``values`` broadcast to the block.
        """
        return {}, {}

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Columns computed from the inputs by array formulas, by name."""
        return {}

    @abstractmethod
    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Values of ``columns`` of a single row, which are computed row by row; PerfmodelError if the row has no answer."""


@dataclass(frozen=True, slots=True)
class RowVariant(SweepVariant):
    """A variant without formulas: every one of ``columns`` is read off the ``answer`` to each row."""

    answer: Callable[[Mapping[str, int]], Any]
    columns: Sequence[SweepColumn]

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Values of ``columns`` of one row. Errors name no sizes, so that rows with the same error are counted together."""
        try:
            answer = self.answer(values)
        except PerfmodelError as error:
            raise type(error)(_SIZES.sub(r"\1", error.message), error.fix) from None
        row = read_columns([column for column in self.columns if column.name in columns], answer)
        return {name: None if value is None else float(value) for name, value in row.items()}


_SIZES = re.compile(r"(--[a-z-]+) \d+")
"""An option with its size in an error."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SweepWorkload:
    """A kind of workload.

    ``variant``: makes the variant for a combination of choices; PerfmodelError if they exclude each other. ``shown``: default columns.
    ``compared``: the choice whose values are compared; its first value is the reference. ``always``: inputs written to every row even
    if not given. ``words``: short names of columns in constraints. ``objective``: default column to minimize. ``split``: cuts a grid
    into parts that need different choices. ``check``: UsageError for axes that contradict the choices. ``defaults``: defaults of
    inputs that vary, from the choices. ``normalize``: axes as the user wrote them, in the form that the command takes.
    """

    name: str
    inputs: tuple[SweepInput, ...]
    columns: tuple[SweepColumn, ...]
    variant: Callable[[Mapping[str, Any]], SweepVariant]
    shown: tuple[str, ...]
    objective: str
    words: Mapping[str, str]
    always: tuple[str, ...]
    compared: str | None = None
    pointwise: bool = False
    split: Callable[[Values, Values, Values], Sequence[tuple[Values, Values]]] = lambda choices, numbers, derived: [(choices, numbers)]
    check: Callable[[Mapping[str, Sequence[Any]], Values], None] = lambda choices, axes: None
    defaults: Callable[[Values], Mapping[str, float]] = lambda choices: {}
    normalize: Callable[[Values], Values] = lambda axes: axes

    @property
    def named(self) -> dict[str, SweepInput]:
        """Inputs by name."""
        return {item.name: item for item in self.inputs}

    def by_name(self, axes: Mapping[str, Any]) -> dict[str, Any]:
        """``axes`` by the names of inputs, which differ from some option names."""
        names = {item.typed.replace("-", "_"): item.name for item in self.inputs if item.typed}
        return {names.get(name, name): value for name, value in axes.items()}

    def column(self, name: str) -> SweepColumn:
        """The column called ``name``; it must exist."""
        return next(column for column in self.columns if column.name == name)

    def column_named(self, name: str, option: str) -> SweepColumn:
        """The column with the full or short name ``name``; UsageError that names ``option`` and the nearest names."""
        full_names = [column.name for column in self.columns]
        full_name = self.words.get(name, name)
        if full_name not in full_names:
            raise UsageError(f"{option}: {self.name} has no column {name!r}", suggest(name, [*self.words, *full_names]))
        return self.column(full_name)

    def check_names(self, axes: Iterable[str], place: str = "--") -> None:
        """UsageError for an unknown axis; ``place``: prefix of its name in the message."""
        for name in axes:
            if name not in self.named:
                shown = name.replace("_", "-") if place == "--" else name
                raise UsageError(f"{place}{shown}: {self.name} has no such axis", suggest(name, list(self.named)))


count = partial(SweepColumn, whole=True)


def read_columns(columns: Sequence[SweepColumn], result: Any) -> dict[str, Number]:
    """Values of those ``columns`` that can be read off ``result``, by name."""
    return {column.name: column.of(result) for column in columns if column.of is not None}


@cache
def device_named(name: str) -> Device:
    """The device called ``name``: its id, words of its name, or the path of a profile; cached."""
    return catalog.find_device(name)


def fits(size: Number, device: Device) -> Number:
    """1 if ``size`` bytes fit the memory of ``device``, 0 if not; NaN if its profile has no capacity."""
    capacity = device.dram.capacity
    return float("nan") if capacity is None else minimum(int(capacity.number) // size, 1)


@cache
def fallbacks() -> tuple[Device, ...]:
    """Devices whose calibrations may be borrowed; cached."""
    return tuple(catalog.calibrated_devices())


def canonical_name(name: str, resolved: str) -> str:
    """``resolved``, the id that ``name`` stands for; a path is returned unchanged."""
    return name if name.endswith((".json", ".yaml", ".yml")) or "/" in name else resolved


HARDWARE = choice(
    "hardware", "device", DEFAULT_DEVICE, names=catalog.device_ids, canonical=lambda name: canonical_name(name, device_named(name).id)
)
DTYPE = choice("dtype", "number format", names=lambda: list(DTYPES))
