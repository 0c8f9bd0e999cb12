"""A graph of formulas as a list of array operations, ordered so that most of them see few elements.

Every input varies along some axes of a grid only, so what is computed from it does too: an intermediate result has length 1
along all other axes, and only what depends on every axis is as large as the grid. Products and sums of whole numbers are
therefore formed from their smallest parts first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import inf
from typing import Any

import numpy as np

from perfmodel.core.arith import Number
from perfmodel.sweep.graph import Node
from perfmodel.sweep.loose import SCALED, SEVERAL, Term, loosened
from perfmodel.sweep.products import Monomial, shared_by, without

Shape = tuple[int, ...]
Array = Any
"""A NumPy array of float64, with one dimension per axis."""

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


def _clip(x: Array, low: Array, high: Array, out: Array | None = None) -> Array:
    """The nearest number to x between two plain ones: twice as fast as an extreme of x and one of them."""
    return np.clip(x, low, high, out=out)


_UNARY: dict[str, Callable[..., Any]] = {"floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt}


@dataclass(frozen=True, slots=True)
class Step:
    """``out = function(*inputs)``, all registers; ``function`` takes an array to write to unless it is ``called``."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    out: int
    called: bool = False


@dataclass(slots=True)
class Program:
    """Registers and steps. ``axes`` of a register are those along which it varies, as bits; ``constants`` by register.

    ``leaves`` and ``outputs``: registers by name.
    """

    lengths: Shape
    axes: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    constants: dict[int, float] = field(default_factory=dict)
    leaves: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    known: dict[Any, int] = field(default_factory=dict)

    def shape_of(self, register: int, lengths: Shape) -> Shape:
        """Its shape in a block of ``lengths``."""
        axes = self.axes[register]
        return tuple(length if axes >> axis & 1 else 1 for axis, length in enumerate(lengths))

    def size(self, axes: int) -> int:
        """Elements of a result that varies along ``axes``, in the whole grid."""
        found = 1
        for axis, length in enumerate(self.lengths):
            found *= length if axes >> axis & 1 else 1
        return found

    def register(self, key: Any, axes: int) -> int:
        """A new register."""
        self.axes.append(axes)
        self.known[key] = len(self.axes) - 1
        return len(self.axes) - 1

    def constant(self, value: float) -> int:
        """The register of a plain number."""
        key = ("constant", value)
        if key not in self.known:
            self.constants[self.register(key, 0)] = float(value)
        return self.known[key]

    def emit(self, function: Callable[..., Any], *inputs: int, called: bool = False) -> int:
        """The register of ``function(*inputs)``; each result is computed once, that of plain numbers now."""
        if not called and all(register in self.constants for register in inputs):
            return self.constant(float(function(*(self.constants[register] for register in inputs))))
        key = (function, inputs)
        if key not in self.known:
            axes = 0
            for register in inputs:
                axes |= self.axes[register]
            self.steps.append(Step(function, inputs, self.register(key, axes), called))
        return self.known[key]


def compiled(columns: Mapping[str, Number], leaf_axes: Mapping[str, int], lengths: Shape, loose: Collection[str] = ()) -> Program:
    """The program that computes ``columns``. ``leaf_axes``: along which axes each input varies; ``lengths`` of the axes.

    ``loose``: columns whose last digits may differ from those of the formula as it is written.
    """
    program = Program(lengths)
    for name, number in columns.items():
        program.outputs[name] = _lowered(program, loosened(number) if name in loose else number, leaf_axes)
    return program


def _lowered(program: Program, number: Number, leaf_axes: Mapping[str, int]) -> int:
    """The register of ``number``, computed if it is not yet."""
    if not isinstance(number, Node):
        return program.constant(number)
    if number in program.known:
        return program.known[number]

    def of(part: Number) -> int:
        return _lowered(program, part, leaf_axes)

    if number.kind == "leaf":
        found = program.leaves[number.payload] = program.register(number, leaf_axes[number.payload])
    elif number.kind in ("product", SCALED):
        coefficient, factors = number.payload
        found = _product(program, coefficient, factors, of)
    elif number.kind == "sum":
        found = _sum(program, number.payload, of)
    elif number.kind == SEVERAL:
        kind, several = number.payload
        found = _several(program, _BINARY[kind], several, of)
    elif number.kind == "call":
        function, arguments = number.payload
        found = program.emit(function, *map(of, arguments), called=True)
    elif number.kind in _UNARY:
        found = program.emit(_UNARY[number.kind], of(number.payload[0]))
    elif (bounds := _between(number)) is not None:
        x, low, high = bounds
        found = program.emit(_clip, of(x), program.constant(low), program.constant(high))
    else:
        found = program.emit(_BINARY[number.kind], *map(of, number.payload))
    program.known[number] = found
    return found


