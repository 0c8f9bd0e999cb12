"""Counts and times of an estimate as the JSON contract names them, the same for every command."""

from __future__ import annotations

from typing import Any

from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_time
from perfmodel.report.against import spent
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


def counts(cost: Estimate) -> dict[str, Any]:
    """The keys that every result and every kernel of a result have."""
    accesses = {"reads": cost.reads, "writes": cost.writes, "total": cost.reads + cost.writes}
    return {
        "flops": cost.flops,
        "executed_flops": cost.executed_flops,
        "work": dict(cost.work.items()),
        "accesses": {
            **accesses,
            "zero_fill": cost.zero_fill,
            "zero_fill_bytes": cost.zero_fill_bytes,
            "group_sum": cost.group_sum,
            "bytes": cost.access_bytes,
        },
        "traffic": {
            "sram": {"read_bytes": cost.sram.read, "write_bytes": cost.sram.write},
            "dram": {"read_bytes": cost.dram.read, "write_bytes": cost.dram.write},
        },
        "arithmetic_intensity": {name: intensity(cost, name) for name in ("dram", "sram")},
        "bound": cost.bound,
        "time_s": {
            "lower": cost.lower_s,
            "lower_warm": cost.lower_warm_s,
            "roofline": cost.roofline_s,
            "no_overlap": cost.no_overlap_s,
            "predicted": None,
            "low": None,
            "high": None,
            "terms": cost.terms,
            "unknown": sorted(cost.unknown),
        },
    }


def intensity(cost: Estimate, level: str) -> float | None:
    """FLOP/B, or None where the level sees no byte (a score matrix that the L2 hands over)."""
    traffic = cost.dram if level == "dram" else cost.sram
    return float(cost.flops / traffic.total) if traffic.total else None


def seconds(prediction: Prediction) -> Interval:
    """Its time and the ends of its interval."""
    return Interval(float(prediction.seconds), float(prediction.low), float(prediction.high))


def cell(prediction: Prediction | None) -> str:
    """Time with its interval."""
    return "-" if prediction is None else spent(seconds(prediction))


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
