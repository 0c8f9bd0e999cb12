"""Kernels of shapes drawn at random, timed on an H200 after every model, rule and parameter was fixed: how many intervals hold.

Files are used to report, not to choose. There is one per draw; its name says when it was measured.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.catalog import find_device
from perfmodel.validation.compare import RecordRow, compare
from perfmodel.validation.records import as_record
from perfmodel.validation.statistics import quantile

FILES = sorted((Path(__file__).parent / "data").glob("*_drawn_*.jsonl.gz"))
ALIKE, WIDER = "alike", "wider"
"""Kinds of shapes: like those of the shipped records, or beyond them."""
PROMISED, LEVEL = Fraction(4, 5), 0.01
"""Share of intervals that hold, and how rarely a promise that is kept may be called broken."""


@dataclass(frozen=True)
class Coverage:
    """Of one group and kind of shapes: rows with a prediction, and those without by reason."""

    rows: list[RecordRow] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter)

    @property
    def covered(self) -> int:
        return sum(bool(row.covered) for row in self.rows)

    @property
    def error(self) -> float:
        return quantile([abs(row.error) for row in self.rows if row.error is not None], 0.5)

    @property
    def verdict(self) -> str:
        """By a two-sided binomial test."""
        if likelihood(self.covered, len(self.rows)) >= LEVEL:
            return "kept"
        return "too narrow" if self.covered < PROMISED * len(self.rows) else "too wide"


def likelihood(found: int, trials: int) -> float:
    """Probability of a count that is no likelier than ``found``, if the promise is kept: exact, by whole numbers."""
    held, all_ways = PROMISED.numerator, PROMISED.denominator**trials
    ways = [math.comb(trials, k) * held**k * (PROMISED.denominator - held) ** (trials - k) for k in range(trials + 1)]
    return sum(one for one in ways if one <= ways[found]) / all_ways


def raws() -> Iterator[dict[str, Any]]:
    """Every row of every draw."""
    for path in FILES:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


@cache
def coverage() -> dict[tuple[str, str], Coverage]:
    """By group (fused attention of one query apart) and kind of shapes."""
    found: dict[tuple[str, str], Coverage] = defaultdict(Coverage)
    device = find_device("nvidia-h200-sxm")
    for raw in raws():
        row = compare(raw, as_record(raw), device)
        decode = " decode" if raw["shape"].get("n") == 1 and raw["workload"] == "attention" else ""
        own = found[row.record.group + decode, WIDER if WIDER in raw["source"] else ALIKE]
        if row.prediction is None:
            own.missing[row.reason] += 1
        else:
            own.rows.append(row)
    return dict(found)
