"""Parquet: one row group per table, words as a dictionary, the unit of a column in its metadata.

A Parquet file can be read only once its footer is written, which names every row group. Room for a row group and the footer is
therefore reserved on the disk before the group is written: if it fills up, the footer still fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from perfmodel.core.errors import UnavailableError
from perfmodel.sweep.table import FLAG, WHOLE, WORD, Field, RowTable
from perfmodel.sweep.writers._sink import Sink

_FOOTER_BYTES = 1 << 14
_FOOTER_BYTES_PER_COLUMN = 512
"""Of each row group, in the footer; seen: about 150."""
_SPARE = 1.1
"""An encoded column over its plain size at most: numbers that do not compress, with their page headers."""


def library() -> Any:
    """pyarrow; UnavailableError says how to get it."""
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


def _array(pa: Any, one: Field, values: Any, form: Any) -> Any:
    """One column, put together from its bytes: ``pyarrow.array`` would load pandas, wherever that is installed, and its 50 MB."""
    if one.kind == WORD:
        codes = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])
        return pa.DictionaryArray.from_arrays(codes, _strings(pa, one.written))
    if one.kind == FLAG:
        return pa.Array.from_buffers(form, len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    there = None if one.kind == WHOLE else ~np.isnan(values)
    if there is None or there.all():
        return pa.Array.from_buffers(form, len(values), [None, pa.py_buffer(values)])
    return pa.Array.from_buffers(form, len(values), [pa.py_buffer(np.packbits(there, bitorder="little")), pa.py_buffer(values)])


def _strings(pa: Any, words: list[str]) -> Any:
    """An array of words: where each one ends, then their bytes."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


class ParquetWriter:
    """Appends row groups to a sink."""

    def __init__(self, sink: Sink, fields: tuple[Field, ...], about: Mapping[str, Any]) -> None:
        pa = library()
        self.sink, self.fields, self.schema, self.groups = sink, fields, schema(fields, about), 0
        few = [one.name for one in fields if one.kind in (WORD, WHOLE)]  # inputs have few values
        real = [one.name for one in fields if one.type is np.float64]  # split by byte, they compress twice as fast and better
        coding = {"compression": "zstd", "compression_level": 1, "use_dictionary": few or False, "use_byte_stream_split": real or False}
        pool = pa.system_memory_pool()  # which gives back at once what it does not need
        self._writer = pa.parquet.ParquetWriter(_File(sink), self.schema, memory_pool=pool, **coding)

    def write(self, table: RowTable) -> None:
        """Append one row group; OSError before anything is written if there is no room for it."""
        if table.rows:
            self.append(arrow_table(table, self.schema))

    def append(self, rows: Any) -> None:
        """The same for an Arrow table."""
        footer = _FOOTER_BYTES + _FOOTER_BYTES_PER_COLUMN * len(self.fields) * (self.groups + 1)
        self.sink.reserve(int(rows.nbytes * _SPARE) + footer)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.groups += 1

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()
        self.sink.close()


class _File:
    """What pyarrow takes for a file."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, data: Any) -> int:
        """Pass it on."""
        return self.sink.write(memoryview(data))

    def tell(self) -> int:
        """Bytes so far."""
        return self.sink.position

    def flush(self) -> None:
        """Nothing is held back."""

    def writable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is not."""
        return False

    def seekable(self) -> bool:
        """It need not be."""
        return False

    def close(self) -> None:
        """The sink is closed by its writer."""
        self.closed = True


def writer(sink: Sink, fields: tuple[Field, ...], about: Mapping[str, Any], resumed: bool) -> ParquetWriter:
    """A writer of one Parquet file."""
    return ParquetWriter(sink, fields, about)
