"""Predicted times of single attention rows: a calibrated model is a schedule, not a formula, so each row is one calculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.sweep.devices import lenders
from perfmodel.timing.offer import algorithm_of, offer
from perfmodel.timing.predict import added


def predicted(
    w: Attention, algorithm: str, passes: Sequence[str], device: Device, implementation: str | None, lower_s: Mapping[str, float]
) -> Mapping[str, float | None]:
    """Seconds and their interval for all ``passes`` together, ``lower_s`` being the bound of each; None where one is not predicted."""

    def suits(known: str) -> bool:
        return algorithm_of(known) == algorithm

    try:
        parts = [offer("attention", w.dtype.name, w, one, device, lower_s[one], implementation, suits, lenders) for one in passes]
    except PerfmodelError:
        return {"predicted_s": None, "predicted_low_s": None, "predicted_high_s": None}
    found = parts[0] if len(parts) == 1 else added(parts)
    return {"predicted_s": found.seconds, "predicted_low_s": found.low, "predicted_high_s": found.high}
