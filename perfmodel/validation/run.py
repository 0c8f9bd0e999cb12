"""Validation: measured times, of this machine or of records, beside their predictions; and a scoreboard of errors by group.

The scoreboard gives the error of the time model for each group, beside two simpler models: the roofline, and a model with three fitted
scalars. Errors are those of held-out records. The three scalars are fitted to the same records as the calibrations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.core.arith import quantile
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.timing.base import find_model
from perfmodel.timing.models.pooled import THREE_SCALARS, seconds_of_rows, terms
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.validation.compare import Count, RecordRow, compare, compare_files, groups
from perfmodel.validation.fit_points import fit
from perfmodel.validation.records import as_record, profiled, sets_width

BACKENDS = ("cuda", "cpu", "simulator")
Progress = Callable[[str], None]
NO_GPU = "no GPU that numba can drive: the CPU is measured"


@dataclass(frozen=True, slots=True)
class ValidationRun:
    """Records and counters beside predictions. ``backend``: empty for records from files; ``failures``: a message per failed case."""

    backend: str = ""
    device: Device | None = None
    rows: list[RecordRow] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def best_backend() -> str:
    """``cuda`` if numba finds a GPU, else ``cpu``."""
    from perfmodel.validation.cuda.gpu import open_gpu

    try:
        open_gpu()
    except PerfmodelError:
        return "cpu"
    return "cuda"


def run(
    backend: str, find_device: Callable[[str], Device], hardware: str | None, counters: bool, progress: Progress, every: bool = False
) -> ValidationRun:
    """Records and counts measured on ``backend``. UsageError for an unknown backend, UnavailableError if it cannot run here.

    ``counters``: on a GPU read hardware counters too. ``every``: on a GPU measure every tile of a kernel (``timed_cases``) in place of
    ``default_cases``; each tile has to be compiled.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--backend: no backend is called {backend!r}", f"there is auto, {', '.join(BACKENDS)}")
    if counters and backend != "cuda":
        raise UsageError(f"--counters with --backend {backend}", "hardware counters are read on a GPU, with --backend cuda")
    if every and backend != "cuda":
        raise UsageError(f"--all with --backend {backend}", "leave it out: only a GPU has kernels that are left out without it")
    if backend == "cuda":
        return _cuda(find_device, hardware, counters, progress, every)
    if backend == "simulator":
        from perfmodel.validation.simulator import counted

        return ValidationRun("simulator", counts=counted(progress))
    from perfmodel.validation.cpu.cases import measure

    device, raws = measure(progress, getattr(progress, "done", lambda share: None))
    device = device if hardware is None else find_device(hardware)
    return ValidationRun("cpu", device, _rows(raws, device))


def _cuda(find_device: Callable[[str], Device], hardware: str | None, counters: bool, progress: Progress, every: bool) -> ValidationRun:
    from perfmodel.validation.cuda.cases import counted_cases, default_cases, timed_cases
    from perfmodel.validation.cuda.counters import count
    from perfmodel.validation.cuda.gpu import open_gpu, this_environment
    from perfmodel.validation.cuda.run import measure

    device = find_device(hardware or this_environment(open_gpu()).hardware)
    raws: list[dict[str, Any]] = []
    failures: list[str] = []
    try:
        failures += measure(timed_cases() if every else default_cases(), progress, raws.append, device.id)
        if counters:
            failures += count(counted_cases(), progress, raws.append, device.id)
    except PerfmodelError as error:  # what was measured so far is kept
        if not raws:
            raise
        failures.append(error.message)
    rows = _rows(raws, device)
    return ValidationRun("cuda", device, rows, counts_of(rows), failures)


def _rows(raws: Iterable[dict[str, Any]], device: Device) -> list[RecordRow]:
    return [compare(raw, as_record(raw), device) for raw in raws]


def read(
    paths: Iterable[Path],
    find_device: Callable[[str], Device],
    hardware: str | None,
    fallbacks: FallbackDevices,
    done: Callable[[float], None] = lambda share: None,
    board: bool = False,
) -> ValidationRun:
    """Compare the records in ``paths``; with ``hardware`` (a device or a profile that replaces it), only those of that device.

    ``done`` is called with the share that is compared. ``board``: as in ``compare_files``.
    """
    given = None if hardware is None else find_device(hardware)
    rows = compare_files(paths, find_device, fallbacks, given, done, board)
    if given is not None and not rows:
        raise UsageError(f"--hardware: no record is of {given.id}", "give the profile of a device that the records name")
    return ValidationRun(device=given, rows=rows, counts=counts_of(rows))


