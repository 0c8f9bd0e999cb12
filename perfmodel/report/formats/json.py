"""JSON: the data of a command; a report without data is saved whole, so that it can be rendered again."""

from __future__ import annotations

import json
from dataclasses import asdict

from perfmodel.core.errors import visible_json
from perfmodel.report.document import Report, to_data

VERBATIM = True


def render(report: Report) -> str:
    """The object as strict JSON (no NaN) with two-space indentation."""
    from perfmodel.report.saved_metrics import UNITS, units_of

    if report.data:
        content = {**report.data, UNITS: units_of(report.data), "verdict": report.verdict}
        if report.reasons:
            content["reasons"] = report.reasons
        if report.provenance:
            content["provenance"] = asdict(report.provenance)
    else:
        content = to_data(report)
    return visible_json(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"
