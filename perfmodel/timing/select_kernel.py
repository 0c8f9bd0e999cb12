"""The prediction to show beside a bound: by the implementation that was asked for, or the best-known one of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
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

OWN = ("numba-", "cpu-")
"""Implementations of this package: they are witnesses, not what people run."""
EVERYWHERE, SDPA = "torch-", "torch-sdpa"
"""Names of PyTorch's operations, which run on devices of every maker, and of its attention kernels, which are CUDA's."""
ALONE_LIBRARY = "cublas"
"""cuBLAS timed by itself. Where PyTorch's calls of it are calibrated too, those are preferred, as people run them."""


def check_implementation(
    name: str, workload: str, device: Device, fallbacks: FallbackDevices, suits: Callable[[str], bool] = lambda name: True
) -> None:
    """UsageError if no calibration of ``workload``, here or on a device to borrow from, is called ``name`` and ``suits``."""
    known = sorted(filter(suits, implementations((device, *fallbacks())).get(workload, ())))
    if name not in known:
        raise UsageError(f"--implementation: none is called {name!r}", suggest(name, known))


def check_attention(name: str, device: Device, fallbacks: FallbackDevices) -> None:
    """UsageError if ``name`` is no calibrated implementation of fused attention, the one that steps of models run."""
    check_implementation(name, "attention", device, fallbacks, is_fused)


def select_kernel(request: TimeRequest, suits: Callable[[str], bool] = lambda name: True, guesses: bool = True) -> Prediction:
    """The prediction by the implementation of ``request.case``; if that is empty, by the best-known one of those that ``suits`` takes.

    Among kernels calibrated on the device, or else on the same board under another name, the fastest is taken. Among borrowed ones the most
    certain is taken: from a device with the same matrix instruction, then with the narrowest interval. A kernel borrowed from such a device
    comes before calibrated ones if the slow end of its interval is below the fast end of theirs, as cuDNN's before FlashAttention-2's on
    Blackwell. Without any of them it is the pooled prediction, if ``guesses`` are wanted. The state of the L2 does not change the choice.
    UnavailableError says why there is none.
    """
    if request.case.implementation:
        if not suits(request.case.implementation):
            raise UnavailableError(f"{request.case.implementation} is another algorithm")
        return _named(request)
    if request.case.cache in (DIRTY, WARM):
        chosen = select_kernel(request._replace(case=replace(request.case, cache=CLEAN)), suits, guesses)
        if chosen.calibration.implementation in models_of():
            return _in_state(chosen, request)
    calibrated = _fastest_calibrated(request, suits, [request.device])
    if calibrated is None:
        calibrated = _fastest_calibrated(request, suits, [other for other in request.fallbacks() if same_board(request.device, other)])
    if calibrated is not None and not is_fused(calibrated.calibration.implementation):
        return calibrated  # standard attention is PyTorch's products and softmax, by whatever name it was timed
    others = [other for other in request.fallbacks() if calibrated is None or _multiply_alike(other, request.device)]
    requests = [_by_kernel(name, request)._replace(fallbacks=lambda: others) for name in filter(suits, _libraries(request, others))]
    borrowed = _predicted(requests)
    if calibrated is not None:
        surely_faster = [prediction for prediction in borrowed if prediction.high < calibrated.low]
        borrowed = [prediction for prediction in surely_faster if prediction.calibration.implementation != ALONE_LIBRARY]
    if borrowed:
        best = min(borrowed, key=lambda prediction: (_doubts(prediction, request.device), prediction.seconds))
        return best if calibrated is None else _shown_instead(best, calibrated)
    if calibrated is None and guesses:
        calibrated = _first_pooled(requests, others)
    if calibrated is None:
        raise UnavailableError(f"no implementation of {request.kind} in {request.dtype} is calibrated that covers this")
    return calibrated


