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
    types = {FLAG: pa.bool_(), WHOLE: pa.int64(), WORD: pa.dictionary(pa.int32(), pa.string())}
    columns = []
    for field in fields:
        unit = {"unit": field.unit} if field.unit else None
        columns.append(pa.field(field.name, types.get(field.kind, pa.float64()), metadata=unit))
    return pa.schema(columns, metadata={"perfmodel": json.dumps(about)})


def arrow_table(table: RowTable, arrow_schema: Any) -> Any:
    """``table`` as an Arrow table with ``arrow_schema``; numbers are not copied."""
    pa = library()
    arrays = [_array(pa, field, table.column(field.name), arrow_schema.field(field.name).type) for field in table.fields]
    return pa.Table.from_arrays(arrays, schema=arrow_schema)


def _array(pa: Any, field: Field, values: Any, arrow_type: Any) -> Any:
    """One column, built from its bytes: ``pyarrow.array`` would load pandas, wherever that is installed, and its 50 MB."""

    def array(arrow_type: Any, data: Any, valid: Any = None) -> Any:
        """An array of the bytes of ``data``, and of a bit per value that says whether it is ``valid``."""
        valid_bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(arrow_type, len(values), [valid_bits, pa.py_buffer(data)])

    if field.kind == WORD:
        return pa.DictionaryArray.from_arrays(array(pa.int32(), values), _strings(pa, field.written))
    if field.kind == FLAG:
        return array(arrow_type, np.packbits(values, bitorder="little"))
    is_number = None if field.kind == WHOLE else ~np.isnan(values)
    if is_number is None or is_number.all():
        return array(arrow_type, values)
    return array(arrow_type, values, is_number)


def _strings(pa: Any, words: list[str]) -> Any:
    """An array of words, built from the places where they end and from their bytes."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


class ParquetWriter(Writer):
    """Appends row groups to a stream, by the schema of their columns."""

    def __init__(self, stream: BinaryIO, fields: tuple[Field, ...], about: Mapping[str, Any], first: bool) -> None:
        self.schema = schema(fields, about)
        self._writer = _row_group_writer(stream, self.schema)

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
        writer = _row_group_writer(stream, pa.parquet.read_schema(paths[0]))
        for path in paths:
            with pa.parquet.ParquetFile(path, pre_buffer=False) as source:
                for group in range(source.num_row_groups):
                    rows = source.read_row_group(group, use_threads=False)
                    writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        writer.close()


WRITER = ParquetWriter


def _row_group_writer(stream: BinaryIO, arrow_schema: Any) -> Any:
    """pyarrow's writer of row groups to ``stream``."""
    pa = library()
    real = [column.name for column in arrow_schema if column.type == pa.float64()]  # split by byte, they compress twice as fast and better
    inputs = [column.name for column in arrow_schema if column.type not in (pa.float64(), pa.bool_())]  # few values, so a dictionary
    return pa.parquet.ParquetWriter(
        _CountingStream(stream),
        arrow_schema,
        memory_pool=pa.system_memory_pool(),  # which gives back at once what it does not need
        compression="zstd",
        compression_level=1,
        use_dictionary=inputs or False,
        use_byte_stream_split=real or False,
    )


class _CountingStream(io.RawIOBase):
    """A stream that counts its bytes, as pyarrow asks for the position and a pipe does not know it. Closing it leaves the stream open."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.position = stream, 0

    def write(self, data: Any) -> int:
        """Passes ``data`` on, or drops it if the stream is closed, as after an interrupted run."""
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
