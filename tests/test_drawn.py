"""Rows that a fit must not see, and rows that only set the width of its interval."""

from __future__ import annotations

import math
from dataclasses import replace

from perfmodel.catalog import find_device
from perfmodel.timing.base import find_model
from perfmodel.validation import calibrate as fits
from perfmodel.validation.records import FITTED, FOR_WIDTH, Record, as_record
from tools.scores import wide_rows

H200 = find_device("nvidia-h200-sxm")


def copies() -> list[Record]:
    """Copies of the last wide draw, from clean caches."""
    return [record for raw in wide_rows.raws() if raw["workload"] == "copy" and (record := as_record(raw)).cache_state == "clean"]


def test_drawn_rows_change_no_parameter_and_no_interval() -> None:
    """Whatever their times, in the fit, in its cross-validation, and in the count of shapes that allows it."""
    drawn = copies()
    known = [replace(record, source=FITTED) for record in drawn[:12]]
    beside = [replace(record, time_s=replace(record.time_s, median=10 * record.time_s.median)) for record in drawn[12:]]
    alone, together = (fits.calibrate(rows, {H200.id: H200}, "", lambda _: "", lambda _: None) for rows in (known, [*known, *beside]))
    [block], [same] = alone[H200.id], together[H200.id]
    assert replace(same, held_out=0, held_out_median_error=None, held_out_p90_error=None) == block
    assert same.held_out == len(beside)
    assert fits.calibrate(beside, {H200.id: H200}, "", lambda _: "", lambda _: None) == {}


def test_rows_for_the_width_set_the_interval_and_no_parameter() -> None:
    """Nine in ten of them slower by half: the interval says so, with a standard error beyond 80 %; the parameters do not."""
    drawn = copies()
    known = [replace(record, source=FITTED) for record in drawn[:12]]
    slower = [
        replace(record, source=FOR_WIDTH, time_s=replace(record.time_s, median=(1.5 if place % 10 else 1.0) * record.time_s.median))
        for place, record in enumerate(drawn[12:52])
    ]
    alone, together = (fits.calibrate(rows, {H200.id: H200}, "", lambda _: "", lambda _: None) for rows in (known, [*known, *slower]))
    [block], [wider] = alone[H200.id], together[H200.id]
    assert (wider.parameters, wider.points, wider.held_out) == (block.parameters, block.points, block.held_out)
    assert wider.high > 1.35 > block.high
    residuals = [point.residual(find_model(block.model), block.parameters) for point in fits.points(slower, {H200.id: H200}).popitem()[1]]
    inside = sum(wider.low <= math.exp(value) <= wider.high for value in residuals) / len(residuals)
    assert 0.8 <= inside <= 0.9
    few = fits.calibrate([*known, *slower[:10]], {H200.id: H200}, "", lambda _: "", lambda _: None)
    assert few[H200.id] == [block]
