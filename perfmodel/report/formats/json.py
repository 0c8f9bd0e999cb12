"""JSON: the object that a command promises; a report without one is saved whole, so that it can be rendered again."""

from __future__ import annotations

import json
from dataclasses import asdict

from perfmodel.core.errors import visible_json
from perfmodel.report.document import Report, to_data

VERBATIM = True


def render(report: Report) -> str:
    """One object with two-space indentation; strict JSON, so no NaN."""
    from perfmodel.report.saved_metrics import UNITS, units_of

    if report.data:
        found = {**report.data, UNITS: units_of(report.data), "verdict": report.verdict}
        found |= {"reasons": report.reasons} if report.reasons else {}
        found |= {"provenance": asdict(report.provenance)} if report.provenance else {}
    else:
        found = to_data(report)
    return visible_json(json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"
