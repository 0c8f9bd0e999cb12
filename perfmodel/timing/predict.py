"""Predicted time of a case: by a calibration of its own device, or borrowed from another one, with an interval.

The interval covers 80 % of measurements as far as the calibration's own residuals tell. A borrowed prediction takes the
parameters of the nearest calibrated architecture and the interval that those have shown on devices they were not fitted to.

``kernels_of``: the kernels of a case as its bound and its roof see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from perfmodel.core.architectures import are_alike, are_kin, distance
from perfmodel.core.cost import READ, WRITE, Kernel, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.plugins import docstring
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.matmul import Matmul, library_tile
from perfmodel.timing.base import (
    CLEAN,
    DIRTY,
    ONE_BYTE,
    SAME_TIME,
    WARM,
    Case,
    Model,
    algorithm_of,
    calibrations,
    find_model,
    is_variant,
    once_per_case,
    other_formats,
)

if TYPE_CHECKING:
    from perfmodel.core.power import PowerState
    from perfmodel.timing.transfer import Lent

CALIBRATED, BORROWED = "calibrated", "borrowed"
ENOUGH_TO_LEND = 40  # tuned
"""Points from which a fit says enough of each of its parameters to be lent."""
ENOUGH_ALIKE = 2  # known
"""Points per parameter from which a fit is lent to a device that runs the same compiled kernels: their residuals tell something."""
FEW_SIZES = ("custom-allreduce",)
"""Models of kernels of which each device has a handful of sizes, the same ones everywhere: no interval is narrower than that of all."""
PARTS = dict.fromkeys(("eager-attention", "eager-published"), ("matmul", "scale", "softmax"))
"""Models of sequences, and the workloads of their parts, which may be calibrated on other devices alone."""

FallbackDevices = Callable[[], Iterable[Device]]


def listed_once(devices: FallbackDevices) -> FallbackDevices:
    """``devices``, asked for when first needed and only then: a catalog looks for its files anew each time."""
    return cache(lambda: tuple(devices()))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds with an 80 % interval. ``kind`` is calibrated or borrowed; ``provenance`` says from what, in words.

    ``cache``: what the L2 holds before. ``case``, ``device``: what the model of ``calibration`` was asked, if it was; ``parts``: kernels
    one after another of which it is the sum; ``power``: what the call draws, where the device has a model of it. ``lender``: the device
    it is borrowed from, if it is; ``certain``: the interval in shares of the time, but for what estimates of the profile widen it;
    ``guess``: why to go by the interval, in words: the time is little more than a guess, or another kernel's is calibrated here.
    """

    seconds: float
    low: float
    high: float
    kind: str
    provenance: str
    calibration: Calibration
    cache: str = CLEAN
    case: Case | None = field(default=None, compare=False, repr=False)
    device: Device | None = field(default=None, compare=False, repr=False)
    parts: tuple[Prediction, ...] = field(default=(), compare=False, repr=False)
    power: PowerState | None = None
    lender: Device | None = field(default=None, compare=False, repr=False)
    certain: tuple[float, float] = field(default=(1.0, 1.0), compare=False, repr=False)
    guess: str = ""


@dataclass(frozen=True, slots=True)
class TimeRequest:
    """A ``case`` of a ``kind`` of workload, as records call it, in ``dtype`` on ``device``, to be predicted at no less than ``lower_s``.

    ``fallbacks`` gives other devices whose calibrations may be borrowed.
    """

    case: Case
    kind: str
    dtype: str
    device: Device
    lower_s: float
    fallbacks: FallbackDevices = tuple

    def calibrations(self, device: Device) -> list[Calibration]:
        """Those of ``device`` that are meant for the case."""
        return calibrations(device, self.kind, self.dtype, self.case)

    def in_two_bytes(self) -> list[Calibration]:
        """Of an attention kernel that is asked for in one byte: those of its own device in two."""
        attention = self.kind == "attention" and self.dtype in ONE_BYTE
        return calibrations(self.device, self.kind, ONE_BYTE[self.dtype], self.case) if attention else []


