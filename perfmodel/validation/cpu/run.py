"""Measure this machine: its profile, the parameters of its kernels, and records of kernels that those have not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from statistics import median
from typing import Any

from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import Case
from perfmodel.timing.fit import fit
from perfmodel.timing.models.cpu import FITTED, MODEL
from perfmodel.validation.cpu.cases import DTYPE, CpuCase, Scratch, checked, shapes
from perfmodel.validation.cpu.profile import (
    DRAM_SHARE,
    Item,
    MeasuredRates,
    as_text,
    device,
    processor_name,
    sample,
    take_turns,
    take_up,
    threads,
    versions,
)
from perfmodel.validation.records import Seconds, raw_of
from perfmodel.validation.statistics import quantile

SOURCE = "perfmodel validate --backend cpu: CPU time of the busiest thread, the same buffers again and again; held out"
DRIFT_BUDGET_S = 0.3
MOST_DRIFT = 0.15
"""Change of a rate between the measurements and their end from which it is reported."""

Points = Sequence[tuple[Case, float]]


def measure(
    progress: Callable[[str], None], keep: Callable[[dict[str, Any]], None] = lambda sample: None, earlier: Sequence[Mapping[str, Any]] = ()
) -> tuple[Device, list[dict[str, Any]]]:
    """Profile, calibration and records of this machine's CPU; PerfmodelError if a kernel's result is wrong.

    ``keep`` is given what was timed so far, item by item. ``earlier``: what it was given by an interrupted run; what that timed on the
    same machine with the same software is not timed again.

    The profile carries a calibration per implementation. Records are of shapes that fixed no parameter.
    """
    cores, scratch = threads(), Scratch()
    progress(f"compiling kernels for {cores} threads and checking them against float64")
    rates = MeasuredRates()
    asked = shapes(rates.llc_bytes)
    items = [Item(f"{shape.implementation} {shape.sizes}", checked(shape, cores, scratch)) for shape in asked]
    for item in rates.items:
        item.run()
    progress(f"timing {len(rates.items)} rates and {len(items)} kernels in turns")
    here = {**versions(), "processor": processor_name(), "threads": cores}
    take_up([*rates.items, *items], [one for one in earlier if one.get("environment") == here])
    take_turns([*rates.items, *items], lambda item: keep({**sample(item), "environment": here}))
    for name, change in _drift(rates).items():
        if abs(change - 1) > MOST_DRIFT:
            progress(f"{name} changed to {change:.0%} while measuring: other processes disturb this machine, predictions suffer")
    timed = list(zip(asked, items, strict=True))
    bare = device(rates)
    fitted = {name: [(shape, item) for shape, item in timed if shape.fit and shape.implementation == name] for name in FITTED}
    profile = replace(bare, calibration=_calibrations(fitted, bare, rates))
    return profile, [record(shape, item, profile.id) for shape, item in timed if not shape.fit]


def _drift(rates: MeasuredRates) -> dict[str, float]:
    """FMA rate and DRAM bandwidth now, over the medians so far."""
    change = {}
    for name, item in (("FMA rate", rates.fma), ("DRAM bandwidth", rates.copies[DRAM_SHARE])):
        again = Item(name, item.run, DRIFT_BUDGET_S)
        take_turns([again])
        change[name] = item.quantile(0.5) / again.quantile(0.5)
    return change


def _calibrations(fitted: Mapping[str, Sequence[tuple[CpuCase, Item]]], bare: Device, rates: MeasuredRates) -> list[Calibration]:
    """Parameters by implementation. The interval is made of the residuals of all: points left out of a fit, and the spread of copies."""
    copies = rates.copies[DRAM_SHARE]
    points = {name: [(shape.case, item.quantile(0.5)) for shape, item in timed] for name, timed in fitted.items()}
    residuals = {name: _residuals(name, known, bare) for name, known in points.items()}
    spread = [copies.quantile(share) / copies.quantile(0.5) for share in (0.1, 0.9)]
    ranked = sorted([*spread, *(residual for listed in residuals.values() for residual in listed)])
    return [
        Calibration(
            implementation=name,
            workload=CpuCase(name, {}, True).workload_name,
            model=MODEL.name,
            dtypes=[DTYPE],
            parameters=fitted_parameters(name, known, bare),
            points=len(known),
            low=quantile(ranked, 0.1),
            high=quantile(ranked, 0.9),
            source="run",
            date=date.today().isoformat(),
            versions=as_text(versions()),
            median_error=median(abs(1 / residual - 1) for residual in residuals[name] or spread),
        )
        for name, known in points.items()
    ]


def _residuals(name: str, points: Points, bare: Device) -> list[float]:
    """Measured over predicted, of each point by a fit of all others."""
    rests = [[*points[:at], *points[at + 1 :]] for at in range(len(points))]
    fits = [fitted_parameters(name, rest, bare) for rest in rests]
    return [seconds / MODEL.seconds(case, bare, p) for (case, seconds), p in zip(points, fits, strict=True)]


def fitted_parameters(name: str, points: Points, bare: Device) -> dict[str, float]:
    """Every parameter of the model: those that ``name`` depends on fitted to ``points``, the others at their start."""
    starts = MODEL.starts()
    free = {key: starts[key] for key in FITTED[name]}

    def times(parameters: Mapping[str, float]) -> list[float]:
        return [MODEL.seconds(case, bare, {**starts, **parameters}) for case, _ in points]

    return {**starts, **fit(times, [seconds for _, seconds in points], free)} if free else starts


def record(shape: CpuCase, item: Item, hardware: str) -> dict[str, Any]:
    """A measurement record."""
    environment = {**versions(), "threads": threads(), "runs": len(item.seconds), "wall_clock_s": quantile(item.wall_s, 0.5)}
    return raw_of(shape.record(hardware, Seconds.of(item.seconds), environment=environment, source=SOURCE))
