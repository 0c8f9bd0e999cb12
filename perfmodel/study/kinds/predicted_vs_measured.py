"""Predictions against the measurements that they were not fitted to, and measurements against their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfmodel.core.arith import quantile
from perfmodel.report.charts.schema import Chart, Pair, ScatterChart
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.study.recorded import RecordChoice, row_group, row_name, rows_of, thinned
from perfmodel.study.schema import Options, Scope
from perfmodel.validation.compare import RecordGroup, RecordRow, groups

BAND = (0.1, 0.9)
"""Quantiles of measured / predicted between which the band lies: it holds 80 % of the measurements."""


@dataclass(frozen=True, slots=True)
class PredictedVsMeasuredSection(Options):
    """``records``: which are compared. ``shown``: at most so many stand in the picture; figures are of all of them."""

    records: RecordChoice
    shown: int = 80
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The scatter, and a row per group."""
        rows = rows_of(self.records, scope)
        by_device = len({row.record.hardware for row in rows}) > 1
        found, title = groups(rows, by_device), self.title or "predicted against measured"
        predicted = [row for row in rows if row.prediction is not None]
        missing = sorted(row.reason for row in rows if row.prediction is None)
        notes = [f"{missing.count(reason)} records are not predicted: {reason}." for reason in dict.fromkeys(missing)]
        if self.records.most is not None and len(rows) == self.records.most:
            notes.append(f"{title}: {len(rows)} records, evenly chosen from those of every group that meet the conditions.")
        if len(predicted) > self.shown:
            notes.append(f"The picture shows {self.shown} of {len(predicted)} measurements, evenly chosen; the figures are of all.")
        whole = RecordGroup(title, "", rows)
        said = [_sentence(title, whole, len(predicted))]
        charts: list[Chart] = [self._scatter(title, found, by_device)] if predicted else []
        tables = [_table(title, found, by_device)]
        return Report("", said, [], notes, charts=charts, data_tables=tables, figures=_figures(title, whole), reasons=said)

    def _scatter(self, title: str, found: Sequence[RecordGroup], by_device: bool) -> ScatterChart:
        """Pairs of measured and predicted time, by group; the band is of all of them."""
        ratios = [row.record.time_s.median / row.prediction.seconds for group in found for row in group.rows if row.prediction]
        low, high = (quantile(ratios, share) for share in BAND)
        pairs = [
            Pair(row_name(row), row.record.time_s.median, row.prediction.seconds, row_group(row) + f", {row.record.hardware}" * by_device)
            for row in thinned([[row for row in group.rows if row.prediction] for group in found], self.shown)
        ]
        return ScatterChart(title, pairs, "s", low, high, self.caption)


def _error(row: RecordRow) -> float | None:
    return None if row.error is None else abs(row.error)


def _covered(group: RecordGroup) -> float | None:
    found = [row.covered for row in group.rows if row.covered is not None]
    return sum(found) / len(found) if found else None


def _table(title: str, found: Sequence[RecordGroup], by_device: bool) -> DataTable:
    columns: list[tuple[Column, Callable[[RecordGroup], Value]]] = [
        (Column("group", "group"), lambda group: group.name),
        *[(Column("device", "device"), lambda group: group.hardware)] * by_device,
        (Column("records", "records", "count"), lambda group: len(group.rows)),
        (Column("violations", "faster than bound", "count"), lambda group: group.violations),
        (Column("of_roof", "of its roof, median", "share"), lambda group: group.quantile(0.5, lambda row: row.share_of_roof)),
        (Column("median", "median error", "share"), lambda group: group.quantile(0.5, _error)),
        (Column("p90", "90 % within", "share"), lambda group: group.quantile(0.9, _error)),
        (Column("worst", "worst", "share"), lambda group: group.quantile(1.0, _error)),
        (Column("covered", "in the interval", "share"), _covered),
    ]
    return DataTable.of(f"{title}, by group", found, columns)


def _figures(title: str, whole: RecordGroup) -> list[Figure]:
    """Errors, and how many measurements lie in the interval."""
    found = {f"{words} error, {title}": whole.quantile(share, _error) for words, share in (("median", 0.5), ("90 %", 0.9))}
    found[f"in the 80 % interval, {title}"] = _covered(whole)
    return [Figure(label, f"{value:.1%}") for label, value in found.items() if value is not None]


def _sentence(title: str, whole: RecordGroup, predicted: int) -> str:
    count = whole.violations
    beaten = f"VIOLATION: {count} are faster than their lower bound" if count else "none is faster than its lower bound"
    median, most = (whole.quantile(share, _error) for share in (0.5, 0.9))
    if median is None:
        return f"{title}: none of {len(whole.rows)} measurements is predicted; {beaten}."
    return (
        f"{title}: {predicted} measurements are predicted within {median:.1%} in the median and "
        f"{most:.1%} for nine in ten; {_covered(whole):.0%} lie in the 80 % interval; {beaten}."
    )


SECTION = PredictedVsMeasuredSection
