"""JSON: the object that a command promises; a report without one is saved whole, so that it can be rendered again."""

from __future__ import annotations

import json

from perfmodel.core.errors import visible_json
from perfmodel.report.document import Report

VERBATIM = True


def render(report: Report) -> str:
    """One object with two-space indentation; strict JSON, so no NaN."""
    reasons = {"reasons": report.reasons} if report.reasons else {}
    found = {**report.data, "verdict": report.verdict, **reasons} if report.data else _document(report)
    return visible_json(json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"


def _document(report: Report) -> object:
    from perfmodel.report.document import to_data

    return to_data(report)
