"""Formulas run once on numbers that note what is done to them, then on blocks of arrays.

The notes are plain steps, each a NumPy function of earlier results. Equal steps are one, and a block runs those that its columns need.
A result has length 1 along every axis that it does not depend on, so that broadcasting keeps most of them small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from perfmodel.core.arith import Deferred, Number

Function = Callable[..., Any]
Array = Any
"""A NumPy array of float64 with one dimension per axis, or a plain number."""

SHORT = 256
"""Elements of a row from which arrays are passed to NumPy for broadcasting; copying them into longer rows takes three times as long."""
_COMPARE = (np.less, np.less_equal, np.greater, np.greater_equal)
_NEUTRAL = {np.add: 0, np.subtract: 0, np.multiply: 1, np.divide: 1}


class Recorded(NDArrayOperatorsMixin, Deferred):
    """A column that is computed later: NumPy's functions of it are noted. No formula may ask for its value.

    Comparing it, or asking for its truth, is an error.
    """

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
        """Notes a function of this and other numbers that takes whole arrays alone."""
        return self.recording.note(function, *arguments)


class Recording:
    """All steps of some formulas, by what they compute."""

    def __init__(self) -> None:
        self.known: dict[Any, Recorded] = {}

    def leaf(self, name: str) -> Recorded:
        """An input column."""
        return self._step(name)

    def note(self, function: Function, *operands: Number) -> Number:
        """``function(*operands)``, computed later; what changes nothing is left out."""
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
            if (function is np.multiply and (x == 0 or y == 0)) or (function is np.subtract and x is y):
                return 0  # as every number here is finite
        return self._step(function, *operands)

    def _step(self, function: Function | str, *operands: Number) -> Recorded:
        key = (function, *operands)
        if key not in self.known:
            self.known[key] = Recorded(self, function, operands)
        return self.known[key]


class Replay:
    """The steps that ``columns`` need, in order."""

    def __init__(self, columns: Mapping[str, Number]) -> None:
        self.registers: list[Array] = []
        self.leaves: dict[str, int] = {}
        self.steps: list[tuple[Function, tuple[int, ...], int, tuple[int, ...]]] = []
        self._known: dict[Any, int] = {}
        self.outputs = {name: self._register(number) for name, number in columns.items()}
        self._forget()

    def _register(self, number: Number) -> int:
        """Index of the result that ``number`` is, computed after what it needs."""
        if number not in self._known:
            if not isinstance(number, Recorded):
                self._known[number] = self._new(np.array(float(number)))
            elif isinstance(number.function, str):
                self._known[number] = self.leaves[number.function] = self._new()
            else:
                inputs = tuple(map(self._register, number.operands))
                self._known[number] = self._new()
                self.steps.append((number.function, inputs, self._known[number], ()))
        return self._known[number]

    def _new(self, value: Array = None) -> int:
        self.registers.append(value)
        return len(self.registers) - 1

    def _forget(self) -> None:
        """Notes with each step the results that no later one needs."""
        computed, seen = {step[2] for step in self.steps}, {*self.outputs.values()}
        for index, (function, inputs, out, _) in reversed([*enumerate(self.steps)]):
            last = computed & {*inputs} - seen
            seen |= last
            self.steps[index] = (function, inputs, out, tuple(last))

    def run(self, leaves: Mapping[str, Array], outs: Mapping[str, Array]) -> None:
        """Compute into ``outs``, arrays of the block's shape, from ``leaves``, which broadcast to it."""
        registers = list(self.registers)
        for name, register in self.leaves.items():
            registers[register] = leaves[name]
        before = np.setbufsize(SHORT)
        try:
            for function, inputs, out, spent in self.steps:
                registers[out] = function(*[registers[register] for register in inputs])
                for register in spent:
                    registers[register] = None
            for name, register in self.outputs.items():
                np.copyto(outs[name], registers[register])
        finally:
            np.setbufsize(before)
