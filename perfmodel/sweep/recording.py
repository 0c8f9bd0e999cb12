"""Recordings of formulas: a formula runs once on numbers that record the operations on them, and the recording then runs on blocks.

Formulas that run on arrays directly take 4 to 14 times as long: they compute every number of a kernel, most of them on whole blocks and
several times. A recording consists of NumPy functions of earlier results. Equal steps are joined, a block runs only the steps that its
columns need, and a result has length 1 along every axis that it does not depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from perfmodel.core.arith import Deferred, Number

Function = Callable[..., Any]
Array = Any
"""A NumPy array of float64 with one dimension per axis, or a plain number."""

SHORT = 256
"""NumPy's buffer in elements. With its default, NumPy copies rows shorter than that to broadcast them, which takes three times as long."""
_COMPARE = (np.less, np.less_equal, np.greater, np.greater_equal)
_NEUTRAL = {np.add: 0, np.subtract: 0, np.multiply: 1, np.divide: 1}
"""Right operands that change nothing."""


class Recorded(NDArrayOperatorsMixin, Deferred):
    """A column that is computed later: an input by name, or a NumPy function of others. No formula may branch on its value."""

    __slots__ = ("function", "operands", "recording")
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    def __init__(self, recording: Recording, function: Function | str, operands: tuple[Number, ...]) -> None:
        self.recording, self.function, self.operands = recording, function, operands

    def __bool__(self) -> bool:
        raise TypeError("a formula branches on a number that is not known yet")

    def __array_ufunc__(self, function: Any, method: str, *operands: Number, **out: Any) -> Number:
        if function in _COMPARE:
            bool(self)
        return self.recording.note(function, *operands)

    def apply(self, function: Function, *arguments: Number) -> Number:
        """Records a function of this and other numbers that takes only whole arrays."""
        return self.recording.note(function, *arguments)


class Recording:
    """All steps of some formulas by their operation, each after the steps that it needs."""

    def __init__(self) -> None:
        self.steps: dict[Any, Recorded] = {}

    def leaf(self, name: str) -> Recorded:
        """An input column."""
        return self._step(name)

    def note(self, function: Function, *operands: Number) -> Number:
        """``function(*operands)``, computed later; operations without effect are left out."""
        if function is np.floor_divide:
            return self.note(np.floor, self.note(np.divide, *operands))
        if function is np.power:
            if operands[1] != 0.5:
                raise TypeError("only square roots are deferred; for powers there is arith.power")
            return self.note(np.sqrt, operands[0])
        if function in _NEUTRAL:
            x, y = operands
            if y == _NEUTRAL[function]:
                return x
            if function in (np.add, np.multiply) and x == _NEUTRAL[function]:
                return y
            is_zero_product = function is np.multiply and (x == 0 or y == 0)  # every number here is finite
            if is_zero_product or (function is np.subtract and x is y):
                return 0
        return self._step(function, *operands)

    def _step(self, function: Function | str, *operands: Number) -> Recorded:
        key = (function, *operands)
        if key not in self.steps:
            self.steps[key] = Recorded(self, function, operands)
        return self.steps[key]


class Step(NamedTuple):
    """``result`` = ``function(*operands)``; ``spent``: operands that no later step needs."""

    function: Function
    operands: tuple[Number, ...]
    result: Recorded
    spent: set[Number]


class Replay:
    """The steps that ``columns`` need, in order."""

    def __init__(self, columns: Mapping[str, Number]) -> None:
        self.columns = columns
        self.leaves: dict[Recorded, str] = {}
        self.constants: dict[Number, Array] = {}
        self.steps: list[Step] = []
        ordered: set[Number] = set()
        for number in columns.values():
            self._order(number, ordered)
        needed_later = {*columns.values()}
        for place in reversed(range(len(self.steps))):
            step = self.steps[place]
            self.steps[place] = step._replace(spent={*step.operands} - needed_later)
            needed_later |= {*step.operands}

    def _order(self, number: Number, ordered: set[Number]) -> None:
        """Adds the steps that ``number`` needs, each as late as possible, so that results are still in a cache when used."""
        if number in ordered:
            return
        ordered.add(number)
        if not isinstance(number, Recorded):
            self.constants[number] = np.array(float(number))
        elif isinstance(number.function, str):
            self.leaves[number] = number.function
        else:
            for operand in number.operands:
                self._order(operand, ordered)
            self.steps.append(Step(number.function, number.operands, number, set()))

    def run(self, leaves: Mapping[str, Array]) -> dict[str, Array]:
        """The columns, from ``leaves``, arrays that broadcast to the shape of a block as the columns do."""
        results: dict[Any, Array] = {**self.constants, **{leaf: leaves[name] for leaf, name in self.leaves.items()}}
        buffer_before = np.setbufsize(SHORT)
        try:
            for step in self.steps:
                results[step.result] = step.function(*[results[operand] for operand in step.operands])
                for number in step.spent:
                    del results[number]
        finally:
            np.setbufsize(buffer_before)
        return {name: results[number] for name, number in self.columns.items()}
