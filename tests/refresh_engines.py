"""Fit the seconds of engines and the widths of their intervals to the runs of the fit half: ``python tests/refresh_engines.py [--write]``.

Seconds: those that a preset has, each engine for itself. Widths: of every group (model, device, engine) as the others predict it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any

import serving_runs

from perfmodel.catalog import calibrated_devices, find_device, find_engine, find_model
from perfmodel.core.errors import PerfmodelError
from perfmodel.serving.engine import Overhead
from perfmodel.serving.runs import ServingRun
from perfmodel.serving.steps import KernelTimes

FITTED = ("step_s", "kernel_s", "sequence_s", "request_s")
EVERY = 3
"""Runs of a group, of which one is taken."""
WORST = math.log(2)
"""Larger errors count as this: runs with a fault of their own."""
SHARE = 0.8
"""Of runs that intervals are to hold."""
FACTORS = tuple(0.05 * step for step in range(41))
ROUNDS = 6
Group = tuple[str, str, str]
Seconds = dict[str, float]


@dataclass(frozen=True)
class Run:
    """``at``: predicted TPOT and TTFT at the seconds ``around``; ``slope``: what a second more of each adds. Measured: ``took``."""

    group: Group
    kind: str
    took: tuple[float, float]
    around: Seconds
    at: tuple[float, float]
    slope: Mapping[str, tuple[float, float]]

    def missed(self, seconds: Seconds, figure: int) -> float:
        """log(measured / predicted)."""
        moved = sum(self.slope[name][figure] * (seconds[name] - self.around[name]) for name in seconds)
        return math.log(self.took[figure] / max(self.at[figure] + moved, 0.1 * self.at[figure]))


def sampled() -> list[dict[str, Any]]:
    """Every third run of each group of the fit half, in the order of lengths, layout and users."""
    groups = defaultdict(list)
    for record in serving_runs.runs():
        if record["half"] == serving_runs.FIT:
            groups[serving_runs.group(record)].append(record)
    keys = ("isl", "osl", "tensor_parallel", "attention_data_parallel", "concurrency")
    return [one for name in sorted(groups) for one in sorted(groups[name], key=lambda r: [r["shape"][key] for key in keys])[::EVERY]]


def predicted(records: Iterable[dict[str, Any]]) -> list[Run]:
    """Those that can be."""
    fallbacks, known, found = cache(calibrated_devices), dict[tuple[Any, ...], KernelTimes](), list[Run]()
    for record in records:
        s = record["shape"]
        run = ServingRun(find_model(s["model"]), find_device(record["hardware"]), find_engine(s["engine"]), s)
        try:
            if run.key not in known:
                known[run.key] = run.times(fallbacks)
            found.append(_run(record, run, known[run.key]))
        except PerfmodelError:
            continue
    return found


def _run(record: dict[str, Any], run: ServingRun, times: KernelTimes) -> Run:
    def figures(overhead: Overhead) -> tuple[float, float]:
        answer = run.predicted(replace(times, engine=replace(times.engine, overhead=overhead)))
        assert answer.tpot is not None
        return answer.tpot[0], answer.ttft[0]

    own = times.engine.overhead
    seconds = {name: getattr(own, name) for name in FITTED if getattr(own, name)}
    at, slope = figures(own), dict[str, tuple[float, float]]()
    for name, value in seconds.items():
        tpot, ttft = figures(replace(own, **{name: 1.1 * value}))
        slope[name] = (tpot - at[0]) / (0.1 * value), (ttft - at[1]) / (0.1 * value)
    s, kind = record["shape"], "experts" if run.model.is_moe else "dense"
    group = s["model"], record["hardware"], s["engine"]
    return Run(group, kind, (record["tpot_s"], record["ttft_s"]), seconds, at, slope)


def by_group(runs: Iterable[Run]) -> dict[Group, list[Run]]:
    """Runs of each."""
    found = defaultdict(list)
    for run in runs:
        found[run.group].append(run)
    return dict(found)


def error(groups: Mapping[Group, Sequence[Run]], seconds: Seconds) -> float:
    """Mean over groups, TPOT and TTFT alike."""
    return fmean(fmean(min(abs(run.missed(seconds, figure)), WORST) for run in own) for own in groups.values() for figure in (0, 1))


def fitted(groups: Mapping[Group, Sequence[Run]]) -> Seconds:
    """Seconds of least error, one after the other until none changes, to two digits."""
    best = dict(next(iter(groups.values()))[0].around)
    start = dict(best)
    for _ in range(ROUNDS):
        before = dict(best)
        for name, value in start.items():
            ways = [best | {name: float(f"{factor * value:.2g}")} for factor in FACTORS]
            best = min([best, *ways], key=lambda one: error(groups, one))
        if best == before:
            break
    return best


def left_out(groups: Mapping[Group, Sequence[Run]]) -> dict[Group, list[tuple[float, float]]]:
    """log(measured / predicted) of TPOT and TTFT of each group, by the seconds that its engine's other groups give."""
    found = {}
    for name, own in groups.items():
        others = {other: runs for other, runs in groups.items() if other != name and other[2] == name[2]}
        seconds = fitted(others)
        found[name] = [(run.missed(seconds, 0), run.missed(seconds, 1)) for run in own]
    return found


def pooled(groups: Sequence[Sequence[float]], share: float) -> float:
    """Quantile of the mean of the groups' distribution functions: each group weighs alike."""
    weighted = sorted((value, 1 / len(own)) for own in groups for value in own)
    left = share * len(groups) * (1 - 1e-9)
    for value, weight in weighted:
        left -= weight
        if left <= 0:
            return value
    return weighted[-1][0]


def ends(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Logarithms of an interval that holds ``SHARE`` of a new group's runs.

    Both ends of the middle ``SHARE`` of pooled runs are stretched alike until they hold the share times (K + 1) / K of K groups: one
    more is as likely as each of them to be the furthest off (Dunn, Wasserman & Ramdas 2023, "Distribution-free prediction sets for
    two-layer hierarchical models", pooling of distribution functions).
    """
    low, high = (pooled(groups, share) for share in ((1 - SHARE) / 2, (1 + SHARE) / 2))
    low, high = min(low, -LEAST), max(high, LEAST)
    far = [[value / high if value > 0 else value / low for value in own] for own in groups]
    stretch = max(pooled(far, min(SHARE * (1 + 1 / len(groups)), 1.0)), 1.0)
    return stretch * low, stretch * high


LEAST = 0.02
"""Logarithm of the narrowest end."""


def held(groups: Mapping[Group, Sequence[float]], low: float, high: float) -> dict[Group, float]:
    """Share of each group's runs within."""
    return {name: fmean(low <= value <= high for value in own) for name, own in groups.items()}
