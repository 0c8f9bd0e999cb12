"""Every algorithm that exists: its closed forms against the loops that it brings, walked one load and store at a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from inspect import isclass, isfunction, ismodule
from math import ceil
from types import CodeType
from typing import Any

import pytest
from test_counts import closed_form, footprints, random_shape, workload

from perfmodel.core.cost import READ, WRITE, Kernel, Tile
from perfmodel.core.errors import UsageError
from perfmodel.core.workload import Attention, BlockPattern
from perfmodel.kernels.attention import loops
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.loops import Move
from perfmodel.kernels.attention.patterns import NAMED, Blocks, Density, Named

SHAPES = 60
EDGE = 12
"""Longest query and key of a shape."""


def patterns(rng: random.Random, w: Attention, tile: Tile) -> BlockPattern | None:
    grid = [(i, j) for i in range(ceil(w.n / tile.br)) for j in range(ceil(w.kv_len / tile.bc))]
    pairs = tuple(sorted(rng.sample(grid, rng.randint(1, len(grid)))))
    return rng.choice([Density(1, 1), Blocks("file", pairs), *map(Named, NAMED)])


def cases(name: str) -> Iterator[tuple[Attention, Tile]]:
    rng = random.Random(f"walks of {name}")
    for _ in range(SHAPES):
        drawn = random_shape(rng, EDGE)
        w, tile = workload(drawn), Tile(drawn.br, drawn.bc, splits=rng.choice([1, 2, 3, 7]))
        yield w, tile
        yield replace(w, window=None, sparsity=patterns(rng, w, tile)), tile


def walked(moves: Iterator[Move]) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Elements moved, and distinct ones, by tensor and kind."""
    moved, touched = Counter[tuple[str, str]](), set[tuple[Any, ...]]()
    for kind, tensor, rows, width in moves:
        moved[tensor, kind] += len(rows) * width
        touched |= {(tensor, kind, row, column) for row in rows for column in range(width)}
    return +moved, Counter((tensor, kind) for tensor, kind, _, _ in touched)


def check(algorithm: Algorithm, w: Attention, tile: Tile, direction: str) -> bool:
    """Whether the case was compared: it is not where every nonzero block is hidden."""
    try:
        kernels: list[Kernel] = getattr(algorithm, direction)(w, tile)
    except UsageError as error:
        if "hides every nonzero block" in error.message:
            return False
        raise
    moved, distinct = walked(algorithm.walk(w, tile, direction))
    assert closed_form(kernels) == moved, (direction, w, tile)
    for (tensor, kind), size in footprints(kernels).items():
        if kind in (READ, WRITE) and size:  # of a mask that packed tiles cut inside a query, a key tile per cut may be missing
            cuts = w.packed and w.causal and tile.br % w.group and ceil(w.group * w.n / tile.br)
            least = distinct[tensor, kind] - (cuts * tile.bc if tensor == "mask" else 0)
            assert least <= size <= distinct[tensor, kind], (direction, tensor, kind, w, tile)
    return True


@pytest.mark.parametrize("name", names())
def test_counts_are_those_of_the_loops(name: str) -> None:
    algorithm = find(name)
    compared = Counter(
        direction
        for w, tile in cases(name)
        for direction in ("forward", "backward")
        if algorithm.obstacle(w, direction) is None and check(algorithm, w, tile, direction)
    )
    assert compared["forward"] > SHAPES / 2
    assert compared["backward"] > SHAPES / 2 or "backward" in str(algorithm.obstacle(next(cases(name))[0], "backward"))


def keys_five_times(w: Attention, tile: Tile) -> list[Kernel]:
    kernels = find("flash2").forward(w, tile)
    return [
        kernel._replace(accesses=tuple(a._replace(elements=5 * a.elements) if a.tensor == "K" else a for a in kernel.accesses))
        for kernel in kernels
    ]


def test_a_wrong_count_is_seen() -> None:
    wrong = replace(find("flash2"), forward=keys_five_times)
    w, tile = next(cases("flash2"))
    assert check(find("flash2"), w, tile, "forward")
    with pytest.raises(AssertionError):
        check(wrong, w, tile, "forward")


# A walk that used the closed forms would prove nothing


def globals_of(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def called(function: Any, seen: set[str]) -> Iterator[str]:
    """Modules of the package that ``function`` takes anything but constants from, itself or through functions it calls."""
    home = function.__module__
    for name in globals_of(function.__code__):
        value = function.__globals__.get(name)
        module = value.__name__ if ismodule(value) else getattr(value, "__module__", "") or ""
        if module.startswith("perfmodel.") and (isfunction(value) or isclass(value) or ismodule(value)):
            yield f"{module}.{name}"
            if isfunction(value) and f"{module}.{name}" not in seen and module != loops.__name__:
                seen.add(f"{module}.{name}")
                yield from called(value, seen)
    assert home.startswith("perfmodel.")


@pytest.mark.parametrize("name", names())
def test_walks_know_no_closed_form(name: str) -> None:
    allowed = (loops.__name__, "perfmodel.kernels.attention.algorithms", "perfmodel.kernels.attention.patterns", "perfmodel.core.workload")
    found = set(called(find(name).walk, set()))
    assert found
    assert all(path.startswith(allowed) for path in found), found
    assert not {path.rpartition(".")[2] for path in found} & {"forward", "backward", "ALGORITHM"}
