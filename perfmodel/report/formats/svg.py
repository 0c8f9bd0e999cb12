"""SVG: the pictures of a report on one sheet; text stays text, the same bytes each time."""

from __future__ import annotations

from perfmodel.core.errors import UsageError
from perfmodel.report.charts.draw import standalone
from perfmodel.report.charts.layout import FONT, panels
from perfmodel.report.charts.scene import Group, Scene
from perfmodel.report.document import Report

NEEDS = "charts"


def render(report: Report) -> str:
    """The sheet. UsageError for a report without pictures."""
    if not report.charts:
        raise UsageError("--output: this report has no picture to write", "end the file in .html, .json, .md or .txt")
    return standalone(sheet(report), FONT)


def sheet(report: Report) -> Scene:
    """All pictures of ``report`` as one."""
    placed = panels(report.charts)
    width = max(left + scene.width for left, _, scene in placed)
    height = max(top + scene.height for _, top, scene in placed)
    words = " ".join(scene.description for *_, scene in placed)
    return Scene(width, height, [Group(scene.children, move=(left, top)) for left, top, scene in placed], report.title, words)
