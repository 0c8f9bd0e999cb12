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
from perfmodel.validation.cpu.arrays import Scratch, checked
from perfmodel.validation.cpu.profile import DRAM_SHARE, Rates, as_text, device, processor_name, threads, versions
from perfmodel.validation.cpu.shapes import DTYPE, Shape, shapes
from perfmodel.validation.cpu.timer import Item, sample, take_turns, take_up
from perfmodel.validation.statistics import quantile

SOURCE = "perfmodel validate --backend cpu: CPU time of the busiest thread, the same buffers again and again; held out"
DRIFT_BUDGET_S = 0.3
MOST_DRIFT = 0.15
"""Change of a rate between the measurements and their end from which it is reported."""

Points = Sequence[tuple[Case, float]]


def measure(
    progress: Callable[[str], None], keep: Callable[[dict[str, Any]], None] = lambda sample: None, earlier: Sequence[Mapping[str, Any]] = ()
) -> tuple[Device, dict[str, Any], list[dict[str, Any]]]:
    """Profile, calibration and records of this machine's CPU; PerfmodelError if a kernel's result is wrong.

    ``keep`` is given what was timed so far, item by item. ``earlier``: what it was given by an interrupted run; what that timed on the
    same machine with the same software is not timed again.

    The profile carries a calibration per implementation. The second value says where they are from: ``fit`` with every shape
    fitted, its measured and its predicted seconds; the copy ``curve``; ``drift``, rates at the end over rates in between.
    Records are of shapes that fixed no parameter.
    """
    cores, scratch = threads(), Scratch()
    progress(f"compiling kernels for {cores} threads and checking them against float64")
    rates = Rates()
    asked = shapes(rates.llc_bytes)
    items = [Item(f"{shape.implementation} {shape.sizes}", checked(shape, cores, scratch)) for shape in asked]
    for item in rates.items:
        item.run()
    progress(f"timing {len(rates.items)} rates and {len(items)} kernels in turns")
    here = {**versions(), "processor": processor_name(), "threads": cores}
    take_up([*rates.items, *items], [one for one in earlier if one.get("environment") == here])
    take_turns([*rates.items, *items], lambda item: keep({**sample(item), "environment": here}))
    drift = _drift(rates)
    for name, change in drift.items():
        if abs(change - 1) > MOST_DRIFT:
            progress(f"{name} changed to {change:.0%} while measuring: other processes disturb this machine, predictions suffer")
    timed = list(zip(asked, items, strict=True))
    bare = device(rates)
    fitted = {name: [(shape, item) for shape, item in timed if shape.fit and shape.implementation == name] for name in FITTED}
    profile = replace(bare, calibration=_calibrations(fitted, bare, rates))
    found = {"fit": _fit_rows(fitted, profile), "curve": rates.curve(), "drift": drift, "versions": versions()}
    return profile, found, [record(shape, item, profile.id) for shape, item in timed if not shape.fit]


def _drift(rates: Rates) -> dict[str, float]:
    """FMA rate and DRAM bandwidth now, over the medians so far."""
    change = {}
    for name, item in (("FMA rate", rates.fma), ("DRAM bandwidth", rates.copies[DRAM_SHARE])):
        again = Item(name, item.run, DRIFT_BUDGET_S)
        take_turns([again])
        change[name] = item.quantile(0.5) / again.quantile(0.5)
    return change


def _calibrations(fitted: Mapping[str, Sequence[tuple[Shape, Item]]], bare: Device, rates: Rates) -> list[Calibration]:
    """Parameters by implementation. The interval is made of the residuals of all: points left out of a fit, and the spread of copies."""
    copies = rates.copies[DRAM_SHARE]
    residuals: dict[str, list[float]] = {}
    points = {name: [(shape.case, item.quantile(0.5)) for shape, item in timed] for name, timed in fitted.items()}
    for name, known in points.items():
        residuals[name] = [
            seconds / MODEL.seconds(case, bare, fitted_parameters(name, rest, bare)) for case, seconds, rest in _left_out(known)
        ]
    spread = [copies.quantile(share) / copies.quantile(0.5) for share in (0.1, 0.9)]
    ranked = sorted([*spread, *(residual for listed in residuals.values() for residual in listed)])
    return [
        Calibration(
            implementation=name,
            workload=Shape(name, {}, True).workload_name,
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


def _left_out(points: Points) -> list[tuple[Case, float, Points]]:
    """Each point with all others."""
    return [(case, seconds, [*points[:at], *points[at + 1 :]]) for at, (case, seconds) in enumerate(points)]


def fitted_parameters(name: str, points: Points, bare: Device) -> dict[str, float]:
    """Every parameter of the model: those that ``name`` depends on fitted to ``points``, the others at their start."""
    starts = MODEL.starts()
    free = {key: starts[key] for key in FITTED[name]}

    def times(parameters: Mapping[str, float]) -> list[float]:
        return [MODEL.seconds(case, bare, {**starts, **parameters}) for case, _ in points]

    return {**starts, **fit(times, [seconds for _, seconds in points], free)} if free else starts


def _fit_rows(fitted: Mapping[str, Sequence[tuple[Shape, Item]]], profile: Device) -> list[dict[str, Any]]:
    """What was fitted, beside what the fit says."""
    blocks = {block.implementation: block for block in profile.calibration}
    return [
        {
            "implementation": name,
            "shape": shape.sizes,
            "measured_s": item.quantile(0.5),
            "predicted_s": MODEL.seconds(shape.case, profile, blocks[name].parameters),
        }
        for name, timed in fitted.items()
        for shape, item in timed
    ]


def record(shape: Shape, item: Item, hardware: str) -> dict[str, Any]:
    """A measurement record."""
    wall_s = quantile(item.wall_s, 0.5)
    return {
        "workload": shape.workload_name,
        "implementation": shape.implementation,
        "hardware": hardware,
        "dtype": DTYPE,
        "pass": "forward",
        "shape": shape.sizes,
        "time_s": {"median": item.quantile(0.5), "p10": item.quantile(0.1), "p90": item.quantile(0.9)},
        "cache": "warm",
        "environment": {**versions(), "threads": threads(), "runs": len(item.seconds), "wall_clock_s": wall_s},
        "source": SOURCE,
    }
