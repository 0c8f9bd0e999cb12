"""How a time that the user measured compares with the roof and with the best library kernel."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_time
from perfmodel.report.answer import sentence, taken
from perfmodel.report.charts.format_number import percent
from perfmodel.report.charts.schema import Interval
from perfmodel.report.document import Report
from perfmodel.report.speedup import way

LIBRARY = "the best library kernel"


def with_measured(plain: Report, measured_s: float | None, cost: Estimate, predicted: Interval | None, what: str = LIBRARY) -> Report:
    """``plain`` with what ``measured_s`` seconds are, first: a share of the roof of ``cost``, and against ``predicted`` of ``what``.

    A time below the roof of these tiles is held against the bound, and one below the bound is said to be no time of this work.
    """
    if measured_s is None:
        return plain
    roof, bound, time = float(cost.roofline_s), float(cost.lower_warm_s), format_time(measured_s, 3)
    least, name = (roof, "roof") if roof <= measured_s else (bound, "bound")
    said = f"{time} is {percent(least / measured_s)} of the {name}"
    if measured_s < bound:
        said = f"{time} is less than any kernel takes here, {format_time(bound, 3)}: less was computed or read, or the clock was higher"
    elif predicted is not None:
        within = predicted.low is not None and predicted.high is not None and predicted.low <= measured_s <= predicted.high
        said += f" and {way(predicted.value / measured_s, what)}, predicted {taken(predicted)}{', within its interval' * within}"
    speedup = None if predicted is None else predicted.value / measured_s
    entry = {"time_s": measured_s, "of_roof": roof / measured_s, "of_bound": bound / measured_s, "speedup": speedup}
    return replace(plain, verdict=[sentence(said), *plain.verdict], data={**plain.data, "measured": entry})
