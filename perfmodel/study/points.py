"""Workloads on devices as points of a roofline: counted, bounded and, as far as something is calibrated, predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.core.arith import Number
from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.trace import Step
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.attention.evaluate import BOTH
from perfmodel.kernels.attention.explain import explain as explain_attention
from perfmodel.kernels.matmul import evaluate as evaluate_matmul
from perfmodel.kernels.matmul_explain import explain as explain_matmul
from perfmodel.report.attention_verdict import left_out
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Interval, Point
from perfmodel.report.charts.soft_roofs import soft_bound
from perfmodel.report.roofline_chart import point, predicted_by, with_shares
from perfmodel.study.base import Scope
from perfmodel.study.workloads import Workload, request_words, shape_words
from perfmodel.timing.base import algorithm_of
from perfmodel.timing.launched import as_launched
from perfmodel.timing.predict import Prediction
from perfmodel.timing.select_kernel import check_implementation, predictions, select_kernel
from perfmodel.transformer.answer import Answer, answer

UNNUMBERED = 0
NO_ROOM = "CANNOT RUN: it does not fit the memory"


@dataclass(frozen=True, slots=True)
class Found:
    """One answer to a workload. ``series``: what tells it from others in a sweep, such as its algorithm.

    ``accesses``: bytes by the two-level model, ``memory``: bytes of all tensors at once, ``fits``: in the device's memory.
    ``kernel``: whose time is predicted. ``parts``: points of its kernels. ``missing``: why no time is predicted. ``left_out``: of its roof.
    ``steps``: every number as its formula.
    """

    point: Point
    series: str
    accesses: Number | None = None
    memory: Number | None = None
    fits: bool | None = None
    parts: Sequence[Point] = ()
    missing: Sequence[str] = ()
    left_out: tuple[str, ...] = ()
    steps: Callable[[], Sequence[Step]] | None = field(default=None, compare=False)
    kernel: str = ""


def answers(w: Workload, device: Device, scope: Scope) -> list[Found]:
    """Everything that ``w`` asks for on ``device``: one entry per algorithm of an attention, else one."""
    return {"attention": _attention, "matmul": _matmul, "model": _model}[w.kind](w, device, scope)


def asked(w: Workload, device: Device, scope: Scope) -> list[Found]:
    """``answers``; what is wrong with a value is told with the option, or the key of a study, that holds it."""
    try:
        return answers(w, device, scope)
    except UsageError as error:
        if error.message.startswith(("--implementation", "--hardware")):
            raise
        raise UsageError(f"--{w.kind}: {error.message.removeprefix('--')}", error.fix) from None


def _attention(w: Workload, device: Device, scope: Scope) -> list[Found]:
    assert w.attention is not None
    comparison = w.attention.compare(device)
    shown, found = comparison.shown(), []
    for counted in shown:
        name, direction = counted.algorithm.name, counted.direction
        own = replace(comparison, results=[one for one in comparison.results if one.algorithm.name == name])
        known, missing = predictions(own, _implementation(w, name), scope.fallback_devices)
        named, _ = as_launched(own, _implementation(w, name), scope.fallback_devices)
        result = next(one for one in named.results if one.direction == direction)
        series = name if direction == FORWARD else f"{name} {direction if direction != BOTH else 'forward + backward'}"
        label = w.name or shape_words(comparison.workload)
        dtype = comparison.workload.dtype
        made = point(
            UNNUMBERED,
            f"{series}, {label}" if len(shown) > 1 or not w.name else label,
            result.total,
            device,
            dtype.name,
            dtype.matmul_unit,
            known.get((name, direction)),
            group=series,
        )

        def steps(result=counted) -> Sequence[Step]:  # type: ignore[no-untyped-def]
            return [step for part in result.parts for step in explain_attention(part, comparison.workload, device, comparison.sram_bytes)]

        size = result.memory_bytes
        one = Found(made, series, result.total.access_bytes, size, comparison.device.fits(int(size)), missing=tuple(missing), steps=steps)
        one = replace(one, left_out=left_out(result, device), kernel=_kernel(known.get((name, direction))))
        found.append(_flagged(one, device))
    return found


def too_large(one: Found, device: Device) -> str:
    """In words, that it does not fit the memory; empty if it does, or if that is unknown."""
    if one.fits is not False or one.memory is None or device.dram.capacity is None:
        return ""
    return f"it needs {text(float(one.memory), 'B')} of memory and {device.name} has {text(device.dram.capacity.number, 'B')}"


def _flagged(one: Found, device: Device) -> Found:
    """``one`` with a note at its points where it cannot run."""
    if not too_large(one, device):
        return one

    def noted(point: Point) -> Point:
        return replace(point, note="; ".join(filter(None, [NO_ROOM, point.note])))

    return replace(one, point=noted(one.point), parts=[noted(part) for part in one.parts])


def _implementation(w: Workload, algorithm: str) -> str | None:
    """The one named for ``algorithm``; one name for all counts where it runs that algorithm."""
    if isinstance(w.implementation, dict):
        return w.implementation.get(algorithm)
    return w.implementation if w.implementation and algorithm_of(w.implementation) == algorithm else None


def _matmul(w: Workload, device: Device, scope: Scope) -> list[Found]:
    assert w.matmul is not None
    work = w.matmul.workload(device)
    result = evaluate_matmul(work, device, w.matmul.tile_m, w.matmul.tile_n)
    named = w.implementation if isinstance(w.implementation, str) else None
    known, missing = None, list[str]()
    if named is not None:
        check_implementation(named, "matmul", device, scope.fallback_devices)
    try:
        lower = float(result.total.lower_s)
        known = select_kernel("matmul", work.dtype.name, work, FORWARD, device, lower, named, lambda name: True, scope.fallback_devices)
    except PerfmodelError as error:
        missing = [f"matmul is not predicted: {error.message}."]
    label = w.name or f"matmul {shape_words(work)}"
    made = point(UNNUMBERED, label, result.total, device, work.dtype.name, work.dtype.matmul_unit, known, group="matmul", tiled=True)
    size = (work.m * work.k + work.k * work.n + work.m * work.n) * work.batch * work.dtype.size
    fits = None if device.dram.capacity is None else size <= device.dram.capacity.number
    one = Found(made, "matmul", result.total.access_bytes, size, fits, missing=missing, steps=lambda: explain_matmul(result))
    one = replace(one, kernel=_kernel(known))
    return [_flagged(one, device)]


def _model(w: Workload, device: Device, scope: Scope) -> list[Found]:
    assert w.model is not None
    request = w.model.request(device)
    known = answer(request, scope.fallback_devices)
    label = w.name or request_words(request)
    series = w.name or f"{request.model.name} {request.phase}"
    form = request.dtype
    whole = point(UNNUMBERED, label, known.cost, device, form.name, form.matmul_unit, group=series)
    parts = _ops(known, device, label)
    soft = next((part.soft for part in parts if soft_bound(part)), "")
    whole = replace(whole, predicted=_interval(known.prediction), soft=soft)
    unknown = next((line.row.missing for line in known.lines if line.row.prediction is None), "")
    missing = (f"{label} is not predicted: {unknown}.",) if unknown else ()
    memory = known.memory
    return [_flagged(Found(whole, series, None, memory.total, memory.fits, parts, missing), device)]


def _ops(known: Answer, device: Device, label: str) -> list[Point]:
    """A point per row of the model, with its share of the time."""
    form, found = known.request.dtype, []
    for line in known.lines:
        phase = f" in {line.phase}" if len({one.phase for one in known.lines}) > 1 else ""
        name, tiled = f"{line.row.op.name}{phase}", line.row.op.group == "matmul"
        made = point(UNNUMBERED, name, line.cost, device, form.name, form.matmul_unit, group=label, tiled=tiled)
        runs = f"{int(line.count)} runs" if line.count != 1 else ""
        told = predicted_by(line.row.prediction) if line.row.prediction else line.row.missing
        words = "; ".join(filter(None, [runs, made.note, told]))
        found.append(replace(made, predicted=_interval(line.times), note=words))
    return with_shares(found)


def _kernel(known: Prediction | None) -> str:
    return known.calibration.implementation if known else ""


def _interval(times: tuple[float, float, float] | None) -> Interval | None:
    return None if times is None else Interval(*map(float, times))
