"""CSV tables that profilers write, read with care.

The text is a user's file: its size is limited, lines before the header are skipped, and every complaint names file and line.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass

MAX_BYTES, MAX_LINE_BYTES = 256 << 20, 1 << 20
MAX_BEFORE = 1 << 20
"""Characters before the header."""
MAX_ROWS, MAX_CELLS = 1_000_000, 15_000_000
"""The numbers of so many cells take less than 1 GB."""


@dataclass(frozen=True, slots=True)
class Form:
    """The table that ``tool`` writes, whose header has at least ``columns``.

    ``fix``: advice for a file without such a header; ``fix_of_long_text``: for one with more than ``MAX_BEFORE`` characters before it.
    """

    tool: str
    columns: tuple[str, ...]
    fix: str
    fix_of_long_text: str


class CsvTable:
    """The table of a file of ``form``; ``line`` is the number of the last line that was read, so that an error is at its line."""

    def __init__(self, path: Path, file: BinaryIO, form: Form) -> None:
        self.path, self.line, self.form = path, 0, form
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES:,} B", "profile fewer kernels or metrics")
        self._lines = self._decoded(file)
        self.header = self._read_header()

    def wrong(self, what: str, fix: str = "") -> DataError:
        """An error that names file and line."""
        return DataError(f"{self.path}, line {self.line}: {what}", fix or self.form.fix)

    def _decoded(self, file: BinaryIO) -> Iterator[str]:
        for text in iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""):
            self.line += 1
            if len(text) > MAX_LINE_BYTES:
                raise self.wrong(f"longer than {MAX_LINE_BYTES:,} B")
            try:
                yield text.decode("utf-8-sig" if self.line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise self.wrong(f"byte {error.start} is not UTF-8") from None

    def _read_header(self) -> list[str]:
        """The first line that has all columns of the form; what the profiled program printed comes before."""
        characters, tool, columns = 0, self.form.tool, self.form.columns
        problem = f"{self.path}: no line with {' and '.join(map(repr, columns))}"
        for line in self._lines:
            if all(column in line for column in columns):
                with suppress(csv.Error):  # a line of the program's
                    cells = next(csv.reader([line], strict=True), [])
                    if set(columns) <= set(cells):
                        return cells
            characters += len(line)
            if characters > MAX_BEFORE:
                raise DataError(f"{problem} among the first {self.line:,}: this is not from {tool}", self.form.fix_of_long_text)
        raise DataError(f"{problem}: this is not from {tool}", self.form.fix)

    def rows(self) -> Iterator[dict[str, str]]:
        """Cells by column; lines of the tool's own (==PROF==) are left out."""
        count, width = 0, len(self.header)
        try:
            for cells in csv.reader(self._lines, strict=True):
                if not cells or cells[0].startswith("=="):
                    continue
                if len(cells) != width:
                    raise self.wrong(f"{len(cells)} cells, the header has {width}")
                count += 1
                if count > MAX_ROWS or count * width > MAX_CELLS:
                    most = f"{MAX_ROWS:,} rows" if count > MAX_ROWS else f"{MAX_CELLS:,} cells"
                    raise self.wrong(f"more than {most}", "profile fewer kernels or metrics")
                yield dict(zip(self.header, cells, strict=True))
        except csv.Error as error:
            raise self.wrong(f"not CSV: {error}") from None
