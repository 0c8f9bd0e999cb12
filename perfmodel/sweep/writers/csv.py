"""CSV: a line of column names, then one line per row; an empty field where there is no number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfmodel.sweep.table import Field, RowTable
from perfmodel.sweep.writers._sink import Sink, whole
from perfmodel.sweep.writers._text import lines


class CsvWriter:
    """Appends rows to a sink."""

    def __init__(self, sink: Sink, fields: tuple[Field, ...], *, header: bool) -> None:
        self.sink = sink
        if header:
            sink.write((",".join(_quoted(one.name) for one in fields) + "\n").encode())

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``, all or none."""
        with whole(self.sink):
            for columns in lines(table, _quoted, ""):
                self.sink.write(("\n".join(map(",".join, zip(*columns, strict=True))) + "\n").encode())

    def close(self) -> None:
        """Nothing is missing at any time."""
        self.sink.close()


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if re.search('[",\r\n]', word) else word


def writer(sink: Sink, fields: tuple[Field, ...], about: Mapping[str, Any], resumed: bool) -> CsvWriter:
    """A writer of CSV, which has no place for ``about``."""
    return CsvWriter(sink, fields, header=not resumed)
