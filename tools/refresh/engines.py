"""Fit the seconds of engines and the widths of their intervals to the runs of the fit half: ``python -m tools.refresh.engines [--write]``.

Seconds: those that a preset has, each engine for itself. Widths: of every group (model, device, engine) as the others predict it; for
a kind of model that no run of an engine is of, as the other kind predicts this one under the engines that were fitted to both.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from statistics import fmean, median
from typing import Any

from perfmodel.catalog import calibrated_devices, data_folder, find_device, find_engine, find_model
from perfmodel.core.errors import PerfmodelError
from perfmodel.serving.engine import Overhead
from perfmodel.serving.steps import KernelTimes
from perfmodel.validation.serving import ServingRun
from tools.scores import serving_runs

STEP = ("step_s", "prompt_s", "expert_layer_s", "kernel_s", "sequence_s")
"""Seconds that make steps longer, and so times per token."""
REQUEST = {"request_s": [0.005 * part for part in range(41)], "request_token_s": [5e-7 * part for part in range(41)]}
"""Seconds before a request is known, by which its first token comes later, with what is tried of each."""
FAULTY = {("qwen3-235b-a22b", "nvidia-h200-sxm", "vllm")}
"""Groups that no seconds are fitted to: its tokens take 51 ms at any load."""
SINCE = {"sglang": (0, 5, 9)}
"""First version of an engine that its preset is of: runs of older ones take a fifth to a half
longer at the seconds that fit the others, Kimi in int4 six times as long."""
FIGURES, KINDS = ("tpot", "ttft"), ("dense", "experts")
EVERY = 3
"""Runs of a group, of which one is taken."""
WORST = math.log(2)
"""Larger errors count as this: runs with a fault of their own."""
SHARE = 0.8
"""Of runs that intervals are to hold."""
MOST = 3
LEAST_PLAIN = 0.01
"""Smaller seconds are written with an exponent, and a point: YAML takes a number with an exponent alone for text."""
FACTORS = tuple(0.05 * step for step in range(20 * MOST + 1))
ROUNDS = 6
GAIN = 0.01
"""Part of the error that other seconds have to save: what stands is what a second fit finds."""
Group = tuple[str, str, str]
Seconds = dict[str, float]
Missed = Mapping[Group, Sequence[tuple[float, float]]]
"""Of each group's runs, log(measured / predicted) of TPOT and TTFT."""


@dataclass(frozen=True)
class Run:
    """``at``: predicted TPOT and TTFT at the seconds ``around``; ``most``: with ``MOST`` times those of one name. Measured: ``took``.

    ``tokens``: mean prompt tokens of a request.
    """

    group: Group
    kind: str
    took: tuple[float, float]
    around: Seconds
    at: tuple[float, float]
    most: Mapping[str, tuple[float, float]]
    tokens: float

    def missed(self, seconds: Seconds, figure: int) -> float:
        """log(measured / predicted): what each name adds is linear, and added up."""
        moved = sum(
            (seconds[name] / self.around[name] - 1) * (found[figure] - self.at[figure]) / (MOST - 1) for name, found in self.most.items()
        )
        if figure:
            more = {name: seconds[name] - self.around[name] for name in REQUEST}
            moved += more["request_s"] + more["request_token_s"] * self.tokens
        return math.log(self.took[figure] / max(self.at[figure] + moved, 0.1 * self.at[figure]))


