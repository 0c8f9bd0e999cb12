"""A report compared with an earlier one: arrows from its points, and sentences on what became faster or slower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfmodel.report.charts.schema import Roofline
from perfmodel.report.compare import Compared, MetricComparison
from perfmodel.report.document import Report, read_report
from perfmodel.report.roofline_chart import with_baseline
from perfmodel.report.saved_metrics import of_report

SENTENCES = 3
"""Most sentences of a verdict."""


def against_saved(report: Report, baseline: str | None) -> Report:
    """``report`` with arrows from the points of the one saved at ``baseline``; its verdict begins with what became faster or slower.

    It is unchanged if ``baseline`` is None.
    """
    if baseline is None:
        return report
    base, name = read_report(Path(baseline)), Path(baseline).stem
    comparison = MetricComparison(Compared(name, of_report(base)), Compared("this report", of_report(report)))
    charts = [_arrows(chart, base, name) if isinstance(chart, Roofline) else chart for chart in report.charts]
    with_arrows = replace(report, charts=charts)
    points = [point for chart in with_arrows.rooflines for point in chart.points]
    first = comparison.answers()[:1]
    if points and not any(point.before for point in points):
        reason = f"no point of this report is in {name} with a time, on the same device and by the same name"
        first = [f"NOTHING TO COMPARE WITH: {reason}; no arrow is drawn."]
    verdict = [*first, *report.verdict]
    reasons = [*comparison.summary(), *verdict[SENTENCES:], *report.reasons]
    return replace(with_arrows, verdict=verdict[:SENTENCES], reasons=reasons)


def _arrows(chart: Roofline, base: Report, name: str) -> Roofline:
    before = [point for old in base.rooflines if old.device == chart.device for point in old.points]
    return replace(chart, points=with_baseline(chart.points, before, name))
