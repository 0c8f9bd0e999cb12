"""The prediction to show beside a bound: by the implementation that was asked for, or the best-known one of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from perfmodel.core.architectures import are_kin, traits_of
from perfmodel.core.errors import PerfmodelError, UnavailableError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_time
from perfmodel.timing.base import CLEAN, LENT_PRODUCTS, SAME_KERNEL, Case, algorithm_of, is_fused, models_of
from perfmodel.timing.predict import ENOUGH_TO_LEND, FallbackDevices, Prediction, TimeRequest, added, lower_in, predict

if TYPE_CHECKING:
    from perfmodel.kernels.attention.evaluate import AttentionResult
    from perfmodel.kernels.attention.request import Comparison

OWN = ("numba-", "cpu-")
"""Implementations of this package: they are witnesses, not what people run."""
PUBLISHED = ("cudnn-published", "triton-attention")
"""Models of kernels known from published tables alone: predicted when named, and on the architecture of which they
have ``ENOUGH_TO_LEND`` points."""
EVERYWHERE, SDPA = "torch-", "torch-sdpa"
"""PyTorch's operations run on devices of every maker, by kernels of each; but for its attention kernels, which are CUDA's."""
ALONE_LIBRARY = "cublas"
"""cuBLAS timed by itself: where PyTorch's calls of it are calibrated too, they are what people run, in ``matmul`` as in a model."""
NAMED = (*(SAME_KERNEL.keys() - {"cudnn-attention"}), "fa1", "megatron", "aiter-4warps", "hipkittens-4warps", "hipkittens-8warps")
NAMED += ("cudnn-attention-deterministic",)
"""Predicted when named: further names of a kernel, options of one, and kernels that were replaced."""


def check_implementation(name: str, workload: str, device: Device, fallbacks: FallbackDevices) -> None:
    """UsageError if no calibration of ``workload``, here or on a device to borrow from, is called ``name``."""
    calibrated = {block.implementation for one in (device, *fallbacks()) for block in one.calibration if block.workload == workload}
    aliases = SAME_KERNEL | LENT_PRODUCTS if workload == "matmul" else SAME_KERNEL
    known = sorted(calibrated | {alias for alias, kernel in aliases.items() if kernel in calibrated})
    if name not in known:
        raise UsageError(f"--implementation: none is called {name!r}", suggest(name, known))


def select_kernel(request: TimeRequest, suits: Callable[[str], bool] = lambda name: True, guesses: bool = True) -> Prediction:
    """The prediction by the implementation of ``request.case``; if that is empty, by the best-known one of those that ``suits`` takes.

    Of kernels calibrated on the device the fastest is taken, of borrowed ones the most certain: lent by a device that multiplies alike,
    then with the narrowest interval. One that a device lends which multiplies alike comes before the calibrated ones if the slow end of its
    interval is below the fast end of theirs, as cuDNN's before FlashAttention-2's on Blackwell. Without any of them the pooled
    prediction, if ``guesses`` are wanted. UnavailableError says why there is none.
    """
    if request.case.implementation:
        if not suits(request.case.implementation):
            raise UnavailableError(f"{request.case.implementation} is another algorithm")
        return _named(request)
    own = [_by(name, request) for name in filter(suits, _libraries(request, [request.device]))]
    calibrated = _predicted(one for one in own if one.calibrations(one.device))
    here = min(calibrated, key=lambda one: (one.calibration.implementation == ALONE_LIBRARY, one.seconds), default=None)
    if here is not None and not is_fused(here.calibration.implementation):
        return here  # standard attention is PyTorch's products and softmax, by whatever name it was timed
    others = [one for one in request.fallbacks() if here is None or _multiply_alike(one, request.device)]
    asked = [replace(_by(name, request), fallbacks=lambda: others) for name in filter(suits, _libraries(request, others))]
    borrowed = [
        one for one in _predicted(asked) if here is None or (one.high < here.low and one.calibration.implementation != ALONE_LIBRARY)
    ]
    if borrowed:
        best = min(borrowed, key=lambda one: (_doubts(one, request.device), one.seconds))
        return best if here is None else _instead(best, here)
    if here is None and guesses:
        here = _without_kin(asked, others)
    if here is None:
        raise UnavailableError(f"no implementation of {request.kind} in {request.dtype} is calibrated that covers this")
    return here


def _predicted(requests: Iterable[TimeRequest]) -> list[Prediction]:
    """Predictions of those of ``requests`` that have one."""
    found = []
    for one in requests:
        with suppress(PerfmodelError):
            found.append(predict(one))
    return found


