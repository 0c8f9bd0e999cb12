"""Workloads on devices as points of a roofline: counted, bounded and, as far as something is calibrated, predicted."""

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
from perfmodel.report.charts.schema import Interval, RooflinePoint
from perfmodel.report.roofline import NO_ROOM
from perfmodel.report.roofline_chart import point, predicted_by, with_shares
from perfmodel.report.roofline_chart import with_dtypes as name_dtypes
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
"""Workloads that a sentence names."""


def answers(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    """Everything that ``w`` asks for on ``device``: one entry per algorithm of an attention, else one."""
    found = {"attention": _attention, "matmul": _matmul, "model": _model}[w.kind](w, device, scope)
    return [_flagged(one) if too_large(one, device) else one for one in found]


def with_dtypes(found: Sequence[WorkloadAnswer]) -> list[WorkloadAnswer]:
    """``found``, each named with its number format where they are of several."""
    names = name_dtypes([one.point for one in found])
    return [replace(one, point=named) for one, named in zip(found, names, strict=True)]


def answers_to(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    """``answers``; an error names the option, or the key of a study, whose value is wrong."""
    try:
        return answers(w, device, scope)
    except UsageError as error:
        if error.message.startswith(("--implementation", "--hardware")):
            raise
        raise UsageError(f"--{w.kind}: {error.message.removeprefix('--')}", error.fix) from None


def with_one_kernel(w: Workload, devices: Sequence[Device], scope: Scope) -> tuple[Workload, dict[str, str]]:
    """``w`` predicted for one implementation on all ``devices``; which, by algorithm, where they would choose different ones.

    It is the one of these whose intervals together are narrowest; where none is predicted on all devices, its name is empty and ``w`` as it
    was. A model is returned unchanged: its operations have kernels of their own.
    """
    if w.model is not None or w.implementation is not None or len(devices) < 2:
        return w, {}
    chosen = [_kernels_on(w, device, scope) for device in devices]
    shared = dict[str, str]()
    for name in dict.fromkeys(name for kernels in chosen for name in kernels):
        own = {kernel for kernels in chosen for kernel in kernels.get(name, ("", 0.0))[0].split(" + ")}
        widths = dict[str, float]()
        for kernel in sorted(own & {*models_of()}) if len(own) > 1 else ():
            asked = replace(w, implementation=kernel if w.matmul else {name: kernel})
            known = [_kernels_on(asked, device, scope).get(name) for device in devices]
            widths |= {kernel: prod(one[1] for one in known if one)} if all(known) else {}
        shared |= {name: min(widths, key=lambda kernel: widths[kernel], default="")} if len(own) > 1 else {}
    named = {name: kernel for name, kernel in shared.items() if kernel}
    return replace(w, implementation=named.get("matmul", named) or None), shared


def kernel_notes(shared: Mapping[str, str], devices: Sequence[Device]) -> list[str]:
    """Sentences on implementations that ``with_one_kernel`` chose."""
    on = " and ".join(device.name for device in devices)
    none = f"CANNOT BE COMPARED by time: no kernel of it is predicted on each of {on}"
    return [f"{name} {f'is predicted for {kernel} on each device' if kernel else none}." for name, kernel in shared.items()]


def different_kernels(found: Iterable[tuple[str, Device, Mapping[str, str]]]) -> list[str]:
    """Sentences on workloads whose times are of other kernels on one device than on another, so that they are not compared.

    ``found``: the name of a workload, the device it ran on, and the kernels of its operations.
    """
    known, alone, models = dict[str, dict[str, dict[str, dict[str, None]]]](), list[str](), dict[str, list[str]]()
    for name, device, kernels in found:
        for operation, kernel in kernels.items():
            known.setdefault(name, {}).setdefault(operation, {}).setdefault(device.name, {})[kernel] = None
    for name, operations in known.items():
        differ = {operation: by for operation, by in operations.items() if len({*map(tuple, by.values())}) > 1}
        words = [(operation, " and ".join(f"by {' or '.join(of)} on {on}" for on, of in by.items())) for operation, by in differ.items()]
        if len(operations) == 1:
            alone += [f"{name} is {said}" for _, said in words]
        elif differ:
            example = f"{len(differ)} of {len(operations)} operations run by different kernels ({' '.join(words[0])})"
            models.setdefault(f"{example}, so part of the difference is the kernels'.", []).append(name)
    more = f", and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
    said = f"Do not compare these times across devices: {'; '.join(alone[:NAMED])}{more}."
    return [*[said] * bool(alone), *(f"{'; '.join(names)}: {words}" for words, names in models.items())]


def _kernels_on(w: Workload, device: Device, scope: Scope) -> dict[str, tuple[str, float]]:
    """The kernel of each operation that is predicted, and the upper end of the interval over the lower one."""
    try:
        found = answers_to(w, device, scope)
    except PerfmodelError:
        return {}
    known = [(one.kernels, one.point.predicted) for one in found]
    widths = [(kernels, (time.high or 1.0) / (time.low or 1.0)) for kernels, time in known if time is not None]
    return {name: (kernel, width) for kernels, width in widths for name, kernel in kernels.items()}


def too_large(one: WorkloadAnswer, device: Device) -> str:
    """Words for a workload that does not fit the memory; empty if it does, or if that is unknown."""
    if one.fits is not False or one.memory is None or device.dram.capacity is None:
        return ""
    return f"it needs {text(float(one.memory), 'B')} of memory and {device.name} has {text(device.dram.capacity.number, 'B')}"


def _flagged(one: WorkloadAnswer) -> WorkloadAnswer:
    """``one`` with a note at its points: it cannot run."""
    whole, *parts = [replace(each, note="; ".join(filter(None, [NO_ROOM, each.note]))) for each in (one.point, *one.parts)]
    return replace(one, point=whole, parts=parts)


def _attention(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.attention is not None
    comparison, found = w.attention.compare(device), []
    shown, work = comparison.shown(), comparison.workload
    label = w.name or shape_words(work)
    for counted in shown:
        name, direction = counted.algorithm.name, counted.direction
        own = replace(comparison, results=[one for one in comparison.results if one.algorithm.name == name])
        known, missing = predictions(own, w.kernel_of(name), scope.fallbacks)
        launched, _ = implementation_kernels(own, w.kernel_of(name), scope.fallbacks)
        result = next(one for one in launched.results if one.direction == direction)
        series = name if direction == FORWARD else f"{name} {direction if direction != BOTH else 'forward + backward'}"
        title, predicted = f"{series}, {label}" if len(shown) > 1 or not w.name else label, known.get((name, direction))
        one = WorkloadAnswer(
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
        found.append(one)
    return found


def attention_steps(result: AttentionResult, w: Attention, device: Device, sram_bytes: int | None = None) -> list[FormulaStep]:
    """Every number of each pass of ``result`` as its formula."""
    return [step for part in result.parts for step in explain_attention(part, w, device, sram_bytes)]


def _matmul(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.matmul is not None
    own, device = device, w.matmul.on(device)
    work = w.matmul.workload(device)
    result, form = evaluate_matmul(work, device, w.matmul.tile_m, w.matmul.tile_n), work.dtype
    named = w.implementation if isinstance(w.implementation, str) else None
    known, missing, lower = None, list[str](), float(result.total.lower_s)
    if named is not None:
        check_implementation(named, "matmul", device, scope.fallbacks)
    try:
        known = select_product(work, result.tile, own, lower, scope.fallbacks, named)
        result = as_predicted(result, known) if named and not w.matmul.sram else result
    except PerfmodelError as error:
        missing = [f"matmul is not predicted: {error.message}."]
    label, size = w.name or f"matmul {shape_words(work)}", in_bytes(work, minimum_elements(work))
    made = point(UNNUMBERED, label, result.total, device, form.name, form.matmul_unit, known, group="matmul")
    one = WorkloadAnswer(made, "matmul", result.total.access_bytes, size, device.fits(float(size)), missing=missing)
    return [replace(one, steps=partial(explain_matmul, result), kernels=_kernels({"matmul": known}))]


def _model(w: Workload, device: Device, scope: Scope) -> list[WorkloadAnswer]:
    assert w.model is not None
    request = w.model.request(device)
    known = answer(request, scope.fallbacks)
    label, series, form = w.name or request_words(request), w.name or f"{request.model.name} {request.phase}", request.dtype
    whole, parts = point(UNNUMBERED, label, known.cost, device, form.name, form.matmul_unit, group=series), _ops(known, device, label)
    whole = replace(whole, predicted=_interval(known.prediction))
    unknown = next((line.row.missing for line in known.lines if line.row.prediction is None), "")
    missing = [f"{label} is not predicted: {unknown}."] * bool(unknown)
    kernels = _kernels({line.row.op.name: line.row.prediction for line in known.lines})
    return [WorkloadAnswer(whole, series, None, known.memory.total, known.memory.fits, parts, missing, kernels=kernels)]


def _ops(known: ModelAnswer, device: Device, label: str) -> list[RooflinePoint]:
    """A point per row of the model, with its share of the time."""
    form, found, several = known.request.dtype, [], len({line.phase for line in known.lines}) > 1
    for line in known.lines:
        name = f"{line.row.op.name}{f' in {line.phase}' * several}"
        kernel = predicted_by(line.row.prediction) if line.row.prediction else line.row.missing
        part = StepPart(name, line.row.op, line.cost, line.times, line.seconds)
        found.append(op_point(UNNUMBERED, part, line.count, device, form, label, kernel))
    return with_shares(found)


def _kernels(known: Mapping[str, Prediction | None]) -> dict[str, str]:
    return {name: one.calibration.implementation for name, one in known.items() if one is not None}


def _interval(times: tuple[float, float, float] | None) -> Interval | None:
    return None if times is None else Interval(*map(float, times))
