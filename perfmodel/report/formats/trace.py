"""Chrome's trace format: a timeline of kernels to open in Perfetto. ``step.trace.json`` has this format too.

Source: Trace Event Format, Google; complete events (ph X) in microseconds, one thread per lane, and counters (ph C).
"""

from __future__ import annotations

import json
from typing import Any

from perfmodel.core.errors import UsageError, visible_json
from perfmodel.report.document import Report

NEEDS = "timeline"
VERBATIM = True


def render(report: Report) -> str:
    """The timeline of ``report`` as complete events. UsageError for a report without one."""
    if not report.timeline:
        raise UsageError(
            "--output: this report has no kernels in time to write as .trace",
            "ask for one step on one GPU, of prefill, decode or training, or for an engine: no search",
        )
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(span.lane for span in report.timeline), 1)}
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": report.title}}]
    for lane, number in lanes.items():
        events.append({"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": lane}})
    for span in report.timeline:
        event = {"ph": "X", "cat": span.lane, "name": span.name, "pid": 0, "tid": lanes[span.lane]}
        events.append({**event, "ts": _microseconds(span.start_s), "dur": _microseconds(span.seconds), "args": span.details})
    for sample in report.counters:
        events.append({"ph": "C", "name": sample.name, "pid": 0, "ts": _microseconds(sample.at_s), "args": sample.values})
    return visible_json(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False)) + "\n"


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 4)
