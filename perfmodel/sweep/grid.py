"""A grid: every combination of the values of its axes, cut into parts whose formulas are the same.

Choices (devices, formats, switches) come first: each combination of them is a ``SubGrid`` with one variant per value of the choice
that is compared. Within a part, the axes of numbers are ordered by length, the longest last, so that array operations run along it.
Derived inputs are no axes: they vary along those of what they are derived from.

A block, which fits the processor's caches, fixes the first axes of a part, takes a stretch of the next one and all of the rest. Chunks
are blocks that fit the memory given. Both come in one order, so that a chunk means the same rows on every machine and in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import product
from math import prod
from typing import Any

import numpy as np

from perfmodel.core.checks import default_dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.sweep.base import SweepWorkload, device_named
from perfmodel.sweep.expression import Expression, parse
from perfmodel.sweep.study import SweepStudy, workload_named
from perfmodel.sweep.table import Field, input_field, result_field, row_bytes
from perfmodel.sweep.values import is_expression, values_of

BLOCK_POINTS = 1 << 15
"""Points of a block: a result of 256 KiB, so that those in use stay in a core's caches."""
MOST_CHUNK_ROWS = 1 << 20
SLOW_ROWS = 256
"""Rows of a block and a chunk if rows are computed one by one: about a second's work, so that an interruption loses little."""
SHARE_OF_MEMORY = 0.25
"""Share of the given memory for the columns of a chunk; writers hold an encoded copy, and libraries take the rest."""

Slices = tuple[slice, ...]
"""Place of a block in a part: a stretch of each of its axes."""


