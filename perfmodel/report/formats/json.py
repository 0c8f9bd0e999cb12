"""JSON: the object that a command promises; a report without one is saved whole, so that it can be rendered again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from perfmodel.core.errors import visible_json
from perfmodel.report.document import Report

VERBATIM = True


def render(report: Report) -> str:
    """One object with two-space indentation; strict JSON, so no NaN."""
    from perfmodel.report.saved_metrics import UNITS, units_of

    if not report.data:
        found = _document(report)
    else:
        made = {"provenance": asdict(report.provenance)} if report.provenance else {}
        found = {
            **report.data,
            UNITS: units_of(report.data),
            "verdict": report.verdict,
            **({"reasons": report.reasons} if report.reasons else {}),
            **made,
        }
    return visible_json(json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"


def _document(report: Report) -> dict[str, Any]:
    from perfmodel.report.document import to_data

    return to_data(report)
