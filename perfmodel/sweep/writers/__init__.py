"""Every file format of a sweep: a module here, named as its suffix, has ``writer(sink, fields, about, resumed) -> Writer``.

A writer is given tables one after the other and writes each before it returns, so that what stands in the file is whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.sweep.table import Field, RowTable
from perfmodel.sweep.writers._sink import Sink


class Writer(Protocol):
    """Writes tables."""

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``, all of them or, with an OSError, none."""

    def close(self) -> None:
        """Make the file whole."""


def formats() -> list[str]:
    """Names of the formats, which are their suffixes."""
    return module_names(__path__)


def ready(name: str) -> None:
    """UnavailableError if the format ``name`` needs a library that is not there."""
    library = getattr(import_module(f"{__name__}.{name}"), "library", None)
    if library is not None:
        library()


def writer(name: str, sink: Sink, fields: tuple[Field, ...], about: Mapping[str, Any], *, resumed: bool = False) -> Writer:
    """A writer of format ``name``; ``about``: what the study is, for formats that can hold it. ``resumed``: rows stand there already."""
    if name not in formats():
        raise UsageError(f"--format: there is no format {name!r}", suggest(name, formats()))
    try:
        made: Writer = import_module(f"{__name__}.{name}").writer(sink, fields, about, resumed)
    except BaseException:
        sink.close()
        raise
    return made
