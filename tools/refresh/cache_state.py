"""Fit what a dirty L2 costs and a warm one saves anew to the shipped records: ``python -m tools.refresh.cache_state``.

No number of ``cache_state.json`` is typed in. Kernels whose own model knows warm runs say nothing of the rule.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date

from perfmodel.catalog import find_device
from perfmodel.core.arith import quantile
from perfmodel.core.hardware import Device
from perfmodel.timing.base import CLEAN, DIRTY, L2_STATE_FILE, WARM, Prior, model_of
from perfmodel.timing.cache_state import warm_s, write_back_s
from perfmodel.timing.predict import _moved_bytes
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.fit_points import fit
from perfmodel.validation.records import Record, held_out, read_records, shipped_records

STATES = (DIRTY, WARM)
CLOSE = 0.02
"""Spread, in logarithms, of what a draw of 14,393 kernels of an H200 told: the few hundred shipped ones move it little."""
PRIORS = {
    "dirty_share": Prior(0.62, CLOSE),
    "pushing": Prior(0.78, CLOSE),
    "start_us": Prior(7.0, CLOSE),
    "busy_power": Prior(0.43, CLOSE),
    "first_line_us": Prior(0.2, CLOSE),
    "first_line_mb": Prior(2.0, CLOSE),
    "warm_latency_us": Prior(0.8, CLOSE),
}
Pair = tuple[str, float, float, float, Device, float]
"""State, seconds of the clean run, bytes read and written, device, seconds of the run in that state."""


def pairs(records: Iterable[Record]) -> list[Pair]:
    """Runs in another state than clean beside the clean run of the same kernel, of records that fits may see."""
    runs: dict[str, dict[str, Record]] = defaultdict(dict)
    for one in records:
        if not held_out(one) and one.cache_state:
            key = json.dumps([one.hardware, one.implementation, one.direction, one.dtype, one.shape], sort_keys=True)
            runs[key].setdefault(one.cache_state, one)
    found = []
    for known in runs.values():
        if CLEAN not in known or known.keys() <= {CLEAN}:
            continue
        device = find_device(known[CLEAN].hardware)
        case = evaluated(known[CLEAN], device)[0]
        if case is None:
            continue
        states = [state for state in STATES if state in known]
        if model_of(case).knows_warm(case):
            states = [state for state in states if state != WARM]
        for state in states:
            found.append((state, known[CLEAN].time_s.median, *_moved_bytes(case, device), device, known[state].time_s.median))
    return found


def seconds(pair: Pair, p: Mapping[str, float]) -> float:
    """Seconds of the run of ``pair`` that is not clean."""
    state, clean_s, read, written, device, _ = pair
    return clean_s + write_back_s(clean_s, read, written, device, p) if state == DIRTY else warm_s(clean_s, read, written, device, p)


def refit(records: Iterable[Record]) -> dict[str, object]:
    """What ``cache_state.json`` holds: the parameters, and the median error in each state."""
    listed = pairs(records)
    p = fit(lambda p: [seconds(pair, p) for pair in listed], [pair[-1] for pair in listed], PRIORS)
    found: dict[str, object] = {name: float(f"{value:.3g}") for name, value in p.items()}
    for state in STATES:
        own = [pair for pair in listed if pair[0] == state]
        errors = [abs(seconds(pair, p) / pair[-1] - 1) for pair in own]
        found[state] = {"points": len(own), "median_error": round(quantile(errors, 0.5), 4), "p90_error": round(quantile(errors, 0.9), 4)}
    return found


if __name__ == "__main__":
    every = [record for path in shipped_records() for _, record in read_records(path)]
    L2_STATE_FILE.write_text(json.dumps({**refit(every), "date": date.today().isoformat()}, indent=1) + "\n", encoding="utf-8")
