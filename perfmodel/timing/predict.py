"""Predicted time of a case: by a calibration of its own device, or borrowed, with an interval.

``SOURCES`` are tried in order; the first that has a calibration prices the case. The interval covers 80 % of measurements as far as the
calibration's own residuals tell. A borrowed calibration has the reference's parameters, scaled to the device, and the interval that they
have shown on devices they were not fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.core.architectures import traits_of
from perfmodel.core.cost import READ, WRITE
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.plugins import docstring
from perfmodel.core.roofline import Estimate
from perfmodel.core.units import format_time
from perfmodel.core.workload import VIEWS, Pass
from perfmodel.timing.base import CLEAN, DIRTY, ONE_BYTE, PASS, WARM, Case, Model, calibrations, find_model, other_formats
from perfmodel.timing.case_bounds import cost_of
from perfmodel.timing.implementations import is_variant
from perfmodel.timing.intervals import composed_interval, own_interval
from perfmodel.timing.operand_copies import operand_copies
from perfmodel.timing.reference_devices import FallbackDevices, nearest_reference, with_parts
from perfmodel.timing.transfer import timed, transferred

if TYPE_CHECKING:
    from perfmodel.core.power import PowerState

CALIBRATED, BORROWED = "calibrated", "borrowed"


class Prediction(NamedTuple):
    """Seconds with an 80 % interval. ``kind`` is calibrated or borrowed; ``provenance`` says from what, in words.

    ``cache``: what the L2 holds at the start. ``case``, ``device``: input of the model of ``calibration``, if that made it; ``parts``:
    kernels in turn that it is the sum of; ``power``: power of the call, if the device has a power model. ``reference``: the device that it
    is borrowed from, if any; ``unwidened``: the interval in shares of the time, before estimated profile values and the power limit widen
    it; ``guess``: warning to trust the interval rather than the time: a rough guess, or another kernel's calibration; empty if none.
    """

    seconds: float
    low: float
    high: float
    kind: str
    provenance: str
    calibration: Calibration
    cache: str = CLEAN
    case: Case | None = None
    device: Device | None = None
    parts: tuple[Prediction, ...] = ()
    power: PowerState | None = None
    reference: Device | None = None
    unwidened: tuple[float, float] = (1.0, 1.0)
    guess: str = ""


class TimeRequest(NamedTuple):
    """A question for a time: a ``case`` of a workload ``kind``, as records call it, in ``dtype`` on ``device``.

    ``lower_s``: lower bound in seconds; no prediction is below it. ``fallbacks`` gives other devices whose calibrations may be borrowed.
    """

    case: Case
    kind: str
    dtype: str
    device: Device
    lower_s: float
    fallbacks: FallbackDevices = tuple

    def calibrations(self, device: Device) -> list[Calibration]:
        """Calibrations of ``device`` that are meant for the case."""
        return calibrations(device, self.kind, self.dtype, self.case)

    def runs(self, block: Calibration) -> bool:
        """Whether the library runs the kernel of ``block`` on the requested device."""
        return find_model(block.model).runs_on(self.case.implementation, traits_of(self.device))

    def others(self) -> list[Device]:
        """Other devices whose calibrations may be borrowed."""
        return [device for device in self.fallbacks() if device.id != self.device.id]


class CalibrationSource(NamedTuple):
    """A calibration that prices a request: ``block``, of the device ``reference``, which may be the requested one.

    ``lacks``: the kernel or format that the requested device has no calibration of; empty unless the calibration is a stand-in.
    """

    block: Calibration
    reference: Device
    lacks: str = ""


def own_calibration(request: TimeRequest) -> CalibrationSource | None:
    """The device's own calibration of the kernel, or of a variant of it, which counts as borrowed."""
    own = [block for block in request.calibrations(request.device) if request.runs(block)]
    of_variant = bool(own) and is_variant(request.case.implementation, own[0].implementation)
    return CalibrationSource(own[0], request.device, "this kernel" if of_variant else "") if own else None


def wider_format(request: TimeRequest) -> CalibrationSource | None:
    """The device's own calibration of an attention kernel in two bytes, for a request in one byte."""
    if request.kind != "attention" or request.dtype not in ONE_BYTE:
        return None
    own = calibrations(request.device, request.kind, ONE_BYTE[request.dtype], request.case)
    return CalibrationSource(own[0], request.device, request.dtype) if own else None


