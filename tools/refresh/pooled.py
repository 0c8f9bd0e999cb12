"""Fit the pooled rooflines anew to the shipped records: ``python -m tools.refresh.pooled``. No number of ``pooled.json`` is typed in."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from itertools import accumulate

from perfmodel.catalog import device_ids, find_device
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.power import SUSTAINED
from perfmodel.timing.base import find_model
from perfmodel.timing.intervals import SPREAD
from perfmodel.timing.models.pooled import FILE, POOLED, family
from perfmodel.timing.select_kernel import PROJECT_KERNELS
from perfmodel.timing.transfer import copied_share
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.cross_device import pooled_quantile
from perfmodel.validation.fit_points import Effort, FitPoint, fitted
from perfmodel.validation.records import Record, held_out, profiled, read_records, shipped_records

KINDS = ("attention", "matmul", "softmax", "norm", "scale")
APART = ("fa3-no-pipelining", "fa3-no-specialization", "fa1-triton", "torch-mask", "torch-rope")
"""Variants of kernels, and kernels that no bytes or FLOP limit."""
EACH = 60
"""Points of a device and family: every device weighs alike."""
EFFORT = Effort()
QUANTILE = 0.8
Pool = dict[str, list[FitPoint]]
"""Points by device."""


def pools(records: Iterable[Record], devices: Mapping[str, Device]) -> dict[str, Pool]:
    """The points that fits may see, by family and device."""
    found: dict[str, Pool] = defaultdict(lambda: defaultdict(list))
    for record in records:
        left_out = held_out(record) or profiled(record) or record.clock == SUSTAINED or record.direction == "both"
        if left_out or record.workload not in KINDS or record.implementation.startswith(PROJECT_KERNELS) or record.implementation in APART:
            continue
        device = devices.get(record.hardware)
        case, lower, _ = (None, None, "") if device is None else evaluated(record, device)
        if device is not None and case is not None and lower is not None:
            found[family(record.workload, case)][device.id].append(FitPoint(record, case, device, lower))
    return {name: {key: Effort(points=EACH).thinned(own) for key, own in sorted(pool.items())} for name, pool in sorted(found.items())}


def fit_of(pool: Pool) -> dict[str, float]:
    """Parameters of all devices of ``pool`` together."""
    points = [point for own in pool.values() for point in own]
    return {name: float(f"{value:.4g}") for name, value in fitted(find_model(POOLED), points, effort=EFFORT).items()}


def missed(pool: Pool) -> dict[str, list[float]]:
    """|log(measured / predicted)| of each device by a fit to the others; empty of one device alone."""
    model = find_model(POOLED)
    left = {key: fit_of({other: own for other, own in pool.items() if other != key}) for key in pool if len(pool) > 1}
    return {key: [abs(point.residual(model, left[key])) for point in pool[key]] for key in left}


def half_width(errors: Mapping[str, Sequence[float]]) -> float:
    """Of the interval, in logarithms: what 80 % of points miss at most, wider the fewer devices there are to judge one more by.

    Each maker weighs alike, however many devices and points it has: the next device may be of any.
    """
    makers = Counter(name.partition("-")[0] for name, own in errors.items() for _ in own)
    weighted = sorted((error, 1 / makers[name.partition("-")[0]]) for name, own in errors.items() for error in own)
    below = accumulate(weight for _, weight in weighted)
    middle = next(error for (error, _), share in zip(weighted, below, strict=True) if share >= QUANTILE * len(makers))
    return middle * math.sqrt(1 + 1 / len(errors))


def refit(listed: Mapping[str, Pool], today: str) -> dict[str, dict[str, object]]:
    """What ``pooled.json`` holds. A family that one device has records of takes the interval of the one that most devices have."""
    errors = {name: missed(pool) for name, pool in listed.items()}
    halves = {name: half_width(each) for name, each in errors.items() if each}
    most = halves[max(halves, key=lambda name: len(errors[name]))]
    found = {}
    for name, pool in listed.items():
        half, direction = halves.get(name, most), "backward" if "/backward" in name else "forward"
        block = Calibration(
            "a pooled roofline",
            name.partition("/")[0],
            POOLED,
            sorted({point.record.dtype for own in pool.values() for point in own}),
            fit_of(pool),
            sum(map(len, pool.values())),
            round(math.exp(-half), 4),
            round(math.exp(half), 4),
            "records",
            today,
            f"{len(pool)} devices" if len(pool) > 1 else f"one device, {next(iter(pool))}",
            direction,  # type: ignore[arg-type]
        )
        found[name] = {key: value for key, value in asdict(block).items() if value not in (None, 0)}
    return found


def bandwidth_spread(devices: Iterable[Device], today: str) -> dict[str, object]:
    """What ``spread.json`` holds: between two GPUs, how far apart the logarithms of the bandwidth shares that copies reach are."""
    known = [copied_share(device) for device in devices if device.vendor in ("NVIDIA", "AMD")]
    shares = [math.log(share) for share in known if share is not None]
    apart = [[abs(own - its) for at, its in enumerate(shares) if at != place] for place, own in enumerate(shares)]
    return {"half_width": round(pooled_quantile(apart), 4), "devices": len(shares), "date": today}


def write(records: Iterable[Record], today: str) -> None:
    """Put the fits into ``pooled.json``, and what copies say into ``spread.json``."""
    spread = bandwidth_spread(map(find_device, device_ids()), today)
    SPREAD.write_text(json.dumps(spread) + "\n", encoding="utf-8")
    listed = pools(records, {name: find_device(name) for name in device_ids()})
    FILE.write_text(json.dumps(refit(listed, today), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write((record for path in shipped_records() for _, record in read_records(path)), date.today().isoformat())
