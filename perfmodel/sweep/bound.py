"""A program with memory to run in, for blocks of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from perfmodel.sweep.program import Array, Program, Shape, Step

SMALL = 8
"""A result this many times smaller than the block is kept, and computed again only when its inputs change."""

SHORT = 256
"""Elements of a row that NumPy need not lengthen."""

Ready = tuple[Callable[..., Any], tuple[Array, ...] | None, Array, Step]
"""A step with its arrays; None for inputs that are in other places each time."""


class Bound:
    """Registers for blocks of shape ``lengths``: small results have memory of their own, large ones share what is not in use.

    Results that are wanted are written straight to where they are wanted.
    """

    def __init__(self, program: Program, lengths: Shape) -> None:
        self.program, self.lengths = program, lengths
        self.registers: list[Array] = [None] * len(program.axes)
        for register, value in program.constants.items():
            self.registers[register] = np.array(value)
        for register in program.leaves.values():
            self.registers[register] = np.empty(program.shape_of(register, lengths))
        self.direct = self._direct()
        self._kept = {step.out for step in program.steps if SMALL * self._size(step.out) <= self._size()}
        self._allocate()
        self._ready: dict[int, list[Ready]] = {}

    def _size(self, register: int | None = None) -> int:
        shape = self.lengths if register is None else self.program.shape_of(register, self.lengths)
        return int(np.prod(shape, dtype=np.int64))

    def _direct(self) -> dict[str, int]:
        """Outputs that some step computes in full."""
        program, full = self.program, (1 << len(self.lengths)) - 1
        computed, found = {step.out for step in program.steps}, dict[str, int]()
        for name, register in program.outputs.items():
            if register in computed and program.axes[register] == full and register not in found.values():
                found[name] = register
        return found

    def _allocate(self) -> None:
        """A buffer for every step's result, taken back after its last use if it is a large one."""
        program = self.program
        last = {register: index for index, step in enumerate(program.steps) for register in step.inputs}
        kept = self._kept | set(program.outputs.values()) | set(program.leaves.values()) | set(program.constants)
        free: dict[int, list[Array]] = {}
        for index, step in enumerate(program.steps):
            if step.out not in self.direct.values():
                spare = None if step.out in kept else free.get(program.axes[step.out])
                self.registers[step.out] = spare.pop() if spare else np.empty(program.shape_of(step.out, self.lengths))
            for register in set(step.inputs):
                if last[register] == index and register not in kept:
                    free.setdefault(program.axes[register], []).append(self.registers[register])

    def _steps(self, changed: int) -> list[Ready]:
        """What must be computed when inputs have changed along the axes ``changed``."""
        if changed not in self._ready:
            direct, found = set(self.direct.values()), []
            for step in self.program.steps:
                if step.out not in self._kept or self.program.axes[step.out] & changed:
                    moves = step.out in direct or not direct.isdisjoint(step.inputs)
                    arrays = None if moves else tuple(self.registers[register] for register in step.inputs)
                    found.append((_copying(step.function) if step.called else step.function, arrays, self.registers[step.out], step))
            self._ready[changed] = found
        return self._ready[changed]

    def run(self, leaves: Mapping[str, Array], outs: Mapping[str, Array], changed: int = -1) -> None:
        """Compute into ``outs``, arrays of the block's shape, from ``leaves``, arrays that broadcast to it.

        ``changed``: axes along which leaves differ from those of the last run, as bits.
        """
        registers = self.registers
        for name, register in self.program.leaves.items():
            if self.program.axes[register] & changed:
                np.copyto(registers[register], leaves[name])
        for name, register in self.direct.items():
            registers[register] = outs[name]
        with unbuffered():
            for function, arrays, out, step in self._steps(changed):
                if arrays is None:
                    function(*[registers[register] for register in step.inputs], out=registers[step.out])
                else:
                    function(*arrays, out=out)
        for name, register in self.program.outputs.items():
            if name not in self.direct:
                np.copyto(outs[name], registers[register])


@contextmanager
def unbuffered() -> Iterator[None]:
    """NumPy takes rows of arrays that broadcast as they are: copied together into longer ones first, they take three times as long."""
    before = np.setbufsize(SHORT)
    try:
        yield
    finally:
        np.setbufsize(before)


def _copying(function: Callable[..., Any]) -> Callable[..., None]:
    """A function that makes its own array, writing to ``out`` as others do."""

    def call(*arrays: Array, out: Array) -> None:
        np.copyto(out, function(*arrays))

    return call