def predict(request: TimeRequest) -> Prediction:
    """The predicted time of what was asked for; UnavailableError says why there is none."""
    device, implementation = request.device, request.case.implementation
    own = request.calibrations(device)
    if own and not is_variant(implementation, own[0].implementation):
        block = own[0]
        return _by(block, request, (block.low, block.high), CALIBRATED, f"calibrated here: {block.points} points, {block.date}")
    lending = _lending(request, own)
    other = nearest_lender(device, lending)
    if other is None:
        raise UnavailableError(_missing(request))
    block = next(block for one, block in lending if one is other)
    lacks = device.id if other is not device else "this kernel" if own else request.dtype
    words = f"borrowed from {other.id}: no calibration of {lacks}"
    from perfmodel.timing.estimated import in_words, needed, widened
    from perfmodel.timing.transfer import composed_ends, lent, lent_ends, share_beside

    complete, facts = needed(device, other, partial(_seconds_on, block, request)) if are_kin(device, other) else (device, [])
    known = lent(complete, other, block) if other is not device else None
    if known is not None and known.probes:
        words += f"; with {' and '.join(known.probes)} measured here"
    guess = in_words(facts, other) if facts else ""
    if not are_kin(device, other):
        guess = f"passes over memory as on {other.id}, of another maker"
    share = share_beside(device, other, block, request.fallbacks()) if known is not None else 1.0
    words += f"; long calls at {share:.0%} of the boost clock, by the power limit" if share < 1 else ""
    words += f"; {guess}" if guess else ""
    found = replace(_by(block, request, (1.0, 1.0), BORROWED, words, known, share), lender=other, guess=guess)
    assert found.device is not None
    if block.model in PARTS:
        interval = composed_ends(find_model(block.model), block, request.case, found.device, found.seconds)
    else:
        interval = lent_ends(block, device, other, known is not None and known.narrowed, is_variant(implementation, block.implementation))
    slower = _by(block, request, interval, BORROWED, words, known).seconds / found.seconds if share < 1 else 1.0
    low, high = (found.seconds * end for end in (widened(interval, facts, slower) if facts or slower < 1 else interval))
    return replace(found, certain=interval, low=max(request.lower_s, min(found.seconds, low)), high=max(found.seconds, high))


def _lending(request: TimeRequest, own: Sequence[Calibration]) -> list[tuple[Device, Calibration]]:
    """Devices that lend a calibration, with it: the device itself (``own``, or in two bytes), else others, else in another format."""
    at_home = [*own, *request.in_two_bytes()]
    if at_home:
        return [(request.device, at_home[0])]
    others = [one for one in request.fallbacks() if one.id != request.device.id]
    known = [(one, blocks[0]) for one in others if (blocks := request.calibrations(one))]
    if known or request.kind != "matmul":
        return known
    return [(one, blocks[0]) for one in others if (blocks := other_formats(one, request.case))]


def _seconds_on(block: Calibration, request: TimeRequest, device: Device) -> float:
    """By the parameters of ``block``, of what was asked for on ``device``."""
    complete = with_parts(device, block.model, request.dtype, request.fallbacks)
    return modelled_s(find_model(block.model), request.case, complete, block.parameters)


def _by(
    block: Calibration,
    request: TimeRequest,
    interval: tuple[float, float],
    kind: str,
    words: str,
    known: Lent | None = None,
    clock_share: float = 1.0,
) -> Prediction:
    """The prediction by the parameters of ``block``, as another device lends them if they are ``known``; ``interval`` in shares of time.

    ``clock_share``: the clock that a long call runs at, over the boost clock.
    """
    case, lower_s = request.case, request.lower_s
    device = with_parts(request.device if known is None else known.device, block.model, request.dtype, request.fallbacks)
    block = block if known is None else replace(block, parameters=known.parameters)
    modelled = modelled_s(find_model(block.model), case, device, block.parameters)
    if clock_share < 1:
        from perfmodel.timing.transfer import at_held_clock, joined

        modelled = joined(modelled, modelled_s(find_model(block.model), case, at_held_clock(device, clock_share), block.parameters))
    if block.implementation != case.implementation:
        block, words = replace(block, implementation=case.implementation), f"the kernel of {block.implementation}, {words}"
    seconds = max(modelled, lower_s)
    if modelled < lower_s:
        words += "; the model fell below the bound, which is shown instead"
    low, high = (seconds * end for end in interval)
    return Prediction(seconds, max(lower_s, min(seconds, low)), max(seconds, high), kind, words, block, case.cache, case, device)


