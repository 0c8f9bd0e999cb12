"""Records beside the model: bound, prediction and error of each, and groups of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.power import SUSTAINED
from perfmodel.core.question import short_name
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import Case
from perfmodel.timing.case_bounds import lower_bound_s, roof_s
from perfmodel.timing.predict import Prediction, TimeRequest, added, predict
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.estimate import ModelStep, all_ops, on_device
from perfmodel.transformer.host import Host, launches
from perfmodel.transformer.training.step.estimate import TrainingStep
from perfmodel.validation.bounds import PEAK, case_of, evaluated, predicted_peak_bytes
from perfmodel.validation.records import SERVING, Record, held_out, profiled, read_records, sets_width
from perfmodel.validation.serving import PredictedRun, served
from perfmodel.validation.sustained import sustained_prediction

QUEUED = "queued"
"""Value of ``launches`` in the environment of a record whose kernels waited in a queue, so that the device never waited for the host."""
TOLERATED_NOISE = 1e-9
"""Relative tolerance: a measurement equal to its bound is no violation."""


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One record beside the model.

    ``raw``: the record as its file has it. ``lower_s``: lower bound in seconds. ``reason``: why ``lower_s`` or ``prediction`` is None.
    ``served``: prediction of a serving run, in place of ``prediction``; its time and error are per token.
    """

    raw: dict[str, Any]
    record: Record
    lower_s: float | None
    prediction: Prediction | None
    reason: str
    case: Case | None = None
    device: Device | None = None
    served: PredictedRun | None = None

    @property
    def held_out(self) -> bool:
        """Whether no fit saw the record: the project holds it out, and its calibration did too or is of another device."""
        predicted = self.prediction
        return held_out(self.record) and (predicted is None or bool(predicted.calibration.held_out or predicted.reference))

    @property
    def violates(self) -> bool:
        """Whether the measurement beats the bound."""
        return self.lower_s is not None and self.record.time_s.median < self.lower_s * (1 - TOLERATED_NOISE)

    @property
    def times(self) -> tuple[float, float, float] | None:
        """Predicted seconds with both ends of their interval: of the kernel, or per token of a serving run."""
        if self.served is not None:
            return self.served.tpot
        return None if self.prediction is None else (self.prediction.seconds, self.prediction.low, self.prediction.high)

    @property
    def error(self) -> float | None:
        """Error of the time: predicted / measured - 1."""
        return None if self.times is None else self.times[0] / self.record.time_s.median - 1

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the interval of its prediction."""
        return None if self.times is None else self.times[1] <= self.record.time_s.median <= self.times[2]

    @property
    def ttft_error(self) -> float | None:
        """predicted / measured - 1 of a serving run's time to the first token; None where none is predicted or measured."""
        if self.served is None or self.record.ttft_s is None:
            return None
        return self.served.ttft[0] / self.record.ttft_s - 1

    @property
    def ttft_covered(self) -> bool | None:
        """Whether the measured time to the first token lies in its interval."""
        if self.served is None or self.record.ttft_s is None:
            return None
        return self.served.ttft[1] <= self.record.ttft_s <= self.served.ttft[2]

    @property
    def measured_bytes(self) -> float | None:
        """Measured peak memory in bytes; None if the record has none."""
        return self.record.memory.get(PEAK)

    @property
    def predicted_bytes(self) -> float | None:
        """Predicted peak memory in bytes, if one was measured; None if no model predicts it."""
        return None if self.measured_bytes is None or self.device is None else predicted_peak_bytes(self.record, self.device)

    @property
    def memory_error(self) -> float | None:
        """Error of the peak memory: predicted / measured - 1."""
        predicted = self.predicted_bytes
        return None if predicted is None or not self.measured_bytes else predicted / self.measured_bytes - 1

    @property
    def share_of_bound(self) -> float | None:
        """Bound / measured: 1 is a kernel at its bound."""
        return None if self.lower_s is None else self.lower_s / self.record.time_s.median

    @property
    def share_of_roof(self) -> float | None:
        """Roof (with the tile that ran) / measured; None if the profile lacks a rate."""
        if self.case is None or self.device is None:
            return None
        try:
            return roof_s(self.case, self.device) / self.record.time_s.median
        except PerfmodelError:
            return None


@dataclass(frozen=True, slots=True)
class Count:
    """A count of one kernel, such as its DRAM bytes, predicted and measured; ``allowed``: counts that agree with the prediction."""

    kernel: str
    quantity: str
    predicted: float
    counted: float
    allowed: tuple[float, float]

    @property
    def agrees(self) -> bool:
        """Whether the measured count is allowed."""
        return self.allowed[0] <= self.counted <= self.allowed[1]


def label(record: Record) -> str:
    """Short label: implementation, shape and tile."""
    sizes = " ".join(f"{name} {value}" for name, value in record.shape.items() if not isinstance(value, bool))
    words = [name for name, value in record.shape.items() if value is True]
    tile = f"{record.launch['br']}x{record.launch['bc']}" if {"br", "bc"} <= set(record.launch) else ""
    return " ".join(filter(None, [record.implementation, sizes, *words, tile]))


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """Rows of one workload, implementation and pass; ``hardware``: empty for several devices."""

    name: str
    hardware: str
    rows: list[RecordRow] = field(default_factory=list)

    def quantile(self, share: float, value_of: Callable[[RecordRow], float | None]) -> float | None:
        """Quantile ``share`` of the values that ``value_of`` gives for the rows; None without values."""
        values = [value for value in map(value_of, self.rows) if value is not None]
        return quantile(values, share) if values else None

    @property
    def violations(self) -> int:
        """Number of rows that beat their bound."""
        return sum(row.violates for row in self.rows)

    @property
    def evaluated(self) -> int:
        """Number of rows that have a bound."""
        return sum(row.lower_s is not None for row in self.rows)


