"""Profiles with what ``perfmodel trace`` reads of them alone: ``python -m tools.measure.programs.compact FILE OUT.json.gz``."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from perfmodel.program.profile import LAUNCHES, ON_DEVICE, STEP, events

LONGEST_NAME = 700
"""Characters of a name that are kept: the formats of lists of tensors stand far behind."""
KEPT = (
    *("External id", "correlation", "stream", "device", "bytes", "grid", "Input Dims", "Input type", "Input Strides", "Concrete Inputs"),
    *("Collective name", "Group size", "dtype", "In msg nelems", "Out msg nelems"),
)


def compact(path: Path) -> dict[str, Any]:
    """The profile in ``path``: kernels, the operators and launches that they name, steps, and the name of the device."""
    head: dict[str, Any] = {}
    found = [
        one for one in events(path, head) if one.get("ph") == "X" and one.get("cat") in (*ON_DEVICE, *LAUNCHES, "cpu_op", "user_annotation")
    ]
    kernels = [one for one in found if one["cat"] in ON_DEVICE]
    owners, launches = ({one["args"].get(key) for one in kernels} for key in ("External id", "correlation"))
    kept = [
        one
        for one in found
        if one["cat"] in ON_DEVICE
        or (one["cat"] == "cpu_op" and one["args"].get("External id") in owners)
        or (one["cat"] in LAUNCHES and one["args"].get("correlation") in launches)
        or STEP.match(one["name"])
    ]
    start = min(float(one["ts"]) for one in kept)
    return {
        "deviceProperties": [{"name": one.get("name", "")} for one in head.get("deviceProperties", [])[:1]],
        "traceEvents": [_event(one, start) for one in sorted(kept, key=lambda one: float(one["ts"]))],
    }


def _event(event: dict[str, Any], start: float) -> dict[str, Any]:
    arguments = {key: value for key, value in event.get("args", {}).items() if key in KEPT}
    times = {"ts": round(float(event["ts"]) - start, 3), "dur": event["dur"]}
    return {"ph": "X", "cat": event["cat"], "name": event["name"][:LONGEST_NAME], "tid": event.get("tid"), **times, "args": arguments}


if __name__ == "__main__":
    packed = json.dumps(compact(Path(sys.argv[1])), separators=(",", ":")).encode()
    Path(sys.argv[2]).write_bytes(gzip.compress(packed, 9, mtime=0))
