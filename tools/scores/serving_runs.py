"""Public serving runs, shipped as ``public-serving`` records: half of the groups were seen when overheads of engines were fitted.

A group is a model on a device under an engine. Lengths, layout, formats and options are those of the run's published script
(SemiAnalysisAI/InferenceX); times are of aiconfigurator-core 0.12.0, systems/silicon_sample.csv, Apache-2.0.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from math import ceil
from statistics import median
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device, find_engine, find_model
from perfmodel.core.errors import PerfmodelError
from perfmodel.serving.pools import Pools
from perfmodel.serving.steps import KernelTimes
from perfmodel.validation.records import SERVING_RUNS, held_out, read_records, shipped_records
from perfmodel.validation.serving import ServingRun

FIT, HELD = "fit", "held out"


@cache
def runs() -> list[dict[str, Any]]:
    """Every run as a record, with its ``half``."""
    every = [one for path in shipped_records(SERVING_RUNS) for one in read_records(path)]
    return [{**raw, "half": HELD if held_out(record) else FIT} for raw, record in every]


def group(record: dict[str, Any]) -> tuple[str, str, str, str]:
    """Model, device, engine and format of the weights."""
    s = record["shape"]
    engine = s["engine"] + (", pools" if "prefill_workers" in s else "")
    return s["model"], record["hardware"], engine, s["weights_dtype"] or "as published"


def scored(records: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, float] | str]]:
    """Each with its errors and whether the intervals hold, or why it is not predicted."""
    fallbacks, known = cache(calibrated_devices), dict[tuple[Any, ...], KernelTimes | Pools]()
    for record in records:
        s = record["shape"]
        run = ServingRun(find_model(s["model"]), find_device(record["hardware"]), find_engine(s["engine"]), s)
        try:
            if run.key not in known:
                known[run.key] = run.times(fallbacks)
            found = run.predicted(known[run.key])
        except PerfmodelError as error:
            yield record, error.message
            continue
        yield record, {**_errors("ttft", found.ttft, record["ttft_s"]), **_errors("tpot", found.tpot, record["tpot_s"])}


def _errors(name: str, predicted: tuple[float, float, float] | None, measured: float) -> dict[str, float]:
    assert predicted is not None
    value, low, high = predicted
    return {name: value / measured - 1, f"{name}_held": float(low <= measured <= high)}


def summed(errors: list[dict[str, float]]) -> dict[str, float]:
    """Medians, 90 % quantiles and shares of intervals that hold."""
    sizes = {name: sorted(abs(one[name]) for one in errors) for name in ("tpot", "ttft")}
    held = {f"{name}_held": sum(one[f"{name}_held"] for one in errors) / len(errors) for name in sizes}
    return {
        "runs": len(errors),
        **{f"{name}_median": median(values) for name, values in sizes.items()},
        **{f"{name}_p90": values[ceil(0.9 * len(values)) - 1] for name, values in sizes.items()},
        **held,
    }


def scores(half: str) -> dict[str, Any]:
    """Of each group, of dense models and of those with experts; and what is not predicted."""
    by_group, by_kind, missing = defaultdict(list), defaultdict(list), Counter[str]()
    for record, found in scored(one for one in runs() if one["half"] == half):
        if isinstance(found, str):
            missing[found] += 1
            continue
        name = " / ".join(group(record))
        by_group[name].append(found)
        kind = "experts" if find_model(record["shape"]["model"]).is_moe else "dense"
        by_kind[kind + (", pools" if "prefill_workers" in record["shape"] else "")].append(found)
    return {
        "groups": {name: summed(found) for name, found in sorted(by_group.items())},
        "all": {name: summed(found) for name, found in sorted(by_kind.items())},
        "missing": dict(missing),
    }
