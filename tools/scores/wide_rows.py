"""Kernels and steps of a last draw on an H200, as wide as users' shapes, beside the model: no fit, no rule and no width has seen them.

Kernels clean, dirty and warm; steps and kernels alone after a pause and for seconds. A file's name says when it was measured.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.arith import quantile
from perfmodel.validation.compare import RecordRow, compare
from perfmodel.validation.records import Record, Seconds, as_record, raw_of
from tools.scores import DATA, sustained_rows

FILES = sorted(DATA.glob("h200_wide_*.jsonl.gz"))
BORROWED = FILES[0].parent / "h100_wide_2026-11-28.jsonl.gz"
"""Kernels of a draw of its own on an H100, most of which an H200 lends: no fit, no rule and no width has seen them."""
APART = ("fp32", "tf32", "fp8")
"""Formats whose products are kernels of their own."""
BURST, SUSTAINED = "burst", "sustained"
LIMITS = {"fused": (0.04, 0.12), "rows": (0.06, 0.16)}
"""Median and 90 % quantile of the error that a group is to stay within: attention and steps; products, rows and copies."""
LEAST_COVERED, MOST_COVERED = 0.75, 0.90


@dataclass(frozen=True)
class Judged:
    """Rows of one group and state that have a prediction, and how many have none."""

    errors: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of the absolute errors."""
        return quantile(list(map(abs, self.errors)), 0.5)

    @property
    def p90(self) -> float:
        """90 % quantile of the absolute errors."""
        return quantile(list(map(abs, self.errors)), 0.9)

    @property
    def coverage(self) -> float:
        """Share of the measurements in their intervals."""
        return sum(self.covered) / len(self.covered)

    def add(self, row: RecordRow) -> None:
        """Counts a row, or why it has no prediction."""
        if row.prediction is None or row.error is None:
            self.missing.append(row.reason)
        else:
            self.errors.append(row.error)
            self.covered.append(bool(row.covered))

    def extend(self, other: Judged) -> None:
        """With the rows of another group."""
        self.errors.extend(other.errors)
        self.covered.extend(other.covered)
        self.missing.extend(other.missing)

    def cell(self) -> str:
        """As the page shows it; a dash without rows."""
        if not self.errors:
            return "-"
        return f"{self.median:.1%}, {self.p90:.1%}, {self.coverage:.0%} of {len(self.errors)}"


def raws(files: Iterable[Path] = FILES) -> Iterator[dict[str, Any]]:
    """Every kernel of the draw."""
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def group_of(record: Record) -> str:
    """Kernel and pass; attention of one query and products in wide or narrow formats apart."""
    decode = "/decode" if record.workload == "attention" and record.shape.get("n") == 1 else ""
    return record.group + decode + (f"/{record.dtype}" if record.dtype in APART else "")


def class_of(group: str) -> str:
    """The kind of kernels that a group belongs to."""
    if group.startswith("attention/"):
        return "decode" if group.endswith("/decode") else "attention"
    return "matmul" if group.startswith("matmul/") else group if group.startswith("steps") else "rows and copies"


def limits_of(group: str) -> tuple[float, float]:
    """The largest median and 90 % quantile of the error that a group may have."""
    return LIMITS["fused" if group.startswith(("attention", "decode", "steps")) else "rows"]


def judged(raws: Iterable[dict[str, Any]]) -> dict[tuple[str, str], Judged]:
    """By group and state of the caches."""
    found: dict[tuple[str, str], Judged] = defaultdict(Judged)
    device, lenders = cache(find_device), cache(calibrated_devices)
    for raw in raws:
        row = compare(raw, as_record(raw), device(raw["hardware"]), lenders)
        found[group_of(row.record), row.record.cache_state].add(row)
    return found


def alone(record: Record) -> Record:
    """The run after a pause that came before ``record``, which ran for seconds."""
    return replace(record, time_s=Seconds(float(record.environment["burst_s"])), clock=None, power_w=None, sm_hz=None, energy_j=None)


@cache
def steps() -> Mapping[tuple[str, str], Judged]:
    """Steps of models by phase, alone and for seconds."""
    found: dict[tuple[str, str], Judged] = defaultdict(Judged)
    for row in sustained_rows.rows():
        if sustained_rows.is_step(row.record):
            name, burst = f"steps/{row.record.shape['phase']}", alone(row.record)
            found[name, SUSTAINED].add(row)
            found[name, BURST].add(compare(raw_of(burst), burst, find_device(burst.hardware), cache(calibrated_devices)))
    return found


def together(found: Mapping[tuple[str, str], Judged], name: Callable[[str], str]) -> dict[tuple[str, str], Judged]:
    """Groups of one ``name`` as one."""
    summed: dict[tuple[str, str], Judged] = defaultdict(Judged)
    for (group, state), one in found.items():
        summed[name(group), state].extend(one)
    return summed


def lines(found: Mapping[tuple[str, str], Judged], states: Iterable[str]) -> list[list[str]]:
    """A row of the page per group, a cell per state."""
    return [[group, *(found[group, state].cell() for state in states)] for group in dict.fromkeys(group for group, _ in found)]
