"""The prediction to show beside a bound: by a given implementation, or by the best-known one that runs the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from perfmodel.core.architectures import same_board, traits_of, transferable
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.kernels.matmul import default_tile
from perfmodel.kernels.tile import GIVEN
from perfmodel.timing.base import CLEAN, DIRTY, WARM, Case, calibrations_of, models_of
from perfmodel.timing.implementations import algorithm_of, find, implementations, is_fused
from perfmodel.timing.intervals import ENOUGH_TO_TRANSFER
from perfmodel.timing.predict import Prediction, TimeRequest, added, lower_in, predict
from perfmodel.timing.reference_devices import FallbackDevices

if TYPE_CHECKING:
    from perfmodel.core.cost import Tile
    from perfmodel.kernels.attention.evaluate import AttentionResult
    from perfmodel.kernels.attention.request import Comparison
    from perfmodel.kernels.matmul import Matmul

PROJECT_KERNELS = ("numba-", "cpu-")
"""Beginnings of the names of this project's kernels, which are measured to check the model and are not what people run."""
PYTORCH, SDPA = "torch-", "torch-sdpa"
"""Beginnings of the names of PyTorch's operations, which run on devices of every maker, and of its attention kernels, which need CUDA."""
CUBLAS = "cublas"
"""cuBLAS timed by itself. PyTorch's calls of it are preferred if they are calibrated too, as people run them."""


def check_implementation(
    name: str, workload: str, device: Device, fallbacks: FallbackDevices, suits: Callable[[str], bool] = lambda name: True
) -> None:
    """UsageError if no calibration of ``workload``, here or on a device to borrow from, is called ``name`` and ``suits``."""
    names = sorted(filter(suits, implementations((device, *fallbacks())).get(workload, ())))
    if name not in names:
        raise UsageError(f"--implementation: none is called {name!r}", suggest(name, names))


def check_attention(name: str, device: Device, fallbacks: FallbackDevices) -> None:
    """UsageError if ``name`` is no calibrated implementation of fused attention, the one that steps of models run."""
    check_implementation(name, "attention", device, fallbacks, is_fused)


def select_kernel(request: TimeRequest, suits: Callable[[str], bool] = lambda name: True, guesses: bool = True) -> Prediction:
    """The prediction by the implementation of ``request.case``; if that is empty, by the best-known one of those that ``suits`` takes.

    1. Kernels calibrated on the device, or else on the same board under another name: the fastest is taken.
    2. Kernels borrowed from other devices, the most certain first: from a device with the same matrix instruction, then with the narrowest
       interval. If there are calibrated kernels too, only those from such a device count that are surely faster: the slow end of their
       interval is below the fast end of the calibrated one's, as for cuDNN against FlashAttention-2 on Blackwell.
    3. The pooled prediction, if ``guesses`` are allowed.

    The state of the L2 does not change the choice. UnavailableError says why there is no prediction.
    """
    if request.case.implementation:
        if not suits(request.case.implementation):
            raise UnavailableError(f"{request.case.implementation} is another algorithm")
        return _predict_named(request)
    if request.case.cache in (DIRTY, WARM):
        choice = select_kernel(request._replace(case=replace(request.case, cache=CLEAN)), suits, guesses)
        if choice.calibration.implementation in models_of():
            return _in_state(choice, request)
    calibrated = _fastest_calibrated(request, suits, [request.device])
    if calibrated is None:
        calibrated = _fastest_calibrated(request, suits, [other for other in request.fallbacks() if same_board(request.device, other)])
    if calibrated is not None and not is_fused(calibrated.calibration.implementation):
        return calibrated  # standard attention is PyTorch's products and softmax, by whatever name it was timed
    others = [other for other in request.fallbacks() if calibrated is None or _multiply_alike(other, request.device)]
    requests = [_for_kernel(name, request)._replace(fallbacks=lambda: others) for name in filter(suits, _libraries(request, others))]
    borrowed = _predicted(requests)
    if calibrated is not None:
        faster = [prediction for prediction in borrowed if prediction.high < calibrated.low]
        faster = [prediction for prediction in faster if prediction.calibration.implementation != CUBLAS]
        return _in_place_of(min(faster, key=partial(_doubts, request.device)), calibrated) if faster else calibrated
    if borrowed:
        return min(borrowed, key=partial(_doubts, request.device))
    pooled = _first_pooled(requests, others) if guesses else None
    if pooled is None:
        raise UnavailableError(f"no implementation of {request.kind} in {request.dtype} is calibrated that covers this")
    return pooled