def modelled_s(model: Model, case: Case, device: Device, parameters: Mapping[str, float]) -> float:
    """Seconds by ``model``, in the state of the L2 that ``case`` names."""
    seconds = float(model.seconds(case, device, parameters))
    if case.cache not in (DIRTY, WARM) or (case.cache == WARM and model.knows_warm):
        return seconds
    from perfmodel.timing.cache_state import warm_s, write_back_s

    read, written = _moved_bytes(case, device)
    if case.cache == DIRTY:
        return seconds + write_back_s(seconds, read, written, device)
    return warm_s(seconds, read, written, device)


@once_per_case
def _moved_bytes(case: Case, device: Device) -> tuple[float, float]:
    """Bytes of inputs and of outputs."""
    tensors = _cost(case, device).needs.tensors.items()
    read, written = (float(sum(size for (one, _), size in tensors if one == kind)) for kind in (READ, WRITE))
    return read, written


def with_parts(device: Device, model: str, dtype: str, fallbacks: FallbackDevices) -> Device:
    """``device`` with the calibrations in ``dtype`` of the nearest others for parts of ``model`` that it has none of in that format."""
    if model not in PARTS:
        return device
    formats = {dtype, SAME_TIME.get(dtype, dtype)}

    def serves(block: Calibration) -> bool:
        """A product in the format alone; passes over memory also where they were timed in 16 bits."""
        return not formats.isdisjoint(block.dtypes) or (block.workload != "matmul" and not SAME_TIME.keys().isdisjoint(block.dtypes))

    missing = set(PARTS[model]) - {block.workload for block in device.calibration if serves(block)}
    if not missing:
        return device
    from perfmodel.timing.transfer import lent_part

    # passes over memory take the time of their bytes on GPUs of every maker
    gpus = sorted(filter(partial(are_alike, device), fallbacks()), key=lambda one: (not are_kin(device, one), distance(device, one)))
    listed = [(one, block) for one in gpus for block in one.calibration if block.workload != "matmul" or are_kin(device, one)]
    lent = [lent_part(block, device, one) for one, block in listed if block.workload in missing and serves(block)]
    return replace(device, calibration=[*device.calibration, *lent])


def _missing(request: TimeRequest) -> str:
    """Why nothing predicts it: what a calibration of its kernel covers instead, or that there is none."""
    device, wanted = request.device, (request.kind, request.case.implementation, request.case.direction)
    what, same = "/".join(wanted), [one for one in device.calibration if (one.workload, one.implementation, one.direction) == wanted]
    models = [find_model(one.model) for one in same]
    if models and not any(model.covers(request.case) for model in models):
        covered = "; ".join(f"{model.name}: {' '.join(docstring(model.covers).split())}" for model in models)
        return f"the calibration of {what} covers other cases. {covered.rstrip('.')}"
    return f"no calibration of {what} in {request.dtype}, neither of {device.id} nor of another device"


def nearest(device: Device, others: list[Device]) -> Device | None:
    """The one of ``others`` on which kernels run most alike, by ``core.architectures``; None where none is kin."""
    return min((other for other in others if are_kin(device, other)), key=lambda other: distance(device, other), default=None)


def nearest_lender(device: Device, lending: Sequence[tuple[Device, Calibration]]) -> Device | None:
    """``nearest`` of the devices that lend a calibration: one that was fitted to enough points, if there is such a kin.

    Of a sequence whose kernels are calibrated one by one, without a kin another of the same machines.
    """
    sure = [(one, block) for one, block in lending if block.points >= _enough(device, one, block)]
    kin = nearest(device, [one for one, _ in sure]) or nearest(device, [one for one, _ in lending])
    alike = [one for one, block in sure if block.model in PARTS and are_alike(device, one)]
    return kin or min(alike, key=lambda one: distance(device, one), default=None)


def _enough(device: Device, other: Device, block: Calibration) -> int:
    """Points from which ``block`` of ``other`` is lent to ``device``: fewer where both run the same compiled kernels."""
    alike = device.vendor == other.vendor and device.compute_capability == other.compute_capability
    return ENOUGH_ALIKE * len(block.parameters) if alike and device.compute_capability else ENOUGH_TO_LEND


