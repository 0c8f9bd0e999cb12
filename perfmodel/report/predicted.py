"""Predicted times in tables, notes and JSON, the same for every command."""

from __future__ import annotations

from typing import Any

from perfmodel.report.against import spent
from perfmodel.report.charts.kinds import Interval
from perfmodel.timing.predict import Prediction


def seconds(prediction: Prediction) -> Interval:
    """Its time and the ends of its interval."""
    return Interval(float(prediction.seconds), float(prediction.low), float(prediction.high))


def cell(prediction: Prediction | None) -> str:
    """Time with its interval."""
    return "-" if prediction is None else spent(seconds(prediction))


def note(what: str, prediction: Prediction) -> str:
    """For what, and on which grounds, a time is predicted."""
    return f"{what} is predicted for {prediction.calibration.implementation}, with its 80 % interval; {prediction.provenance}."


def put(entry: dict[str, Any], prediction: Prediction | None) -> None:
    """Write ``prediction`` into the ``time_s`` of a JSON ``entry``, and whose it is."""
    if prediction is None:
        return
    entry["implementation"] = prediction.calibration.implementation
    entry["time_s"] |= {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high}
    entry["prediction"] = {"kind": prediction.kind, "provenance": prediction.provenance, "model": prediction.calibration.model}
