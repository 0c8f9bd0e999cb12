"""JSON Lines: the measurement records of a report, one per line, in the format that ``validate --records`` reads."""

from __future__ import annotations

import json

from perfmodel.core.errors import UsageError, visible_json
from perfmodel.report.document import Report

NEEDS = "records"


def render(report: Report) -> str:
    """A record per line. UsageError for a report without measurements."""
    if not report.records:
        raise UsageError("--output: this report has no measurement records to write as .jsonl", "end the file in .json, .md or .txt")
    return "".join(visible_json(json.dumps(record, allow_nan=False, ensure_ascii=False)) + "\n" for record in report.records)
