"""Rows that ran for seconds, against the model: kernels and steps of the draw that no fit and no rule has seen.

They are those of sustained*.jsonl whose source says so; ``tools.measure.sustained`` writes such files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.power import PowerState
from perfmodel.validation.compare import RecordRow, compare_files
from perfmodel.validation.records import Record, held_out, shipped_records
from perfmodel.validation.sustained import sustained_state
from tools.power_fit import absolute, limited, power_errors

Pairs = list[tuple[Record, PowerState]]
WHAT = ("clock", "watts", "joules", "seconds")


@cache
def rows() -> list[RecordRow]:
    """Held-out rows beside the model."""
    paths = [path for path in shipped_records() if path.name.startswith("sustained")]
    return [row for row in compare_files(paths, find_device, cache(calibrated_devices)) if held_out(row.record)]


@cache
def pairs(predicted: bool) -> Pairs:
    """Records and how they are predicted to run, from a predicted time alone or from the measured one."""
    found: Pairs = []
    for row in rows():
        if predicted:
            state = row.prediction.power if row.prediction is not None else None
        else:
            assert row.case is not None
            assert row.device is not None
            alone = float(row.record.environment["burst_s"])
            state = sustained_state(alone, row.case, row.record, row.device, cache(calibrated_devices))
        found += [] if state is None else [(row.record, state)]
    return found


def is_step(record: Record) -> bool:
    """Whether ``record`` is a whole step."""
    return record.workload == "transformer"


GROUPS: dict[str, Callable[[Record], bool]] = {
    "kernels": lambda record: not is_step(record),
    "kernels that the limit slows": lambda record: not is_step(record) and limited(record, find_device(record.hardware)),
    "prefill steps": lambda record: record.shape.get("phase") == "prefill",
    "decode steps": lambda record: record.shape.get("phase") == "decode",
}


def errors(group: str, predicted: bool) -> dict[str, list[float]]:
    """Relative errors of clock, watts, joules and seconds."""
    found = power_errors([pair for pair in pairs(predicted) if GROUPS[group](pair[0])])
    return {what: getattr(found, what) for what in WHAT}


def table_rows() -> list[list[str]]:
    """A line per group and way of predicting: rows, then median and 90 % quantile of each error."""
    lines = []
    for group in GROUPS:
        for predicted, words in ((True, "predicted"), (False, "measured")):
            found = errors(group, predicted)
            if not found["clock"]:
                continue
            cells = [f"{absolute(found[what]):.1%}, {absolute(found[what], 0.9):.1%}" for what in WHAT]
            lines.append([group, words, str(len(found["clock"])), *cells])
    return lines


def unpredicted() -> dict[str, int]:
    """Reasons of rows without a predicted time."""
    found: dict[str, int] = {}
    for row in rows():
        if row.prediction is None:
            found[row.reason] = found.get(row.reason, 0) + 1
    return found
