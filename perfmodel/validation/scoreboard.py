"""How well each group of records is predicted, beside two plainer models: the roofline, and three scalars fitted to it.

Only records count that no fit saw; the three scalars are fitted to the same records as the calibrations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.timing.base import Case
from perfmodel.timing.fit import fit
from perfmodel.timing.models.three_scalars import MODEL, from_terms, terms
from perfmodel.timing.predict import kernels_of, roof_s
from perfmodel.validation.compare import RecordRow, groups
from perfmodel.validation.records import held_out, profiled
from perfmodel.validation.statistics import quantile

REGIMES = {"flash-decode": "decode", "flash-prefill": "prefill"}


@dataclass(frozen=True, slots=True)
class Score:
    """|predicted / measured - 1| over the ``points`` of a group; None where nothing predicts them."""

    median: float | None = None
    p90: float | None = None
    worst: float | None = None


@dataclass(frozen=True, slots=True)
class GroupScore:
    """One group on one device: ``points`` held-out records with a prediction, and how many have none, by reason (``unpredicted``).

    ``covered``: share of the points inside the 80 % interval; ``half_width``: its median, relative. All errors are of the points.
    """

    hardware: str
    group: str
    points: int
    unpredicted: dict[str, int]
    violations: int
    predicted: Score
    covered: float | None
    half_width: float | None
    roofline: Score
    scalars: Score


def scored(errors: list[float]) -> Score:
    """Quantiles of absolute errors."""
    return Score(quantile(errors, 0.5), quantile(errors, 0.9), max(errors)) if errors else Score()


def scoreboard(rows: Iterable[RecordRow]) -> list[GroupScore]:
    """A line per device, workload, implementation, pass and, for fused attention, regime; groups without a held-out record are left out."""
    lines = []
    for group in groups(rows, by_device=True):
        timed = [row for row in group.rows if not profiled(row.record)]
        several = any(_regime(row) for row in timed)
        regimes: dict[str, list[RecordRow]] = {}
        for row in timed:
            by_shape = " decode" if row.record.shape.get("n") == 1 else " prefill"
            regimes.setdefault((_regime(row) or by_shape) if several else "", []).append(row)
        lines += [_line(group.hardware, group.name + name, own) for name, own in regimes.items()]
    return [line for line in lines if line.points or line.unpredicted]


def _regime(row: RecordRow) -> str:
    """`` decode`` or `` prefill`` for fused attention that is predicted, nothing otherwise."""
    model = row.prediction.calibration.model if row.prediction else ""
    return f" {REGIMES[model]}" if model in REGIMES else ""


def _line(hardware: str, name: str, rows: list[RecordRow]) -> GroupScore:
    judged = [row for row in rows if held_out(row.record)]
    known = [row for row in judged if row.prediction is not None]
    widths = [(row.prediction.high - row.prediction.low) / row.prediction.seconds / 2 for row in known if row.prediction]
    return GroupScore(
        hardware,
        name,
        len(known),
        dict(Counter(row.reason for row in judged if row.prediction is None)),
        sum(row.violates for row in rows),
        scored([abs(row.error) for row in known if row.error is not None]),
        sum(bool(row.covered) for row in known) / len(known) if known else None,
        quantile(widths, 0.5) if widths else None,
        _errors(known, lambda row: roof_s(*_known(row))),
        _three_scalars([row for row in rows if row.prediction is not None and not held_out(row.record)], known),
    )


def _known(row: RecordRow) -> tuple[Case, Device]:
    assert row.case is not None
    assert row.device is not None
    return row.case, row.device


def _errors(rows: list[RecordRow], seconds: Callable[[RecordRow], float]) -> Score:
    try:
        return scored([abs(seconds(row) / row.record.time_s.median - 1) for row in rows])
    except PerfmodelError:
        return Score()


def _three_scalars(known: list[RecordRow], judged: list[RecordRow]) -> Score:
    """Errors on ``judged`` of the three scalars fitted to ``known``."""
    if len(known) < len(MODEL.parameters):
        return Score()
    try:
        seen = {id(row): terms(kernels_of(case), device) for row in (*known, *judged) for case, device in [_known(row)]}
    except PerfmodelError:  # a collective, a step of a model
        return Score()

    p = fit(lambda p: [from_terms(*seen[id(row)], p) for row in known], [row.record.time_s.median for row in known], MODEL.starts())
    return scored([abs(from_terms(*seen[id(row)], p) / row.record.time_s.median - 1) for row in judged])