@dataclass(frozen=True, slots=True)
class SubGrid:
    """One combination of all choices except the compared one.

    ``fixed``: numbers with one value; ``axes``: numbers with several values as arrays of float64, the longest last.
    """

    choices: Mapping[str, Any]
    fixed: Mapping[str, float]
    axes: Mapping[str, Any]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of values, one for each axis."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def points(self) -> int:
        """Number of combinations of numbers."""
        return prod(self.lengths)

    def blocks(self, points: int = BLOCK_POINTS) -> Iterator[Slices]:
        """Blocks of at most ``points``, or of one value per axis: stretches along one axis, all axes after it whole.

        >>> [block[0] for block in SubGrid({}, {}, {"d": [0] * 3, "n": [0] * 100}).blocks(250)]
        [slice(0, 2, None), slice(2, 3, None)]
        """
        lengths = self.lengths
        if not lengths:
            yield ()
            return
        cut_axis, points_after = len(lengths) - 1, 1  # the axis that is cut, and the points of all whole axes after it
        while cut_axis > 0 and points_after * lengths[cut_axis] <= points:
            points_after *= lengths[cut_axis]
            cut_axis -= 1
        step = max(points // points_after, 1)
        whole = tuple(slice(0, length) for length in lengths[cut_axis + 1 :])
        for indices in np.ndindex(*lengths[:cut_axis]):
            fixed = tuple(slice(index, index + 1) for index in indices)
            for start in range(0, lengths[cut_axis], step):
                yield (*fixed, slice(start, min(start + step, lengths[cut_axis])), *whole)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are computed and written together. ``blocks``: the part of each block, by number, and its place there."""

    index: int
    blocks: tuple[tuple[int, Slices], ...]
    points: int


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """A resolved study. ``choices`` and ``numbers``: values by input; ``derived``: expressions, each after those that it needs.

    ``where``: constraints on inputs; ``filters``: constraints that read columns too. ``fields``: the written columns of a row.
    """

    study: SweepStudy
    workload: SweepWorkload
    choices: Mapping[str, Sequence[Any]]
    numbers: Mapping[str, Any]
    derived: Mapping[str, Expression]
    where: tuple[Expression, ...]
    filters: tuple[Expression, ...]
    columns: tuple[str, ...]
    fields: tuple[Field, ...]
    parts: tuple[SubGrid, ...]

    @property
    def compared(self) -> Sequence[Any]:
        """Values of the compared choice; one None if there is none."""
        return self.choices[self.workload.compared] if self.workload.compared else (None,)

    @property
    def points(self) -> int:
        """Number of rows, if none is left out."""
        return sum(part.points for part in self.parts) * len(self.compared)

    @property
    def pointwise(self) -> frozenset[str]:
        """The columns that are computed row by row."""
        slow_inputs = [item.name for item in self.workload.inputs if item.pointwise and self.choices[item.name] != (None,)]
        if self.workload.pointwise or slow_inputs:
            return frozenset(self.columns)
        return frozenset(name for name in self.columns if self.workload.column(name).pointwise)

    def variants(self, part: SubGrid) -> dict[Any, dict[str, Any]]:
        """The choices of ``part`` with each value of the compared choice."""
        name = self.workload.compared
        if name is None:
            return {None: dict(part.choices)}
        return {value: {**part.choices, name: value} for value in self.compared}

    def source(self, name: str) -> str:
        """The input that ``name`` repeats, or itself."""
        expression = self.derived.get(name)
        return name if expression is None or expression.alias is None else self.source(expression.alias)

    def chunk_rows(self, memory_bytes: int) -> int:
        """Rows of a chunk that fits ``memory_bytes``."""
        most = SLOW_ROWS if self.pointwise else MOST_CHUNK_ROWS
        return max(1, min(most, int(SHARE_OF_MEMORY * memory_bytes / row_bytes(self.fields))))

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Chunks of at most ``rows`` rows, or of one block."""
        most_points = max(rows // len(self.compared), 1)
        block_points = min(most_points, SLOW_ROWS if self.pointwise else BLOCK_POINTS)
        index, points, blocks = 0, 0, list[tuple[int, Slices]]()  # of the chunk that is being filled
        for number, part in enumerate(self.parts):
            for block in part.blocks(block_points):
                size = prod(stretch.stop - stretch.start for stretch in block)
                if blocks and points + size > most_points:
                    yield Chunk(index, tuple(blocks), points)
                    index, points, blocks = index + 1, 0, []
                points += size
                blocks.append((number, block))
        if blocks:
            yield Chunk(index, tuple(blocks), points)


def grid_of(study: SweepStudy) -> SweepGrid:
    """The grid of ``study``; UsageError for an axis, a column or a constraint that cannot be read."""
    workload = workload_named(study.workload)
    study = replace(study, axes=workload.by_name(study.axes))
    choices, numbers, derived = _inputs(workload, workload.normalize(study.axes))
    workload.check(choices, study.axes)
    shown = [workload.column_named(name, "--columns").name for name in (workload.shown if study.columns is None else study.columns)]
    conditions = [parse(text, "--where", workload, constraint=True) for text in study.where]
    result_names = {column.name for column in workload.columns}
    read_names = {name for condition in conditions for name in condition.names}
    for name in read_names - result_names - {*numbers, *derived}:
        item = workload.named[name]
        has_choice = item.choice and (item.kind == "flag" or choices[name] != (None,))
        if not item.varies and not has_choice:
            raise UsageError(f"--where: {name} has no value here", f"give {item.option}")
    columns = tuple(dict.fromkeys([*shown, *sorted(read_names & result_names)]))
    for item in workload.inputs:
        is_given = study.axes.get(item.name) is not None
        if is_given and item.columns and not {*item.columns} & {*columns}:
            first = item.columns[0]
            raise UsageError(f"--{item.name} is for the column {first}, which is not asked for", f"add --columns {first}")
    written = [item for item in workload.inputs if item.name in study.axes or item.name in workload.always]
    input_fields = [input_field(item, choices.get(item.name, ())) for item in written]
    result_fields = [result_field(workload.column(name)) for name in columns]
    return SweepGrid(
        study=study,
        workload=workload,
        choices=choices,
        numbers=numbers,
        derived=derived,
        where=tuple(condition for condition in conditions if not result_names & {*condition.names}),
        filters=tuple(condition for condition in conditions if result_names & {*condition.names}),
        columns=columns,
        fields=(*input_fields, *result_fields),
        parts=tuple(_parts(workload, choices, numbers, derived)),
    )


def _inputs(workload: SweepWorkload, axes: Mapping[str, Any]) -> tuple[dict[str, Sequence[Any]], dict[str, Any], dict[str, Expression]]:
    """Values of choices, values of numbers, and expressions of derived inputs, each by input name."""
    workload.check_names(axes)
    choices: dict[str, Sequence[Any]] = {}
    numbers: dict[str, Any] = {}
    derived: dict[str, Expression] = {}
    for axis in workload.inputs:
        raw = axes.get(axis.name, axis.default)
        if raw is None and axis.required:
            example = "NAME" if axis.kind == "name" else f"4096 or {axis.option} 512:131072:x2"
            raise UsageError(f"{axis.option} is missing", f"give it as {axis.option} {example}")
        expression = parse(raw, axis.option, workload) if is_expression(axis, raw) else None
        if axis.choice:
            choices[axis.name] = (None,) if raw is None else tuple(values_of(axis, raw))
        elif expression is not None and expression.names:
            derived[axis.name] = expression
        elif raw is not None:
            values = raw if expression is None else float(expression.value({}))  # it reads no other input, so it has one value
            numbers[axis.name] = np.array(values_of(axis, values), float)
    for name, expression in derived.items():
        for other in expression.names:
            if other not in numbers and other not in derived and not workload.named[other].varies:
                option = workload.named[name].option
                raise UsageError(f"{option} {expression.text!r} needs {other}, which has no value", f"give --{other}")
    return choices, numbers, _ordered(derived, workload)


def _ordered(derived: Mapping[str, Expression], workload: SweepWorkload) -> dict[str, Expression]:
    """``derived``, each expression after those that it needs; UsageError for a circle."""
    try:
        order = TopologicalSorter({name: set(expression.names) & set(derived) for name, expression in derived.items()}).static_order()
        return {name: derived[name] for name in order}
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise UsageError(f"derived inputs of {workload.name} go in a circle: {circle}", "give one of them values") from None


def _parts(
    workload: SweepWorkload, choices: Mapping[str, Sequence[Any]], numbers: Mapping[str, Any], derived: Mapping[str, Expression]
) -> Iterator[SubGrid]:
    """The parts of a grid: a combination of choices each, which the workload may split further."""
    varied = {name: values for name, values in choices.items() if name != workload.compared}
    axes = dict(sorted(numbers.items(), key=lambda item: len(item[1])))
    for combination in product(*varied.values()):
        chosen = dict(zip(varied, combination, strict=True))
        if "dtype" in chosen and chosen["dtype"] is None:
            chosen["dtype"] = default_dtype(device_named(chosen["hardware"]))
        defaults = {
            name: np.array([float(value)]) for name, value in workload.defaults(chosen).items() if name not in axes and name not in derived
        }
        for part_choices, values in workload.split(chosen, {**defaults, **axes}, derived):
            fixed = {name: float(array[0]) for name, array in values.items() if len(array) == 1}
            yield SubGrid(part_choices, fixed, {name: array for name, array in values.items() if len(array) > 1})
