"""Chrome's trace format: a timeline of kernels to open in Perfetto. ``step.trace.json`` has this format too.

Source: Trace Event Format, Google; complete events (ph X) in microseconds, one thread per lane, and counters (ph C).
"""

from __future__ import annotations

import json

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
    named = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": report.title}}]
    threads = [{"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": lane}} for lane, number in lanes.items()]
    spans = [
        {
            **{"ph": "X", "cat": span.lane, "name": span.name, "pid": 0, "tid": lanes[span.lane]},
            **{"ts": round(1e6 * span.start_s, 4), "dur": round(1e6 * span.seconds, 4), "args": span.details},
        }
        for span in report.timeline
    ]
    counters = [
        {"ph": "C", "name": sample.name, "pid": 0, "ts": round(1e6 * sample.at_s, 4), "args": sample.values} for sample in report.counters
    ]
    return visible_json(json.dumps({"displayTimeUnit": "ms", "traceEvents": [*named, *threads, *spans, *counters]}, allow_nan=False)) + "\n"