def _fastest_calibrated(request: TimeRequest, suits: Callable[[str], bool], devices: list[Device]) -> Prediction | None:
    """The prediction by the fastest kernel calibrated on one of ``devices``, with cuBLAS by itself last; None if there is none."""
    requests = [_by_kernel(name, request) for name in filter(suits, _libraries(request, devices))]
    predicted = _predicted(named for named in requests if any(map(named.calibrations, devices)))
    return min(predicted, key=lambda prediction: (prediction.calibration.implementation == ALONE_LIBRARY, prediction.seconds), default=None)


def _in_state(chosen: Prediction, request: TimeRequest) -> Prediction:
    """The prediction of the kernel ``chosen`` in the L2 state of ``request``."""
    asked, others = _by_kernel(chosen.calibration.implementation, request), request.fallbacks()
    prediction = predict(asked)
    if prediction.reference is not chosen.reference:  # the nearest of those that multiply alike
        prediction = predict(asked._replace(fallbacks=lambda: [other for other in others if _multiply_alike(other, request.device)]))
    return prediction._replace(provenance=chosen.provenance, guess=chosen.guess)


def _predicted(requests: Iterable[TimeRequest]) -> list[Prediction]:
    """Predictions of those of ``requests`` that have one."""
    results = []
    for request in requests:
        with suppress(PerfmodelError):
            results.append(predict(request))
    return results


def _shown_instead(borrowed: Prediction, calibrated: Prediction) -> Prediction:
    """``borrowed`` with a note that it is shown instead of the slower ``calibrated``."""
    name, slower = borrowed.calibration.implementation, calibrated.calibration.implementation
    takes = format_time(calibrated.seconds, 3)
    words = f"predicted for {name}, which is borrowed; {slower}, which is calibrated here, takes {takes}"
    return borrowed._replace(provenance=f"{borrowed.provenance}; {words}", guess="; ".join(filter(None, [borrowed.guess, words])))


def _doubts(borrowed: Prediction, device: Device) -> tuple[bool, float]:
    """Sort key of doubts about a borrowed kernel: another matrix instruction on its device, then the upper end of its interval."""
    return not _multiply_alike(borrowed.reference or device, device), borrowed.unwidened[1]


def _multiply_alike(device: Device, other: Device) -> bool:
    """Whether both reach their peak by the same matrix instruction."""
    return traits_of(device).matrix == traits_of(other).matrix


def _named(request: TimeRequest) -> Prediction:
    """The prediction of the named kernel; the pooled one for an operation of PyTorch that no suitable device has calibrated."""
    name, others = request.case.implementation, [other for other in request.fallbacks() if transferable(request.device, other)]
    is_calibrated = any(block.implementation == name for other in (request.device, *others) for block in other.calibration)
    if is_calibrated or not name.startswith(EVERYWHERE) or name.startswith(SDPA):
        return predict(request)
    with suppress(UnavailableError):  # attention of kernels that are predicted one by one, and products that another library stands in for
        return predict(request)
    return _first_pooled([request], list(request.fallbacks())) or predict(request)


def _first_pooled(asked: Iterable[TimeRequest], others: list[Device]) -> Prediction | None:
    """The pooled prediction for the first of ``asked`` that any of ``others`` is calibrated for; None if none is."""
    for request in asked:
        if any(map(request.calibrations, others)):
            from perfmodel.timing.models.pooled import pooled

            return pooled(request, request.case.implementation)
    return None


def _by_kernel(implementation: str, request: TimeRequest) -> TimeRequest:
    return request._replace(case=replace(request.case, implementation=implementation))


def _libraries(request: TimeRequest, devices: Iterable[Device]) -> list[str]:
    """Implementations that people run and that one of ``devices`` has a calibration of."""
    wanted, architecture = (request.kind, request.case.direction), request.device.architecture
    implementations = {
        block.implementation
        for device in devices
        for block in calibrations_of(device).get(wanted, ())
        if not find(block.implementation).published or (block.points >= ENOUGH_TO_TRANSFER and device.architecture == architecture)
    }
    return [name for name in sorted(implementations) if not name.startswith(OWN) and not find(name).named]


