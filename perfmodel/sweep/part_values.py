"""The inputs of one part of a grid: laid out along their axes, derived numbers computed and checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.sweep.base import LeftOut
from perfmodel.sweep.chunks import Slices, blocks_of
from perfmodel.sweep.grid import Grid, Part


class PartValues:
    """The numbers of ``part`` in blocks of at most ``points``."""

    def __init__(self, grid: Grid, part: Part, points: int) -> None:
        self.grid, self.part, self.blocks = grid, part, blocks_of(part, points)

    def values(self, slices: Slices) -> dict[str, Any]:
        """Every number as an array that broadcasts to the block, or as a plain one; what repeats another is the same object."""
        found: dict[str, Any] = dict(self.part.fixed)
        for axis, (name, stretch) in enumerate(zip(self.part.axes, slices, strict=True)):
            shape = [1] * len(slices)
            shape[axis] = -1
            found[name] = self.part.axes[name][stretch].reshape(shape)
        for name, expression in self.grid.derived.items():
            found[name] = expression.value(found) if expression.alias is None else found[expression.alias]
        return found

    def unusable(self, values: dict[str, Any]) -> list[LeftOut]:
        """Derived numbers that mean nothing, which are replaced by 1 so that they do no harm."""
        found = []
        for name, expression in self.grid.derived.items():
            one = self.grid.workload.input(name)
            assert one is not None
            if expression.alias is not None:
                values[name] = values[expression.alias]
                continue
            value = np.asarray(values[name], float)
            wrong = ~((value >= one.least) & (value <= one.most) & ((value == np.floor(value)) | (one.kind == "number")))
            if wrong.any():
                found.append(
                    LeftOut(f"{name} = {expression.text} is no {'whole ' if one.kind != 'number' else ''}number of its range", wrong)
                )
                value = np.where(wrong, 1.0, value)
            values[name] = value
        return found
