"""JSON: the report's data, one object."""

from __future__ import annotations

import json

from perfmodel.report.document import Report


def render(report: Report) -> str:
    """One object with two-space indentation; strict JSON, so no NaN."""
    return json.dumps(report.data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
