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
from perfmodel.core.roofline import Estimate, Traffic
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
    computed row by row. ``columns``: those that alone read it, if not all may.
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

    @property
    def option(self) -> str:
        """As it is written on the command line."""
        return f"--{self.name.replace('_', '-')}"


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


class TileSizes:
    """Sizes of tiles for blocks of rows. ``choose``: sizes by name, or why there are none; asked once for every different case."""

    MOST_KEPT = 64

    def __init__(self, names: Sequence[str], choose: Callable[..., Mapping[str, Number] | str]) -> None:
        self.names, self.choose = names, cache(choose)
        self._known: dict[Any, tuple[Any, list[Mapping[str, Number] | str]]] = {}

    def of(self, *axes: Any) -> tuple[dict[str, Any], list[Skipped]]:
        """Sizes for the cases that ``axes``, which broadcast, make up, 1 where there are none; those rows by reason."""
        import numpy as np

        key = tuple((np.shape(axis), np.asarray(axis, float).tobytes()) for axis in axes)
        if key not in self._known:
            if len(self._known) >= self.MOST_KEPT:
                self._known.clear()
            self._known[key] = self._chosen(axes)
        where, chosen = self._known[key]
        columns = {name: [1 if isinstance(one, str) else one[name] for one in chosen] for name in self.names}
        reasons = dict.fromkeys(one for one in chosen if isinstance(one, str))
        missing = [Skipped(reason, np.array([one == reason for one in chosen])[where]) for reason in reasons]
        return {name: np.array(column, float)[where] for name, column in columns.items()}, missing

    def _chosen(self, axes: Sequence[Any]) -> tuple[Any, list[Mapping[str, Number] | str]]:
        """Which different case each row is, and what is chosen for each of them."""
        import numpy as np

        codes, values = np.zeros((), np.int64), []
        for axis in axes:
            found, code = np.unique(axis, return_inverse=True)
            codes = codes * len(found) + code.reshape(np.shape(axis))
            values.append(found)
        cases, where = np.unique(codes, return_inverse=True)
        places = np.unravel_index(cases, [len(found) for found in values])
        chosen = zip(*(found[place].astype(int).tolist() for found, place in zip(values, places, strict=True)), strict=True)
        return where.reshape(codes.shape), [self.choose(*case) for case in chosen]


Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SweepWorkload:
    """A kind of workload.

    ``variant`` makes the variant for one combination of choices; PerfmodelError where there is none. ``shown``: columns that are
    written unless others are asked for. ``compared``: the choice whose values are held against each other, its first value the
    reference. ``always``: inputs written even if they were not given. ``words``: short names of columns in constraints.
    ``objective``: what is best, if nothing is said. ``split``: parts of a grid that need a choice of their own. ``check``: raises
    UsageError for axes, as written, that do not go together with these choices. ``defaults``: values of inputs that vary, by choices.
    ``meant``: axes as written to axes as the command would take them.
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


def _intensity(cost: Estimate, level: Traffic) -> Number:
    """FLOP/B; NaN where the level sees no byte."""
    return float("nan") if isinstance(level.total, int) and level.total == 0 else cost.intensity(level)


count = partial(SweepColumn, whole=True)
COSTS = (
    count("flops", "FLOP", "matmul FLOP on visible scores; a multiply-add counts 2", of=lambda e: e.flops),
    count("executed_flops", "FLOP", "matmul FLOP as run: recomputation, masked parts of tiles, padding", of=lambda e: e.executed_flops),
    count("tensor_flops", "FLOP", "executed on the tensor unit", of=lambda e: e.work.tensor),
    count("vector_flops", "FLOP", "executed on the vector unit", of=lambda e: e.work.vector),
    count("exponentials", "OP", "executed on the special function unit", of=lambda e: e.work.sfu),
    count("accesses_elements", "elements", "loads and stores of the two-level model", of=lambda e: e.reads + e.writes),
    count("reads_elements", "elements", "loads among them", of=lambda e: e.reads),
    count("writes_elements", "elements", "stores among them", of=lambda e: e.writes),
    count("sram_bytes", "B", "bytes between L2 and SMs", of=lambda e: e.sram.total),
    count("sram_read_bytes", "B", "those read", of=lambda e: e.sram.read),
    count("sram_write_bytes", "B", "those written", of=lambda e: e.sram.write),
    count("dram_bytes", "B", "bytes that pass the memory pins", of=lambda e: e.dram.total),
    count("dram_read_bytes", "B", "those read", of=lambda e: e.dram.read),
    count("dram_write_bytes", "B", "those written", of=lambda e: e.dram.write),
    SweepColumn("sram_intensity_flop_per_byte", "FLOP/B", "flops over sram_bytes", of=lambda e: _intensity(e, e.sram)),
    SweepColumn("dram_intensity_flop_per_byte", "FLOP/B", "flops over dram_bytes", of=lambda e: _intensity(e, e.dram)),
    SweepColumn("lower_s", "s", "lower bound, inputs cold", of=lambda e: e.lower_s),
    SweepColumn("lower_warm_s", "s", "lower bound, inputs and outputs in the caches", of=lambda e: e.lower_warm_s),
    SweepColumn("roofline_s", "s", "roof: all terms overlap", of=lambda e: e.roofline_s),
    SweepColumn("no_overlap_s", "s", "terms of the roof added up", of=lambda e: e.no_overlap_s),
    count("memory_bytes", "B", "every tensor allocated at once"),
    count("extra_memory_bytes", "B", "the part beyond inputs and outputs"),
)
PREDICTED = (
    SweepColumn("predicted_s", "s", "predicted time of a kernel that exists", pointwise=True),
    SweepColumn("predicted_low_s", "s", "lower end of its 80 % interval", pointwise=True),
    SweepColumn("predicted_high_s", "s", "upper end of its 80 % interval", pointwise=True),
)


def computed(columns: Sequence[SweepColumn], result: Any) -> dict[str, Number]:
    """Those of ``columns`` that ``result`` gives."""
    return {one.name: one.of(result) for one in columns if one.of is not None}


def costs(cost: Estimate) -> Mapping[str, Number]:
    """The columns of ``COSTS`` that an estimate gives."""
    return computed(COSTS, cost)


def predicted_columns(prediction: Any) -> dict[str, float | None]:
    """The columns of ``PREDICTED``; None where there is no prediction."""
    ends = (None, None, None) if prediction is None else (prediction.seconds, prediction.low, prediction.high)
    return dict(zip((one.name for one in PREDICTED), ends, strict=True))


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


def kernel_workload(question: type[Any], inputs: Sequence[SweepInput], columns: Sequence[SweepColumn], **more: Any) -> SweepWorkload:
    """A workload of kernels: ``inputs`` beside device and format, ``columns`` beside costs, memory and predicted times."""
    return SweepWorkload(
        inputs=asked(question, HARDWARE, DTYPE, *inputs),
        columns=(*COSTS, *columns, *PREDICTED),
        shown=("flops", "executed_flops", "accesses_elements", "sram_bytes", "dram_bytes", "lower_s", "roofline_s"),
        objective="roofline_s",
        words={"time": "roofline_s", "io": "sram_bytes", "memory": "memory_bytes"},
        **more,
    )
