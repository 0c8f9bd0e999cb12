"""JSON Lines: one object per row; null where there is no number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from perfmodel.sweep.table import Field, RowTable
from perfmodel.sweep.writers import lines


class JsonLinesWriter:
    """Appends objects to a stream."""

    def __init__(self, stream: BinaryIO, fields: tuple[Field, ...]) -> None:
        self.stream = stream
        self.form = "{" + ", ".join(f"{json.dumps(one.name)}: %s" for one in fields) + "}\n"

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``."""
        for columns in lines(table, json.dumps, "null"):
            self.stream.write("".join(map(self.form.__mod__, zip(*columns, strict=True))).encode())

    def close(self) -> None:
        """Nothing is missing at any time."""


def writer(stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> JsonLinesWriter:
    """A writer of JSON Lines, which have no place for ``about``."""
    return JsonLinesWriter(stream, fields)
