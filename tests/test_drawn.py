"""The interval's promise on rows that were drawn after the rules were fixed: never in a fit, group by group by a binomial test."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import date

import pytest
from accuracy_parts import PAGE, PART
from drawn_rows import ALIKE, FILES, WIDER, coverage, raws

from perfmodel.catalog import find_device
from perfmodel.timing.base import find_model
from perfmodel.validation import calibrate as fits
from perfmodel.validation.records import FITTED, FOR_WIDTH, Record, as_record, held_out, read_records, shipped_records

H200 = find_device("nvidia-h200-sxm")
PADDED = "the times of head dims that the kernel pads, most of them in no record, are predicted too short"
NARROW_ROWS = "rows of up to 8192 columns err less than the longer ones that share the interval"
SHORT = "copies below 100 us err more than the longer ones, of which all are covered"
FEW = "the residuals of the few fitted rows scatter more than new rows do"
NOT_KEPT = {
    ("attention/torch-sdpa-efficient/backward", ALIKE): "too narrow: 66 % of 111; 10 of 29 with head dim 96, predicted too short",
    ("attention/torch-sdpa-efficient/backward", WIDER): f"too narrow: 53 % of 118; {PADDED}",
    ("attention/torch-sdpa-efficient/forward", WIDER): f"too narrow: 64 % of 149; {PADDED}",
    ("attention/torch-sdpa-flash/forward", WIDER): f"too narrow: 46 % of 149; {PADDED}",
    ("attention/torch-sdpa-flash/backward", WIDER): f"too narrow: 47 % of 149; {PADDED}",
    ("attention/torch-sdpa-flash/forward decode", ALIKE): f"too wide: 94 % of 149; {FEW}",
    ("attention/torch-sdpa-flash/forward decode", WIDER): f"too narrow: 38 % of 149; {PADDED}",
    (
        "attention/torch-sdpa-cudnn/forward decode",
        WIDER,
    ): "too narrow: 67 % of 149; 6 of 27 with head dims 160 and 224",
    ("attention/torch-eager/backward", WIDER): "too narrow: 70 % of 149; 12 of 34 whose lengths are no multiple of 8",
    ("matmul/torch-matmul/forward", WIDER): "too narrow: 58 % of 149; 29 of 72 that take 10 to 100 us, whose sizes are no multiples of 8",
    ("softmax/torch-softmax/forward", ALIKE): f"too wide: 93 % of 149; {NARROW_ROWS}",
    ("softmax/torch-softmax/forward", WIDER): f"too wide: 91 % of 149; {NARROW_ROWS}",
    ("norm/torch-rms-norm/forward", ALIKE): f"too wide: 90 % of 149; {NARROW_ROWS}",
    ("scale/torch-add/forward", ALIKE): f"too wide: 99 % of 149; {FEW}",
    ("scale/torch-add/forward", WIDER): f"too wide: 95 % of 149; {FEW}",
    ("scale/torch-silu-mul/forward", ALIKE): f"too wide: 92 % of 149; {FEW}",
    ("scale/torch-silu-mul/forward", WIDER): f"too wide: 89 % of 149; {FEW}",
    (
        "copy/torch-copy/forward",
        ALIKE,
    ): f"too narrow: 65 % of 149; {SHORT}",
    (
        "copy/torch-copy/forward",
        WIDER,
    ): f"too narrow: 57 % of 149; {SHORT}",
}
"""Groups whose interval does not hold what it promises: how often it held, and what is known of those it missed. Found, not chosen by:
no rule, width or parameter was set on these rows."""
CELL = re.compile(r"(\d+)% of (\d+), ([a-z ]+), error")


def verdicts() -> dict[tuple[str, str], str]:
    """Coverage and verdict as the page shows them; a slow test holds the page to the rows."""
    lines = [line.strip("| ").split(" | ") for line in dict(PART.findall(PAGE.read_text(encoding="utf-8")))["drawn"].splitlines()]
    rows = {cells[0]: cells[1:] for cells in lines if len(cells) == 3 and CELL.match(cells[1])}
    return {(group, kind): cell for group, cells in rows.items() for kind, cell in zip((ALIKE, WIDER), cells, strict=True)}


def test_every_promise_is_kept_or_listed() -> None:
    """A listed group whose interval begins to hold leaves the list."""
    broken = {}
    for key, cell in verdicts().items():
        share, rows, verdict = CELL.match(cell).groups()  # type: ignore[union-attr]
        if verdict != "kept":
            broken[key] = f"{verdict}: {share} % of {rows}"
    assert broken == {key: said.partition("; ")[0] for key, said in NOT_KEPT.items()}
    assert all(said.partition("; ")[2] for said in NOT_KEPT.values()), "each with its reason"


@pytest.mark.slow
def test_the_page_shows_the_verdicts_of_the_rows() -> None:
    assert {key: one.verdict for key, one in coverage().items()} == {key: CELL.match(cell)[3] for key, cell in verdicts().items()}  # type: ignore[index]


def question(record: Record) -> str:
    """What was timed."""
    shape = json.dumps(record.shape, sort_keys=True)
    return f"{record.workload} {record.implementation} {record.hardware} {record.dtype} {record.direction} {record.cache} {shape}"


def test_a_draw_has_a_date_and_no_row_of_it_can_be_in_a_fit() -> None:
    assert FILES
    for path in FILES:
        date.fromisoformat(path.name.partition("_drawn_")[2].removesuffix(".jsonl.gz"))
    drawn = [as_record(raw) for raw in raws()]
    assert all(held_out(record) for record in drawn)
    own = [path for path in shipped_records() if path.parent.name == H200.id]
    times = {(record.implementation, record.time_s.median) for record in drawn}
    shipped = [record for path in own for _, record in read_records(path) if (record.implementation, record.time_s.median) in times]
    timed = {(record.time_s.median, question(record)) for record in drawn}
    assert not any((record.time_s.median, question(record)) in timed for record in shipped)


def test_drawn_rows_change_no_parameter_and_no_interval() -> None:
    """Whatever their times, in the fit, in its cross-validation, and in the count of shapes that allows it."""
    drawn = [record for record in map(as_record, raws()) if record.workload == "copy"]
    known = [replace(record, source=FITTED) for record in drawn[:12]]
    beside = [replace(record, time_s=replace(record.time_s, median=10 * record.time_s.median)) for record in drawn[12:]]
    alone, together = (fits.calibrate(rows, {H200.id: H200}, "", lambda _: "", lambda _: None) for rows in (known, [*known, *beside]))
    [block], [same] = alone[H200.id], together[H200.id]
    assert replace(same, held_out=0, held_out_median_error=None, held_out_p90_error=None) == block
    assert same.held_out == len(beside)
    assert fits.calibrate(beside, {H200.id: H200}, "", lambda _: "", lambda _: None) == {}


def test_rows_for_the_width_set_the_interval_and_no_parameter() -> None:
    """Nine in ten of them slower by half: the interval says so, with a standard error beyond 80 %; the parameters do not."""
    drawn = [record for record in map(as_record, raws()) if record.workload == "copy"]
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
