"""Statements of lecture notes and papers, recomputed: an evaluator of ``configs/claims/claims.yaml``.

A check evaluates an expression over its inputs and the functions of that file, which call this package, and compares the result with
what the source gives. The verdict of a claim follows from its checks alone; one without a check that compares is not checkable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from decimal import Decimal
from functools import cache, cached_property
from inspect import isfunction
from operator import ge, gt, le, lt
from pkgutil import resolve_name
from typing import Any

from perfmodel.catalog import data_folder, find_device
from perfmodel.core.arith import Number
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.files import read_yaml
from perfmodel.core.formula import FAULTS, function, names_in, read, value
from perfmodel.core.frozen import dataclass
from perfmodel.core.plugins import docstring, make_callable
from perfmodel.core.trace import FormulaStep, Trace, Traced
from perfmodel.core.units import parse

HOLDS, RELABELLED, INCOMPLETE, WRONG = "holds", "holds with relabelling", "incomplete", "wrong"
PENDING, NOT_CHECKABLE = "pending", "not checkable"
VERDICTS = (HOLDS, RELABELLED, INCOMPLETE, WRONG, PENDING, NOT_CHECKABLE)
STATED, RELABEL, BEYOND = "", "relabelled", "beyond"
"""Kinds of checks: the claim as stated; with a corrected label; for a case that the claim leaves open."""

make_callable(__name__)
_device = cache(find_device)


@dataclass(frozen=True, slots=True)
class ClaimInput:
    """An input of an expression and its source: given, or from a device profile."""

    symbol: str
    meaning: str
    value: Number
    source: str


def _input(name: str, raw: Any) -> ClaimInput:
    """The input ``name`` from ``raw``: a number, or an expression for (profile, meaning, Quantity)."""
    symbol, meaning = _file()["symbols"].get(name, (name, ""))
    if not isinstance(raw, str):
        return ClaimInput(symbol, meaning, raw, "given")
    profile, meaning, quantity = evaluate(raw, {})
    return ClaimInput(symbol, meaning, quantity.number, _device(profile).origin(quantity))


# Expressions


_BUILTINS = {function_.__name__: function_ for function_ in (float, int, len, max, range, sum, zip)}


@cache
def _read() -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    return read_yaml(data_folder("configs") / "claims" / "claims.yaml")


def _file() -> dict[str, Any]:
    return _read()[0]


@cache
def names() -> dict[str, Any]:
    """Names that an expression may use besides its inputs: parts of the package, constants, and functions of the file."""
    content, lines = _read()
    parts = {name: resolve_name(path) for name, path in content["names"].items()}
    namespace = {**_BUILTINS, "device": _device, **content["constants"], **parts}
    for section, functions in content["functions"].items():
        for signature, body in functions.items():
            line = lines["functions", section, signature, "is"]
            defined = function(signature, body["is"], namespace, f"line {line}, {signature}")
            defined.__module__, defined.__doc__ = f"{__name__}.{section}", body["what"]
            namespace[defined.__name__] = cache(defined) if body.get("cached") else defined
    return namespace


def evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    """The value of ``expression`` over ``names``, with ``values`` for its inputs.

    >>> evaluate("standard_forward(n, d)", {"n": 1024, "d": 64})
    4456448
    """
    return value(read(expression), {**names(), **values})


def source_of(function: Callable[..., Any]) -> str:
    """The source in the docstring of ``function``, or else the docstring's first line.

    >>> from perfmodel.kernels.attention.algorithms import standard
    >>> source_of(standard.forward)
    'standard.forward: Dao et al. 2022, Algorithm 0'
    """
    text = docstring(function)
    cited = re.search(r"Source: (.*?)\.?\s*(?:\n\n|$)", text, re.DOTALL)
    module = function.__module__.rpartition(".")[2]
    return f"{module}.{function.__name__}: {' '.join((cited[1] if cited else text.splitlines()[0].rstrip('.')).split())}"


# Checks and claims


@dataclass(frozen=True, slots=True)
class Computed:
    """A computed number beside the claimed one, in base units; ``agrees`` is None if none is claimed.

    ``tolerance`` is absolute; ``digits``: digits to show. ``role``: STATED, RELABEL or BEYOND.
    """

    what: str
    value: float
    unit: str
    claimed_value: float | None
    relation: str
    tolerance: float
    agrees: bool | None
    digits: int = 4
    role: str = STATED


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a claim: the expression ``of`` is computed and compared with what the source gives, its number or its formula.

    ``printed``: the number, which agrees if the computed one lies within half a unit of its last digit. ``formula``: the formula, which
    agrees to 1e-9. With neither, nothing is compared. ``within``: another tolerance, as a share. ``at``: inputs that differ from the
    claim's. ``unit``: base unit, if the printed one has a prefix or there is none.
    """

    what: str
    of: str
    printed: str = ""
    formula: str = ""
    unit: str = ""
    relation: str = "="
    within: float | None = None
    role: str = STATED
    at: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base_unit(self) -> str:
        """The unit of the computed number."""
        return self.unit or self.printed.partition(" ")[2]

    def run(self, inputs: Mapping[str, Number]) -> Computed:
        """The computed number, and whether it agrees."""
        value, claimed = float(evaluate(self.of, inputs)), self._claimed(inputs)
        tolerance = self._tolerance(claimed)
        agrees = None
        if claimed is not None and self.relation == "=":
            agrees = abs(value - claimed) <= tolerance
        elif claimed is not None:
            agrees = {"<": lt, ">": gt, "<=": le, ">=": ge}[self.relation](value, claimed)
        digits = max(sum(map(str.isdigit, self.printed)), 4)
        return Computed(self.what, value, self.base_unit, claimed, self.relation, tolerance, agrees, digits, self.role)

    def _claimed(self, inputs: Mapping[str, Number]) -> float | None:
        if self.printed:
            return float(parse(self.printed, self.base_unit))
        return float(evaluate(self.formula, inputs)) if self.formula else None

    def _tolerance(self, claimed: float | None) -> float:
        """Tolerance in base units: slightly more than half a digit, to allow for rounding of floats."""
        if claimed is None or self.relation != "=":
            return 0.0
        if self.within is not None or not self.printed:
            return abs(claimed) * (1e-9 if self.within is None else self.within)
        digits, _, unit = self.printed.partition(" ")
        exponent = int(Decimal(digits).as_tuple().exponent)
        return (0.5 + 1e-9) * 10.0**exponent * float(parse(f"1 {unit}".strip(), self.base_unit))