def compare_files(
    paths: Iterable[Path],
    find_device: Callable[[str], Device],
    fallbacks: FallbackDevices = tuple,
    only: Device | None = None,
    done: Callable[[float], None] = lambda share: None,
    board: bool = False,
) -> list[RecordRow]:
    """A row for each record of ``paths``; one that cannot be evaluated has the reason.

    ``only``: keep the records of the device with this id, and evaluate them on this one. ``done`` is called with the share of records that
    are read. ``board``: rows for a scoreboard, without the records that set a width, and without bound and prediction of records that fits
    may see.
    """
    device_of = cache(partial(device_or_error, find_device=find_device))
    entries = [entry for path in paths for entry in read_records(path)]
    if board:
        entries = [(raw, record) for raw, record in entries if not sets_width(record)]
    rows = []
    for number, (raw, record) in enumerate(entries):
        done(number / len(entries))
        device = device_of(record.hardware)
        if only is not None:
            if isinstance(device, PerfmodelError) or device.id != only.id:
                continue
            device = only
        judged = held_out(record) and record.workload != SERVING
        rows.append(_case_only(raw, record, device) if board and not judged else compare(raw, record, device, fallbacks))
    return rows


def _case_only(raw: dict[str, Any], record: Record, device: Device | PerfmodelError) -> RecordRow:
    """Row without bound and prediction, for a record that a scoreboard does not judge."""
    if record.workload == SERVING:
        return RecordRow(raw, record, None, None, "a scoreboard has no serving runs: leave out --scoreboard")
    if isinstance(device, PerfmodelError):
        return RecordRow(raw, record, None, None, "")
    try:
        case = case_of(record)
    except PerfmodelError:
        case = None
    return RecordRow(raw, record, None, None, "", case, device)


def compare(raw: dict[str, Any], record: Record, device: Device | PerfmodelError, fallbacks: FallbackDevices = tuple) -> RecordRow:
    """The row of one record; an error in place of the ``device`` becomes its reason."""
    if isinstance(device, PerfmodelError):
        return RecordRow(raw, record, None, None, device.message)
    if record.workload == SERVING:
        try:
            run = served(record, device, fallbacks)
        except PerfmodelError as error:
            return RecordRow(raw, record, None, None, error.message, None, device)
        return RecordRow(raw, record, run.least_tpot_s, None, "", None, device, run)
    case, lower, reason = evaluated(record, device)
    prediction = None
    if case is not None and lower is not None:
        try:
            prediction, reason = predicted(case, record, device, lower, fallbacks), ""
        except PerfmodelError as error:
            reason = error.message
    return RecordRow(raw, record, lower, prediction, reason, case, device)


def predicted(case: Case, record: Record, device: Device, lower_s: float, fallbacks: FallbackDevices) -> Prediction:
    """The prediction of the run that ``record`` measured; for both passes of attention their sum.

    UnavailableError for a run under a profiler, and if nothing predicts it.
    """
    if profiled(record):
        raise UnavailableError("one run under a profiler: counters, no time to predict")
    if record.clock == SUSTAINED:
        alone = predicted(case, replace(record, clock=None), device, lower_s, fallbacks)
        return sustained_prediction(alone, case, record, device, fallbacks)
    if record.workload == "attention" and record.direction == "both":
        passes = [replace(case, direction=direction) for direction in (FORWARD, BACKWARD)]
        bounds = [lower_bound_s(one_pass, device) for one_pass in passes]
        requests = [
            TimeRequest(one_pass, record.workload, record.dtype, device, bound, fallbacks)
            for one_pass, bound in zip(passes, bounds, strict=True)
        ]
        return added([predict(request) for request in requests])
    prediction = predict(TimeRequest(case, record.workload, record.dtype, device, lower_s, fallbacks))
    return prediction if record.environment.get("launches") == QUEUED else with_host(prediction, case.workload, device)


def with_host(prediction: Prediction, workload: Any, device: Device) -> Prediction:
    """``prediction`` of kernels; of an inference step launched kernel by kernel, at least the host's time to launch them."""
    if not isinstance(workload, ModelStep) or isinstance(workload, TrainingStep) or workload.graph:
        return prediction
    kernels = float(launches(all_ops(workload.model, on_device(workload.step, device))))
    seconds, low, high = Host().around((prediction.seconds, prediction.low, prediction.high), kernels)
    return prediction._replace(seconds=seconds, low=low, high=high)


def device_or_error(name: str, find_device: Callable[[str], Device]) -> Device | PerfmodelError:
    """The device that a record names, or the error that says why there is none."""
    if "/" in name or name.endswith((".yaml", ".yml")):  # a record names a device; it does not open files
        return UnavailableError(f"no device is called {name!r}")
    if short_name(name):
        return UnavailableError(f"{name!r} may be several devices", "give the id of one in the record")
    try:
        return find_device(name)
    except PerfmodelError as error:
        return error


def groups(rows: Iterable[RecordRow], by_device: bool) -> list[RecordGroup]:
    """``rows`` by the group of their record, with ``by_device`` also by device, in the order of their first record."""
    by_name: dict[tuple[str, str], RecordGroup] = {}
    for row in rows:
        hardware = row.record.hardware if by_device else ""
        by_name.setdefault((hardware, row.record.group), RecordGroup(row.record.group, hardware)).rows.append(row)
    return list(by_name.values())
