"""JSON Lines: one object per row; null where there is no number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perfmodel.sweep.table import Field, RowTable
from perfmodel.sweep.writers._sink import Sink, whole
from perfmodel.sweep.writers._text import lines


class JsonLinesWriter:
    """Appends objects to a sink."""

    def __init__(self, sink: Sink, fields: tuple[Field, ...]) -> None:
        self.sink = sink
        self.form = "{" + ", ".join(f"{json.dumps(one.name)}: %s" for one in fields) + "}\n"

    def write(self, table: RowTable) -> None:
        """Append the rows of ``table``, all or none."""
        with whole(self.sink):
            for columns in lines(table, json.dumps, "null"):
                self.sink.write("".join(map(self.form.__mod__, zip(*columns, strict=True))).encode())

    def close(self) -> None:
        """Nothing is missing at any time."""
        self.sink.close()


def writer(sink: Sink, fields: tuple[Field, ...], about: Mapping[str, Any], resumed: bool) -> JsonLinesWriter:
    """A writer of JSON Lines, which have no place for ``about``."""
    return JsonLinesWriter(sink, fields)