def outdated(record: Mapping[str, Any]) -> bool:
    """Whether a run is of a version before the one that its engine's preset is of."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", record.get("version") or "")
    since = SINCE.get(record["shape"]["engine"])
    return since is not None and (tuple(map(int, found.groups())) < since if found else "not stated" in (record.get("version") or ""))


def sampled() -> list[dict[str, Any]]:
    """Every third run of each group of the fit half, in the order of lengths, layout and users."""
    groups = defaultdict(list)
    for record in serving_runs.runs():
        if record["half"] == serving_runs.FIT and "workers" not in record["shape"] and not outdated(record):
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
                times = run.times(fallbacks)
                assert isinstance(times, KernelTimes)  # no run of the fit half has pools
                known[run.key] = times
            found.append(_run(record, run, known[run.key]))
        except PerfmodelError:
            continue
    return found


def _run(record: dict[str, Any], run: ServingRun, times: KernelTimes) -> Run:
    def figures(overhead: Overhead) -> tuple[float, float]:
        answer = run.predicted(replace(times, engine=replace(times.engine, overhead=overhead)))
        assert answer.tpot is not None
        return answer.tpot[0], answer.ttft[0]

    s, kind = record["shape"], "experts" if run.model.is_moe else "dense"
    own = times.engine.overhead
    step = {name: getattr(own, name) for name in STEP if getattr(own, name)}
    most = {name: figures(replace(own, **{name: MOST * value})) for name, value in step.items()}
    seconds = step | {name: getattr(own, name) for name in REQUEST}
    group = s["model"], record["hardware"], s["engine"]
    tokens = s["isl"] * (1 + s.get("spread", 1.0)) / 2
    return Run(group, kind, (record["tpot_s"], record["ttft_s"]), seconds, figures(own), most, tokens)


def by_group(runs: Iterable[Run]) -> dict[Group, list[Run]]:
    """Runs of each."""
    found = defaultdict(list)
    for run in runs:
        found[run.group].append(run)
    return dict(found)


def error(groups: Mapping[Group, Sequence[Run]], seconds: Seconds, figure: int) -> float:
    """Mean over groups, each with the weight of a sum of so many runs that are half alike."""
    weights = {name: math.sqrt(len(own)) for name, own in groups.items() if name not in FAULTY}
    each = {name: fmean(min(abs(run.missed(seconds, figure)), WORST) for run in groups[name]) for name in weights}
    return sum(weights[name] * each[name] for name in weights) / sum(weights.values())


def fitted(groups: Mapping[Group, Sequence[Run]]) -> Seconds:
    """Seconds of least error to two digits: those of steps by TPOT, one after the other until none changes; then of a request by TTFT."""
    first = next(iter(groups.values()))[0]
    best = dict(first.around)
    for _ in range(ROUNDS):
        before = dict(best)
        for name in first.most:
            ways = [best | {name: min(float(f"{factor * first.around[name]:.2g}"), MOST * first.around[name])} for factor in FACTORS]
            least = min(ways, key=lambda one: error(groups, one, 0))
            best = least if error(groups, least, 0) < (1 - GAIN) * error(groups, best, 0) else best
        if best == before:
            break
    ways = [best | dict(zip(REQUEST, both, strict=True)) for both in product(*REQUEST.values())]
    return min(ways, key=lambda one: error(groups, one, 1))


def left_out(groups: Mapping[Group, Sequence[Run]], kinds: bool = False) -> dict[Group, list[tuple[float, float]]]:
    """log(measured / predicted) of TPOT and TTFT of each group, by the seconds that its engine's other groups give.

    ``kinds``: by those of the other kind of model alone, of engines that were fitted to both.
    """
    found = {}
    for name, own in groups.items():
        others = {other: runs for other, runs in groups.items() if other != name and other[2] == name[2]}
        if kinds:
            others = {other: runs for other, runs in others.items() if runs[0].kind != own[0].kind}
        if others:
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


def width(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends, in shares of the predicted time and rounded outwards, that hold ``SHARE`` of a new group's runs.

    As far off either way as the share times (K + 1) / K of the runs of K groups, pooled: one more group is as likely as each of them to
    be the furthest off (Dunn, Wasserman & Ramdas 2023, "Distribution-free prediction sets for two-layer hierarchical models").
    """
    far = math.exp(pooled([[abs(value) for value in own] for own in groups], min(SHARE * (1 + 1 / len(groups)), 1.0)))
    return math.floor(100 / far) / 100, math.ceil(100 * far) / 100


def widths(missed: Missed, kinds: Mapping[Group, str]) -> dict[str, dict[str, tuple[float, float]]]:
    """By kind of model and figure. A kind of too few groups to say anything of one more takes those of all.

    A group of a single run says nothing of how far those of a group are off together.
    """
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    missed = {name: own for name, own in missed.items() if len(own) > 1}
    for kind, (figure, name) in product(KINDS, enumerate(FIGURES)):
        own = [group for group in missed if kinds[group] == kind]
        used = own if own and SHARE * (1 + 1 / len(own)) <= 1 else list(missed)
        found[kind][name] = width([[run[figure] for run in missed[group]] for group in used])
    return dict(found)


def holding(missed: Missed, kinds: Mapping[Group, str]) -> dict[Group, list[float]]:
    """Shares of each group's runs that intervals hold in which no run of it had a part."""
    found = {}
    for group, own in missed.items():
        others = widths({name: runs for name, runs in missed.items() if name != group}, kinds)[kinds[group]]
        found[group] = [
            fmean(low <= math.exp(run[figure]) <= high for run in own)
            for figure, (low, high) in enumerate(others[name] for name in FIGURES)
        ]
    return found


def written(text: str, seconds: Seconds, found: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """The file of an engine with those figures; its widths are at its end."""
    for name, value in seconds.items():
        told = f"{value:.1e}".replace("e-0", "e-") if 0 < value < LEAST_PLAIN else f"{value:g}"
        text, count = re.subn(rf"\b{name}: [-+0-9.e]+", f"{name}: {told}", text)
        assert count == 1, name
    lines = [
        f"  {kind}: {{{', '.join(f'{name}: [{low:g}, {high:g}]' for name, (low, high) in own.items())}}}" for kind, own in found.items()
    ]
    before, own = text.split("widths:\n")
    others = [line for line in own.splitlines() if line.split(":")[0].strip() not in found]
    return before + "\n".join(["widths:", *others, *lines, ""])


if __name__ == "__main__":
    groups = by_group(predicted(sampled()))
    kinds, missed = {name: own[0].kind for name, own in groups.items()}, left_out(groups)
    found, shares = widths(missed, kinds), holding(missed, kinds)
    for name, errors in missed.items():
        off = [median(abs(math.expm1(-run[figure])) for run in errors) for figure in (0, 1)]
        told = ", ".join(f"{figure} {one:.1%} off, {share:.0%} held" for figure, one, share in zip(FIGURES, off, shares[name], strict=True))
        print(*name, len(errors), "runs, left out:", told)
    print(
        "held, mean of groups:",
        *(f"{name} {fmean(each):.0%}" for name, each in zip(FIGURES, zip(*shares.values(), strict=True), strict=True)),
    )
    unfitted = widths(left_out(groups, kinds=True), kinds)
    for engine in sorted({name[2] for name in groups}):
        own = {name: runs for name, runs in groups.items() if name[2] == engine}
        seconds, fitted_kinds = fitted(own), {kinds[name] for name in own}
        used = {kind: (found if kind in fitted_kinds else unfitted)[kind] for kind in KINDS}
        print(engine, seconds, used)
        path = data_folder("configs") / "engines" / f"{engine}.yaml"
        if "--write" in sys.argv:
            path.write_text(written(path.read_text(encoding="utf-8"), seconds, used), encoding="utf-8")
