"""Read what ``ncu --csv`` prints: one row per metric of a kernel, or with ``--page raw`` one row per kernel."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from pathlib import Path

from perfmodel.core.checks import opened
from perfmodel.core.csv_table import CsvTable, Form
from perfmodel.core.errors import DataError
from perfmodel.core.files import LARGEST_NUMBER
from perfmodel.core.frozen import dataclass

NAME, METRIC, UNIT, VALUE, RUN = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value", "ID"
EXPECTED = "give what ncu --csv prints, with its header line"
NCU = Form("ncu --csv", (RUN, NAME), EXPECTED, "ncu --csv --log-file profile.csv writes the table alone, without what the program prints")

TIME = "gpu__time_duration.sum"
SECTOR_BYTES = 32
"""Bytes of an L2 sector. Source: Nsight Compute documentation, Memory Tables."""
SOURCES = {
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_write_bytes": ("dram__bytes_write.sum", 1),
    "l2_to_sm_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
    "l2_slice_read_bytes": ("lts__t_sectors_op_read.sum", SECTOR_BYTES),
    "l2_slice_write_bytes": ("lts__t_sectors_op_write.sum", SECTOR_BYTES),
}
"""Counters of a record: metric, and bytes per unit. Counts of the L2's slices differ from the bytes of SMs: on an H200, whose L2 has two
halves, they were 1.5 times the bytes of a copy in each direction, and 0.8 of the bytes that SMs received in a numba-flash whose tiles share
K and V.
"""
METRICS = (*(metric for metric, _ in SOURCES.values()), TIME)
"""Metrics to collect with ncu."""

_PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_TIMES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_SCALED = re.compile(r"([KMGT]?)(byte|sector|inst|cycle|request|warp|block|thread|register|hz)s?")
_TIMED = re.compile(r"([num]?)(?:s|sec|seconds?)")
_NO_VALUE = {"", "n/a", "nan", "no data", "-"}


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """One launch: its place in the file, its name, and its metrics in base units (B, s, counts); ``line``: where it starts.

    ``grid`` and ``block``: their sizes as the file writes them, empty if it does not.
    """

    run: int
    name: str
    line: int
    metrics: dict[str, float] = field(default_factory=dict)
    grid: str = ""
    block: str = ""


@lru_cache(1024)
def unit_factor(unit: str) -> float | None:
    """Factor from ``unit`` to base units; None if the unit is not known. ncu's prefixes are decimal.

    >>> unit_factor("Mbyte"), unit_factor("usecond"), unit_factor("ms"), unit_factor("sector"), unit_factor("Gbyte/second")
    (1000000, 1e-06, 0.001, 1, 1000000000)
    """
    base, _, per = unit.strip().partition("/")
    scaled, timed = _SCALED.fullmatch(base), _TIMED.fullmatch(base)
    if timed and not per:
        return _TIMES[timed[1]]
    is_known = base in ("", "%") or (scaled and (not per or per in ("s", "second") or _SCALED.fullmatch(per)))
    return (_PREFIXES[scaled[1]] if scaled else 1) if is_known else None


def parse(path: Path) -> list[CountedKernel]:
    """The kernels of ``path`` in the order of their launches; DataError names file and line."""
    with opened(path) as file:
        return list(kernels_of(NcuTable(path, file, NCU)))


def kernels_of(table: NcuTable) -> Iterator[CountedKernel]:
    """Kernels of ``table``, of either form."""
    return (_row_per_metric if METRIC in table.header else _row_per_kernel)(table)


class NcuTable(CsvTable):
    """A file of ncu's; lines of ncu's own (==PROF==) are left out."""

    def kernel(self, cells: dict[str, str]) -> CountedKernel:
        """The launch of a row, without metrics."""
        if not cells[RUN].strip().isdecimal() or len(cells[RUN]) > 18:
            raise self.wrong(f"{RUN} is {cells[RUN][:40]!r}, not a whole number")
        return CountedKernel(int(cells[RUN]), cells[NAME], self.line, {}, cells.get("Grid Size", ""), cells.get("Block Size", ""))

    def store(self, kernel: CountedKernel, metric: str, text: str, unit: str) -> None:
        """Add the metric in base units; metrics without a number or with an unknown unit are left out."""
        factor = unit_factor(unit)
        if text.strip().lower() in _NO_VALUE or (factor is None and metric not in METRICS):
            return
        if factor is None:
            raise self.wrong(f"{metric} is in {unit!r}, which is no known unit", "add --print-units base to ncu")
        try:
            number = float(_without_separators(text))
        except ValueError:
            if metric not in METRICS:
                return
            raise self.wrong(f"{metric} is {text[:40]!r}, not a number", "set LC_ALL=C for ncu") from None
        if not 0 <= number <= LARGEST_NUMBER:
            raise self.wrong(f"{metric} is {text[:40]!r}", "give a finite count")
        kernel.metrics[sys.intern(metric)] = number * factor


def _row_per_metric(table: NcuTable) -> Iterator[CountedKernel]:
    """Kernels of a table with one row per metric; rows of a launch need not be adjacent."""
    missing = [column for column in (UNIT, VALUE) if column not in table.header]
    if missing:
        raise DataError(f"{table.path}: no column {missing[0]!r}", EXPECTED)
    kernels: dict[tuple[str, str], CountedKernel] = {}
    for cells in table.rows():
        kernel = kernels.setdefault((cells.get("Process ID", ""), cells[RUN]), table.kernel(cells))
        table.store(kernel, cells[METRIC], cells[VALUE], cells[UNIT])
    yield from kernels.values()


def _row_per_kernel(table: NcuTable) -> Iterator[CountedKernel]:
    """Kernels of a table with a row per kernel and a column per metric, named with dots or double underscores; units follow the header."""
    metrics = [column for column in table.header if "__" in column]
    if not metrics:
        raise DataError(f"{table.path}: no column of a metric, and no {METRIC!r}", EXPECTED)
    rows = table.rows()
    units = next(rows, {})
    if units and units[RUN].strip():
        raise table.wrong("the line after the header has no units")
    for cells in rows:
        kernel = table.kernel(cells)
        for name in metrics:
            if cells[name].strip():
                table.store(kernel, name, cells[name], units[name])
        yield kernel


def _without_separators(text: str) -> str:
    """``text`` without thousands separators, as in 1,234,567.8; ValueError for commas in other places.

    >>> _without_separators("1,234,567.8"), _without_separators("12.5")
    ('1234567.8', '12.5')
    """
    text = text.strip()
    if "," in text:
        if not re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d*)?", text):
            raise ValueError(text)
        text = text.replace(",", "")
    return text


def counters(kernels: list[CountedKernel]) -> dict[str, int]:
    """Counters of a record in bytes, summed over the kernels of one case; only counters that every kernel has."""
    return {
        name: round(sum(kernel.metrics[metric] for kernel in kernels) * factor)
        for name, (metric, factor) in SOURCES.items()
        if kernels and all(metric in kernel.metrics for kernel in kernels)
    }


def seconds(kernels: list[CountedKernel]) -> float | None:
    """Time of all ``kernels`` in seconds, to ncu's nanosecond; None if a kernel has none."""
    times = [kernel.metrics.get(TIME) for kernel in kernels]
    return None if not times or None in times else round(sum(time for time in times if time is not None), 9)
