"""What can be swept: a kind of workload with its inputs and columns, and how a block of a grid is evaluated.

Inputs are of two sorts. A choice (a device, a number format, a switch) changes which formulas apply; each combination of choices
is a ``SweepVariant``. All other inputs are columns of numbers, over which a variant's formulas run unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, partial
from typing import Any, Literal

from perfmodel import catalog
from perfmodel.core.arith import Number
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.question import DEFAULT_DEVICE
from perfmodel.core.workload import LARGEST_SIZE

FITS = "fits"
"""A column that says whether a row can run: 1, 0, or nothing where that is not known."""

Kind = Literal["whole", "size", "number", "name", "flag"]
"""A whole number; a number of bytes; a real number; a word; true or false."""


@dataclass(frozen=True, slots=True)
class SweepInput:
    """An option of the workload's command. ``default``: a value, the expression that gives it, or None to let a variant choose.

    ``kind``, and a default that is not given here, are those of the field of the workload's question. ``choice``: whether it decides
    which formulas apply. ``names``: what ``all`` stands for. ``least``, ``most``: of a number, which must be below ``below``.
    ``varies``: its default depends on the choices (``SweepWorkload.defaults``). ``pointwise``: where it is given, every column is
    computed row by row. ``columns``: those that alone read it, if not all may. ``typed``: its option, if rows call it another name.
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
    def option(self) -> str:
        """As it is written on the command line."""
        return f"--{self.typed or self.name.replace('_', '-')}"


choice = partial(SweepInput, choice=True)


def asked(question: type[Any], *inputs: SweepInput) -> tuple[SweepInput, ...]:
    """``inputs`` with kinds and defaults of the fields of ``question``."""
    known, written = {one.name: one for one in fields(question)}, getattr(question, "OPTION_NAMES", {})

    def filled(one: SweepInput) -> SweepInput:
        option = known.get(written.get(one.name, one.name))
        if option is None:
            return one
        kind = next(kind for word, kind in _KINDS.items() if word in str(option.type))
        default = one.default if option.default is MISSING or one.default is not None else option.default
        return replace(one, kind="size" if one.unit == "B" else kind, default=default)

    return tuple(map(filled, inputs))


_KINDS: dict[str, Kind] = {"bool": "flag", "int": "whole", "float": "number", "str": "name"}


@dataclass(frozen=True, slots=True)
class SweepColumn:
    """A result. ``whole``: a count, written without a fraction. ``pointwise``: costs a separate, slow calculation for each row.

    ``of``: how an estimate or an answer gives it, if it does.
    """

    name: str
    unit: str
    meaning: str
    whole: bool = False
    pointwise: bool = False
    of: Callable[[Any], Number] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that have no answer: why, and which (an array that broadcasts to the block)."""

    reason: str
    where: Any


class SweepVariant(ABC):
    """One combination of choices. What a kind of workload does not need it leaves as it is here."""

    __slots__ = ()

    def extras(self, values: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        """Inputs that the variant adds (the sizes of a tile), each with the inputs that it depends on, for a grid of ``values``."""
        return {}

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Skipped]]:
        """Those inputs for a block, and the rows to leave out. ``values``: arrays that broadcast to the block, or plain numbers."""
        return {}, []

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Columns as formulas of the inputs."""
        return {}

    @abstractmethod
    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """The ``columns`` that are computed for each row by itself; PerfmodelError if it has no answer."""


Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SweepWorkload:
    """A kind of workload.

    ``variant`` makes the variant for one combination of choices; PerfmodelError where there is none. ``shown``: columns that are
    written unless others are asked for. ``compared``: the choice whose values are held against each other, its first value the
    reference. ``always``: inputs written even if they were not given. ``words``: short names of columns in constraints.
    ``objective``: what is best, if nothing is said. ``split``: parts of a grid that need a choice of their own. ``check``: raises
    UsageError for axes, as written, that do not go together with these choices. ``defaults``: values of inputs that vary, by choices.
    ``meant``: the axes that the command would take, of those as written.
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
    meant: Callable[[Values], Values] = lambda axes: axes

    @property
    def named(self) -> dict[str, SweepInput]:
        """Inputs by name."""
        return {one.name: one for one in self.inputs}

    def by_name(self, axes: Mapping[str, Any]) -> dict[str, Any]:
        """``axes`` by the names of inputs, some of which options call by another one."""
        typed = {one.typed.replace("-", "_"): one.name for one in self.inputs if one.typed}
        return {typed.get(name, name): value for name, value in axes.items()}

    @property
    def numbers(self) -> dict[str, str]:
        """Names that may stand in a derived input, each for itself."""
        return {one.name: one.name for one in self.inputs if not one.choice}

    def column(self, name: str) -> SweepColumn:
        """The column called ``name``, which exists."""
        return next(one for one in self.columns if one.name == name)

    def column_named(self, name: str, option: str) -> SweepColumn:
        """The column that ``name`` means, in ``option``; UsageError with the nearest names otherwise."""
        known = [one.name for one in self.columns]
        found = self.words.get(name, name)
        if found not in known:
            raise UsageError(f"{option}: {self.name} has no column {name!r}", suggest(name, [*self.words, *known]))
        return self.column(found)

    def check_names(self, axes: Iterable[str], place: str = "--") -> None:
        """UsageError for an axis that there is not; ``place``: what stands before its name."""
        for name in axes:
            if name not in self.named:
                shown = name.replace("_", "-") if place == "--" else name
                raise UsageError(f"{place}{shown}: {self.name} has no such axis", suggest(name, list(self.named)))


count = partial(SweepColumn, whole=True)


def computed(columns: Sequence[SweepColumn], result: Any) -> dict[str, Number]:
    """Those of ``columns`` that ``result`` gives."""
    return {one.name: one.of(result) for one in columns if one.of is not None}


@cache
def device_named(name: str) -> Device:
    """The device that ``name`` means, as everywhere."""
    return catalog.find_device(name)


@cache
def fallbacks() -> tuple[Device, ...]:
    """Devices whose calibrations may be borrowed."""
    return tuple(catalog.calibrated_devices())


def canonical(name: str, found: str) -> str:
    """``found``, what ``name`` means; a path stays one."""
    return name if name.endswith((".json", ".yaml", ".yml")) or "/" in name else found


HARDWARE = choice(
    "hardware",
    "device",
    DEFAULT_DEVICE,
    names=catalog.device_ids,
    canonical=lambda name: canonical(name, device_named(name).id),
)
DTYPE = choice("dtype", "number format", "fp16", names=lambda: list(DTYPES))