def _fastest_calibrated(request: TimeRequest, suits: Callable[[str], bool], devices: list[Device]) -> Prediction | None:
    """The prediction by the fastest kernel calibrated on one of ``devices``, with cuBLAS by itself last; None if there is none."""
    requests = [_for_kernel(name, request) for name in filter(suits, _libraries(request, devices))]
    predicted = _predicted(named for named in requests if any(map(named.calibrations, devices)))
    return min(predicted, key=lambda prediction: (prediction.calibration.implementation == CUBLAS, prediction.seconds), default=None)


def _libraries(request: TimeRequest, devices: Iterable[Device]) -> list[str]:
    """Implementations that people run and that one of ``devices`` has a calibration of."""
    kernel_kind, architecture = (request.kind, request.case.direction), request.device.architecture
    names = {
        block.implementation
        for device in devices
        for block in calibrations_of(device).get(kernel_kind, ())
        if not find(block.implementation).published or (block.points >= ENOUGH_TO_TRANSFER and device.architecture == architecture)
    }
    return [name for name in sorted(names) if not name.startswith(PROJECT_KERNELS) and not find(name).named]


def _for_kernel(implementation: str, request: TimeRequest) -> TimeRequest:
    """``request`` for the kernel of ``implementation``."""
    return request._replace(case=replace(request.case, implementation=implementation))


def _predicted(requests: Iterable[TimeRequest]) -> list[Prediction]:
    """Predictions of those of ``requests`` that have one."""
    predictions = []
    for request in requests:
        with suppress(PerfmodelError):
            predictions.append(predict(request))
    return predictions


def _in_state(choice: Prediction, request: TimeRequest) -> Prediction:
    """The prediction of the kernel of ``choice`` in the L2 state of ``request``, borrowed from the same device."""
    named, others = _for_kernel(choice.calibration.implementation, request), request.fallbacks()
    prediction = predict(named)
    if prediction.reference is not choice.reference:  # ``choice`` was borrowed from the nearest of those that multiply alike
        prediction = predict(named._replace(fallbacks=lambda: [other for other in others if _multiply_alike(other, request.device)]))
    return prediction._replace(provenance=choice.provenance, guess=choice.guess)


def _in_place_of(borrowed: Prediction, calibrated: Prediction) -> Prediction:
    """``borrowed`` with a note that it is shown in place of the slower ``calibrated``."""
    name, slower = borrowed.calibration.implementation, calibrated.calibration.implementation
    slower_time = format_time(calibrated.seconds, 3)
    words = f"predicted for {name}, which is borrowed; {slower}, which is calibrated here, takes {slower_time}"
    guess = f"{borrowed.guess}; {words}" if borrowed.guess else words
    return borrowed._replace(provenance=f"{borrowed.provenance}; {words}", guess=guess)


def _doubts(device: Device, borrowed: Prediction) -> tuple[bool, float, float]:
    """Sort key of borrowed kernels: another matrix instruction on its device, then the upper end of its interval, then its time."""
    return not _multiply_alike(borrowed.reference or device, device), borrowed.unwidened[1], borrowed.seconds


def _multiply_alike(device: Device, other: Device) -> bool:
    """Whether both reach their peak by the same matrix instruction."""
    return traits_of(device).matrix == traits_of(other).matrix


def _predict_named(request: TimeRequest) -> Prediction:
    """The prediction of the named kernel; the pooled one for an operation of PyTorch that no suitable device has calibrated."""
    name, others = request.case.implementation, [other for other in request.fallbacks() if transferable(request.device, other)]
    is_calibrated = any(block.implementation == name for other in (request.device, *others) for block in other.calibration)
    if is_calibrated or not name.startswith(PYTORCH) or name.startswith(SDPA):
        return predict(request)
    with suppress(UnavailableError):  # kernels of a sequence are predicted one by one, and a product by that of another library
        return predict(request)
    return _first_pooled([request], list(request.fallbacks())) or predict(request)


def _first_pooled(requests: Iterable[TimeRequest], others: list[Device]) -> Prediction | None:
    """The pooled prediction for the first of ``requests`` that any of ``others`` is calibrated for; None if none is."""
    for request in requests:
        if any(map(request.calibrations, others)):
            from perfmodel.timing.models.pooled import pooled

            return pooled(request, request.case.implementation)
    return None


