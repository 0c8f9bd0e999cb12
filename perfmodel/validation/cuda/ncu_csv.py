"""Read what ``ncu --csv`` prints: one row per metric of a kernel, or with ``--page raw`` one row per kernel.

The text is a user's file: its size is limited, lines before the header are skipped, and every complaint names file and line.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.errors import DataError

MAX_BYTES = 256 << 20
MAX_ROWS = 1_000_000
NAME, METRIC, UNIT, VALUE, RUN = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value", "ID"
EXPECTED = "give what ncu --csv prints, with its header line"

TIME = "gpu__time_duration.sum"
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    TIME,
)
"""What is asked of ncu."""
SECTOR_BYTES = 32
"""Of L2. Source: Nsight Compute documentation, Memory Tables."""
SOURCES = {
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_write_bytes": ("dram__bytes_write.sum", 1),
    "l2_to_sm_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
    "l2_slice_read_bytes": ("lts__t_sectors_op_read.sum", SECTOR_BYTES),
    "l2_slice_write_bytes": ("lts__t_sectors_op_write.sum", SECTOR_BYTES),
}
"""Counters of a record, by metric and bytes per unit. What L2's slices count is not what SMs move: on an H200, with an L2 of two
halves, 1.5 times the bytes of a copy in each direction, and 0.8 of what SMs received in a numba-flash whose tiles share K and V.
"""

_PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_TIMES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_SCALED = re.compile(r"([KMGT]?)(byte|sector|inst|cycle|request|warp|block|thread|register|hz)s?")
_TIMED = re.compile(r"([num]?)(?:s|sec|seconds?)")
_NO_VALUE = {"", "n/a", "nan", "no data", "-"}


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """One launch: its place in the file's order, its name, and its metrics in base units (B, s, counts); ``line`` where it starts."""

    run: int
    name: str
    line: int
    metrics: dict[str, float] = field(default_factory=dict)


def unit_factor(unit: str) -> float | None:
    """What a value in ``unit`` is multiplied by to be in base units; None if the unit is not known. ncu's prefixes are decimal.

    >>> unit_factor("Mbyte"), unit_factor("usecond"), unit_factor("ms"), unit_factor("sector"), unit_factor("Gbyte/second")
    (1000000, 1e-06, 0.001, 1, 1000000000)
    """
    base, _, per = unit.strip().partition("/")
    scaled, timed = _SCALED.fullmatch(base), _TIMED.fullmatch(base)
    if timed and not per:
        return _TIMES[timed[1]]
    known = base in ("", "%") or (scaled and (not per or per in ("s", "second") or _SCALED.fullmatch(per)))
    return (_PREFIXES[scaled[1]] if scaled else 1) if known else None


def parse(path: Path) -> list[CountedKernel]:
    """The kernels of ``path`` in the order of their launches; DataError names file and line."""
    text = _text(path)
    lines = csv.reader(text.splitlines(), strict=True)
    try:
        header = _header(path, lines)
        read = _long if METRIC in header else _wide
        return list(read(path, lines, header))
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: not CSV: {error}", EXPECTED) from None


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise DataError(f"{path}: larger than {MAX_BYTES:,} B", "profile fewer kernels or metrics")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8", EXPECTED) from None


def _header(path: Path, lines: Iterator[list[str]]) -> list[str]:
    """The first line that has the columns of every form; what the profiled program printed comes before."""
    while True:
        try:
            cells = next(lines)
        except StopIteration:
            raise DataError(f"{path}: no line with {RUN!r} and {NAME!r}: this is not from ncu --csv", EXPECTED) from None
        except csv.Error:
            continue  # not ncu's line
        if {RUN, NAME} <= set(cells):
            return cells


def _cells(path: Path, lines: Iterator[list[str]], header: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column; lines of ncu's own (==PROF==) are left out."""
    count = 0
    for cells in lines:
        line: int = lines.line_num  # type: ignore[attr-defined]
        if not cells or cells[0].startswith("=="):
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}, line {line}: {len(cells)} cells, the header has {len(header)}", EXPECTED)
        count += 1
        if count > MAX_ROWS:
            raise DataError(f"{path}, line {line}: more than {MAX_ROWS:,} rows", "profile fewer kernels or metrics")
        yield line, dict(zip(header, cells, strict=True))