def counts_of(rows: Iterable[RecordRow]) -> list[Count]:
    """Hardware counters beside the model's counts. Skips records without counters, and kernels without a count."""
    from perfmodel.validation.cuda.counters import compare_counters

    counts: list[Count] = []
    for row in rows:
        if not row.record.counters or row.device is None or row.case is None:  # without a case its shape or launch has no meaning
            continue
        try:
            counts += compare_counters(row.record, row.device)
        except UnavailableError:
            continue
    return counts


@dataclass(frozen=True, slots=True)
class Score:
    """Quantiles of |predicted / measured - 1| over the ``points`` of a group; None if there is no prediction."""

    median: float | None = None
    p90: float | None = None
    worst: float | None = None


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Accuracy on the held-out records of one group on one device.

    ``points``: records with a prediction; ``unpredicted``: number without one, by reason. ``violations``: times below the lower bound.
    ``covered``: share of the points inside the 80 % interval; ``half_width``: its median half width over the prediction. ``predicted``,
    ``roofline`` and ``scalars``: errors of the time model, the roofline, and the model with three scalars, all on the same points.
    """

    hardware: str
    group: str
    points: int
    unpredicted: dict[str, int]
    violations: int
    predicted: Score
    covered: float | None
    half_width: float | None
    roofline: Score
    scalars: Score


def scored(errors: list[float]) -> Score:
    """Quantiles of absolute errors."""
    return Score(quantile(errors, 0.5), quantile(errors, 0.9), max(errors)) if errors else Score()


def scoreboard(rows: Iterable[RecordRow]) -> list[GroupScore]:
    """A score per device, workload, implementation, pass and, for fused attention, regime (decode or prefill).

    Groups without a held-out record are left out.
    """
    scores = []
    for group in groups(rows, by_device=True):
        timed = [row for row in group.rows if not profiled(row.record)]
        by_regime: dict[str, list[RecordRow]] = {"": timed}
        if any(_regime(row) for row in timed):
            by_regime = {}
            for row in timed:
                by_shape = "decode" if row.record.shape.get("n") == 1 else "prefill"
                by_regime.setdefault(f" {_regime(row) or by_shape}", []).append(row)
        scores += [_group_score(group.hardware, group.name + suffix, members) for suffix, members in by_regime.items()]
    return [score for score in scores if score.points or score.unpredicted]


def _regime(row: RecordRow) -> str:
    """``decode`` or ``prefill`` for fused attention that has a prediction, else empty."""
    model = find_model(row.prediction.calibration.model) if row.prediction else None
    if model is None or model.from_tables:
        return ""
    return model.regime or ("prefill" if model.launch is not None else "")


def _group_score(hardware: str, name: str, rows: list[RecordRow]) -> GroupScore:
    judged = [row for row in rows if row.held_out and not sets_width(row.record)]
    predicted = [row for row in judged if row.prediction is not None]
    fitted = [row for row in rows if row.case is not None and not row.held_out]
    half_widths = [(row.prediction.high - row.prediction.low) / row.prediction.seconds / 2 for row in predicted if row.prediction]
    roofs = [row.share_of_roof for row in predicted]
    return GroupScore(
        hardware,
        name,
        points=len(predicted),
        unpredicted=dict(Counter(row.reason for row in judged if row.prediction is None)),
        violations=sum(row.violates for row in rows),
        predicted=scored([abs(row.error) for row in predicted if row.error is not None]),
        covered=sum(bool(row.covered) for row in predicted) / len(predicted) if predicted else None,
        half_width=quantile(half_widths, 0.5) if half_widths else None,
        roofline=Score() if None in roofs else scored([abs(share - 1) for share in roofs if share is not None]),
        scalars=_three_scalars(fitted, predicted),
    )


def _three_scalars(fitted_rows: list[RecordRow], judged: list[RecordRow]) -> Score:
    """Score on ``judged`` of the three-scalar model fitted to ``fitted_rows``."""
    if len(fitted_rows) < len(THREE_SCALARS.parameters):
        return Score()
    try:
        fitted_terms, fitted_s = _terms_and_times(fitted_rows)
        judged_terms, judged_s = _terms_and_times(judged)
    except PerfmodelError:  # a collective, a step of a model
        return Score()
    parameters = fit(lambda p: seconds_of_rows(fitted_terms, p).tolist(), fitted_s, THREE_SCALARS.priors())
    predicted_s = seconds_of_rows(judged_terms, parameters).tolist()
    return scored([abs(predicted / measured - 1) for predicted, measured in zip(predicted_s, judged_s, strict=True)])


def _terms_and_times(rows: list[RecordRow]) -> tuple[Any, list[float]]:
    """The two terms of each row with a case and a device [rows, 2], and its measured seconds."""
    listed = [(terms(row.case, row.device), row.record.time_s.median) for row in rows if row.case and row.device]
    return np.array([both for both, _ in listed]).reshape(-1, 2), [seconds for _, seconds in listed]