def other_device(request: TimeRequest) -> CalibrationSource | None:
    """The calibration of the nearest device that has one."""
    return _nearest_source(request, request.calibrations)


def other_format(request: TimeRequest) -> CalibrationSource | None:
    """The calibration of a product in another number format, from the nearest device that has one."""
    return _nearest_source(request, lambda device: other_formats(device, request.case)) if request.kind == "matmul" else None


def _nearest_source(request: TimeRequest, blocks_of: Callable[[Device], list[Calibration]]) -> CalibrationSource | None:
    candidates = [(device, blocks[0]) for device in request.others() if (blocks := blocks_of(device))]
    source = nearest_reference(
        request.device, [(device, block) for device, block in candidates if request.runs(block)] or candidates, request.others()
    )
    if source is None:
        return None
    return CalibrationSource(next(block for device, block in candidates if device is source), source, f"this kernel on {request.device.id}")


SOURCES = (own_calibration, wider_format, other_device, other_format)


def predict(request: TimeRequest) -> Prediction:
    """The predicted time of ``request``, with copies of operands that come first; UnavailableError says why there is none."""
    copies = operand_copies(request.case)
    if copies:
        case = request.case
        alone = predict(request._replace(case=replace(case, workload=replace(case.workload, layout=VIEWS))))
        return _with_copies(alone, [predict(_of_pass(copy, request)) for copy in copies])
    for source in SOURCES:
        calibration = source(request)
        if calibration is not None:
            return _borrowed(calibration, request) if calibration.lacks else _calibrated(calibration.block, request)
    raise UnavailableError(_missing(request))


def _of_pass(copy: Pass, request: TimeRequest) -> TimeRequest:
    """The request for a copy that runs before the kernel of ``request``."""
    return TimeRequest(Case(copy, f"torch-{copy.kind}"), PASS, copy.dtype.name, request.device, 0.0, request.fallbacks)


def _with_copies(alone: Prediction, copies: list[Prediction]) -> Prediction:
    """The prediction of a kernel after ``copies``, under the kernel's name; errors add up."""
    whole = added([alone, *copies])
    words = f"{alone.provenance}; after copies of O and dO to bnhd, {format_time(sum(copy.seconds for copy in copies), 3)}"
    return alone._replace(**{name: getattr(whole, name) for name in ("seconds", "low", "high", "kind", "parts")}, provenance=words)


def _calibrated(block: Calibration, request: TimeRequest) -> Prediction:
    words = f"calibrated here: {block.points} points, {block.date}"
    return _priced(block, request, request.device, own_interval(block, request.case.cache), CALIBRATED, words)


def _borrowed(source: CalibrationSource, request: TimeRequest) -> Prediction:
    """The prediction by another device's parameters, or by another kernel's or another format's.

    Parameters are transferred to the device. The interval is composed of the intervals of the parts if the model has parts, else it is the
    transfer's. Estimated profile values and the power limit widen it.
    """
    block, reference, device = source.block, source.reference, request.device
    transfer = transferred(block, reference, device, partial(_seconds_on, block, request), request.fallbacks())
    words = "; ".join(filter(None, [f"borrowed from {reference.id}: no calibration of {source.lacks}", *transfer.words, transfer.guess]))
    adapted = replace(block, parameters=transfer.parameters)
    prediction = _priced(adapted, request, transfer.device, (1.0, 1.0), BORROWED, words, transfer.held)
    model = find_model(block.model)
    device_with_parts = with_parts(transfer.device, block.model, request.dtype, request.fallbacks, device)
    if model.part_workloads:
        ends = composed_interval(model, block, request.case, device_with_parts, prediction.seconds)
    else:
        ends = transfer.ends(is_variant(request.case.implementation, block.implementation))
    boost_share = 1.0
    if transfer.held is not None:
        boost_share = _priced(adapted, request, transfer.device, ends, BORROWED, words).seconds / prediction.seconds
    low, high = (prediction.seconds * end for end in transfer.widened(ends, boost_share))
    low, high = max(request.lower_s, min(prediction.seconds, low)), max(prediction.seconds, high)
    return prediction._replace(low=low, high=high, reference=reference, guess=transfer.guess, unwidened=ends)


