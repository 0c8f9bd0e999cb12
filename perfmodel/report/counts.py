"""Counts and times of an estimate as the JSON contract names them, the same for every command."""

from __future__ import annotations

from typing import Any

from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_time
from perfmodel.report.charts.schema import Interval
from perfmodel.timing.base import find_model
from perfmodel.timing.predict import Prediction

BOUND_WORDS = {
    "dram": "DRAM bandwidth",
    "l2": "L2 bandwidth",
    "tensor": "the tensor unit",
    "vector": "the vector unit",
    "sfu": "the exponential unit",
    "interconnect": "the interconnect",
}


def bound_by(cost: Estimate) -> str:
    """What bounds a roof, in words, with its term."""
    if cost.bound is None:
        return "nothing whose rate the profile knows"
    term, roof = format_time(cost.terms[cost.bound]), format_time(cost.roofline_s)
    return f"{BOUND_WORDS[cost.bound]} ({term})" if term == roof else f"{BOUND_WORDS[cost.bound]} ({term} of {roof})"


def seconds(prediction: Prediction) -> Interval:
    """Its time and the ends of its interval."""
    return Interval(float(prediction.seconds), float(prediction.low), float(prediction.high))


def note(what: str, prediction: Prediction) -> str:
    """For what, on which grounds, and under which assumptions a time is predicted."""
    whose = f"{what} is predicted for {prediction.calibration.implementation}, with its 80 % interval"
    return f"{whose}; {prediction.provenance}. Assumed: {assumes(prediction)}."


def assumes(prediction: Prediction) -> str:
    """What the model of ``prediction`` assumes of operands, caches and launches."""
    return find_model(prediction.calibration.model).assumes


def whose(prediction: Prediction | None, otherwise: str | None = None) -> dict[str, Any]:
    """The JSON keys that say whose time is predicted, and on what grounds; without a prediction the implementation ``otherwise``."""
    if prediction is None:
        return {"implementation": otherwise}
    block = prediction.calibration
    grounds = {"kind": prediction.kind, "provenance": prediction.provenance, "model": block.model, "assumes": assumes(prediction)}
    return {"implementation": block.implementation, "prediction": grounds}
