"""Predict every device with records as if it had none, and keep what was missed: ``python -m tools.refresh.leave_one_out [DEVICE ...]``.

``--fit``: of the rows that fits may see, to choose a rule by; nothing is kept. ``--standard``: of standard attention alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping

from perfmodel.catalog import calibrated_devices, device_ids, find_device
from perfmodel.core.arith import quantile
from perfmodel.validation.records import Record, held_out, read_records, shipped_records
from tools.scores import DATA
from tools.scores.left_out import KINDS, STANDARD, Score, Side, group, score, standard_rows, thinned

FILE = DATA / "leave_one_out.json"
STANDARD_FILE = FILE.with_name("standard_left_out.json")
DRAWS = ("wide", "drawn")
"""Draws of thousands of shapes of one device, which are judged by themselves."""


def row(found: Score) -> dict[str, float | int]:
    """A cell of the table: rows, quantiles of errors, shares of intervals that hold."""
    cell: dict[str, float | int] = {"rows": len(found.alone.errors), "pooled": found.pooled, "refused": found.refused}
    for name, side in (("alone", found.alone), ("probed", found.probed)):
        if side.errors:
            cell |= {name: _round(side.errors, 0.5), f"{name}_p90": _round(side.errors, 0.9)}
            cell[f"{name}_held"] = round(side.held / len(side.errors), 4)
    return cell | ({"scalars": _round(found.scalars, 0.5)} if found.scalars else {})


def _round(errors: list[float], share: float) -> float:
    return round(quantile(errors, share), 4)


def table(names: Collection[str] = (), judged: Callable[[Record], bool] = held_out) -> dict[str, dict[str, dict[str, float | int]]]:
    """By device and kind of kernel, of the devices called ``names`` or of all."""
    paths = [path for path in shipped_records() if not path.name.startswith(DRAWS)]
    records = [record for path in paths for _, record in read_records(path)]
    devices = {name: find_device(name) for name in device_ids() if name in {record.hardware for record in records}}
    grouped = group(records, devices)
    few = thinned(grouped)
    found = {}
    for name in sorted(names or devices):
        kinds: Mapping[str, Score] = score(name, grouped, few, devices, judged)
        found[name] = {kind: row(kinds[kind]) for kind in KINDS if kind in kinds}
        print(name, json.dumps(found[name]), flush=True)
    return {name: own for name, own in found.items() if own}


def standard_table(names: Collection[str] = ()) -> dict[str, dict[str, float | int]]:
    """Of standard attention, by device, of those called ``names`` or of all."""
    records = [record for path in shipped_records() for _, record in read_records(path) if record.implementation in STANDARD]
    devices, found = list(calibrated_devices()), {}
    for name in sorted(names or {record.hardware for record in records}):
        side = Side()
        for record, made in standard_rows(name, records, devices):
            side.add(made, record.time_s.median)
        found[name] = {"rows": len(side.errors), "median": _round(side.errors, 0.5), "p90": _round(side.errors, 0.9), "held": side.held}
    return found


if __name__ == "__main__":
    if "--standard" in sys.argv:
        STANDARD_FILE.write_text(json.dumps(standard_table(), indent=1) + "\n", encoding="utf-8")
        sys.exit()
    named = [word for word in sys.argv[1:] if word != "--fit"]
    made = table(named, (lambda record: not held_out(record)) if "--fit" in sys.argv else held_out)
    if not sys.argv[1:]:
        FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
