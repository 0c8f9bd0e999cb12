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
from perfmodel.timing.implementations import algorithm_of, calibrated_as, find, is_fused, listed
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
"""PyTorch's operations run on devices of every maker, by kernels of each; but for its attention kernels, which are CUDA's."""
ALONE_LIBRARY = "cublas"
"""cuBLAS timed by itself: where PyTorch's calls of it are calibrated too, they are what people run, in ``matmul`` as in a model."""


def check_implementation(name: str, workload: str, device: Device, fallbacks: FallbackDevices) -> None:
    """UsageError if no calibration of ``workload``, here or on a device to borrow from, is called ``name``."""
    calibrated = {block.implementation for one in (device, *fallbacks()) for block in one.calibration if block.workload == workload}
    known = sorted(calibrated | {alias for alias in listed() if not calibrated.isdisjoint(calibrated_as(alias))})
    if name not in known:
        raise UsageError(f"--implementation: none is called {name!r}", suggest(name, known))


def select_kernel(request: TimeRequest, suits: Callable[[str], bool] = lambda name: True, guesses: bool = True) -> Prediction:
    """The prediction by the implementation of ``request.case``; if that is empty, by the best-known one of those that ``suits`` takes.

    Of kernels calibrated on the device, else on the same board by another name, the fastest is taken, of other borrowed ones the most
    certain: of a device that multiplies alike, then with the narrowest interval. One of a device that multiplies alike comes
    before the calibrated ones if the slow end of its interval is below the fast end of theirs, as cuDNN's before FlashAttention-2's on
    Blackwell. Without any of them the pooled prediction, if ``guesses`` are wanted. What the L2 holds before chooses no other kernel.
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
    here = _calibrated(request, suits, [request.device])
    if here is None:
        here = _calibrated(request, suits, [one for one in request.fallbacks() if same_board(request.device, one)])
    if here is not None and not is_fused(here.calibration.implementation):
        return here  # standard attention is PyTorch's products and softmax, by whatever name it was timed
    others = [one for one in request.fallbacks() if here is None or _multiply_alike(one, request.device)]
    asked = [_by(name, request)._replace(fallbacks=lambda: others) for name in filter(suits, _libraries(request, others))]
    borrowed = [
        one for one in _predicted(asked) if here is None or (one.high < here.low and one.calibration.implementation != ALONE_LIBRARY)
    ]
    if borrowed:
        best = min(borrowed, key=lambda one: (_doubts(one, request.device), one.seconds))
        return best if here is None else _instead(best, here)
    if here is None and guesses:
        here = _first_pooled(asked, others)
    if here is None:
        raise UnavailableError(f"no implementation of {request.kind} in {request.dtype} is calibrated that covers this")
    return here


def _calibrated(request: TimeRequest, suits: Callable[[str], bool], home: list[Device]) -> Prediction | None:
    """The prediction by the fastest kernel that a device of ``home`` has a calibration of, cuBLAS by itself last; None without any."""
    asked = [_by(name, request) for name in filter(suits, _libraries(request, home))]
    predicted = _predicted(one for one in asked if any(map(one.calibrations, home)))
    return min(predicted, key=lambda one: (one.calibration.implementation == ALONE_LIBRARY, one.seconds), default=None)


def _in_state(chosen: Prediction, request: TimeRequest) -> Prediction:
    """The prediction of the kernel ``chosen`` with the L2 in the state that ``request`` names."""
    asked, others = _by(chosen.calibration.implementation, request), request.fallbacks()
    prediction = predict(asked)
    if prediction.reference is not chosen.reference:  # the nearest of those that multiply alike
        prediction = predict(asked._replace(fallbacks=lambda: [one for one in others if _multiply_alike(one, request.device)]))
    return prediction._replace(provenance=chosen.provenance, guess=chosen.guess)


def _predicted(requests: Iterable[TimeRequest]) -> list[Prediction]:
    """Predictions of those of ``requests`` that have one."""
    results = []
    for one in requests:
        with suppress(PerfmodelError):
            results.append(predict(one))
    return results


def _instead(borrowed: Prediction, calibrated: Prediction) -> Prediction:
    """``borrowed``, which says that it is shown instead of the slower ``calibrated``."""
    name, slower = borrowed.calibration.implementation, calibrated.calibration.implementation
    takes = format_time(calibrated.seconds, 3)
    words = f"predicted for {name}, which is borrowed; {slower}, which is calibrated here, takes {takes}"
    return borrowed._replace(provenance=f"{borrowed.provenance}; {words}", guess="; ".join(filter(None, [borrowed.guess, words])))


def _doubts(borrowed: Prediction, device: Device) -> tuple[bool, float]:
    """Sort key of what speaks against a kernel: a device that multiplies by another instruction, then how far up its interval ends."""
    return not _multiply_alike(borrowed.reference or device, device), borrowed.unwidened[1]


def _multiply_alike(device: Device, other: Device) -> bool:
    """Whether both reach their peak by the same matrix instruction."""
    return traits_of(device).matrix == traits_of(other).matrix


def _named(request: TimeRequest) -> Prediction:
    """The prediction of the kernel that is named; the pooled one for an operation of PyTorch that no such device has calibrated."""
    name, others = request.case.implementation, [one for one in request.fallbacks() if transferable(request.device, one)]
    is_calibrated = any(block.implementation == name for one in (request.device, *others) for block in one.calibration)
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


def _by(implementation: str, request: TimeRequest) -> TimeRequest:
    return request._replace(case=replace(request.case, implementation=implementation))


def _libraries(request: TimeRequest, devices: Iterable[Device]) -> list[str]:
    """Implementations that some of ``devices`` has a calibration of, as people run them."""
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

    UnavailableError for a tile that somebody gave, where no kernel is named that runs it.
    """
    given = {"br": int(tile.br), "bc": int(tile.bc)} if implementation and tile.origin == GIVEN else {}
    if implementation is None:
        check_tile(tile, default_tile(w, device))
    case = Case(w, implementation or "", cache=cache, launch=given)
    return select_kernel(TimeRequest(case, "matmul", w.dtype.name, device, lower_s, fallbacks))


