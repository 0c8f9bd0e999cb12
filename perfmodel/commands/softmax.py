"""Softmax in three ways (safe, online, fused)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Condition, as_in, option
from perfmodel.kernels.question import SoftmaxQuestion

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.kernels.softmax import Softmax, SoftmaxResult
    from perfmodel.timing.predict import Prediction

STORED = Condition("is of a softmax that stores its output", "leave out --no-store", lambda options: options.store)
_PREDICTED = Condition(
    "is of a kernel that is predicted", "name one with --implementation", lambda options: options.implementation is not None
)
LIBRARY = "torch-softmax"
"""Kernel with which a measured time is compared by default."""


@dataclass(frozen=True, slots=True)
class SoftmaxRun(SoftmaxQuestion):
    """A softmax and the kernel that runs it."""

    implementation: str | None = option("Kernel to predict as well, such as torch-softmax or one of your own.", reader=STORED)
    cache: str = as_in(Common, "cache", reader=_PREDICTED)
    measured: str | None = as_in(Common, "measured")


@command
def softmax(options: SoftmaxRun, to: ExplainedPicture) -> None:
    """Softmax in three ways (safe, online, fused): reads per element, bytes, roofline.

    Example: perfmodel softmax --rows 4096 --cols 32768
    """
    from perfmodel.core.checks import measured_s
    from perfmodel.kernels.softmax import evaluate
    from perfmodel.report.softmax import report

    device = device_for(options.hardware)
    w = options.workload(device)
    results = evaluate(w, device)
    prediction = None if options.implementation is None else _predicted(w, results[-1], options.implementation, device, options.cache)
    measured = measured_s(options.measured)
    if measured is not None and prediction is None:
        with suppress(UnavailableError):
            prediction = _predicted(w, results[-1], LIBRARY, device, options.cache)
    to.emit(report(w, device, results, prediction=prediction, explained=to.explained, pictures=to.pictures, measured_s=measured))


def _predicted(w: Softmax, fused: SoftmaxResult, implementation: str, device: Device, cache: str) -> Prediction:
    """Predicted time of ``w``, at least the bound of ``fused``; UsageError for an unknown name, UnavailableError without a calibration."""
    from perfmodel.catalog import calibrated_devices
    from perfmodel.core.workload import FORWARD, Stream
    from perfmodel.timing.base import Case, state_named
    from perfmodel.timing.predict import TimeRequest, lower_in
    from perfmodel.timing.select_kernel import check_implementation, select_kernel

    check_implementation(implementation, "softmax", device, calibrated_devices)
    case = Case(Stream("softmax", w.rows, w.columns, dtype=w.dtype), implementation, FORWARD, state_named(cache))
    return select_kernel(TimeRequest(case, "softmax", w.dtype.name, device, lower_in(fused.cost, case.cache), calibrated_devices))