def lender(device: Device, fallbacks: FallbackDevices, lends: Callable[[Device], object]) -> Device | None:
    """``device`` itself if it ``lends`` what is wanted, else the nearest of the others that does; None without any."""
    return device if lends(device) else nearest(device, [one for one in fallbacks() if lends(one)])


def model_calibration(model: str, device: Device, fallbacks: FallbackDevices) -> tuple[Calibration | None, bool]:
    """The calibration of ``model`` of ``device``, or else of the nearest architecture; and whether it is the device's own."""

    def blocks(one: Device) -> list[Calibration]:
        return [block for block in one.calibration if block.model == model]

    found = lender(device, fallbacks, blocks)
    return (None if found is None else blocks(found)[0]), found is device


def added(parts: list[Prediction]) -> Prediction:
    """Kernels one after another, by all their names: their errors are taken to go together, borrowed if one of them is."""
    words = "; ".join(dict.fromkeys(part.provenance for part in parts))
    names = " + ".join(dict.fromkeys(part.calibration.implementation for part in parts))
    kind = BORROWED if BORROWED in {part.kind for part in parts} else CALIBRATED
    guess = next((part.guess for part in parts if part.guess), "")
    seconds, low, high = (sum(getattr(part, name) for part in parts) for name in ("seconds", "low", "high"))
    return Prediction(seconds, low, high, kind, words, replace(parts[0].calibration, implementation=names), parts=tuple(parts), guess=guess)


DEFAULT_TILE = Tile(128, 128)


def kernels_of(case: Case, device: Device | None = None) -> list[Kernel]:
    """The kernels of the case's algorithm, with the tile that its launch names; bounds do not depend on it.

    ``device``: of matmuls without one in their launch, the tile that its libraries take.
    """
    w = case.workload
    usual = library_tile(device, DTYPES["bf16"]) if isinstance(w, Matmul) and device is not None else DEFAULT_TILE
    tile = replace(usual, br=case.launch.get("br", usual.br), bc=case.launch.get("bc", usual.bc))
    if hasattr(w, "kernels"):
        return list(w.kernels(tile))
    if not isinstance(w, Attention):
        raise UnavailableError(f"{case.implementation} is estimated as a whole")
    algorithm = find(algorithm_of(case.implementation) if w.sparsity is None else "block-sparse")
    passes = {FORWARD: [algorithm.forward], BACKWARD: [algorithm.backward]}.get(case.direction, [algorithm.forward, algorithm.backward])
    return [kernel for run in passes for kernel in run(w, tile)]


def lower_bound_s(case: Case, device: Device) -> float:
    """Seconds that no implementation of the case's algorithm beats; the warm bound unless L2 was flushed.

    After a run on flushed caches its outputs may still lie there.

    UnavailableError says why there is none.
    """
    needs = _cost(case, device).needs
    return float(needs.flushed_s if case.flushed else needs.warm_s)


def lower_in(cost: Estimate, cache: str) -> float:
    """Lower bound in seconds of what costs ``cost``, the L2 being in the state ``cache``."""
    return float(cost.lower_warm_s if cache == WARM else cost.lower_s)


def _cost(case: Case, device: Device) -> Estimate:
    return _whole(case, device) or total(estimate(kernel, device) for kernel in kernels_of(case))


def roof_s(case: Case, device: Device) -> float:
    """Seconds at the roof with the tile that the launch names, kernels one after another.

    Where the same buffers are used again (warm), DRAM bytes of all kernels together count only beyond the caches.
    """
    whole = _whole(case, device)
    if whole is not None:
        return float(whole.roofline_s)
    costs = [estimate(kernel, device) for kernel in kernels_of(case, device)]
    moved = sum(cost.dram.total for cost in costs)
    missed = 1.0 if case.flushed or not moved else max(0, moved - (device.cache_bytes or 0)) / moved
    rates = {"dram": missed}  # the share of its bytes that the caches do not hold already
    return sum(float(max((term * rates.get(name, 1) for name, term in cost.terms.items()), default=0.0)) for cost in costs)


@once_per_case
def _whole(case: Case, device: Device) -> Estimate | None:
    """Estimate of a collective or a step of a model, which provide one; else None."""
    return case.workload.estimate(device) if hasattr(case.workload, "estimate") else None