@dataclass(frozen=True)
class Claim:
    """A claim. ``quote``: words of ``source`` at ``place``; ``substance``: a summary if there are no such words. ``why``: what is right."""

    id: str
    source: str
    place: str
    quote: str = ""
    substance: str = ""
    why: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def statement(self) -> str:
        """The quote in quotation marks, or the summary."""
        return f'"{self.quote}"' if self.quote else f"In substance: {self.substance}"

    def inputs(self, check: Check | None = None) -> dict[str, ClaimInput]:
        """Inputs of ``check``, or of the claim, by the name that its expressions have for them."""
        inputs = {}
        changed = check.at if check else {}
        for name, raw in {**self.given, **changed}.items():
            place = ("checks", self.checks.index(check)) if check and name in changed else ("given", name)
            with self._at(*place):
                inputs[name] = _input(name, raw)
        return inputs

    @cached_property
    def numbers(self) -> list[Computed]:
        """The numbers that the checks compute."""
        return [self._run(index, check) for index, check in enumerate(self.checks)]

    def _run(self, index: int, check: Check) -> Computed:
        values = {name: claim_input.value for name, claim_input in self.inputs(check).items()}
        with self._at("checks", index):
            return check.run(values)

    @contextmanager
    def _at(self, *place: str | int) -> Iterator[None]:
        """Context that turns a failing expression into a DataError with the line of ``place`` in this claim."""
        try:
            yield
        except FAULTS as error:
            raise DataError(f"claims.yaml, line {_read()[1].get((self.id, *place))}, {self.id}: {error}") from error

    @property
    def verdict(self) -> str:
        """One of VERDICTS, from the checks."""
        return verdict_of(self.numbers)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The functions that the checks call."""
        return list(dict.fromkeys(function for check in self.checks for function in self.functions_of(check)))

    def functions_of(self, check: Check) -> list[Callable[..., Any]]:
        """Functions that the expression of ``check`` calls; an input hides a function of its name."""
        values = [names().get(name) for name in names_in(check.of) if name not in self.given and name not in check.at]
        return [value for value in values if isfunction(value)]

    def explain(self, check: Check) -> list[FormulaStep]:
        """The number of ``check`` explained: its inputs, then its formula in symbols and in values."""
        trace = Trace()
        source = "; ".join(map(source_of, self.functions_of(check))) or self.source
        symbols = {}
        for name, item in self.inputs(check).items():
            if name in names_in(check.of):
                symbols[name] = trace.symbol(item.symbol, item.value, item.meaning, item.source)
        result = evaluate(check.of, symbols)
        trace.define(check.what, check.base_unit, result, source)
        steps = [step._replace(source=step.source or source) for step in trace.steps.values()]
        if isinstance(result, Traced):
            return steps
        return [*steps, FormulaStep(check.what, check.base_unit, check.of, "", result, source)]


def verdict_of(numbers: Sequence[Computed]) -> str:
    """The verdict: wrong if a number disagrees as stated, unless all agree once relabelled; incomplete if one disagrees beyond that."""
    compared = [number for number in numbers if number.agrees is not None]
    if not compared:
        return NOT_CHECKABLE
    stated = [number.agrees for number in compared if number.role == STATED]
    relabelled = [number.agrees for number in compared if number.role == RELABEL]
    beyond = [number.agrees for number in compared if number.role == BEYOND]
    if all(stated):
        return HOLDS if all(beyond) else INCOMPLETE
    return RELABELLED if relabelled and all(relabelled) else WRONG


@cache
def all_claims() -> list[Claim]:
    """Every claim, by id."""
    content = _file()
    claims = []
    for name in sorted(content):
        if re.fullmatch(r"S\d+", name):
            row = content[name]
            checks = tuple(Check(**check) for check in row.get("checks", ()))
            claims.append(Claim(id=name, **{**row, "source": content["sources"][row["source"]], "checks": checks}))
    return claims


def find_claims(ids: Sequence[str] = (), verdict: str | None = None) -> list[Claim]:
    """The claims of these ``ids`` (all if none is given) that have this ``verdict``; UsageError for an unknown one."""
    by_id = {claim.id: claim for claim in all_claims()}
    for name in ids:
        if name.upper() not in by_id:
            nearest = suggest(name.upper(), list(by_id), f"ids run from {min(by_id)} to {max(by_id)}")
            raise UsageError(f"ID: no claim is called {name!r}", nearest)
    if verdict is not None and verdict not in VERDICTS:
        raise UsageError(f"--verdict: unknown verdict {verdict!r}", suggest(verdict, list(VERDICTS)))
    chosen = [by_id[name] for name in sorted({name.upper() for name in ids})] if ids else list(by_id.values())
    return [claim for claim in chosen if verdict in (None, claim.verdict)]
