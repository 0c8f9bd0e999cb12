"""Predictions beside measurements that no fit saw, and measurements beside their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.core.arith import quantile
from perfmodel.core.frozen import dataclass
from perfmodel.report.charts.schema import Chart, Pair, ScatterChart
from perfmodel.report.document import Column, DataTable, Figure, Report, Value
from perfmodel.study.recorded import RecordChoice, row_group, row_name, rows_of, thinned
from perfmodel.study.schema import Options, Scope
from perfmodel.validation.compare import RecordGroup, RecordRow, groups

BAND = (0.1, 0.9)
"""Quantiles of measured / predicted at the ends of the band, which holds 80 % of the measurements."""


@dataclass(frozen=True, slots=True)
class PredictedVsMeasuredSection(Options):
    """Predictions beside ``records``. ``shown``: most points in the picture; figures are over all records."""

    records: RecordChoice
    shown: int = 80
    title: str = ""
    caption: str = ""

    def build(self, scope: Scope) -> Report:
        """The report: a scatter chart, and a row per group."""
        rows = rows_of(self.records, scope)
        by_device = len({row.record.hardware for row in rows}) > 1
        record_groups = groups(rows, by_device)
        title = self.title or "predicted against measured"
        predicted = [row for row in rows if row.prediction is not None]
        missing = sorted(row.reason for row in rows if row.prediction is None)
        notes = [f"{missing.count(reason)} records are not predicted: {reason}." for reason in dict.fromkeys(missing)]
        if self.records.most is not None and len(rows) == self.records.most:
            notes.append(f"{title}: {len(rows)} records, evenly chosen from those of every group that meet the conditions.")
        if len(predicted) > self.shown:
            notes.append(f"The picture shows {self.shown} of {len(predicted)} measurements, evenly chosen; the figures are of all.")
        all_records = RecordGroup(title, "", rows)
        sentences = [_sentence(title, all_records, len(predicted))]
        charts: list[Chart] = [self._scatter(title, record_groups, by_device)] if predicted else []
        tables = [_table(title, record_groups, by_device)]
        return Report("", sentences, [], notes, charts=charts, data_tables=tables, figures=_figures(title, all_records), reasons=sentences)

    def _scatter(self, title: str, record_groups: Sequence[RecordGroup], by_device: bool) -> ScatterChart:
        """Chart of measured and predicted times by group, with one band over all."""
        by_group = [[row for row in group.rows if row.prediction] for group in record_groups]
        ratios = [_measured_s(row) / _predicted_s(row) for rows in by_group for row in rows]
        low, high = (quantile(ratios, share) for share in BAND)
        pairs = []
        for row in thinned(by_group, self.shown):
            group = f"{row_group(row)}, {row.record.hardware}" if by_device else row_group(row)
            pairs.append(Pair(row_name(row), _measured_s(row), _predicted_s(row), group))
        return ScatterChart(title, pairs, "s", low, high, self.caption)


def _measured_s(row: RecordRow) -> float:
    return row.record.time_s.median


def _predicted_s(row: RecordRow) -> float:
    assert row.prediction is not None
    return row.prediction.seconds


def _error(row: RecordRow) -> float | None:
    """The relative error of the prediction, without its sign."""
    return None if row.error is None else abs(row.error)


def _covered(group: RecordGroup) -> float | None:
    """The share of measurements that lie in the 80 % interval of their prediction; None if none is predicted."""
    covered = [row.covered for row in group.rows if row.covered is not None]
    return sum(covered) / len(covered) if covered else None


def _table(title: str, record_groups: Sequence[RecordGroup], by_device: bool) -> DataTable:
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
    return DataTable.of(f"{title}, by group", record_groups, columns)


def _figures(title: str, all_records: RecordGroup) -> list[Figure]:
    """Figures: errors, and the share of measurements in the interval."""
    shares = {
        f"median error, {title}": all_records.quantile(0.5, _error),
        f"90 % error, {title}": all_records.quantile(0.9, _error),
        f"in the 80 % interval, {title}": _covered(all_records),
    }
    return [Figure(label, f"{share:.1%}") for label, share in shares.items() if share is not None]


def _sentence(title: str, all_records: RecordGroup, predicted: int) -> str:
    count = all_records.violations
    beaten = f"VIOLATION: {count} are faster than their lower bound" if count else "none is faster than its lower bound"
    median, p90 = (all_records.quantile(share, _error) for share in (0.5, 0.9))
    if median is None:
        return f"{title}: none of {len(all_records.rows)} measurements is predicted; {beaten}."
    return (
        f"{title}: {predicted} measurements are predicted within {median:.1%} in the median and "
        f"{p90:.1%} for nine in ten; {_covered(all_records):.0%} lie in the 80 % interval; {beaten}."
    )


SECTION = PredictedVsMeasuredSection
