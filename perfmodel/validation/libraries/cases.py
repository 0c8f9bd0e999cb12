"""What is measured: the shapes of ``shapes.json`` as runs, fit and held-out ones in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from perfmodel.core.errors import DataError, suggest
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.validation.libraries import FIT, HELD_OUT, LibraryCase

SLOW_FLOP = 1e12
"""Matmul FLOP of a forward pass above which torch-sdpa-efficient, the slowest, is left out."""

LARGE_SCORES = 1 << 28
"""Scores above which the eager backward pass, which holds several such tensors, is left out."""

Row = dict[str, Any]


@cache
def shapes() -> dict[str, dict[str, list[Row]]]:
    """Section -> role -> rows, each with the section's columns as keys."""
    sections = json.loads((Path(__file__).parent / "shapes.json").read_text())
    return {
        name: {role: [dict(zip(section["columns"], row, strict=True)) for row in section[role]] for role in (FIT, HELD_OUT)}
        for name, section in sections.items()
    }


def _rows(section: str, every: int = 1) -> Iterator[tuple[str, Row]]:
    """Fit and held-out rows in turn, so that a run cut short leaves both; one in ``every`` of each set."""
    found = shapes()[section]
    for pair in zip_longest(found[FIT][::every], found[HELD_OUT][::every]):
        yield from ((role, row) for role, row in zip((FIT, HELD_OUT), pair, strict=True) if row is not None)


def _case(workload: str, implementation: str, role: str, row: Row, **more: Any) -> LibraryCase:
    shape = {key: value for key, value in row.items() if key not in ("dtype", "row_major")}
    row_major = row.get("row_major", False)
    return LibraryCase(workload, f"torch-{implementation}", shape, row["dtype"], role=role, row_major=row_major, **more)


def _each(workload: str, implementation: str, section: str) -> Iterator[LibraryCase]:
    """Every row of ``section``."""
    return (_case(workload, implementation, role, row) for role, row in _rows(section))


def _attention(name: str, keep: Callable[[Row], bool] = lambda row: True) -> Iterator[LibraryCase]:
    """Both passes of the rows to ``keep``."""
    for role, row in _rows("attention"):
        if keep(row):
            yield from (_case("attention", name, role, row, direction=direction) for direction in (FORWARD, BACKWARD))


def _quick_and_plain(row: Row) -> bool:
    """Not more than SLOW_FLOP, and no grouped heads, which torch-sdpa-efficient does not take."""
    flop = 4 * row["batch"] * row["heads"] * row["n"] * row["kv_len"] * row["d"] / (2 if row["causal"] else 1)
    return bool(flop <= SLOW_FLOP and row["heads"] == row["kv_heads"])


def _eager(direction: str) -> Iterator[LibraryCase]:
    for role, row in _rows("eager"):
        if direction == FORWARD or row["batch"] * row["heads"] * row["n"] * row["kv_len"] <= LARGE_SCORES:
            masked = {"mask": True} if row["causal"] else {}
            yield _case("attention", "eager", role, row | masked, direction=direction)


def _eager_steps() -> Iterator[LibraryCase]:
    """The kernels of eager attention each apart, of some shapes: they are kernels of the families ``matmul`` and ``rows``."""
    for role, row in _rows("eager", every=5):
        heads, n, d = row["batch"] * row["heads"], row["n"], row["d"]
        scores = {"dtype": row["dtype"], "rows": heads * n, "cols": row["kv_len"]}
        batched = {"dtype": row["dtype"], "batch": heads, "m": n}
        yield _case("matmul", "matmul", role, batched | {"n": row["kv_len"], "k": d})
        yield _case("scale", "scale", role, scores)
        if row["causal"]:
            yield _case("scale", "mask", role, scores | {"mask_rows": n})
        yield _case("softmax", "softmax", role, scores)
        yield _case("matmul", "matmul", role, batched | {"n": d, "k": row["kv_len"], "row_major": True})


def _row_kernels() -> Iterator[LibraryCase]:
    for role, row in _rows("rows"):
        yield _case("softmax", "softmax", role, row)
        yield _case("norm", "rms-norm", role, row | {"kind": "rmsnorm"})
    for role, row in _rows("rows", every=2):
        yield _case("norm", "layer-norm", role, row | {"kind": "layernorm"})
        yield from (_case("scale", name, role, row) for name in ("scale", "add", "silu-mul"))
    yield from _each("softmax", "softmax", "softmax")
    yield from _each("scale", "mask", "mask")


WARM_STEP = {"sdpa-flash": 27, "matmul": 19, "decode-flash": 19, "rows": 21, "copy": 7}
"""Families of which one case in so many is timed again with what the run before left in L2. Odd, so that both sets are met."""


FAMILIES: dict[str, Callable[[], Iterator[LibraryCase]]] = {
    "sdpa-flash": lambda: _attention("sdpa-flash"),
    "matmul": lambda: _each("matmul", "matmul", "matmul"),
    "batched-matmul": lambda: _each("matmul", "matmul", "batched matmul"),
    "sdpa-cudnn": lambda: _attention("sdpa-cudnn"),
    "decode-flash": lambda: _each("attention", "sdpa-flash", "decode"),
    "wide-decode-flash": lambda: _each("attention", "sdpa-flash", "wide decode"),
    "wide-decode-cudnn": lambda: _each("attention", "sdpa-cudnn", "wide decode"),
    "eager": lambda: _eager(FORWARD),
    "eager-backward": lambda: _eager(BACKWARD),
    "eager-steps": _eager_steps,
    "sdpa-efficient": lambda: _attention("sdpa-efficient", _quick_and_plain),
    "decode-cudnn": lambda: _each("attention", "sdpa-cudnn", "decode"),
    "rows": _row_kernels,
    "rope": lambda: _each("scale", "rope", "rope"),
    "copy": lambda: _each("copy", "copy", "copy"),
    "warm": lambda: (replace(case, cold=False) for family, step in WARM_STEP.items() for case in cases(family)[::step]),
}
"""Families of cases, the most wanted first."""


def cases(family: str) -> list[LibraryCase]:
    """The cases of one family; DataError if there is none of that name."""
    if family not in FAMILIES:
        raise DataError(f"no family of library kernels is called {family!r}", suggest(family, list(FAMILIES)))
    return list(FAMILIES[family]())