def _instead(borrowed: Prediction, calibrated: Prediction) -> Prediction:
    """``borrowed``, which says that it is shown instead of the slower ``calibrated``."""
    name, slower = borrowed.calibration.implementation, calibrated.calibration.implementation
    takes = format_time(calibrated.seconds, 3)
    words = f"predicted for {name}, which is borrowed; {slower}, which is calibrated here, takes {takes}"
    return replace(borrowed, provenance=f"{borrowed.provenance}; {words}", guess="; ".join(filter(None, [borrowed.guess, words])))


def _doubts(borrowed: Prediction, device: Device) -> tuple[bool, float]:
    """What speaks against a kernel: a lender that multiplies by another instruction, then how far above its time the interval ends."""
    return not _multiply_alike(borrowed.lender or device, device), borrowed.certain[1]


def _multiply_alike(device: Device, other: Device) -> bool:
    """Whether both reach their peak by the same matrix instruction."""
    return traits_of(device).matrix == traits_of(other).matrix


def _named(request: TimeRequest) -> Prediction:
    """The prediction of the kernel that is named; of an operation of PyTorch the pooled one, where no kin has it calibrated."""
    name, others = request.case.implementation, [one for one in request.fallbacks() if are_kin(request.device, one)]
    known = any(block.implementation == name for one in (request.device, *others) for block in one.calibration)
    if known or not name.startswith(EVERYWHERE) or name.startswith(SDPA):
        return predict(request)
    if request.kind == "attention":  # of kernels that are predicted one by one
        with suppress(UnavailableError):
            return predict(request)
    return _without_kin([request], list(request.fallbacks())) or predict(request)


def _without_kin(asked: Iterable[TimeRequest], others: list[Device]) -> Prediction | None:
    """The pooled prediction for the first of ``asked`` that any of ``others`` is calibrated for; None if none is."""
    for one in asked:
        if any(map(one.calibrations, others)):
            from perfmodel.timing.pooled import pooled

            return pooled(one, one.case.implementation)
    return None


def _by(implementation: str, request: TimeRequest) -> TimeRequest:
    return replace(request, case=replace(request.case, implementation=implementation))


def _libraries(request: TimeRequest, devices: Iterable[Device]) -> list[str]:
    """Implementations that some of ``devices`` has a calibration of, as people run them."""
    wanted, architecture = (request.kind, request.case.direction), request.device.architecture
    known = {
        block.implementation
        for device in devices
        for block in device.calibration
        if (block.workload, block.direction) == wanted
        and (block.model not in PUBLISHED or (block.points >= ENOUGH_TO_LEND and device.architecture == architecture))
    }
    return [name for name in sorted(known) if not name.startswith(OWN) and name not in NAMED]


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
    found: Predictions = {}
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
                found[name, result.direction] = added([found[name, part.direction] for part in result.passes])
            else:
                found[name, result.direction] = _one(comparison, result, implementation, fallbacks, cache)
        except KeyError:
            continue
        except PerfmodelError as error:
            missing[f"{name} {result.direction} is not predicted: {error.message}."] = None
    return found, list(missing)


def answered(
    comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices, cache: str = CLEAN
) -> tuple[Comparison, Predictions, list[str]]:
    """``comparison`` as ``implementation`` runs its algorithm, the predictions, and what the reader should know of both.

    ``cache``: what the L2 holds, a state of ``cache_state.py``.

    UsageError if no calibration is of ``implementation``, or it runs none of the algorithms.
    """
    if implementation is None:
        return comparison, *predictions(comparison, None, fallbacks, cache)
    from perfmodel.timing.launched import as_launched

    check_compared(implementation, [result.algorithm.name for result in comparison.results])
    known, missing = predictions(comparison, implementation, fallbacks, cache)
    launched, notes = as_launched(comparison, implementation, fallbacks)
    return launched, known, [*missing, *notes]


def _one(comparison: Comparison, result: AttentionResult, implementation: str | None, fallbacks: FallbackDevices, cache: str) -> Prediction:
    w, runs = comparison.workload, result.algorithm.name
    named = implementation if implementation is not None and algorithm_of(implementation) == runs else ""
    case, lower_s = Case(w, named, result.direction, cache), lower_in(result.total, cache)
    request = TimeRequest(case, "attention", w.dtype.name, comparison.device, lower_s, fallbacks)
    return select_kernel(request, lambda name: algorithm_of(name) == runs)
