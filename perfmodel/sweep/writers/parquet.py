"""Parquet: one row group per table, words as a dictionary, the unit of a column in its metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from perfmodel.core.errors import UnavailableError
from perfmodel.sweep.table import FLAG, WHOLE, WORD, Field, RowTable
from perfmodel.sweep.writers import Writer


def library() -> Any:
    """The library pyarrow; UnavailableError says how to get it."""
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        raise UnavailableError("Parquet needs pyarrow, which is not installed", "pip install 'perfmodel[parquet]', or write .csv") from None
    return import_module("pyarrow")


def schema(fields: tuple[Field, ...], about: Mapping[str, Any]) -> Any:
    """Arrow's description of the columns."""
    pa = library()
    plain = {FLAG: pa.bool_(), WHOLE: pa.int64(), WORD: pa.dictionary(pa.int32(), pa.string())}
    listed = [pa.field(one.name, plain.get(one.kind, pa.float64()), metadata={"unit": one.unit} if one.unit else None) for one in fields]
    return pa.schema(listed, metadata={"perfmodel": json.dumps(about)})


def arrow_table(table: RowTable, described: Any) -> Any:
    """``table`` as Arrow has it; numbers are not copied."""
    pa = library()
    arrays = [_array(pa, one, table.column(one.name), described.field(one.name).type) for one in table.fields]
    return pa.Table.from_arrays(arrays, schema=described)


def _array(pa: Any, field: Field, values: Any, form: Any) -> Any:
    """One column, put together from its bytes: ``pyarrow.array`` would load pandas, wherever that is installed, and its 50 MB."""
    if field.kind == WORD:
        codes = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])
        return pa.DictionaryArray.from_arrays(codes, _strings(pa, field.written))
    if field.kind == FLAG:
        return pa.Array.from_buffers(form, len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    there = None if field.kind == WHOLE else ~np.isnan(values)
    if there is None or there.all():
        return pa.Array.from_buffers(form, len(values), [None, pa.py_buffer(values)])
    return pa.Array.from_buffers(form, len(values), [pa.py_buffer(np.packbits(there, bitorder="little")), pa.py_buffer(values)])


def _strings(pa: Any, words: list[str]) -> Any:
    """An array of words: where each one ends, then their bytes."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


class ParquetWriter(Writer):
    """Appends row groups to a stream, by the schema of their columns."""

    def __init__(self, stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> None:
        self.schema = schema(fields, about)
        self._writer = _opened(stream, self.schema)

    def write(self, table: RowTable) -> None:
        """Append one row group."""
        if table.rows:
            self._writer.write_table(arrow_table(table, self.schema), row_group_size=table.rows)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()

    @classmethod
    def ready(cls) -> None:
        """UnavailableError without pyarrow."""
        library()

    @classmethod
    def join(cls, paths: Sequence[Path], stream: BinaryIO) -> None:
        """Writes the row groups of several files as one, under the metadata of the first."""
        pa = library()
        pa.set_memory_pool(pa.system_memory_pool())  # which gives back at once what it does not need
        writer = _opened(stream, pa.parquet.read_schema(paths[0]))
        for path in paths:
            with pa.parquet.ParquetFile(path, pre_buffer=False) as source:
                for group in range(source.num_row_groups):
                    rows = source.read_row_group(group, use_threads=False)
                    writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        writer.close()


WRITER = ParquetWriter


def _opened(stream: BinaryIO, described: Any) -> Any:
    """pyarrow's writer of row groups to ``stream``."""
    pa = library()
    real = [column.name for column in described if column.type == pa.float64()]  # split by byte, they compress twice as fast and better
    few = [column.name for column in described if column.name not in real and column.type != pa.bool_()]  # inputs have few values
    coding = {"compression": "zstd", "compression_level": 1, "use_dictionary": few or False, "use_byte_stream_split": real or False}
    pool = pa.system_memory_pool()  # which gives back at once what it does not need
    return pa.parquet.ParquetWriter(_Counted(stream), described, memory_pool=pool, **coding)


class _Counted(io.RawIOBase):
    """A stream as pyarrow takes it, which asks where it is: a pipe does not know. It is closed by who opened it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.position = stream, 0

    def write(self, data: Any) -> int:
        """Passes ``data`` on; what pyarrow still has when a run was interrupted, and its file is closed, is dropped."""
        if not self.stream.closed:
            self.stream.write(memoryview(data))
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.position

    def writable(self) -> bool:
        """True: the stream takes bytes."""
        return True
