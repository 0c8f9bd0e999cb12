"""L2-to-SM reads of library attention, counted on an H200 by Nsight Compute, beside those of the kernels that the model lists."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from perfmodel.catalog import find_device
from perfmodel.core.cost import READ
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import Attention
from perfmodel.timing.base import Case
from perfmodel.timing.launched import kernels_of
from tools.scores import DATA

FILE = DATA / "h200_kernel_counters.jsonl"
RECORDS = [json.loads(line) for line in FILE.read_text().splitlines()]


@dataclass(frozen=True)
class Counted:
    """A case, its reads as listed and as counted in bytes, and whether its tiles divide its lengths."""

    record: dict[str, Any]
    listed: float
    counted: float
    whole: bool

    @property
    def error(self) -> float:
        """Listed over counted reads, less one."""
        return self.listed / self.counted - 1


def case_of(record: dict[str, Any]) -> Case:
    """The case of a record of counters."""
    shape = record["shape"]
    w = Attention(**shape, dv=shape["d"], dtype=DTYPES[record["dtype"]]).check()
    return Case(w, record["implementation"], record["pass"])


@cache
def groups() -> dict[tuple[str, str], list[Counted]]:
    """By implementation and pass; those whose loads are not known are absent."""
    found: dict[tuple[str, str], list[Counted]] = defaultdict(list)
    for record in RECORDS:
        try:
            kernels, tile = kernels_of(case_of(record), find_device("h200"))
        except UnavailableError:
            continue
        shape = record["shape"]
        whole = tile is None or not (shape["n"] % tile.br or shape["kv_len"] % tile.bc)
        counted = sum(kernel["l2_to_sm_bytes"] for kernel in record["kernels"])
        found[record["implementation"], record["pass"]].append(
            Counted(record, float(sum(kernel.bytes(READ) for kernel in kernels)), counted, whole)
        )
    return dict(found)


def worst(rows: list[Counted]) -> float:
    """The largest error of ``rows``, 0 of none."""
    return max((abs(row.error) for row in rows), default=0.0)


def lines() -> Iterator[list[str]]:
    """Implementation, pass, cases and largest error: on whole tiles, on others."""
    for (name, way), rows in groups().items():
        parts = [row for row in rows if row.whole], [row for row in rows if not row.whole]
        cells = [f"{worst(part):.2%} of {len(part)}" if part else "-" for part in parts]
        yield [name, way, *cells]
