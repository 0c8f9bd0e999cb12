"""Workloads on devices as points of a roofline, with counts, bounds and, if calibrated, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import FormulaStep
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.evaluate import BOTH, AttentionResult
from perfmodel.kernels.attention.evaluate import explain as explain_attention
from perfmodel.kernels.matmul import evaluate as evaluate_matmul
from perfmodel.kernels.matmul import in_bytes, minimum_elements
from perfmodel.kernels.matmul_explain import explain as explain_matmul
from perfmodel.report.attention import left_out
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import RooflinePoint
from perfmodel.report.roofline import NO_ROOM
from perfmodel.report.roofline_chart import point, predicted_by, with_shares
from perfmodel.report.roofline_chart import with_dtypes as name_dtypes
from perfmodel.report.saved import Interval
from perfmodel.report.step import StepPart, op_point
from perfmodel.report.swept_series import WorkloadAnswer
from perfmodel.study.schema import Scope
from perfmodel.study.workloads import Workload, request_words, shape_words
from perfmodel.timing.base import models_of
from perfmodel.timing.launched import as_predicted, implementation_kernels
from perfmodel.timing.predict import Prediction
from perfmodel.timing.select_kernel import check_implementation, predictions, select_product
from perfmodel.transformer.answer import ModelAnswer, answer

UNNUMBERED = 0
NAMED = 2
"""Most workloads that a sentence names."""


def answers(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    """The answers to ``w`` on ``device``: one per algorithm of an attention, else a single one."""
    answers_of_kind = {"attention": _attention, "matmul": _matmul, "model": _model}[w.kind]
    return [_flagged(answer) if too_large(answer, device) else answer for answer in answers_of_kind(w, device, scope)]


def with_dtypes(answered: Sequence[WorkloadAnswer]) -> list[WorkloadAnswer]:
    """``answered``, with the number format in the names if there are several formats."""
    names = name_dtypes([answer.point for answer in answered])
    return [replace(answer, point=named) for answer, named in zip(answered, names, strict=True)]


def answers_to(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    """``answers``, whose errors name the option or the key of a study."""
    try:
        return answers(w, device, scope)
    except UsageError as error:
        if error.message.startswith(("--implementation", "--hardware")):
            raise
        raise UsageError(f"--{w.kind}: {error.message.removeprefix('--')}", error.fix) from None


def with_one_kernel(w: Workload, devices: Sequence[Device], scope: Scope) -> tuple[Workload, dict[str, str]]:
    """``w`` with one implementation on all ``devices``, and its name by algorithm if the devices would choose different ones.

    It is the one with the narrowest intervals over all devices. If none is predicted on all devices, the name is empty and ``w`` unchanged.
    A model stays unchanged too, as each of its operations has its own kernels.
    """
    if w.model is not None or w.implementation is not None or len(devices) < 2:
        return w, {}
    chosen = [_kernels_on(w, device, scope) for device in devices]
    shared = dict[str, str]()
    for name in dict.fromkeys(name for kernels in chosen for name in kernels):
        candidates = set[str]()
        for kernels in chosen:
            candidates |= {*kernels[name].kernel.split(" + ")} if name in kernels else {""}
        if len(candidates) > 1:
            shared[name] = _narrowest(w, name, sorted(candidates & {*models_of()}), devices, scope)
    named = {name: kernel for name, kernel in shared.items() if kernel}
    return replace(w, implementation=named.get("matmul", named) or None), shared


def _narrowest(w: Workload, name: str, candidates: Sequence[str], devices: Sequence[Device], scope: Scope) -> str:
    """The kernel of ``candidates`` for the operation ``name`` with the narrowest intervals over all devices; empty if none has them."""
    widths = dict[str, float]()
    for kernel in candidates:
        forced = replace(w, implementation=kernel if w.matmul else {name: kernel})
        by_device = [_kernels_on(forced, device, scope) for device in devices]
        if all(name in kernels for kernels in by_device):
            widths[kernel] = prod(kernels[name].width for kernels in by_device)
    return min(widths, key=lambda kernel: widths[kernel], default="")


def kernel_notes(shared: Mapping[str, str], devices: Sequence[Device]) -> list[str]:
    """Sentences on implementations that ``with_one_kernel`` chose."""
    device_names = " and ".join(device.name for device in devices)
    notes = []
    for name, kernel in shared.items():
        if kernel:
            notes.append(f"{name} is predicted for {kernel} on each device.")
        else:
            notes.append(f"{name} CANNOT BE COMPARED by time: no kernel of it is predicted on each of {device_names}.")
    return notes


KernelsByDevice = dict[str, list[str]]


def different_kernels(runs: Iterable[tuple[str, Device, Mapping[str, str]]]) -> list[str]:
    """Sentences on workloads whose times must not be compared, because devices run them with different kernels.

    ``runs``: name of a workload, device, and kernels by operation.
    """
    by_workload = dict[str, dict[str, KernelsByDevice]]()
    for name, device, kernels in runs:
        for operation, kernel in kernels.items():
            on_device = by_workload.setdefault(name, {}).setdefault(operation, {}).setdefault(device.name, [])
            if kernel not in on_device:
                on_device.append(kernel)
    single, models = list[str](), dict[str, list[str]]()
    for name, operations in by_workload.items():
        phrases = {operation: _kernels_phrase(by_device) for operation, by_device in operations.items() if _differ(by_device)}
        if not phrases:
            continue
        operation, phrase = next(iter(phrases.items()))
        if len(operations) == 1:
            single.append(f"{name} is {phrase}")
        else:
            example = f"{len(phrases)} of {len(operations)} operations run by different kernels ({operation} {phrase})"
            models.setdefault(f"{example}, so part of the difference is the kernels'.", []).append(name)
    sentences = [f"{'; '.join(names)}: {words}" for words, names in models.items()]
    if single:
        more_words = f", and {len(single) - NAMED} more" if len(single) > NAMED else ""
        sentences.insert(0, f"Do not compare these times across devices: {'; '.join(single[:NAMED])}{more_words}.")
    return sentences


def _differ(by_device: KernelsByDevice) -> bool:
    first, *others = by_device.values()
    return any(kernels != first for kernels in others)


def _kernels_phrase(by_device: KernelsByDevice) -> str:
    return " and ".join(f"by {' or '.join(kernels)} on {device_name}" for device_name, kernels in by_device.items())


class _PredictedKernel(NamedTuple):
    """A kernel. ``width``: ratio of the ends of the interval of its predicted time."""

    kernel: str
    width: float


def _kernels_on(w: Workload, device: Device, scope: Scope) -> dict[str, _PredictedKernel]:
    """The predicted kernel of each operation; empty if ``w`` has no answer on ``device``."""
    try:
        answered = answers_to(w, device, scope)
    except PerfmodelError:
        return {}
    by_operation = dict[str, _PredictedKernel]()
    for workload_answer in answered:
        time = workload_answer.point.predicted
        if time is not None:
            width = (time.high or 1.0) / (time.low or 1.0)
            by_operation |= {name: _PredictedKernel(kernel, width) for name, kernel in workload_answer.kernels.items()}
    return by_operation


def too_large(answer: WorkloadAnswer, device: Device) -> str:
    """Phrase for a workload that does not fit the memory; empty if it fits, or if that is unknown."""
    if answer.fits is not False or answer.memory is None or device.dram.capacity is None:
        return ""
    return f"it needs {text(float(answer.memory), 'B')} of memory and {device.name} has {text(device.dram.capacity.number, 'B')}"


def _flagged(answer: WorkloadAnswer) -> WorkloadAnswer:
    """``answer`` with a note at its points that it cannot run."""

    def flagged(mark: RooflinePoint) -> RooflinePoint:
        return replace(mark, note=f"{NO_ROOM}; {mark.note}" if mark.note else NO_ROOM)

    return replace(answer, point=flagged(answer.point), parts=[flagged(part) for part in answer.parts])


def _attention(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.attention is not None
    comparison = w.attention.compare(device)
    results, work = comparison.shown(), comparison.workload
    label = w.name or shape_words(work)
    answered = []
    for counted in results:
        name, direction = counted.algorithm.name, counted.direction
        of_algorithm = replace(comparison, results=[other for other in comparison.results if other.algorithm.name == name])
        by_pass, missing = predictions(of_algorithm, w.kernel_of(name), scope.fallbacks)
        predicted = by_pass.get((name, direction))
        launched, _ = implementation_kernels(of_algorithm, w.kernel_of(name), scope.fallbacks)
        [result] = [other for other in launched.results if other.direction == direction]
        series = name + SERIES_SUFFIX.get(direction, f" {direction}")
        title = label if w.name and len(results) == 1 else f"{series}, {label}"
        entry = WorkloadAnswer(
            point(UNNUMBERED, title, result.total, device, work.dtype.name, work.dtype.matmul_unit, predicted, group=series),
            series,
            result.total.access_bytes,
            result.memory_bytes,
            device.fits(int(result.memory_bytes)),
            missing=missing,
            left_out=left_out(result, device),
            steps=partial(attention_steps, counted, work, device, comparison.sram_bytes),
            kernels=_kernels({name: predicted}),
        )
        answered.append(entry)
    return answered


SERIES_SUFFIX = {FORWARD: "", BOTH: " forward + backward"}
"""What the name of a series says of its pass after the algorithm."""


def attention_steps(result: AttentionResult, w: Attention, device: Device, sram_bytes: int | None = None) -> list[FormulaStep]:
    """Formulas of all numbers of ``result``, pass by pass."""
    return [step for part in result.parts for step in explain_attention(part, w, device, sram_bytes)]


def _matmul(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.matmul is not None
    plain_device = device  # prices the kernel: no kernel was timed with the SRAM that the workload may name
    device = w.matmul.on(plain_device)
    work = w.matmul.workload(device)
    result = evaluate_matmul(work, device, w.matmul.tile_m, w.matmul.tile_n)
    implementation = w.implementation if isinstance(w.implementation, str) else None
    if implementation is not None:
        check_implementation(implementation, "matmul", device, scope.fallbacks)
    prediction, missing = None, list[str]()
    try:
        prediction = select_product(work, result.tile, plain_device, float(result.total.lower_s), scope.fallbacks, implementation)
        if implementation and not w.matmul.sram:
            result = as_predicted(result, prediction)
    except PerfmodelError as error:
        missing = [f"matmul is not predicted: {error.message}."]
    label = w.name or f"matmul {shape_words(work)}"
    size = in_bytes(work, minimum_elements(work))
    entry = WorkloadAnswer(
        point(UNNUMBERED, label, result.total, device, work.dtype.name, work.dtype.matmul_unit, prediction, group="matmul"),
        "matmul",
        result.total.access_bytes,
        size,
        device.fits(float(size)),
        missing=missing,
        steps=partial(explain_matmul, result),
        kernels=_kernels({"matmul": prediction}),
    )
    return [entry]


def _model(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.model is not None
    request = w.model.request(device)
    result = answer(request, scope.fallbacks)
    label = w.name or request_words(request)
    series = w.name or f"{request.model.name} {request.phase}"
    dtype = request.dtype
    whole = point(UNNUMBERED, label, result.cost, device, dtype.name, dtype.matmul_unit, group=series)
    reasons = [line.row.missing for line in result.lines if line.row.prediction is None]
    entry = WorkloadAnswer(
        replace(whole, predicted=_interval(result.prediction)),
        series,
        None,
        result.memory.total,
        result.memory.fits,
        _ops(result, device, label),
        [f"{label} is not predicted: {reason}." for reason in reasons[:1] if reason],
        kernels=_kernels({line.row.op.name: line.row.prediction for line in result.lines}),
    )
    return [entry]


def _ops(result: ModelAnswer, device: Device, label: str) -> list[RooflinePoint]:
    """A point per operation of the model, with its share of the time."""
    several_phases = len({line.phase for line in result.lines}) > 1
    points = []
    for line in result.lines:
        name = f"{line.row.op.name} in {line.phase}" if several_phases else line.row.op.name
        kernel = predicted_by(line.row.prediction) if line.row.prediction else line.row.missing
        part = StepPart(name, line.row.op, line.cost, line.times, line.seconds)
        points.append(op_point(UNNUMBERED, part, line.count, device, result.request.dtype, label, kernel))
    return with_shares(points)


def _kernels(by_operation: Mapping[str, Prediction | None]) -> dict[str, str]:
    return {name: prediction.calibration.implementation for name, prediction in by_operation.items() if prediction is not None}


def _interval(times: tuple[float, float, float] | None) -> Interval | None:
    return None if times is None else Interval(*map(float, times))