def _seconds_on(block: Calibration, request: TimeRequest, device: Device) -> float:
    """Seconds of ``request`` on ``device`` by the parameters of ``block``."""
    device_with_parts = with_parts(device, block.model, request.dtype, request.fallbacks, request.device)
    return modelled_s(find_model(block.model), request.case, device_with_parts, block.parameters)


def _priced(
    block: Calibration,
    request: TimeRequest,
    device: Device,
    interval: tuple[float, float],
    kind: str,
    words: str,
    held: Device | None = None,
) -> Prediction:
    """The prediction by the parameters of ``block`` on ``device``.

    ``interval``: in shares of the time; ``held``: the device at the clock that its power limit leaves for long calls, if that is lower.
    """
    case, lower_s, model = request.case, request.lower_s, find_model(block.model)
    modelled = timed(partial(_seconds_on, block, request), device, held)
    if block.implementation != case.implementation:
        block, words = replace(block, implementation=case.implementation), f"the kernel of {block.implementation}, {words}"
    seconds, device_with_parts = max(modelled, lower_s), with_parts(device, model.name, request.dtype, request.fallbacks, request.device)
    if modelled < lower_s:
        words += "; the model fell below the bound, which is shown instead"
    low, high = (seconds * end for end in interval)
    return Prediction(seconds, max(lower_s, min(seconds, low)), max(seconds, high), kind, words, block, case.cache, case, device_with_parts)


def modelled_s(model: Model, case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds by ``model``, in the state of the L2 that ``case`` names."""
    by_rule = case.cache == DIRTY or (case.cache == WARM and not model.knows_warm(case))
    seconds = float(model.seconds(_cleaned(case) if by_rule else case, device, parameters))
    if not by_rule:
        return seconds
    from perfmodel.timing.cache_state import as_fast_as_l2, warm_s, write_back_s

    read, written = _moved_bytes(case, device)
    if case.cache == DIRTY:
        return seconds + write_back_s(seconds, read, written, device)
    faster = as_fast_as_l2(device)
    from_l2_s = float(model.seconds(_cleaned(case), faster, parameters)) if faster else 0.0
    return warm_s(seconds, read, written, device, from_l2_s=from_l2_s, kernels=model.warm_kernels(case))


@cached_by_identity
def _cleaned(case: Case) -> Case:
    """``case`` on a clean L2."""
    return replace(case, cache=CLEAN)


@cached_by_identity
def _moved_bytes(case: Case, device: Device) -> tuple[float, float]:
    """Bytes of inputs and of outputs."""
    tensors = cost_of(case, device).needs.tensors.items()
    read, written = (float(sum(size for (one, _), size in tensors if one == kind)) for kind in (READ, WRITE))
    return read, written


def _missing(request: TimeRequest) -> str:
    """Sentence on why nothing predicts the request: its kernel's calibration covers other cases, or there is none."""
    device, wanted = request.device, (request.kind, request.case.implementation, request.case.direction)
    same = [block for block in device.calibration if (block.workload, block.implementation, block.direction) == wanted]
    what, models = "/".join(wanted), [find_model(block.model) for block in same]
    if models and not any(model.covers(request.case) for model in models):
        covered = "; ".join(f"{model.name}: {' '.join(docstring(model.covers).split())}" for model in models)
        return f"the calibration of {what} covers other cases. {covered.rstrip('.')}"
    return f"no calibration of {what} in {request.dtype}, neither of {device.id} nor of another device"


def added(parts: list[Prediction]) -> Prediction:
    """The prediction of kernels one after another, under all their names. Their errors add up, and it is borrowed if one of them is."""
    words = "; ".join(dict.fromkeys(part.provenance for part in parts))
    names = " + ".join(dict.fromkeys(part.calibration.implementation for part in parts))
    kind = BORROWED if BORROWED in {part.kind for part in parts} else CALIBRATED
    guess = next((part.guess for part in parts if part.guess), "")
    seconds, low, high = (sum(getattr(part, name) for part in parts) for name in ("seconds", "low", "high"))
    return Prediction(seconds, low, high, kind, words, replace(parts[0].calibration, implementation=names), parts=tuple(parts), guess=guess)


def lower_in(cost: Estimate, cache: str) -> float:
    """Lower bound in seconds of ``cost``, with the L2 in the state ``cache``."""
    return float(cost.lower_warm_s if cache == WARM else cost.lower_s)
