"""Which records a fit may see and which it is judged on: decided by the record alone, before any fit.

- A record whose source ends in "; fit" or "; held out" says it itself: its shapes were drawn apart.
- Of the project's own attention kernels, whole families (d, causal, tile) are held out: never one shape of a fitted kernel.
- Of all others, half of the shapes: those whose SHA-256, of the shape as JSON with sorted keys, is odd.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from perfmodel.validation.records import Record

HELD_OUT, FITTED = "; held out", "; fit"


def held_out(record: Record) -> bool:
    """Whether no fit may see ``record``."""
    if record.source.endswith((HELD_OUT, FITTED)):
        return record.source.endswith(HELD_OUT)
    return _odd(group_key(record))


def group_key(record: Record) -> Mapping[str, Any] | list[Any]:
    """What stays together in the split, and in the folds of a cross-validation: the family of an own kernel, or the shape."""
    if record.implementation.startswith("numba-") and record.workload == "attention":
        return [record.shape.get("d", 0), record.shape.get("causal", False), record.launch.get("br", 0), record.launch.get("bc", 0)]
    return record.shape


def _odd(what: Mapping[str, Any] | list[Any]) -> bool:
    return int(hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest(), 16) % 2 == 1
