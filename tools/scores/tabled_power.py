"""Public tables of watts on a B200, and what the power model says of their kernels in the time that they took.

Kernels of vLLM 0.22.0 under a limit of 1,000 W, run again and again: attention of prompts and of single tokens by FlashInfer, experts in
Triton (routed evenly, without expert parallelism). No clock was read. Source: NVIDIA aiconfigurator-core 0.12.0 (Apache-2.0),
data/b200_sxm/vllm/0.22.0. Only rows whose watts are the mean of three readings or more, as their decimals tell: 734 of 3,056. Of most
others one reading was taken, which still shows what ran before: 276 decode kernels that do next to nothing in 6 us have 252 to 956 W.
Halves are told apart by a hash of the shape.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from perfmodel.catalog import find_device
from perfmodel.core.hardware import Device, PowerFit
from perfmodel.core.power import energy, limit_of
from perfmodel.timing.power import case_activity
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import Record, held_out, read_records
from tools.power_fit import absolute, points, power_fit
from tools.scores import DATA

PATH = DATA / "b200-power.jsonl"
DEVICE, LIKE = "nvidia-b200-sxm", "nvidia-h200-sxm"
FOLDS = 5
STATIC_W = 243.0  # known
"""Least watts of all 4,535 rows of the tables: those of kernels that do next to nothing."""


@cache
def records() -> list[Record]:
    """All rows."""
    return [record for _, record in read_records(PATH)]


def fitted(rows: list[Record], device: Device, like: PowerFit, **words: str) -> PowerFit:
    """Joules of ``rows``; without a clock, what depends on it is that of ``like``."""
    found = points(rows, device)
    return power_fit(found, like.clock_exponent, like.burst_over_limit, STATIC_W, **words)


def errors(rows: list[Record], device: Device, fit: PowerFit) -> list[float]:
    """Predicted over measured watts, less one, in the measured time; never above the limit."""
    found, most = [], limit_of(device)
    assert most is not None
    for record in rows:
        seconds = record.time_s.median
        one = case_activity(case_of(record), record.workload, record.dtype, device, seconds).demand(fit)
        joules = energy(seconds, one.switched_j, one.memory_j, one.busy_w, 1.0, fit.static_w, fit.clock_exponent)
        assert record.power_w is not None
        found.append(min(joules / seconds, most) / record.power_w - 1)
    return found


def left_out(rows: list[Record], device: Device, like: PowerFit) -> list[float]:
    """Errors of each fifth of ``rows``, by the fit to the others."""
    folds = [(rows[at::FOLDS], [row for i, row in enumerate(rows) if i % FOLDS != at]) for at in range(FOLDS)]
    return [error for own, others in folds for error in errors(own, device, fitted(others, device, like))]


def fit_anew(like: PowerFit, source: str, date: str) -> PowerFit:
    """The fit to the half that fits may see."""
    device = find_device(DEVICE)
    rows = [record for record in records() if not held_out(record)]
    judged = left_out(rows, device, like)
    fit = fitted(rows, device, like, source=source, date=date, records=f"{len(rows)} kernels of vLLM in public tables of watts")
    return replace(fit, median_error=float(f"{absolute(judged):.4g}"), p90_error=float(f"{absolute(judged, 0.9):.4g}"))


def shipped() -> tuple[Device, PowerFit]:
    """The device, and the fit that its profile has."""
    device = find_device(DEVICE)
    assert device.power is not None
    return device, device.power


def reported() -> list[float]:
    """Errors of the half that no fit has seen."""
    return errors([record for record in records() if held_out(record)], *shipped())
