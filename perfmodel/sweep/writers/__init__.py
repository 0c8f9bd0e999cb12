"""Every file format of a sweep, named as its suffix: a module here defines one ``Writer`` as ``WRITER``, or several in ``WRITERS``."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import plugins
from perfmodel.sweep.table import Field, RowTable


class Writer(ABC):
    """Writes tables with columns ``fields`` to ``stream``. ``about``: metadata of the study, for formats that can hold it.

    ``first``: whether these rows are the first of a file; other parts need no header.
    """

    @abstractmethod
    def __init__(self, stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> None: ...

    @abstractmethod
    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``."""

    def close(self) -> None:  # noqa: B027 - a text needs no end
        """Make the file whole; the stream stays open."""

    @classmethod  # noqa: B027 - most need no library
    def ready(cls) -> None:
        """UnavailableError if the format needs a library that is not there."""

    @classmethod
    def join(cls, paths: Sequence[Path], stream: BinaryIO) -> None:
        """Writes the rows of several files in order; by default it concatenates them."""
        for path in paths:
            with path.open("rb") as part:
                shutil.copyfileobj(part, stream)


def formats() -> list[str]:
    """Names of the formats, which are their suffixes."""
    return sorted(_writers())


def find(name: str) -> type[Writer]:
    """The writer of format ``name``; UsageError with the nearest names otherwise."""
    if name not in _writers():
        raise UsageError(f"--format: there is no format {name!r}", suggest(name, formats()))
    return _writers()[name]


def _writers() -> dict[str, type[Writer]]:
    """Writers by the names of their formats."""
    return dict(plugins([__name__], "WRITER", "WRITERS"))
