"""CSV: a line of column names, then one line per row; an empty field where there is no number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from perfmodel.sweep.table import Field, RowTable
from perfmodel.sweep.writers import lines


class CsvWriter:
    """Appends rows to a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``."""
        for columns in lines(table, _quoted, ""):
            self.stream.write(("\n".join(map(",".join, zip(*columns, strict=True))) + "\n").encode())

    def close(self) -> None:
        """Nothing is missing at any time."""


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if re.search('[",\r\n]', word) else word


def writer(stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> CsvWriter:
    """A writer of CSV, which has no place for ``about``; column names stand in the first file."""
    if first:
        stream.write((",".join(_quoted(one.name) for one in fields) + "\n").encode())
    return CsvWriter(stream)
