"""YAML: the device profile of a report, as ``--hardware FILE`` reads it."""

from __future__ import annotations

from perfmodel.core.errors import UsageError
from perfmodel.report.document import Report

NEEDS = "profile"


def render(report: Report) -> str:
    """The profile. UsageError for a report without one."""
    if not report.profile:
        raise UsageError("--output: this report has no device profile to write as .yaml", "end the file in .json, .md or .txt")
    return report.profile
