"""Columns as text, for formats that people read: counts without a fraction, real numbers in the fewest digits that give them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

import numpy as np

from perfmodel.sweep.table import COUNT, FLAG, REAL, WHOLE, WORD, Field, RowTable

ROWS = 1 << 14
"""Rows that are text at once."""
EXACT = 2.0**53


def lines(table: RowTable, quote: Callable[[str], str], missing: str) -> Iterator[list[list[str]]]:
    """Stretches of ``table`` as one list of texts per column; ``quote`` for words, ``missing`` where there is no number."""
    for first in range(0, table.rows, ROWS):
        part = table.part(first, min(first + ROWS, table.rows))
        yield [_texts(one, part.column(one.name), quote, missing) for one in part.fields]


def _texts(one: Field, values: Any, quote: Callable[[str], str], missing: str) -> list[str]:
    if one.kind == WORD:
        words = [quote(word) for word in one.written]
        return [words[code] for code in values.tolist()]
    if one.kind == FLAG:
        return ["true" if value else "false" for value in values.tolist()]
    if one.kind == WHOLE:
        return list(map(str, values.tolist()))
    if one.kind == COUNT and bool((np.abs(values) <= EXACT).all()):
        return list(map(str, values.astype(np.int64).tolist()))
    assert one.kind in (COUNT, REAL)
    return [_number(value, one.kind) if isfinite(value) else missing for value in values.tolist()]


def _number(value: float, kind: str) -> str:
    return str(int(value)) if kind == COUNT and abs(value) <= EXACT else repr(value)
