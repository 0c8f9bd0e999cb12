"""Predictions for every result of an attention comparison."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.kernels.attention.evaluate import BOTH, Result
from perfmodel.kernels.attention.request import Comparison
from perfmodel.timing.base import models_of
from perfmodel.timing.offer import algorithm_of, check_implementation, offer
from perfmodel.timing.predict import Lenders, Prediction, added

Predictions = dict[tuple[str, str], Prediction]
"""By algorithm and pass; what is not predicted is absent."""


def check_compared(implementation: str, algorithms: Iterable[str]) -> None:
    """UsageError if ``implementation`` runs none of the ``algorithms`` that are compared."""
    runs = algorithm_of(implementation)
    if implementation in models_of() and runs not in algorithms:
        raise UsageError(f"--implementation {implementation} runs {runs}, which is not compared", f"add --algorithm {runs}")


def predictions(comparison: Comparison, implementation: str | None, lenders: Lenders) -> tuple[Predictions, list[str]]:
    """Predictions of the results that have one, and why the others have none, in words.

    ``implementation`` is the kernel of its algorithm; others are predicted for the one that ``offer`` takes.
    UsageError if no calibration anywhere is of ``implementation``.
    """
    if implementation is not None:
        check_implementation(implementation, "attention", comparison.device, lenders)
    found: Predictions = {}
    missing: dict[str, None] = {}
    if implementation is not None and all(algorithm_of(implementation) != result.algorithm.name for result in comparison.results):
        runs = algorithm_of(implementation)
        missing[f"{implementation} runs {runs}, which is not compared: add --algorithm {runs}."] = None
    for result in comparison.results:
        key = (result.algorithm.name, result.direction)
        try:
            if result.direction == BOTH:
                parts = [found[result.algorithm.name, part.direction] for part in result.passes]
                found[key] = added(parts)
            else:
                found[key] = _one(comparison, result, implementation, lenders)
        except KeyError:
            continue
        except PerfmodelError as error:
            missing[f"{result.algorithm.name} {result.direction} is not predicted: {error.message}."] = None
    return found, list(missing)


def answered(comparison: Comparison, implementation: str | None, lenders: Lenders) -> tuple[Comparison, Predictions, list[str]]:
    """``comparison`` as ``implementation`` runs its algorithm, the predictions, and what the reader should know of both.

    UsageError if no calibration is of ``implementation``, or it runs none of the algorithms.
    """
    if implementation is None:
        return comparison, *predictions(comparison, None, lenders)
    from perfmodel.timing.launched import as_launched

    check_compared(implementation, [result.algorithm.name for result in comparison.results])
    known, missing = predictions(comparison, implementation, lenders)
    launched, notes = as_launched(comparison, implementation, lenders)
    return launched, known, [*missing, *notes]


def _one(comparison: Comparison, result: Result, implementation: str | None, lenders: Lenders) -> Prediction:
    w, name = comparison.workload, result.algorithm.name

    def suits(known: str) -> bool:
        return algorithm_of(known) == name

    named = implementation if implementation is not None and suits(implementation) else None
    return offer("attention", w.dtype.name, w, result.direction, comparison.device, float(result.total.lower_s), named, suits, lenders)
