"""Predictions of a device by calibrations of the others: none of its records is in a fit, a width or a pool.

Lenders of other architectures keep the calibrations that they ship with, which never saw the device; those of its own architecture are
fitted anew without it. A kernel that runs on no other device is predicted by the pooled roofline of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.power import SUSTAINED
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import find_model
from perfmodel.timing.implementations import kernel_name
from perfmodel.timing.models.pooled import POOLED, PRODUCTS, as_probed, family
from perfmodel.timing.models.pooled import THREE_SCALARS as THREE
from perfmodel.timing.predict import Prediction, TimeRequest, added, predict
from perfmodel.timing.select_kernel import PROJECT_KERNELS
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.calibrate import calibrate, points
from perfmodel.validation.cross_device import kind_of, residuals, widths, with_borrowed, without_probes
from perfmodel.validation.fit_points import Effort, FitKey, FitPoint, fit
from perfmodel.validation.records import Record, held_out, profiled, sets_width
from tools.refresh.pooled import Pool, fit_of, half_width, missed

KINDS = ("prefill", "decode", "matmul", "backward", "softmax", "norm")
EFFORT = Effort(folds=2, points=150)
"""Of fits to the rest of an architecture."""
EACH = 60
"""Points of a device and family that widths and baselines see."""
Grouped = Mapping[FitKey, Sequence[FitPoint]]


def leave_out(name: str, records: Iterable[Record], devices: Mapping[str, Device]) -> list[tuple[Record, Prediction]]:
    """Held-out records of device ``name``, predicted by calibrations of the others, fitted anew."""
    listed = list(records)
    bare = {key: replace(device, calibration=[]) for key, device in devices.items()}
    others = [record for record in listed if record.hardware != name]
    fits = calibrate(others, bare, "", lambda _: "", lambda text: None)
    halves = widths(residuals(points(others, bare), fits, tuple))
    lend = [replace(bare[key], calibration=blocks) for key, blocks in with_borrowed(fits, halves).items()]
    own = points([record for record in listed if record.hardware == name], bare)
    judged = [point for group in own.values() for point in group if held_out(point.record)]
    return [(point.record, predict(_asked(point, bare[name], lend))) for point in judged]


STANDARD = ("torch-standard", "torch-eager")
"""Standard attention as PyTorch runs it: as published beside FlashAttention, and step by step."""
LONG = 1024
"""Length of queries and keys from which kernels, not the host that launches them, take the time of published rows."""


def standard_rows(name: str, records: Iterable[Record], devices: Sequence[Device]) -> list[tuple[Record, tuple[float, float, float]]]:
    """Held-out records of standard attention of device ``name``, with low end, seconds and high end by the calibrations of the others.

    What no other device was timed with (passes over 16 bits, the sequence of today's PyTorch) takes the start values of its model, which
    say nothing of gradients.
    """
    own = next(device for device in devices if device.id == name)
    lend = [device for device in devices if device.id != name]

    def parts(device: Device) -> dict[tuple[str, str, str], Calibration]:
        listed = [block for block in device.calibration if {"fp16", "bf16"} & set(block.dtypes)]
        wanted = [block for block in listed if block.workload in ("softmax", "scale") or block.implementation in STANDARD]
        return {(block.workload, block.implementation, block.direction): block for block in wanted}

    known = {key for device in lend for key in parts(device)}
    unfitted = [replace(block, parameters=find_model(block.model).starts()) for key, block in parts(own).items() if key not in known]
    lend.append(replace(own, id=f"{name}, unfitted", calibration=unfitted))
    bare = replace(own, calibration=[])
    found = []
    for record in records:
        shape = record.shape
        if record.hardware != name or record.implementation not in STANDARD or not held_out(record) or record.clock == SUSTAINED:
            continue
        if min(int(shape["n"]), int(shape["kv_len"])) < LONG or (record.implementation == STANDARD[1] and record.direction != FORWARD):
            continue
        case, _, _ = evaluated(record, own)
        if case is not None and case.workload.dtype.size == 2:
            passes = [FORWARD, BACKWARD] if record.direction == "both" else [case.direction]
            asked = [TimeRequest(replace(case, direction=one), "attention", record.dtype, bare, 0.0, lambda: lend) for one in passes]
            made = added([predict(one) for one in asked])
            found.append((record, (made.low, made.seconds, made.high)))
    return found


def _asked(point: FitPoint, device: Device, lend: Sequence[Device]) -> TimeRequest:
    return TimeRequest(point.case, point.record.workload, point.record.dtype, device, point.lower_s, lambda: lend)


def scored(record: Record) -> bool:
    """Whether a record is one kernel that people run, timed alone and as it was: not of a sequence, a step, or for seconds."""
    apart = profiled(record) or record.clock == SUSTAINED or record.direction == "both" or sets_width(record)
    return (
        not apart
        and not record.implementation.startswith(PROJECT_KERNELS)
        and record.workload in ("attention", "matmul", "softmax", "norm")
    )


def group(records: Iterable[Record], devices: Mapping[str, Device]) -> dict[FitKey, list[FitPoint]]:
    """``points`` of the kernels that are ``scored`` and no sequence of others."""
    found = points(filter(scored, records), devices)
    return {key: own for key, own in found.items() if not find_model(key[3]).part_workloads}


def thinned(grouped: Grouped) -> dict[FitKey, list[FitPoint]]:
    """The fit points of ``grouped``, ``EACH`` of a device at most."""
    found = {}
    for key, own in grouped.items():
        by_device: dict[str, list[FitPoint]] = defaultdict(list)
        for point in own:
            if not held_out(point.record):
                by_device[point.device.id].append(point)
        found[key] = [point for listed in by_device.values() for point in Effort(points=EACH).thinned(listed)]
    return found


def without(name: str, grouped: Grouped) -> dict[FitKey, list[FitPoint]]:
    """``grouped`` without the points of device ``name``."""
    rest = {key: [point for point in own if point.device.id != name] for key, own in grouped.items()}
    return {key: own for key, own in rest.items() if own}


def lenders(name: str, grouped: Grouped, few: Grouped, devices: Mapping[str, Device]) -> list[Device]:
    """The other devices with calibrations and widths that no record of ``name`` has a part in. ``few``: ``grouped``, thinned."""
    apart = devices[name].architecture
    mine = {(key[0], kernel_name(key[1]), key[2]) for key, own in grouped.items() if any(point.device.id == name for point in own)}
    mates = [
        point.record
        for key, own in without(name, grouped).items()
        if key[4] == apart and (key[0], kernel_name(key[1]), key[2]) in mine
        for point in own
        if not held_out(point.record)
    ]
    bare = {key: replace(device, calibration=[]) for key, device in devices.items()}
    fits = calibrate(mates, bare, "", lambda _: "", lambda text: None, effort=EFFORT)
    fits |= {key: list(device.calibration) for key, device in devices.items() if device.architecture != apart and device.calibration}
    found = with_borrowed(fits, widths(residuals({key: list(own) for key, own in without(name, few).items()}, fits, tuple)))
    return [replace(devices[key], calibration=blocks) for key, blocks in found.items()]


@dataclass
class Side:
    """|predicted / measured - 1| of rows, and how many of their intervals hold."""

    errors: list[float] = field(default_factory=list)
    held: int = 0

    def add(self, made: tuple[float, float, float], time: float) -> None:
        """One row: low end, seconds and high end of its prediction, and the time that was measured."""
        low, seconds, high = made
        self.errors.append(abs(seconds / time - 1))
        self.held += low <= time <= high


@dataclass
class Score:
    """Rows of a device and kind of kernel, ``alone`` from its profile, ``probed`` with its microbenchmarks.

    ``scalars``: errors of three scalars that all other devices share. ``pooled``: rows that no kernel of another device predicts;
    ``refused``: rows of whose algorithm no other device has any record.
    """

    alone: Side = field(default_factory=Side)
    probed: Side = field(default_factory=Side)
    scalars: list[float] = field(default_factory=list)
    pooled: int = 0
    refused: int = 0


class Baselines:
    """What all devices but one share: pooled rooflines by family, and three scalars by kind."""

    def __init__(self, name: str, few: Grouped) -> None:
        self.pools: dict[str, Pool] = defaultdict(lambda: defaultdict(list))
        self.kinds: dict[str, list[FitPoint]] = defaultdict(list)
        for key, own in without(name, few).items():
            for point in own:
                self.pools[family(point.record.workload, point.case)][point.device.id].append(point)
                self.kinds[kind_at(key, point)].append(point)
        self.blocks: dict[str, Calibration] = {}
        self.shared: dict[str, Mapping[str, float]] = {}

    def predicted(self, point: FitPoint, device: Device) -> tuple[float, float, float] | None:
        """By the pooled roofline, with the probes of ``device``; None where no other device has records of the algorithm."""
        name = family(point.record.workload, point.case)
        if not self.pools[name]:
            return None
        block = self._block(name, point.record.workload)
        p = as_probed(block.parameters, device, point.record.dtype, self.products())
        seconds = max(find_model(POOLED).seconds(point.case, device, p), point.lower_s)
        return max(seconds * block.low, point.lower_s), seconds, seconds * block.high

    def products(self) -> Mapping[str, float]:
        """Shares of products."""
        return self._block(PRODUCTS, "matmul").parameters

    def _block(self, name: str, workload: str) -> Calibration:
        if name not in self.blocks:
            pool = {key: Effort(points=EACH).thinned(own) for key, own in self.pools[name].items()}
            errors = missed(pool) if len(pool) > 1 else {}
            half = half_width(errors) if errors else 1.0
            words = f"{len(pool)} devices"
            self.blocks[name] = Calibration("pooled", workload, POOLED, [], fit_of(pool), 1, exp(-half), exp(half), "", "", words)
        return self.blocks[name]

    def three(self, kind: str, point: FitPoint) -> float:
        """Seconds by the three scalars of ``kind``."""
        if kind not in self.shared:
            known = self.kinds[kind]
            self.shared[kind] = fit(
                lambda p: [THREE.seconds(one.case, one.device, p) for one in known],
                [one.record.time_s.median for one in known],
                THREE.priors(),
            )
        return max(THREE.seconds(point.case, point.device, self.shared[kind]), point.lower_s)


def kind_at(key: FitKey, point: FitPoint) -> str:
    """``kind_of``, but for kernels that run prefill and decode alike."""
    kind = kind_of(key.family)
    return "decode" if kind == "prefill" and point.record.shape["n"] == 1 else kind


def score(
    name: str, grouped: Grouped, few: Grouped, devices: Mapping[str, Device], judged: Callable[[Record], bool] = held_out
) -> dict[str, Score]:
    """Of the rows of device ``name`` that are ``judged``, by kind of kernel."""
    lend, shared = lenders(name, grouped, few, devices), Baselines(name, few)
    found: dict[str, Score] = defaultdict(Score)
    own = replace(devices[name], calibration=[])
    bare = without_probes(own)
    rows = [(kind_at(key, point), point) for key, listed in grouped.items() for point in listed if point.device.id == name]
    for kind, point in rows:
        if judged(point.record) and kind in KINDS:
            _add(found[kind], point, (bare, own), lend, shared, kind)
    return dict(found)


def _add(each: Score, point: FitPoint, devices: tuple[Device, Device], lend: Sequence[Device], shared: Baselines, kind: str) -> None:
    time = point.record.time_s.median
    for device, side in zip(devices, (each.alone, each.probed), strict=True):
        made = _lent(point, device, lend)
        pooled = made is None
        made = made or shared.predicted(point, device)
        if made is None:
            each.refused += side is each.alone
        else:
            side.add(made, time)
            each.pooled += pooled and side is each.alone
    if shared.kinds[kind]:
        each.scalars.append(abs(shared.three(kind, point) / time - 1))


def _lent(point: FitPoint, device: Device, lend: Sequence[Device]) -> tuple[float, float, float] | None:
    try:
        made = predict(_asked(point, device, lend))
    except PerfmodelError:
        return None
    return made.low, made.seconds, made.high