def select_product(
    w: Matmul, tile: Tile, device: Device, lower_s: float, fallbacks: FallbackDevices, implementation: str | None = None, cache: str = CLEAN
) -> Prediction:
    """The prediction of ``w`` with ``tile``, by ``implementation`` or the best-known kernel.

    ``device``: the profile itself, even if the question gave another SRAM. UnavailableError for a given tile without an ``implementation``
    that runs it.
    """
    launch = {"br": int(tile.br), "bc": int(tile.bc)} if implementation and tile.origin == GIVEN else {}
    if implementation is None:
        check_tile(tile, default_tile(w, device))
    case = Case(w, implementation or "", cache=cache, launch=launch)
    return select_kernel(TimeRequest(case, "matmul", w.dtype.name, device, lower_s, fallbacks))


def check_tile(tile: Tile, timed: Tile | None) -> None:
    """UnavailableError for a tile other than the ``timed`` one, that of the device's kernels, as no kernel with it was timed."""
    if timed is not None and (tile.br, tile.bc) != (timed.br, timed.bc):
        raise UnavailableError(f"no kernel with a tile of {tile.br} x {tile.bc} was timed; those that were have their own")


# Every result of an attention comparison

Predictions = dict[tuple[str, str], Prediction]
"""Predictions by (algorithm, pass); unpredicted ones are absent."""


def answered(
    comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices, cache: str = CLEAN
) -> tuple[Comparison, Predictions, list[str]]:
    """``comparison`` as ``implementation`` runs its algorithm, the predictions, and notes on both.

    ``cache``: state of the L2 as in ``cache_state.py``. UsageError if ``implementation`` is calibrated nowhere or runs none of the
    algorithms.
    """
    if implementation is None:
        return comparison, *predictions(comparison, None, fallbacks, cache)
    from perfmodel.timing.launched import implementation_kernels

    check_compared(implementation, [result.algorithm.name for result in comparison.results])
    predicted, missing = predictions(comparison, implementation, fallbacks, cache)
    launched, notes = implementation_kernels(comparison, implementation, fallbacks)
    return launched, predicted, [*missing, *notes]


def check_compared(implementation: str, algorithms: Iterable[str]) -> None:
    """UsageError if ``implementation`` runs none of the ``algorithms`` that are compared."""
    algorithm = algorithm_of(implementation)
    if implementation in models_of() and algorithm not in algorithms:
        raise UsageError(f"--implementation {implementation} runs {algorithm}, which is not compared", f"add --algorithm {algorithm}")


def predictions(
    comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices, cache: str = CLEAN
) -> tuple[Predictions, list[str]]:
    """Predictions of the results that have one, and sentences on why the others have none.

    ``implementation`` predicts its own algorithm; ``select_kernel`` chooses for the others. UsageError if ``implementation`` is calibrated
    nowhere.
    """
    predicted: Predictions = {}
    reasons: list[str] = []
    if implementation is not None:
        check_implementation(implementation, "attention", comparison.device, fallbacks)
        algorithm = algorithm_of(implementation)
        if all(algorithm != result.algorithm.name for result in comparison.results):
            reasons.append(f"{implementation} runs {algorithm}, which is not compared: add --algorithm {algorithm}.")
    for result in comparison.results:
        name = result.algorithm.name
        passes = [predicted.get((name, part.direction)) for part in result.passes]
        if None in passes:
            continue
        try:
            if passes:
                prediction = added([part for part in passes if part is not None])
            else:
                prediction = _predict(comparison, result, implementation, fallbacks, cache)
            predicted[name, result.direction] = prediction
        except PerfmodelError as error:
            reasons.append(f"{name} {result.direction} is not predicted: {error.message}.")
    return predicted, list(dict.fromkeys(reasons))


def _predict(
    comparison: Comparison, result: AttentionResult, implementation: str | None, fallbacks: FallbackDevices, cache: str
) -> Prediction:
    """The prediction of one pass of one algorithm, by ``implementation`` if it runs this algorithm."""
    w, algorithm, tile = comparison.workload, result.algorithm.name, result.tile
    name = implementation if implementation is not None and algorithm_of(implementation) == algorithm else ""
    launch = {"br": int(tile.br), "bc": int(tile.bc)} if tile and name and comparison.tile_given else {}
    if tile is not None and not name:
        from perfmodel.kernels.attention.evaluate import evaluate, sram_bytes_for

        sram_bytes = sram_bytes_for([result.algorithm], comparison.device)
        if comparison.tile_given or comparison.sram_bytes != sram_bytes:
            check_tile(tile, evaluate(result.algorithm, w, comparison.device, result.direction, sram_bytes).tile)
    case, lower_s = Case(w, name, result.direction, cache, launch=launch), lower_in(result.total, cache)
    request = TimeRequest(case, "attention", w.dtype.name, comparison.device, lower_s, fallbacks)
    return select_kernel(request, lambda other: algorithm_of(other) == algorithm)
