"""Published throughput of engines, which no fit has seen: shipped as ``public-throughput`` records and predicted once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from math import ceil
from statistics import median
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device, find_engine, find_model
from perfmodel.core.errors import PerfmodelError
from perfmodel.serving.answer import ServingAnswer
from perfmodel.serving.pools import Pools
from perfmodel.serving.steps import KernelTimes
from perfmodel.validation.records import THROUGHPUT_RUNS, read_records, shipped_records
from perfmodel.validation.serving import ServingRun, checked

FIGURES = ("tokens_per_s", "tpot_s", "ttft_s")
Ends = tuple[float, float, float]


def runs() -> list[dict[str, Any]]:
    """Every run as a record."""
    return [raw for path in shipped_records(THROUGHPUT_RUNS) for raw, _ in read_records(path)]


def figures(found: ServingAnswer) -> dict[str, Ends | None]:
    """What is predicted, with the ends of intervals; those of tokens a second are those of the time per token."""
    tpot, rate = found.tpot, found.tokens_per_s
    per_second = None if tpot is None else (rate, rate * tpot[0] / tpot[2], rate * tpot[0] / tpot[1])
    return {"tokens_per_s": per_second, "tpot_s": tpot, "ttft_s": found.ttft}


def predicted() -> Iterator[tuple[dict[str, Any], dict[str, Ends | None]]]:
    """Each run with its figures, where there are any."""
    fallbacks, known = cache(calibrated_devices), dict[tuple[Any, ...], KernelTimes | Pools]()
    for path in shipped_records(THROUGHPUT_RUNS):
        for raw, record in read_records(path):
            try:
                shape = checked(record)
                run = ServingRun(find_model(shape["model"]), find_device(raw["hardware"]), find_engine(shape["engine"]), shape)
                if run.key not in known:
                    known[run.key] = run.times(fallbacks)
                yield raw, figures(run.predicted(known[run.key]))
            except PerfmodelError:
                continue


def asked(raw: dict[str, Any]) -> str:
    """How requests came."""
    shape = raw["shape"]
    if "rate" in shape:
        return "at a rate"
    return "users" if "concurrency" in shape else "all at once" if "requests" in shape else "always enough"


def source(raw: dict[str, Any]) -> str:
    """Who published it, and the engine's version."""
    return f"{raw['source'].split(' ')[0]}, {raw['version']}"


def errors(raw: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[float, bool]]:
    """Of each figure: off by, and whether its interval holds."""
    both = {name: (found[name], raw.get(name)) for name in FIGURES}
    return {name: (ends[0] / took - 1, ends[1] <= took <= ends[2]) for name, (ends, took) in both.items() if took and ends}


def summed(each: Iterable[dict[str, tuple[float, bool]]]) -> dict[str, dict[str, float]]:
    """Of each figure: runs, median and 90 % quantile of how far off, median with its sign, share of intervals that hold."""
    own, found = list(each), {}
    for name in FIGURES:
        pairs = [one[name] for one in own if name in one]
        if not pairs:
            continue
        sizes = sorted(abs(off) for off, _ in pairs)
        found[name] = {
            "runs": len(pairs),
            "median": median(sizes),
            "p90": sizes[ceil(0.9 * len(sizes)) - 1],
            "bias": median(off for off, _ in pairs),
            "held": sum(held for _, held in pairs) / len(pairs),
        }
    return found


def scores(each: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """By kind of model, by source, engine and how requests came, and by model, device and engine."""
    by: dict[str, dict[str, list[dict[str, tuple[float, bool]]]]] = {place: defaultdict(list) for place in ("all", "sources", "groups")}
    count = 0
    for raw, found in each:
        shape, off = raw["shape"], errors(raw, found)
        kind = "experts" if find_model(shape["model"]).is_moe else "dense"
        by["all"][kind].append(off)
        by["sources"][" / ".join((kind, source(raw), shape["engine"], asked(raw)))].append(off)
        by["groups"][" / ".join((shape["model"], raw["hardware"], shape["engine"]))].append(off)
        count += 1
    return {
        "runs": len(runs()),
        "predicted": count,
        **{place: {n: summed(own) for n, own in sorted(found.items())} for place, found in by.items()},
    }
