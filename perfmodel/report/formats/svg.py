"""SVG: the pictures of a report on one sheet; text stays text, the same bytes each time."""

from __future__ import annotations

from perfmodel.core.errors import UsageError
from perfmodel.report.charts.draw import standalone
from perfmodel.report.charts.layout import FONT, sheet
from perfmodel.report.document import Report

NEEDS = "charts"


def render(report: Report) -> str:
    """The sheet. UsageError for a report without pictures."""
    if not report.charts:
        raise UsageError("--output: this report has no picture to write", "end the file in .html, .json, .md or .txt")
    return standalone(sheet(report.charts, report.title), FONT)
