"""A small language for derived axes and constraints: ``heads / 4``, ``memory < 80 GB and n * batch <= 65536``.

Numbers with or without units, names of columns, quoted text, ``+ - * / // % **``, comparisons (which chain), ``and or not``, and the
functions ``min max ceil floor sqrt log2``. A text is parsed into a tree of these and nothing else; no part of it is ever run as
code. Values are numbers, texts or NumPy arrays of float64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.sweep.parser import Parser

MAX_LENGTH = 1000

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed text. ``names``: the columns that it reads. ``alias``: the column that it merely repeats, if so."""

    text: str
    names: tuple[str, ...]
    alias: str | None
    tree: Any

    def value(self, columns: Mapping[str, Any]) -> Any:
        """Its value where the columns have theirs; float64, so that nothing wraps."""
        import numpy as np

        with np.errstate(all="ignore"):
            return _value(self.tree, columns)


def parse(text: str, where: str, known: Mapping[str, str] | None = None) -> Expression:
    """``text`` as an expression; UsageError says what of it, in option ``where``, cannot be read.

    ``known``: names that may stand in it, by the column that each means; any if None.

    >>> float(parse("80 GB / heads", "--where").value({"heads": 4}))
    20000000000.0
    >>> bool(parse("1 <= n // 3 < 5 and not d == 64", "--where").value({"n": 12, "d": 32}))
    True
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"{where}: longer than {MAX_LENGTH} characters", "split it into several constraints")
    parser = Parser(text, where, known)
    tree = parser.tree()
    alias = tree[1] if tree[0] == "name" else None
    return Expression(text, tuple(dict.fromkeys(parser.names)), alias, tree)


def _value(tree: Any, columns: Mapping[str, Any]) -> Any:
    kind, *parts = tree
    if kind in ("number", "text"):
        return parts[0]
    if kind == "name":
        return columns[parts[0]]
    if kind == "call":
        return _called(parts[0], [_value(part, columns) for part in parts[1:]])
    if kind in ("binary", "compare"):
        left, right = (_value(part, columns) for part in parts[1:])
        return _combined(parts[0], left, right)
    values = [_value(part, columns) for part in parts]
    return _logic(kind, values)


def _called(function: str, values: list[Any]) -> Any:
    import numpy as np

    found = getattr(np, function)(*values[:2])
    for value in values[2:]:
        found = getattr(np, function)(found, value)
    return found


def _combined(sign: str, left: Any, right: Any) -> Any:
    if sign in _COMPARISONS:
        return _COMPARISONS[sign](left, right)
    import numpy as np

    if isinstance(left, str) or isinstance(right, str):
        raise UsageError(f"a constraint reckons with the text {left if isinstance(left, str) else right!r}", "compare it with == or !=")
    return _ARITHMETIC[sign](np.asarray(left, float), np.asarray(right, float))


def _logic(kind: str, values: list[Any]) -> Any:
    import numpy as np

    if kind == "negative":
        return -np.asarray(values[0], float)
    if kind == "not":
        return np.logical_not(values[0])
    return np.logical_and(*values) if kind == "and" else np.logical_or(*values)
