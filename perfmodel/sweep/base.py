"""What can be swept: a kind of workload with its inputs and columns, and how a block of a grid is evaluated.

Inputs are of two sorts. A choice (a device, a number format, a switch) changes which formulas apply; each combination of choices
is a ``Cell``. All other inputs are columns of numbers, over which a cell's formulas run unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from perfmodel.core.arith import Number
from perfmodel.core.workload import LARGEST_SIZE

DEFAULT_DEVICE = "nvidia-a100-sxm-80gb"
FITS = "fits"
"""A column that says whether a row can run: 1, 0, or nothing where that is not known."""

Kind = Literal["whole", "size", "number", "name", "flag"]
"""A whole number; a number of bytes; a real number; a word; true or false."""


@dataclass(frozen=True, slots=True)
class Input:
    """An option of the workload's command. ``default``: a value, the expression that gives it, or None to let a cell choose.

    ``choice``: whether it decides which formulas apply. ``names``: what ``all`` stands for. ``least``, ``most``: of a number, which
    must be below ``below``. ``varies``: its default depends on the choices (``Workload.defaults``).
    ``pointwise``: where it is given, every column is computed row by row. ``columns``: those that alone read it, if not all may.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
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


@dataclass(frozen=True, slots=True)
class Column:
    """A result. ``whole``: a count, written without a fraction. ``pointwise``: costs a separate, slow calculation for each row."""

    name: str
    unit: str
    meaning: str
    whole: bool = False
    pointwise: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that have no answer: why, and which (an array that broadcasts to the block)."""

    reason: str
    where: Any


class Cell(Protocol):
    """One combination of choices."""

    def extras(self, values: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        """Inputs that the cell adds (the sizes of a tile), each with the inputs that it depends on, for a grid of ``values``."""

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[LeftOut]]:
        """Those inputs for a block, and the rows to leave out. ``values``: arrays that broadcast to the block, or plain numbers."""

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Columns as formulas of the inputs."""

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """The ``columns`` that are computed for each row by itself; PerfmodelError if it has no answer."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of workload.

    ``cell`` makes the cell for one combination of choices; PerfmodelError where there is none. ``shown``: columns that are
    written unless others are asked for. ``compared``: the choice whose values are held against each other, its first value the
    reference. ``always``: inputs written even if they were not given. ``words``: short names of columns in constraints.
    ``objective``: what is best, if nothing is said. ``split``: parts of a grid that need a choice of their own. ``check``: raises
    UsageError for axes, as written, that do not go together with these choices. ``defaults``: values of inputs that vary, by choices.
    ``meant``: axes as written to axes as the command would take them.
    """

    name: str
    inputs: tuple[Input, ...]
    columns: tuple[Column, ...]
    cell: Callable[[Mapping[str, Any]], Cell]
    shown: tuple[str, ...]
    objective: str
    words: Mapping[str, str] = field(default_factory=dict)
    compared: str | None = None
    always: tuple[str, ...] = ()
    split: (
        Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]] | None
    ) = None
    pointwise: bool = False
    check: Callable[[Mapping[str, Sequence[Any]], Mapping[str, Any]], None] | None = None
    defaults: Callable[[Mapping[str, Any]], Mapping[str, float]] | None = None
    meant: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def input(self, name: str) -> Input | None:
        """The input called ``name``."""
        return next((one for one in self.inputs if one.name == name), None)

    def column(self, name: str) -> Column:
        """The column called ``name``, which exists."""
        return next(one for one in self.columns if one.name == name)
