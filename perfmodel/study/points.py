"""Workloads on devices as points of a roofline: counted, bounded and, as far as something is calibrated, predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.arith import Number
from perfmodel.attention.evaluate import BOTH
from perfmodel.attention.explain import explain as explain_attention
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Device
from perfmodel.ops.matmul import evaluate as evaluate_matmul
from perfmodel.ops.matmul_explain import explain as explain_matmul
from perfmodel.report.charts.kinds import Interval, Point
from perfmodel.report.roofline_chart import point, with_shares
from perfmodel.study.base import Scope
from perfmodel.study.workloads import Workload, request_words, shape_words
from perfmodel.timing.attention_offer import predictions
from perfmodel.timing.offer import algorithm_of, check_implementation, offer
from perfmodel.trace import Step
from perfmodel.transformer.answer import Answer, answer
from perfmodel.workload import FORWARD

UNNUMBERED = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One answer to a workload. ``series``: what tells it from others in a sweep, such as its algorithm.

    ``accesses``: bytes by the two-level model, ``memory``: bytes of all tensors at once, ``fits``: in the device's memory.
    ``parts``: points of its kernels. ``missing``: why no time is predicted. ``steps``: every number as its formula.
    """

    point: Point
    series: str
    accesses: Number | None = None
    memory: Number | None = None
    fits: bool | None = None
    parts: Sequence[Point] = ()
    missing: Sequence[str] = ()
    steps: Callable[[], Sequence[Step]] | None = field(default=None, compare=False)


def answers(w: Workload, device: Device, scope: Scope) -> list[Found]:
    """Everything that ``w`` asks for on ``device``: one entry per algorithm of an attention, else one."""
    return {"attention": _attention, "matmul": _matmul, "model": _model}[w.kind](w, device, scope)


def _attention(w: Workload, device: Device, scope: Scope) -> list[Found]:
    assert w.attention is not None
    comparison = w.attention.compare(device)
    shown, found = comparison.shown(), []
    for result in shown:
        name, direction = result.algorithm.name, result.direction
        own = replace(comparison, results=[one for one in comparison.results if one.algorithm.name == name])
        known, missing = predictions(own, _implementation(w, name), scope.lenders)
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

        def steps(result=result) -> Sequence[Step]:  # type: ignore[no-untyped-def]
            return [step for part in result.parts for step in explain_attention(part, comparison.workload, device, comparison.sram_bytes)]

        size = result.memory_bytes
        found.append(Found(made, series, result.total.access_bytes, size, comparison.fits(int(size)), missing=tuple(missing), steps=steps))
    return found


def _implementation(w: Workload, algorithm: str) -> str | None:
    """The one named for ``algorithm``; one name for all counts where it runs that algorithm."""
    if isinstance(w.implementation, dict):
        return w.implementation.get(algorithm)
    return w.implementation if w.implementation and algorithm_of(w.implementation) == algorithm else None


def _matmul(w: Workload, device: Device, scope: Scope) -> list[Found]:
    assert w.matmul is not None
    asked = w.matmul.workload(device)
    result = evaluate_matmul(asked, device, w.matmul.tile_m, w.matmul.tile_n)
    named = w.implementation if isinstance(w.implementation, str) else None
    known, missing = None, list[str]()
    if named is not None:
        check_implementation(named, "matmul", device, scope.lenders)
    try:
        lower = float(result.total.lower_s)
        known = offer("matmul", asked.dtype.name, asked, FORWARD, device, lower, named, lambda name: True, scope.lenders)
    except PerfmodelError as error:
        missing = [f"matmul is not predicted: {error.message}."]
    label = w.name or f"matmul {shape_words(asked)}"
    made = point(UNNUMBERED, label, result.total, device, asked.dtype.name, asked.dtype.matmul_unit, known, group="matmul")
    return [Found(made, "matmul", result.total.access_bytes, missing=missing, steps=lambda: explain_matmul(result))]


def _model(w: Workload, device: Device, scope: Scope) -> list[Found]:
    assert w.model is not None
    request = w.model.request(device)
    known = answer(request, scope.lenders)
    label = w.name or request_words(request)
    series = w.name or f"{request.model.name} {request.phase}"
    form = request.dtype
    whole = point(UNNUMBERED, label, known.cost, device, form.name, form.matmul_unit, group=series)
    whole = replace(whole, predicted=_interval(known.prediction))
    unknown = next((line.row.missing for line in known.lines if line.row.prediction is None), "")
    missing = (f"{label} is not predicted: {unknown}.",) if unknown else ()
    memory = known.memory
    return [Found(whole, series, None, memory.total, memory.fits, _ops(known, device, label), missing)]


def _ops(known: Answer, device: Device, label: str) -> list[Point]:
    """A point per row of the model, with its share of the time."""
    form, found = known.request.dtype, []
    for line in known.lines:
        phase = f" in {line.phase}" if len({one.phase for one in known.lines}) > 1 else ""
        made = point(UNNUMBERED, f"{line.row.op.name}{phase}", line.cost, device, form.name, form.matmul_unit, group=label)
        runs = f"{int(line.count)} runs" if line.count != 1 else ""
        words = "; ".join(filter(None, [runs, made.note, line.row.prediction.provenance if line.row.prediction else line.row.missing]))
        found.append(replace(made, predicted=_interval(line.times), note=words))
    return with_shares(found)


def _interval(times: tuple[float, float, float] | None) -> Interval | None:
    return None if times is None else Interval(*map(float, times))