def _long(path: Path, lines: Iterator[list[str]], header: list[str]) -> Iterator[CountedKernel]:
    """One row per metric; rows of a launch follow each other or not."""
    missing = [column for column in (UNIT, VALUE) if column not in header]
    if missing:
        raise DataError(f"{path}: no column {missing[0]!r}", EXPECTED)
    found: dict[tuple[str, str], CountedKernel] = {}
    for line, cells in _cells(path, lines, header):
        key = (cells.get("Process ID", ""), cells[RUN])
        kernel = found.setdefault(key, CountedKernel(_run(path, line, cells[RUN]), cells[NAME], line))
        value = _value(path, line, cells[METRIC], cells[VALUE], cells[UNIT])
        if value is not None:
            kernel.metrics[cells[METRIC]] = value
    yield from found.values()


def _wide(path: Path, lines: Iterator[list[str]], header: list[str]) -> Iterator[CountedKernel]:
    """One row per kernel and one column per metric, named with dots or double underscores; the line after the header has the units."""
    metrics = [column for column in header if "__" in column]
    if not metrics:
        raise DataError(f"{path}: no column of a metric, and no {METRIC!r}", EXPECTED)
    rows = _cells(path, lines, header)
    units: dict[str, str] | None = None
    for line, cells in rows:
        if units is None:
            if cells[RUN].strip():
                raise DataError(f"{path}, line {line}: the line after the header has no units", EXPECTED)
            units = cells
            continue
        values = {name: _value(path, line, name, cells[name], units[name]) for name in metrics if cells[name].strip()}
        known = {name: value for name, value in values.items() if value is not None}
        yield CountedKernel(_run(path, line, cells[RUN]), cells[NAME], line, known)


def _run(path: Path, line: int, text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 18:
        raise DataError(f"{path}, line {line}: {RUN} is {text[:40]!r}, not a whole number", EXPECTED)
    return int(text)


def _value(path: Path, line: int, metric: str, text: str, unit: str) -> float | None:
    """The number in base units, None where ncu has none; metrics of other kinds (text, unknown units) are left out as well."""
    factor = unit_factor(unit)
    if text.strip().lower() in _NO_VALUE or (factor is None and metric not in METRICS):
        return None
    if factor is None:
        raise DataError(f"{path}, line {line}: {metric} is in {unit!r}, which is no known unit", "add --print-units base to ncu")
    try:
        number = float(_plain(text))
    except ValueError:
        if metric not in METRICS:
            return None
        raise DataError(f"{path}, line {line}: {metric} is {text[:40]!r}, not a number", "set LC_ALL=C for ncu") from None
    if not math.isfinite(number) or number < 0:
        raise DataError(f"{path}, line {line}: {metric} is {text[:40]!r}", "give a finite count")
    return number * factor


def _plain(text: str) -> str:
    """``text`` without thousands separators: 1,234,567.8; ValueError where commas stand anywhere else.

    >>> _plain("1,234,567.8"), _plain("12.5")
    ('1234567.8', '12.5')
    """
    text = text.strip()
    if "," in text:
        if not re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d*)?", text):
            raise ValueError(text)
        text = text.replace(",", "")
    return text


def counters(kernels: list[CountedKernel]) -> dict[str, int]:
    """Counters of a record, in bytes, summed over the kernels of one case; only those that every kernel has."""
    return {
        name: round(sum(kernel.metrics[metric] for kernel in kernels) * factor)
        for name, (metric, factor) in SOURCES.items()
        if kernels and all(metric in kernel.metrics for kernel in kernels)
    }


def seconds(kernels: list[CountedKernel]) -> float | None:
    """Time of all ``kernels``, to the nanosecond that ncu counts in; None where one has none."""
    times = [kernel.metrics.get(TIME) for kernel in kernels]
    return None if not times or None in times else round(sum(time for time in times if time is not None), 9)