def _between(number: Node) -> tuple[Node, float, float] | None:
    """x, low and high if ``number`` is x no lower and no higher than plain numbers; None if it is not."""
    x, bound = number.payload
    if number.kind not in ("minimum", "maximum") or isinstance(bound, Node):
        return None
    if number.kind == "maximum":
        return x, bound, inf
    inner = _between(x) if x.kind == "maximum" else None
    return (x, -inf, bound) if inner is None or inner[1] > bound else (inner[0], inner[1], bound)


def _product(program: Program, coefficient: float, factors: Monomial, of: Callable[[Number], int]) -> int:
    registers = [of(factor) for factor in factors]
    return _folded(program, np.multiply, registers + ([program.constant(coefficient)] if coefficient != 1 or not factors else []))


def _several(program: Program, function: Callable[..., Any], terms: Sequence[Term], of: Callable[[Number], int]) -> int:
    """``function`` over real terms, those that share a factor which is never negative first among themselves."""
    left, parts = list(terms), []
    while (shared := _most_shared([(_unsigned(term.factors), 1) for term in left])) is not None:
        inside = [term for term in left if shared in term.factors]
        common = _unsigned(reduce(shared_by, [term.factors for term in inside]))
        group = _several(program, function, [Term(term.coefficient, without(term.factors, common)) for term in inside], of)
        parts.append(_folded(program, np.multiply, [*map(of, common), group]))
        left = [term for term in left if shared not in term.factors]
    return _folded(program, function, parts + [_product(program, term.coefficient, term.factors, of) for term in left])


def _unsigned(factors: Monomial) -> Monomial:
    """Those that are never negative."""
    return tuple(factor for factor in factors if factor.low >= 0)


def _sum(program: Program, terms: Sequence[tuple[Monomial, int]], of: Callable[[Number], int]) -> int:
    """Terms, with a factor that several of them share taken out, added or subtracted: each time the two whose result is smallest."""
    shared = _most_shared(terms)
    if shared is not None:
        common = reduce(shared_by, [factors for factors, _ in terms if shared in factors])
        inside = [(without(factors, common), coefficient) for factors, coefficient in terms if shared in factors]
        outside = [(factors, coefficient) for factors, coefficient in terms if shared not in factors]
        group = _folded(program, np.multiply, [*map(of, common), _sum(program, inside, of)])
        signed = [(group, 1), *_signed(program, outside, of)]
    else:
        signed = _signed(program, terms, of)
    while len(signed) > 1:
        (i, j) = _smallest_pair(program, [register for register, _ in signed])
        (second, other), (first, sign) = signed.pop(j), signed.pop(i)
        if sign == other:
            signed.append((program.emit(np.add, *sorted((first, second))), sign))
        else:
            signed.append((program.emit(np.subtract, *((first, second) if sign > 0 else (second, first))), 1))
    [(register, sign)] = signed
    return register if sign > 0 else program.emit(np.negative, register)


def _signed(program: Program, terms: Sequence[tuple[Monomial, int]], of: Callable[[Number], int]) -> list[tuple[int, int]]:
    """Registers of the absolute terms, with their signs."""
    found = []
    for factors, coefficient in terms:
        size = abs(coefficient)
        found.append((_product(program, size, factors, of) if factors else program.constant(size), 1 if coefficient > 0 else -1))
    return found


def _most_shared(terms: Sequence[tuple[Monomial, int]]) -> Node | None:
    """The factor of most terms, if it is one of several but not of all: what all share stands outside the sum already."""
    counts = Counter(factor for factors, _ in terms for factor in set(factors))
    factor, count = max(counts.items(), key=lambda item: (item[1], -item[0].index), default=(None, 0))
    return factor if count > 1 else None


def _folded(program: Program, function: Callable[..., Any], registers: list[int]) -> int:
    """``function`` over ``registers``, each time over the two whose result is smallest."""
    left = list(registers)
    while len(left) > 1:
        i, j = _smallest_pair(program, left)
        second, first = left.pop(j), left.pop(i)
        left.append(program.emit(function, *sorted((first, second))))
    return left[0]


def _smallest_pair(program: Program, registers: Sequence[int]) -> tuple[int, int]:
    """Positions i < j of the two registers whose common result is smallest."""
    axes = [program.axes[register] for register in registers]
    pairs = ((i, j) for j in range(len(axes)) for i in range(j))
    return min(
        pairs, key=lambda pair: (program.size(axes[pair[0]] | axes[pair[1]]), program.size(axes[pair[0]]) + program.size(axes[pair[1]]))
    )
