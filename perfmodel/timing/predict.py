"""Predicted time of a case with an interval, by a calibration of its device or by a borrowed one.

``SOURCES`` are tried in order; the first that has a calibration is taken. The interval covers 80 % of measurements as far as the residuals
of the calibration tell. A borrowed calibration has the parameters of another device, the reference, scaled to the device, and the interval
that they have shown on devices they were not fitted to.
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
    """Seconds with an 80 % interval from ``low`` to ``high``.

    - ``kind``: calibrated or borrowed; ``provenance`` says from what, in words. ``reference``: the device that it is borrowed from, if any.
    - ``cache``: what the L2 holds at the start.
    - ``case``, ``device``: input of the model of ``calibration``, if that model made the prediction.
    - ``parts``: predictions of kernels in turn that this one is the sum of.
    - ``power``: power of the call, if the device has a power model.
    - ``unwidened``: the interval in shares of the time, before estimated profile values and the power limit widen it.
    - ``guess``: why to trust the interval rather than the time; empty if there is no reason.
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
    """A question for the time of ``case`` in ``dtype`` on ``device``; ``kind``: name of its workload in records.

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
    """A calibration that predicts a request: ``block``, of the device ``reference``, which may be the requested one.

    ``lacks``: what the requested device has no calibration of, if that makes the prediction a borrowed one; else empty.
    """

    block: Calibration
    reference: Device
    lacks: str = ""


def own_calibration(request: TimeRequest) -> CalibrationSource | None:
    """The device's own calibration of the kernel, or of a variant of it, which counts as borrowed."""
    blocks = [block for block in request.calibrations(request.device) if request.runs(block)]
    if not blocks:
        return None
    is_of_variant = is_variant(request.case.implementation, blocks[0].implementation)
    return CalibrationSource(blocks[0], request.device, "this kernel" if is_of_variant else "")


def wider_format(request: TimeRequest) -> CalibrationSource | None:
    """The device's own calibration of an attention kernel in two bytes, for a request in one byte."""
    if request.kind != "attention" or request.dtype not in ONE_BYTE:
        return None
    blocks = calibrations(request.device, request.kind, ONE_BYTE[request.dtype], request.case)
    return CalibrationSource(blocks[0], request.device, request.dtype) if blocks else None


def other_device(request: TimeRequest) -> CalibrationSource | None:
    """The calibration of the nearest device that has one."""
    return _nearest_source(request, request.calibrations)


def other_format(request: TimeRequest) -> CalibrationSource | None:
    """The calibration of a product in another number format, from the nearest device that has one."""
    return _nearest_source(request, lambda device: other_formats(device, request.case)) if request.kind == "matmul" else None


def _nearest_source(request: TimeRequest, blocks_of: Callable[[Device], list[Calibration]]) -> CalibrationSource | None:
    """The first block that ``blocks_of`` gives for the nearest other device, preferably one whose kernel runs on the requested device."""
    candidates = [(device, blocks[0]) for device in request.others() if (blocks := blocks_of(device))]
    running = [(device, block) for device, block in candidates if request.runs(block)]
    reference = nearest_reference(request.device, running or candidates, request.others())
    for device, block in candidates:
        if device is reference:
            return CalibrationSource(block, device, f"this kernel on {request.device.id}")
    return None


SOURCES = (own_calibration, wider_format, other_device, other_format)


def predict(request: TimeRequest) -> Prediction:
    """The predicted time of ``request``, with copies of operands that come first; UnavailableError says why there is none."""
    copies = operand_copies(request.case)
    if copies:
        without_copies = replace(request.case, workload=replace(request.case.workload, layout=VIEWS))
        return _with_copies(predict(request._replace(case=without_copies)), [_predicted_copy(copy, request) for copy in copies])
    for source in SOURCES:
        calibration = source(request)
        if calibration is not None:
            return _borrowed(calibration, request) if calibration.lacks else _calibrated(calibration.block, request)
    raise UnavailableError(_why_unpredicted(request))


def _predicted_copy(copy: Pass, request: TimeRequest) -> Prediction:
    """The prediction of a copy that runs before the kernel of ``request``."""
    case = Case(copy, f"torch-{copy.kind}")
    return predict(TimeRequest(case, PASS, copy.dtype.name, request.device, 0.0, request.fallbacks))


def _with_copies(alone: Prediction, copies: list[Prediction]) -> Prediction:
    """The prediction of a kernel after ``copies``, under the kernel's name; errors add up."""
    total = added([alone, *copies])
    words = f"{alone.provenance}; after copies of O and dO to bnhd, {format_time(sum(copy.seconds for copy in copies), 3)}"
    return alone._replace(seconds=total.seconds, low=total.low, high=total.high, kind=total.kind, parts=total.parts, provenance=words)


def _calibrated(block: Calibration, request: TimeRequest) -> Prediction:
    """The prediction by the device's own calibration."""
    words = f"calibrated here: {block.points} points, {block.date}"
    return _prediction(block, request, request.device, own_interval(block, request.case.cache), CALIBRATED, words)


