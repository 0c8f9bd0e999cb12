"""Rows as text: CSV and JSON Lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from perfmodel.sweep.table import FLAG, WORD, Field, RowTable
from perfmodel.sweep.writers import Writer

TEXT_ROWS = 1 << 14
"""Rows that are turned into text at a time."""


class CsvWriter(Writer):
    """CSV: a line of column names in the first file, then one line per row; an empty field where there is no number."""

    def __init__(self, stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> None:
        self.stream = stream
        if first:
            stream.write((",".join(_quoted(field.name) for field in fields) + "\n").encode())

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``."""
        for columns in text_columns(table, _quoted, ""):
            rows = map(",".join, zip(*columns, strict=True))
            self.stream.write(("\n".join(rows) + "\n").encode())


def _quoted(word: str) -> str:
    """``word``, in quotes if it has a comma, a quote or a line break."""
    return '"' + word.replace('"', '""') + '"' if re.search('[",\r\n]', word) else word


class JsonLinesWriter(Writer):
    """JSON Lines: one object per row; null where there is no number."""

    def __init__(self, stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> None:
        self.stream = stream
        self.line = "{" + ", ".join(f"{json.dumps(field.name)}: %s" for field in fields) + "}\n"

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``."""
        for columns in text_columns(table, json.dumps, "null"):
            rows = (self.line % texts for texts in zip(*columns, strict=True))
            self.stream.write("".join(rows).encode())


WRITERS = {"csv": CsvWriter, "jsonl": JsonLinesWriter}


def text_columns(table: RowTable, quote: Callable[[str], str], missing: str) -> Iterator[list[list[str]]]:
    """Stretches of ``table`` as one list of texts per column; ``quote`` for words, ``missing`` where there is no number.

    Counts have no fraction, real numbers the fewest digits that give them back.
    """
    for first in range(0, table.rows, TEXT_ROWS):
        part = table.part(first, min(first + TEXT_ROWS, table.rows))
        yield [_texts(part, field, quote, missing) for field in part.fields]


def _texts(part: RowTable, field: Field, quote: Callable[[str], str], missing: str) -> list[str]:
    """The texts of one column."""
    if field.kind == WORD:
        words = [quote(word) for word in field.written]
        return [words[code] for code in part.column(field.name).tolist()]
    if field.kind == FLAG:
        return ["true" if value else "false" for value in part.plain(field)]
    return [missing if value is None else repr(value) for value in part.plain(field)]
