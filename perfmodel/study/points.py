"""Workloads on devices as points of a roofline, with counts, bounds and, if calibrated, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

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
    answered = {"attention": _attention, "matmul": _matmul, "model": _model}[w.kind](w, device, scope)
    return [_flagged(answer) if too_large(answer, device) else answer for answer in answered]


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
        candidates = {kernel for kernels in chosen for kernel in kernels.get(name, ("", 0.0))[0].split(" + ")}
        widths = dict[str, float]()
        for kernel in sorted(candidates & {*models_of()}) if len(candidates) > 1 else ():
            forced = replace(w, implementation=kernel if w.matmul else {name: kernel})
            forced_on = [_kernels_on(forced, device, scope).get(name) for device in devices]
            widths |= {kernel: prod(kernel_width[1] for kernel_width in forced_on if kernel_width)} if all(forced_on) else {}
        shared |= {name: min(widths, key=lambda kernel: widths[kernel], default="")} if len(candidates) > 1 else {}
    named = {name: kernel for name, kernel in shared.items() if kernel}
    return replace(w, implementation=named.get("matmul", named) or None), shared


def kernel_notes(shared: Mapping[str, str], devices: Sequence[Device]) -> list[str]:
    """Sentences on implementations that ``with_one_kernel`` chose."""
    on = " and ".join(device.name for device in devices)
    none = f"CANNOT BE COMPARED by time: no kernel of it is predicted on each of {on}"
    return [f"{name} {f'is predicted for {kernel} on each device' if kernel else none}." for name, kernel in shared.items()]


def different_kernels(runs: Iterable[tuple[str, Device, Mapping[str, str]]]) -> list[str]:
    """Sentences on workloads whose times must not be compared, because devices run them with different kernels.

    ``runs``: name of a workload, device, and kernels by operation.
    """
    by_workload, single, models = dict[str, dict[str, dict[str, dict[str, None]]]](), list[str](), dict[str, list[str]]()
    for name, device, kernels in runs:
        for operation, kernel in kernels.items():
            by_workload.setdefault(name, {}).setdefault(operation, {}).setdefault(device.name, {})[kernel] = None
    for name, operations in by_workload.items():
        differ = {operation: by for operation, by in operations.items() if len({*map(tuple, by.values())}) > 1}
        words = [(operation, " and ".join(f"by {' or '.join(of)} on {on}" for on, of in by.items())) for operation, by in differ.items()]
        if len(operations) == 1:
            single += [f"{name} is {phrase}" for _, phrase in words]
        elif differ:
            example = f"{len(differ)} of {len(operations)} operations run by different kernels ({' '.join(words[0])})"
            models.setdefault(f"{example}, so part of the difference is the kernels'.", []).append(name)
    more_words = f", and {len(single) - NAMED} more" if len(single) > NAMED else ""
    sentence = f"Do not compare these times across devices: {'; '.join(single[:NAMED])}{more_words}."
    return [*[sentence] * bool(single), *(f"{'; '.join(names)}: {words}" for words, names in models.items())]


def _kernels_on(w: Workload, device: Device, scope: Scope) -> dict[str, tuple[str, float]]:
    """Kernel of each predicted operation, and the ratio of the ends of its interval."""
    try:
        answered = answers_to(w, device, scope)
    except PerfmodelError:
        return {}
    predicted = [(answer.kernels, answer.point.predicted) for answer in answered]
    widths = [(kernels, (time.high or 1.0) / (time.low or 1.0)) for kernels, time in predicted if time is not None]
    return {name: (kernel, width) for kernels, width in widths for name, kernel in kernels.items()}


def too_large(answer: WorkloadAnswer, device: Device) -> str:
    """Phrase for a workload that does not fit the memory; empty if it fits, or if that is unknown."""
    if answer.fits is not False or answer.memory is None or device.dram.capacity is None:
        return ""
    return f"it needs {text(float(answer.memory), 'B')} of memory and {device.name} has {text(device.dram.capacity.number, 'B')}"


def _flagged(answer: WorkloadAnswer) -> WorkloadAnswer:
    """``answer`` with a note at its points that it cannot run."""
    whole, *parts = [replace(mark, note="; ".join(filter(None, [NO_ROOM, mark.note]))) for mark in (answer.point, *answer.parts)]
    return replace(answer, point=whole, parts=parts)


def _attention(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.attention is not None
    comparison, answered = w.attention.compare(device), []
    results, work = comparison.shown(), comparison.workload
    label = w.name or shape_words(work)
    for counted in results:
        name, direction = counted.algorithm.name, counted.direction
        of_algorithm = replace(comparison, results=[candidate for candidate in comparison.results if candidate.algorithm.name == name])
        known, missing = predictions(of_algorithm, w.kernel_of(name), scope.fallbacks)
        launched, _ = implementation_kernels(of_algorithm, w.kernel_of(name), scope.fallbacks)
        result = next(candidate for candidate in launched.results if candidate.direction == direction)
        series = name if direction == FORWARD else f"{name} {direction if direction != BOTH else 'forward + backward'}"
        title, predicted = f"{series}, {label}" if len(results) > 1 or not w.name else label, known.get((name, direction))
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


def attention_steps(result: AttentionResult, w: Attention, device: Device, sram_bytes: int | None = None) -> list[FormulaStep]:
    """Formulas of all numbers of ``result``, pass by pass."""
    return [step for part in result.parts for step in explain_attention(part, w, device, sram_bytes)]


def _matmul(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.matmul is not None
    device_given, device = device, w.matmul.on(device)
    work = w.matmul.workload(device)
    result, form = evaluate_matmul(work, device, w.matmul.tile_m, w.matmul.tile_n), work.dtype
    named = w.implementation if isinstance(w.implementation, str) else None
    prediction, missing, lower = None, list[str](), float(result.total.lower_s)
    if named is not None:
        check_implementation(named, "matmul", device, scope.fallbacks)
    try:
        prediction = select_product(work, result.tile, device_given, lower, scope.fallbacks, named)
        result = as_predicted(result, prediction) if named and not w.matmul.sram else result
    except PerfmodelError as error:
        missing = [f"matmul is not predicted: {error.message}."]
    label, size = w.name or f"matmul {shape_words(work)}", in_bytes(work, minimum_elements(work))
    drawn = point(UNNUMBERED, label, result.total, device, form.name, form.matmul_unit, prediction, group="matmul")
    entry = WorkloadAnswer(drawn, "matmul", result.total.access_bytes, size, device.fits(float(size)), missing=missing)
    return [replace(entry, steps=partial(explain_matmul, result), kernels=_kernels({"matmul": prediction}))]


def _model(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.model is not None
    request = w.model.request(device)
    result = answer(request, scope.fallbacks)
    label, series, form = w.name or request_words(request), w.name or f"{request.model.name} {request.phase}", request.dtype
    whole, parts = (point(UNNUMBERED, label, result.cost, device, form.name, form.matmul_unit, group=series), _ops(result, device, label))
    whole = replace(whole, predicted=_interval(result.prediction))
    unknown = next((line.row.missing for line in result.lines if line.row.prediction is None), "")
    missing = [f"{label} is not predicted: {unknown}."] * bool(unknown)
    kernels = _kernels({line.row.op.name: line.row.prediction for line in result.lines})
    return [WorkloadAnswer(whole, series, None, result.memory.total, result.memory.fits, parts, missing, kernels=kernels)]


def _ops(result: ModelAnswer, device: Device, label: str) -> list[RooflinePoint]:
    """A point per operation of the model, with its share of the time."""
    form, points, several = result.request.dtype, [], len({line.phase for line in result.lines}) > 1
    for line in result.lines:
        name = f"{line.row.op.name}{f' in {line.phase}' * several}"
        kernel = predicted_by(line.row.prediction) if line.row.prediction else line.row.missing
        part = StepPart(name, line.row.op, line.cost, line.times, line.seconds)
        points.append(op_point(UNNUMBERED, part, line.count, device, form, label, kernel))
    return with_shares(points)


def _kernels(by_operation: Mapping[str, Prediction | None]) -> dict[str, str]:
    return {name: prediction.calibration.implementation for name, prediction in by_operation.items() if prediction is not None}


def _interval(times: tuple[float, float, float] | None) -> Interval | None:
    return None if times is None else Interval(*map(float, times))
