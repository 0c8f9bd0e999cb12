"""Predictions against the measurements that they were not fitted to, and measurements against their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.report.charts.schema import Pair, ScatterChart
from perfmodel.report.document import Column, DataTable, Value
from perfmodel.study.base import Scope, SectionResult
from perfmodel.study.recorded import RecordChoice, row_name, rows_of, thinned
from perfmodel.study.schema import Options
from perfmodel.validation.compare import Group, Row, groups
from perfmodel.validation.statistics import quantile

BAND = (0.1, 0.9)
"""Quantiles of measured / predicted between which the band lies: it holds 80 % of the measurements."""


@dataclass(frozen=True, slots=True)
class Section(Options):
    """``records``: which are compared. ``shown``: at most so many stand in the picture; figures are of all of them."""

    records: RecordChoice
    shown: int = 80
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> SectionResult:
        """The scatter, and a row per group."""
        rows = rows_of(self.records, scope)
        by_device = len({row.record.hardware for row in rows}) > 1
        found = groups(rows, by_device)
        predicted = [row for row in rows if row.prediction is not None]
        title = self.title or "predicted against measured"
        charts = [_scatter(title, self.caption, found, predicted, self.shown, by_device)] if predicted else []
        missing = {row.reason for row in rows if row.prediction is None}
        notes = [f"{sum(row.reason == reason for row in rows)} records are not predicted: {reason}." for reason in sorted(missing)]
        if self.records.most is not None and len(rows) == self.records.most:
            notes.append(f"{title}: {len(rows)} records, evenly chosen from those of every group that meet the conditions.")
        if len(predicted) > self.shown:
            notes.append(f"The picture shows {self.shown} of {len(predicted)} measurements, evenly chosen; the figures are of all.")
        return SectionResult([_sentence(title, rows, predicted)], list(charts), [_table(title, found, by_device)], notes)


def _scatter(title: str, caption: str, found: Sequence[Group], predicted: Sequence[Row], shown: int, by_device: bool) -> ScatterChart:
    ratios = [row.record.time_s.median / row.prediction.seconds for row in predicted if row.prediction]
    low, high = (quantile(ratios, share) for share in BAND)
    chosen = thinned([[row for row in group.rows if row.prediction] for group in found], shown)
    pairs = [
        Pair(row_name(row), row.record.time_s.median, row.prediction.seconds, _group(row, by_device)) for row in chosen if row.prediction
    ]
    return ScatterChart(title, pairs, "s", low, high, caption)


def _group(row: Row, by_device: bool) -> str:
    name = f"{row.record.implementation} {row.record.direction}".removesuffix(" forward")
    return f"{name}, {row.record.hardware}" if by_device else name


def _error(row: Row) -> float | None:
    return None if row.error is None else abs(row.error)


def _table(title: str, found: Sequence[Group], by_device: bool) -> DataTable:
    columns = [
        Column("group", "group"),
        *([Column("device", "device")] if by_device else []),
        Column("records", "records", "count"),
        Column("violations", "faster than bound", "count"),
        Column("of_roof", "of its roof, median", "share"),
        Column("median", "median error", "share"),
        Column("p90", "90 % within", "share"),
        Column("worst", "worst", "share"),
        Column("covered", "in the interval", "share"),
    ]
    rows: list[list[Value]] = []
    for group in found:
        covered = [row.covered for row in group.rows if row.covered is not None]
        errors: list[Value] = [group.quantile(share, _error) for share in (0.5, 0.9, 1.0)]
        of_roof = group.quantile(0.5, lambda row: row.share_of_roof)
        head: list[Value] = [group.name, *([group.hardware] if by_device else []), len(group.rows), group.violations, of_roof]
        rows.append([*head, *errors, sum(covered) / len(covered) if covered else None])
    return DataTable(f"{title}, by group", columns, rows)


def _sentence(title: str, rows: Sequence[Row], predicted: Sequence[Row]) -> str:
    violations = sum(row.violates for row in rows)
    beaten = f"VIOLATION: {violations} are faster than their lower bound" if violations else "none is faster than its lower bound"
    errors = [error for row in predicted if (error := _error(row)) is not None]
    if not errors:
        return f"{title}: none of {len(rows)} measurements is predicted; {beaten}."
    within = [row.covered for row in predicted if row.covered is not None]
    return (
        f"{title}: {len(predicted)} measurements are predicted within {quantile(errors, 0.5):.1%} in the median and "
        f"{quantile(errors, 0.9):.1%} for nine in ten; {sum(within) / len(within):.0%} lie in the 80 % interval; {beaten}."
    )