def _borrowed(source: CalibrationSource, request: TimeRequest) -> Prediction:
    """The prediction by another device's parameters, or by another kernel's or another format's.

    Parameters are transferred to the device. The interval is composed of the intervals of the parts if the model has parts, else it is the
    transfer's. Estimated profile values and the power limit widen it.
    """
    block, reference, device = source.block, source.reference, request.device
    transfer = transferred(block, reference, device, partial(_seconds_on, block, request), request.fallbacks())
    phrases = [f"borrowed from {reference.id}: no calibration of {source.lacks}", *transfer.words, transfer.guess]
    words = "; ".join(phrase for phrase in phrases if phrase)
    adapted = replace(block, parameters=transfer.parameters)
    prediction = _prediction(adapted, request, transfer.device, (1.0, 1.0), BORROWED, words, transfer.held)
    model = find_model(block.model)
    if model.part_workloads:
        device_with_parts = with_parts(transfer.device, block.model, request.dtype, request.fallbacks, device)
        ends = composed_interval(model, block, request.case, device_with_parts, prediction.seconds)
    else:
        ends = transfer.ends(is_variant(request.case.implementation, block.implementation))
    boost_share = 1.0
    if transfer.held is not None:
        boost_share = _prediction(adapted, request, transfer.device, ends, BORROWED, words).seconds / prediction.seconds
    low, high = (prediction.seconds * end for end in transfer.widened(ends, boost_share))
    low, high = max(request.lower_s, min(prediction.seconds, low)), max(prediction.seconds, high)
    return prediction._replace(low=low, high=high, reference=reference, guess=transfer.guess, unwidened=ends)


def _seconds_on(block: Calibration, request: TimeRequest, device: Device) -> float:
    """Seconds of ``request`` on ``device`` by the parameters of ``block``."""
    device_with_parts = with_parts(device, block.model, request.dtype, request.fallbacks, request.device)
    return modelled_s(find_model(block.model), request.case, device_with_parts, block.parameters)


def _prediction(
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
    if modelled < lower_s:
        words += "; the model fell below the bound, which is shown instead"
    seconds = max(modelled, lower_s)
    low, high = max(lower_s, min(seconds, seconds * interval[0])), max(seconds, seconds * interval[1])
    device_with_parts = with_parts(device, model.name, request.dtype, request.fallbacks, request.device)
    return Prediction(seconds, low, high, kind, words, block, case.cache, case, device_with_parts)


def modelled_s(model: Model, case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds by ``model``, in the state of the L2 that ``case`` names."""
    if case.cache != DIRTY and (case.cache != WARM or model.knows_warm(case)):
        return float(model.seconds(case, device, parameters))
    from perfmodel.timing.cache_state import as_fast_as_l2, warm_s, write_back_s

    clean_s = float(model.seconds(_cleaned(case), device, parameters))
    read, written = _moved_bytes(case, device)
    if case.cache == DIRTY:
        return clean_s + write_back_s(clean_s, read, written, device)
    faster = as_fast_as_l2(device)
    from_l2_s = float(model.seconds(_cleaned(case), faster, parameters)) if faster else 0.0
    return warm_s(clean_s, read, written, device, from_l2_s=from_l2_s, kernels=model.warm_kernels(case))


@cached_by_identity
def _cleaned(case: Case) -> Case:
    """``case`` on a clean L2."""
    return replace(case, cache=CLEAN)


@cached_by_identity
def _moved_bytes(case: Case, device: Device) -> tuple[float, float]:
    """(bytes of inputs, bytes of outputs)."""
    bytes_by_kind = {READ: 0.0, WRITE: 0.0}
    for (kind, _), size in cost_of(case, device).needs.tensors.items():
        if kind in bytes_by_kind:
            bytes_by_kind[kind] += size
    return float(bytes_by_kind[READ]), float(bytes_by_kind[WRITE])


def _why_unpredicted(request: TimeRequest) -> str:
    """Sentence on why nothing predicts the request: its kernel's calibration covers other cases, or there is none."""
    device, kernel = request.device, (request.kind, request.case.implementation, request.case.direction)
    blocks = [block for block in device.calibration if (block.workload, block.implementation, block.direction) == kernel]
    name, models = "/".join(kernel), [find_model(block.model) for block in blocks]
    if models and not any(model.covers(request.case) for model in models):
        covered = "; ".join(f"{model.name}: {' '.join(docstring(model.covers).split())}" for model in models)
        return f"the calibration of {name} covers other cases. {covered.rstrip('.')}"
    return f"no calibration of {name} in {request.dtype}, neither of {device.id} nor of another device"


def added(parts: list[Prediction]) -> Prediction:
    """The prediction of kernels one after another, under all their names. Their errors add up, and it is borrowed if one of them is."""
    seconds, low, high = sum(part.seconds for part in parts), sum(part.low for part in parts), sum(part.high for part in parts)
    kind = BORROWED if any(part.kind == BORROWED for part in parts) else CALIBRATED
    words = "; ".join(dict.fromkeys(part.provenance for part in parts))
    names = " + ".join(dict.fromkeys(part.calibration.implementation for part in parts))
    calibration = replace(parts[0].calibration, implementation=names)
    guess = next((part.guess for part in parts if part.guess), "")
    return Prediction(seconds, low, high, kind, words, calibration, parts=tuple(parts), guess=guess)


def lower_in(cost: Estimate, cache: str) -> float:
    """Lower bound in seconds of ``cost``, with the L2 in the state ``cache``."""
    return float(cost.lower_warm_s if cache == WARM else cost.lower_s)
