"""Every file format of a sweep: a module here, named as its suffix, has ``writer(stream, fields, about, first) -> Writer``.

``first`` says whether nothing stands before these rows. Files of later rows are put behind those of earlier ones as they are, or by the
module's own ``join(paths, stream)``. A module whose ``library()`` raises UnavailableError lacks something.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol

import numpy as np

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.sweep.table import COUNT, EXACT, FLAG, REAL, WHOLE, WORD, Field, RowTable

TEXT_ROWS = 1 << 14
"""Rows that are text at once."""


class Writer(Protocol):
    """Writes tables."""

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``."""

    def close(self) -> None:
        """Make the file whole; the stream stays open."""


def formats() -> list[str]:
    """Names of the formats, which are their suffixes."""
    return module_names(__path__)


def _module(name: str) -> ModuleType:
    if name not in formats():
        raise UsageError(f"--format: there is no format {name!r}", suggest(name, formats()))
    return import_module(f"{__name__}.{name}")


def ready(name: str) -> None:
    """UnavailableError if the format ``name`` needs a library that is not there."""
    library = getattr(_module(name), "library", None)
    if library is not None:
        library()


def writer(name: str, stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], *, first: bool = True) -> Writer:
    """A writer of format ``name``; ``about``: what the study is, for formats that can hold it."""
    made: Writer = _module(name).writer(stream, fields, about, first)
    return made


def joined(name: str, paths: Sequence[Path], path: Path) -> None:
    """Write the rows of files of format ``name`` to ``path``, in their order."""
    join = getattr(_module(name), "join", _concatenated)
    with path.open("wb") as stream:
        join(paths, stream)


def _concatenated(paths: Sequence[Path], stream: BinaryIO) -> None:
    for path in paths:
        with path.open("rb") as part:
            shutil.copyfileobj(part, stream)


def lines(table: RowTable, quote: Callable[[str], str], missing: str) -> Iterator[list[list[str]]]:
    """Stretches of ``table`` as one list of texts per column; ``quote`` for words, ``missing`` where there is no number.

    Counts have no fraction, real numbers the fewest digits that give them back.
    """
    for first in range(0, table.rows, TEXT_ROWS):
        part = table.part(first, min(first + TEXT_ROWS, table.rows))
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
