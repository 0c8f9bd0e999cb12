"""Predicted times in tables, notes and JSON, the same for every command."""

from __future__ import annotations

from typing import Any

from perfmodel.timing.base import find_model
from perfmodel.timing.predict import Prediction
from perfmodel.units import format_time


def cell(prediction: Prediction | None) -> str:
    """Time with its interval."""
    if prediction is None:
        return "-"
    return f"{format_time(prediction.seconds)} ({format_time(prediction.low, 3)} to {format_time(prediction.high, 3)})"


def note(what: str, prediction: Prediction) -> str:
    """For what, on which grounds, and under which assumptions a time is predicted."""
    whose = f"{what} is predicted for {prediction.calibration.implementation}, with its 80 % interval"
    return f"{whose}; {prediction.provenance}. Assumed: {assumes(prediction)}."


def assumes(prediction: Prediction) -> str:
    """What the model of ``prediction`` assumes of operands, caches and launches."""
    return find_model(prediction.calibration.model).assumes


def put(entry: dict[str, Any], prediction: Prediction | None) -> None:
    """Write ``prediction`` into the ``time_s`` of a JSON ``entry``, and whose it is."""
    if prediction is None:
        return
    entry["implementation"] = prediction.calibration.implementation
    entry["time_s"] |= {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high}
    entry["prediction"] = {
        "kind": prediction.kind,
        "provenance": prediction.provenance,
        "model": prediction.calibration.model,
        "assumes": assumes(prediction),
    }
