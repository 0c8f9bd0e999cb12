"""Shipped records without reading all of them: every so many lines of each file, or the files of one kind of kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import islice

from perfmodel.validation.records import Record, as_record, name_of, read_records, shipped_records, unpacked


def sampled(every: int) -> Iterator[Record]:
    """The first record of each file and every ``every``-th after it; only these are parsed."""
    for path in shipped_records():
        with unpacked(path) as lines:
            yield from (as_record(json.loads(line)) for line in islice(lines, 0, None, every))


@cache
def own_counted() -> list[Record]:
    """Records of the project's own GPU kernels with hardware counters."""
    names = {name_of(path) for path in shipped_records() if name_of(path).startswith("numba-")}
    return [record for path in shipped_records(*names) for _, record in read_records(path) if record.counters]