def check_tile(tile: Tile, own: Tile | None) -> None:
    """UnavailableError for a tile that a device's own SRAM and kernels do not give: no kernel with it was timed."""
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
    """Predictions of the results that have one, and why the others have none, in words.

    ``implementation`` is the kernel of its algorithm; others are predicted for the one that ``select_kernel`` takes.
    UsageError if no calibration anywhere is of ``implementation``.
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
                predicted[name, result.direction] = _one(comparison, result, implementation, fallbacks, cache)
        except KeyError:
            continue
        except PerfmodelError as error:
            missing[f"{name} {result.direction} is not predicted: {error.message}."] = None
    return predicted, list(missing)


def answered(
    comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices, cache: str = CLEAN
) -> tuple[Comparison, Predictions, list[str]]:
    """``comparison`` as ``implementation`` runs its algorithm, the predictions, and what the reader should know of both.

    ``cache``: what the L2 holds, a state of ``cache_state.py``.

    UsageError if no calibration is of ``implementation``, or it runs none of the algorithms.
    """
    if implementation is None:
        return comparison, *predictions(comparison, None, fallbacks, cache)
    from perfmodel.timing.launched import implementation_kernels

    check_compared(implementation, [result.algorithm.name for result in comparison.results])
    predicted, missing = predictions(comparison, implementation, fallbacks, cache)
    launched, notes = implementation_kernels(comparison, implementation, fallbacks)
    return launched, predicted, [*missing, *notes]


def _one(comparison: Comparison, result: AttentionResult, implementation: str | None, fallbacks: FallbackDevices, cache: str) -> Prediction:
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
