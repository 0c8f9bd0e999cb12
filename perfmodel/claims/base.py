"""What a claim is: what a source says and where, and checks that compute it again.

A check evaluates an expression over its inputs and the functions of this package, and compares it with what the source gives.
The verdict of a claim follows from its checks alone; a claim without one that compares is not checkable, and says why.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from inspect import isfunction
from typing import Any

from perfmodel.claims import attention, devices, mathematics, models, operations
from perfmodel.claims.devices import Reading
from perfmodel.core.arith import Number
from perfmodel.core.plugins import docstring
from perfmodel.core.trace import Step, Trace, Traced
from perfmodel.core.units import parse
from perfmodel.remat import lecture

HOLDS, RELABELLED, INCOMPLETE, WRONG = "holds", "holds with relabelling", "incomplete", "wrong"
PENDING, NOT_CHECKABLE = "pending", "not checkable"
VERDICTS = (HOLDS, RELABELLED, INCOMPLETE, WRONG, PENDING, NOT_CHECKABLE)

STATED, RELABEL, BEYOND = "", "relabelled", "beyond"
"""What a check reads: the claim as it stands; the same with a label put right; the claim where it leaves something out."""

NAMES: dict[str, Any] = {
    name: value
    for module in (attention, devices, mathematics, models, operations, lecture)
    for name, value in vars(module).items()
    if not name.startswith("_")
}
"""What an expression may name besides its inputs."""

_RELATIONS: dict[str, Callable[[float, float, float], bool]] = {
    "=": lambda computed, claimed, tolerance: abs(computed - claimed) <= tolerance,
    "<": lambda computed, claimed, tolerance: computed < claimed,
    ">": lambda computed, claimed, tolerance: computed > claimed,
    "<=": lambda computed, claimed, tolerance: computed <= claimed,
    ">=": lambda computed, claimed, tolerance: computed >= claimed,
}

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
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
    "rows": ("m", "rows of the output"),
    "columns": ("n", "columns of the output"),
    "depth": ("k", "inner dimension"),
    "size": ("size", "B per element"),
    "flops_per_s": ("C", "FLOP/s"),
    "bandwidth": ("W", "B/s"),
}
"""How inputs are written, and what they are; others go by their own name."""


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


@cache
def names_in(expression: str) -> tuple[str, ...]:
    """Inputs, functions and constants that ``expression`` names, each once, always in the same order."""
    return tuple(dict.fromkeys(node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name)))


def evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    """``expression`` of the shipped claims, with ``values`` for its inputs.

    >>> evaluate("standard_forward(n, d)", {"n": 1024, "d": 64})
    4456448
    """
    return _value(_parsed(expression), {**NAMES, **values})


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.Attribute(value=of, attr=name):
            return getattr(_value(of, names), name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=function, args=args, keywords=options):
            given = {option.arg or "": _value(option.value, names) for option in options}
            return _value(function, names)(*(_value(arg, names) for arg in args), **given)
    raise ValueError(f"{ast.unparse(node)!r} has no place in a check")


@dataclass(frozen=True, slots=True)
class Computed:
    """A number of the project beside the claimed one, in base units; ``agrees`` is None where none is claimed.

    ``tolerance`` is absolute; ``digits``: how many to show. ``role``: STATED, RELABEL or BEYOND.
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
    """``of``: what is computed. ``printed``: the source's number with its unit; ``formula``: its formula; neither: a number beside.

    A printed number agrees if the computed one lies within half a unit of its last digit, a formula to 1e-9, or either ``within``
    that share of it. ``at``: inputs other than the claim's. ``unit``: base unit, where the printed one has a prefix or there is none.
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
        """The number computed, and whether it agrees."""
        value, claimed = float(evaluate(self.of, inputs)), self._claimed(inputs)
        tolerance = self._tolerance(claimed)
        agrees = None if claimed is None else _RELATIONS[self.relation](value, claimed, tolerance)
        digits = max(sum(map(str.isdigit, self.printed)), 4)
        return Computed(self.what, value, self.base_unit, claimed, self.relation, tolerance, agrees, digits, self.role)

    def _claimed(self, inputs: Mapping[str, Number]) -> float | None:
        if self.printed:
            return float(parse(self.printed, self.base_unit))
        return float(evaluate(self.formula, inputs)) if self.formula else None

    def _tolerance(self, claimed: float | None) -> float:
        """Absolute, in base units; a hair more than half a digit, for rounding of floats."""
        if claimed is None or self.relation != "=":
            return 0.0
        if self.within is not None or not self.printed:
            return abs(claimed) * (1e-9 if self.within is None else self.within)
        digits, _, unit = self.printed.partition(" ")
        exponent = int(Decimal(digits).as_tuple().exponent)
        return (0.5 + 1e-9) * 10.0**exponent * float(parse(f"1 {unit}".strip(), self.base_unit))


@dataclass(frozen=True, slots=True)
class Claim:
    """``quote``: words of ``source`` at ``place``; ``substance`` instead where only their sense is at hand. ``why``: what is right."""

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
        """The words in quotation marks, or what they come to."""
        return f'"{self.quote}"' if self.quote else f"In substance: {self.substance}"

    def inputs(self, check: Check) -> dict[str, Number | Reading]:
        """Inputs of ``check`` by name, numbers of device profiles not yet read."""
        return read({**self.given, **check.at})

    def values(self, check: Check) -> dict[str, Number]:
        """The same as numbers."""
        return {name: value.quantity.number if isinstance(value, Reading) else value for name, value in self.inputs(check).items()}

    def run(self) -> list[Computed]:
        """Every check."""
        return [check.run(self.values(check)) for check in self.checks]

    @property
    def verdict(self) -> str:
        """One of VERDICTS, from what the checks say."""
        return verdict_of(self.run())

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """What the checks call."""
        return list(dict.fromkeys(function for check in self.checks for function in self.functions_of(check)))

    def functions_of(self, check: Check) -> list[Callable[..., Any]]:
        """What the expression of ``check`` calls; an input goes before a function of its name."""
        named = [NAMES.get(name) for name in names_in(check.of) if name not in self.given and name not in check.at]
        return [value for value in named if isfunction(value)]

    def explain(self, check: Check) -> list[Step]:
        """How the number of ``check`` comes about: its inputs, then its formula in symbols and in values."""
        trace, values, inputs = Trace(), self.values(check), self.inputs(check)
        source = "; ".join(map(source_of, self.functions_of(check))) or self.source
        symbols = {name: _symbol(trace, name, values[name], inputs[name]) for name in values if name in names_in(check.of)}
        result = evaluate(check.of, symbols)
        trace.define(check.what, check.base_unit, result, source)
        steps = [replace(step, source=step.source or source) for step in trace.steps.values()]
        if isinstance(result, Traced):
            return steps
        return [*steps, Step(check.what, check.base_unit, check.of, "", result, source)]


def verdict_of(numbers: list[Computed]) -> str:
    """Wrong if a number disagrees as stated, unless all agree once relabelled; incomplete if one disagrees beyond what is stated."""
    judged = [number for number in numbers if number.agrees is not None]
    agree = {role: [number.agrees for number in judged if number.role == role] for role in (STATED, RELABEL, BEYOND)}
    if not judged:
        return NOT_CHECKABLE
    if all(agree[STATED]):
        return HOLDS if all(agree[BEYOND]) else INCOMPLETE
    return RELABELLED if agree[RELABEL] and all(agree[RELABEL]) else WRONG


def read(given: Mapping[str, Any]) -> dict[str, Number | Reading]:
    """Inputs as the file gives them: numbers, or the call that reads one off a device profile."""
    return {name: evaluate(value, {}) if isinstance(value, str) else value for name, value in given.items()}


def _symbol(trace: Trace, name: str, value: Number, given: Number | Reading) -> Number:
    symbol, meaning = SYMBOLS.get(name, (name, ""))
    if isinstance(given, Reading):
        return trace.symbol(symbol, value, given.meaning, given.source)
    return trace.symbol(symbol, value, meaning, "given")


def source_of(function: Callable[..., Any]) -> str:
    """What the docstring of ``function`` gives as its source, else the first line of it.

    >>> from perfmodel.kernels.attention.algorithms import standard
    >>> source_of(standard.forward)
    'standard.forward: Dao et al. 2022, Algorithm 0'
    """
    text = docstring(function)
    cited = re.search(r"Source: (.*?)\.?\s*(?:\n\n|$)", text, re.DOTALL)
    module = function.__module__.rpartition(".")[2]
    return f"{module}.{function.__name__}: {' '.join((cited[1] if cited else text.splitlines()[0].rstrip('.')).split())}"
