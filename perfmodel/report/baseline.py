"""A report against an earlier one: arrows from its points, and what became faster or slower, first."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.report.charts.schema import Roofline
from perfmodel.report.compare import Compared, MetricComparison
from perfmodel.report.document import Report
from perfmodel.report.roofline_chart import with_baseline
from perfmodel.report.saved_metrics import of_report

SENTENCES = 3
"""Of a verdict."""


def with_base(report: Report, base: Report, name: str) -> Report:
    """``report`` with arrows from the points of the same name in ``base``, and what became faster or slower since, first."""
    since = MetricComparison(Compared(name, of_report(base)), Compared("this report", of_report(report)))
    verdict = [*since.answers()[:1], *report.verdict]
    made = replace(report, charts=[_arrows(chart, base, name) if isinstance(chart, Roofline) else chart for chart in report.charts])
    points = [point for chart in made.rooflines for point in chart.points]
    if points and not any(point.before for point in points):
        lost = f"NOTHING TO COMPARE WITH: no point of this report is in {name} with a time, on the same device and by the same name"
        verdict = [f"{lost}; no arrow is drawn.", *report.verdict]
    reasons = [*since.summary(), *verdict[SENTENCES:], *report.reasons]
    return replace(made, verdict=verdict[:SENTENCES], reasons=reasons)


def _arrows(chart: Roofline, base: Report, name: str) -> Roofline:
    before = [point for old in base.rooflines if old.device == chart.device for point in old.points]
    return replace(chart, points=with_baseline(chart.points, before, name))
