"""Numbers that record their formulas, for ``--explain``.

A ``Traced`` holds a value and the formula that gave it, once in symbols and once in values. The functions that compute plain
numbers run on it unchanged, so an explanation is the computation itself and cannot drift from it.

``named`` cuts a long formula: on plain numbers it does nothing; on traced ones it notes the definition and stands for it by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

_SUM, _PRODUCT, _POWER, _ATOM = range(4)


class FormulaStep(NamedTuple):
    """One line of an explanation: ``name = formula = numbers = value``. ``source``: where the formula or value is from."""

    name: str
    meaning: str
    formula: str
    numbers: str
    value: Any
    source: str = ""


@dataclass(slots=True)
class Trace:
    """Steps in the order of their first use, by name."""

    steps: dict[str, FormulaStep] = field(default_factory=dict)

    def symbol(self, name: str, value: Any, meaning: str, source: str = "") -> Traced:
        """An input: a symbol with a value and no formula."""
        self.steps.setdefault(name, FormulaStep(name, meaning, "", "", value, source))
        return Traced(value, name, show(value), _ATOM, self)

    def define(self, name: str, meaning: str, result: Any, source: str = "") -> Any:
        """Record that ``name`` is ``result``; the returned number stands for it by name."""
        if not isinstance(result, Traced):
            return result
        step = self.steps.get(name)
        if step is not None and step.formula not in (result.formula, ""):
            raise ValueError(f"{name} stands for both {step.formula} and {result.formula}")
        self.steps.setdefault(name, FormulaStep(name, meaning, result.formula, result.numbers, result.value, source))
        return Traced(result.value, name, show(result.value), _ATOM, self)


def show(value: Any) -> str:
    """A value inside a formula: whole numbers with every digit, others with six."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def label(name: str, meaning: str, value: Any, like: Any = None, source: str = "") -> Any:
    """``value``, called ``name`` from here on if it is traced. A plain ``value`` joins the trace of ``like``."""
    if isinstance(value, Traced):
        return value.trace.define(name, meaning, value, source)
    if isinstance(like, Traced):
        return like.trace.symbol(name, value, meaning, source)
    return value


class Traced:
    """A number with the formula that gave it. ``level`` is the binding strength of its outermost operation."""

    __slots__ = ("formula", "level", "numbers", "trace", "value")
    __array_ufunc__ = None

    def __init__(self, value: Any, formula: str, numbers: str, level: int, trace: Trace) -> None:
        self.value, self.formula, self.numbers, self.level, self.trace = value, formula, numbers, level, trace

    def _lift(self, other: Any) -> Traced:
        return other if isinstance(other, Traced) else Traced(other, show(other), show(other), _ATOM, self.trace)

    def _join(self, other: Traced, sign: str, level: int, value: Any, strict: bool = False) -> Traced:
        """``self sign other``; ``strict``: the right side needs brackets at equal strength too."""

        def text(left: str, right: str) -> str:
            first = f"({left})" if self.level < level else left
            second = f"({right})" if other.level < level or (strict and other.level == level) else right
            return f"{first}{sign}{second}"

        return Traced(value, text(self.formula, other.formula), text(self.numbers, other.numbers), level, self.trace)

    def __add__(self, other: Any) -> Traced:
        other = self._lift(other)
        if _is(other, 0):
            return self
        return other if _is(self, 0) else self._join(other, " + ", _SUM, self.value + other.value)

    def __radd__(self, other: Any) -> Traced:
        return self._lift(other) + self

    def __sub__(self, other: Any) -> Traced:
        other = self._lift(other)
        return self if _is(other, 0) else self._join(other, " - ", _SUM, self.value - other.value, strict=True)

    def __rsub__(self, other: Any) -> Traced:
        return self._lift(other) - self

    def __mul__(self, other: Any) -> Traced:
        other = self._lift(other)
        if _is(self, 0) or _is(other, 1):
            return self
        return other if _is(other, 0) or _is(self, 1) else self._join(other, " * ", _PRODUCT, self.value * other.value)

    def __rmul__(self, other: Any) -> Traced:
        return self._lift(other) * self

    def __truediv__(self, other: Any) -> Traced:
        other = self._lift(other)
        return self if _is(other, 1) else self._join(other, " / ", _PRODUCT, self.value / other.value, strict=True)

    def __rtruediv__(self, other: Any) -> Traced:
        return self._lift(other) / self

    def __floordiv__(self, other: Any) -> Traced:
        other = self._lift(other)
        return self if _is(other, 1) else call("floor", self.value // other.value, self / other)

    def __rfloordiv__(self, other: Any) -> Traced:
        return self._lift(other) // self

    def __pow__(self, exponent: int) -> Traced:
        value = prod([self.value] * exponent) if isinstance(exponent, int) else self.value**exponent
        return self._join(self._lift(exponent), "^", _POWER, value)

    def __neg__(self) -> Traced:
        return 0 - self

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == plain(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= plain(other))

    def __repr__(self) -> str:
        return f"{self.formula} = {self.value}"


def _is(number: Traced, constant: int) -> bool:
    """Whether ``number`` is that constant itself, not a symbol that happens to have its value."""
    return number.formula == str(constant)


def plain(number: Any) -> Any:
    """The value without its formula."""
    return number.value if isinstance(number, Traced) else number


def is_traced(*numbers: Any) -> bool:
    """Whether any of ``numbers`` is traced."""
    return any(isinstance(number, Traced) for number in numbers)


def call(name: str, value: Any, *arguments: Any) -> Traced:
    """``name(arguments)``, whose value is ``value``; at least one argument is traced."""
    return template(f"{name}({', '.join(['{}'] * len(arguments))})", value, *arguments)


def template(text: str, value: Any, *arguments: Any) -> Traced:
    """A node written as ``text`` with the arguments in its braces, whose value is ``value``."""
    trace = next(argument.trace for argument in arguments if isinstance(argument, Traced))
    formulas = [argument.formula if isinstance(argument, Traced) else show(argument) for argument in arguments]
    numbers = [argument.numbers if isinstance(argument, Traced) else show(argument) for argument in arguments]
    return Traced(value, text.format(*formulas), text.format(*numbers), _ATOM, trace)
