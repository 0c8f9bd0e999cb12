"""What a claim is: a statement, its inputs, and the numbers it gives beside the same numbers computed.

A claim that gives numbers is judged by them: it holds as long as every computed number agrees with the one claimed. A claim
of words alone carries its verdict and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from inspect import cleandoc, signature
from typing import Any

from perfmodel.arith import Number
from perfmodel.catalog import find_device
from perfmodel.hardware import Device, Quantity
from perfmodel.trace import Step, Trace
from perfmodel.units import parse

HOLDS, RELABELLED, INCOMPLETE, WRONG = "holds", "holds with relabelling", "incomplete", "wrong"
PENDING, NOT_CHECKABLE = "pending", "not checkable"
VERDICTS = (HOLDS, RELABELLED, INCOMPLETE, WRONG, PENDING, NOT_CHECKABLE)

LECTURE = "ML systems lecture notes"
FLASH = "FlashAttention, Dao et al. 2022, arXiv 2205.14135"

_RELATIONS: dict[str, Callable[[float, float, float], bool]] = {
    "=": lambda computed, claimed, tolerance: abs(computed - claimed) <= tolerance,
    "<": lambda computed, claimed, tolerance: computed < claimed,
    ">": lambda computed, claimed, tolerance: computed > claimed,
    "<=": lambda computed, claimed, tolerance: computed <= claimed,
    ">=": lambda computed, claimed, tolerance: computed >= claimed,
}

SYMBOLS = {
    "n": ("N", "sequence length"),
    "d": ("d", "head dim, or model dim"),
    "batch": ("B", "batch, or tokens"),
    "heads": ("H", "query heads"),
    "kv_heads": ("H_kv", "KV heads"),
    "layers": ("L", "layers"),
    "m": ("M", "elements that the SRAM holds"),
    "br": ("B_r", "tile rows"),
    "bc": ("B_c", "tile columns"),
    "numerator": ("numerator", "nonzero blocks, of every"),
    "denominator": ("denominator", "blocks"),
    "before": ("before", "as published"),
    "after": ("after", "as published"),
    "rows": ("m", "rows of the output"),
    "columns": ("n", "columns of the output"),
    "depth": ("k", "inner dimension"),
    "size": ("size", "B per element"),
    "flops_per_s": ("C", "FLOP/s"),
    "bandwidth": ("W", "B/s"),
}
"""How inputs are written, and what they are; others go by their own name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of a shipped device profile, read only when it is needed."""

    device: str
    meaning: str
    read: Callable[[Device], Quantity | None]

    @property
    def quantity(self) -> Quantity:
        """The number with its source."""
        found = self.read(device(self.device))
        assert found is not None, f"{self.device} has no {self.meaning}"
        return found

    @property
    def source(self) -> str:
        """Where the profile has it from."""
        quantity = self.quantity
        return f"{self.device}, {quantity.kind}: {device(self.device).sources[quantity.source]}"


@cache
def device(name: str) -> Device:
    """The shipped profile called ``name``, read once."""
    return find_device(name)


@dataclass(frozen=True, slots=True)
class Computed:
    """A number of the project beside the claimed one, in base units; ``agrees`` is None where none is claimed.

    ``tolerance`` is absolute; ``digits``: how many to show.
    """

    what: str
    value: float
    unit: str
    claimed_value: float | None
    relation: str
    tolerance: float
    agrees: bool | None
    digits: int = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a claim.

    ``compute`` takes the inputs that its parameters name, those ``at`` other values than the claim's included. ``claimed`` is
    the number as printed, with its ``unit``, or the printed formula; None for a number that only puts the claim right.
    A printed number agrees if the computed one lies within half a unit of its last digit, or within ``tolerance`` (relative)
    where that is given; a printed formula agrees to 1e-9. ``formula`` says in words what cannot be traced.
    """

    what: str
    compute: Callable[..., Number]
    claimed: str | Callable[..., Number] | None = None
    unit: str = ""
    relation: str = "="
    tolerance: float | None = None
    at: Mapping[str, Number | Reading] = field(default_factory=dict)
    formula: str = ""

    def check(self, inputs: Mapping[str, Number]) -> Computed:
        """The number computed, and whether it agrees."""
        value, claimed = float(_called(self.compute, inputs)), self._claimed_value(inputs)
        tolerance = self._tolerance(claimed)
        agrees = None if claimed is None else _RELATIONS[self.relation](value, claimed, tolerance)
        digits = sum(map(str.isdigit, self.claimed)) if isinstance(self.claimed, str) else 0
        return Computed(self.what, value, self.unit, claimed, self.relation, tolerance, agrees, max(digits, 4))

    def _claimed_value(self, inputs: Mapping[str, Number]) -> float | None:
        if self.claimed is None:
            return None
        return float(parse(self.claimed, self.unit) if isinstance(self.claimed, str) else _called(self.claimed, inputs))

    def _tolerance(self, claimed: float | None) -> float:
        """Absolute, in base units; half a unit of the last printed digit by default, and a hair for rounding of floats."""
        if claimed is None or self.relation != "=":
            return 0.0
        if self.tolerance is not None or not isinstance(self.claimed, str):
            return abs(claimed) * (1e-9 if self.tolerance is None else self.tolerance)
        digits, unit = self.claimed.partition(" ")[::2]
        exponent = int(Decimal(digits).as_tuple().exponent)
        return (0.5 + 1e-9) * 10.0**exponent * float(parse(f"1 {unit}", self.unit))


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of ``source`` and what is right.

    ``declared``: the verdict of words alone, and of numbers that all agree; numbers that do not make it ``wrong``.
    ``claimed``: the statement's answer in words, where its figures do not say it. ``why``: what is right, and the reason.
    ``uses``: functions of the project that the figures are computed with.
    """

    id: str
    source: str
    statement: str
    claimed: str = ""
    why: str = ""
    declared: str = HOLDS
    inputs: Mapping[str, Number | Reading] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    uses: tuple[Callable[..., Any], ...] = ()

    def values(self, figure: Figure) -> dict[str, Number]:
        """Inputs of ``figure`` by symbol."""
        given = self.given(figure).items()
        return {name: value.quantity.number if isinstance(value, Reading) else value for name, value in given}

    def given(self, figure: Figure) -> dict[str, Number | Reading]:
        """The same, numbers of device profiles not yet read."""
        return {**self.inputs, **figure.at}

    def check(self) -> list[Computed]:
        """Every figure, computed."""
        return [figure.check(self.values(figure)) for figure in self.figures]

    @property
    def verdict(self) -> str:
        """One of VERDICTS: ``wrong`` if a computed number disagrees, else what was declared."""
        return WRONG if any(number.agrees is False for number in self.check()) else self.declared

    def explain(self, figure: Figure) -> list[Step]:
        """How ``figure`` comes about: its inputs, then its formula in symbols and in values."""
        trace, values, given = Trace(), self.values(figure), self.given(figure)
        source = "; ".join(dict.fromkeys(map(source_of, self.uses))) or self.source
        symbols = {name: _symbol(trace, name, values[name], given[name]) for name in _taken(figure.compute, values)}
        value = figure.check(values).value
        if figure.formula:
            return [*trace.steps.values(), Step(figure.what, figure.unit, figure.formula, "", value, source)]
        trace.define(figure.what, figure.unit, figure.compute(**symbols), source)
        return [replace(step, source=step.source or source) for step in trace.steps.values()]


def _taken(formula: Callable[..., Number], inputs: Mapping[str, Number]) -> dict[str, Number]:
    """The inputs that ``formula`` names; those with a default may be absent."""
    parameters = signature(formula).parameters.values()
    return {p.name: inputs[p.name] for p in parameters if p.name in inputs or p.default is p.empty}


def _called(formula: Callable[..., Number], inputs: Mapping[str, Number]) -> Number:
    return formula(**_taken(formula, inputs))


def _symbol(trace: Trace, name: str, value: Number, given: Number | Reading) -> Number:
    symbol, meaning = SYMBOLS.get(name, (name, ""))
    if isinstance(given, Reading):
        return trace.symbol(symbol, value, given.meaning, given.source)
    return trace.symbol(symbol, value, meaning, "given")


def source_of(function: Callable[..., Any]) -> str:
    """What the docstring of ``function`` gives as its source, else the first line of it.

    >>> from perfmodel.attention.algorithms import standard
    >>> source_of(standard.forward)
    'standard.forward: Dao et al. 2022, Algorithm 0'
    """
    text = cleandoc(function.__doc__ or "")
    cited = re.search(r"Source: (.*?)\.?\s*(?:\n\n|$)", text, re.DOTALL)
    module = function.__module__.rpartition(".")[2]
    return f"{module}.{function.__name__}: {' '.join((cited[1] if cited else text.splitlines()[0].rstrip('.')).split())}"