def select_product(
    w: Matmul, tile: Tile, device: Device, lower_s: float, fallbacks: FallbackDevices, implementation: str | None = None, cache: str = CLEAN
) -> Prediction:
    """The prediction of ``w`` with ``tile``, by ``implementation`` or the best-known kernel; ``device``: without a given SRAM.

    UnavailableError for a given tile without an ``implementation`` that runs it.
    """
    given = {"br": int(tile.br), "bc": int(tile.bc)} if implementation and tile.origin == GIVEN else {}
    if implementation is None:
        check_tile(tile, default_tile(w, device))
    case = Case(w, implementation or "", cache=cache, launch=given)
    return select_kernel(TimeRequest(case, "matmul", w.dtype.name, device, lower_s, fallbacks))


def check_tile(tile: Tile, own: Tile | None) -> None:
    """UnavailableError for a tile other than the device's ``own``, as no kernel with it was timed."""
    if own is not None and (tile.br, tile.bc) != (own.br, own.bc):
        raise UnavailableError(f"no kernel with a tile of {tile.br} x {tile.bc} was timed; those that were have their own")


# Every result of an attention comparison

Predictions = dict[tuple[str, str], Prediction]
"""Predictions by (algorithm, pass); unpredicted ones are absent."""


def check_compared(implementation: str, algorithms: Iterable[str]) -> None:
    """UsageError if ``implementation`` runs none of the ``algorithms`` that are compared."""
    runs = algorithm_of(implementation)
    if implementation in models_of() and runs not in algorithms:
        raise UsageError(f"--implementation {implementation} runs {runs}, which is not compared", f"add --algorithm {runs}")


def predictions(
    comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices, cache: str = CLEAN
) -> tuple[Predictions, list[str]]:
    """Predictions of the results that have one, and sentences on why the others have none.

    ``implementation`` predicts its own algorithm; ``select_kernel`` chooses for the others. UsageError if ``implementation`` is calibrated
    nowhere.
    """
    predicted: Predictions = {}
    missing: dict[str, None] = {}
    if implementation is not None:
        check_implementation(implementation, "attention", comparison.device, fallbacks)
        runs = algorithm_of(implementation)
        if all(runs != result.algorithm.name for result in comparison.results):
            missing[f"{implementation} runs {runs}, which is not compared: add --algorithm {runs}."] = None
    for result in comparison.results:
        name = result.algorithm.name
        try:
            if result.passes:
                predicted[name, result.direction] = added([predicted[name, part.direction] for part in result.passes])
            else:
                predicted[name, result.direction] = _predict(comparison, result, implementation, fallbacks, cache)
        except KeyError:
            continue
        except PerfmodelError as error:
            missing[f"{name} {result.direction} is not predicted: {error.message}."] = None
    return predicted, list(missing)


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


def _predict(
    comparison: Comparison, result: AttentionResult, implementation: str | None, fallbacks: FallbackDevices, cache: str
) -> Prediction:
    w, runs, tile = comparison.workload, result.algorithm.name, result.tile
    named = implementation if implementation is not None and algorithm_of(implementation) == runs else ""
    given = {"br": int(tile.br), "bc": int(tile.bc)} if tile and named and comparison.tile_given else {}
    if tile is not None and not named:
        from perfmodel.kernels.attention.evaluate import evaluate, sram_bytes_for

        sram_bytes = sram_bytes_for([result.algorithm], comparison.device)
        if comparison.tile_given or comparison.sram_bytes != sram_bytes:
            check_tile(tile, evaluate(result.algorithm, w, comparison.device, result.direction, sram_bytes).tile)
    case, lower_s = Case(w, named, result.direction, cache, launch=given), lower_in(result.total, cache)
    request = TimeRequest(case, "attention", w.dtype.name, comparison.device, lower_s, fallbacks)
    return select_kernel(request, lambda name: algorithm_of(name) == runs)
