"""Matrix multiplication: tiles, traffic, waves, bound, roof, time."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, as_in
from perfmodel.kernels.question import MatmulQuestion


@dataclass(frozen=True, slots=True)
class MatmulRun(MatmulQuestion):
    """A matmul and the kernel that runs it."""

    implementation: str | None = as_in(Common, "implementation")
    cache: str = as_in(Common, "cache")
    power_limit: str | None = as_in(Common, "power_limit")
    clock: str | None = as_in(Common, "clock")
    measured: str | None = as_in(Common, "measured")


@command
def matmul(options: MatmulRun, to: ExplainedPicture) -> None:
    """Matrix multiplication: FLOP, tiled traffic, waves, roofline, predicted time and the IO lower bound.

    C [m, n] = A [m, k] B [k, n], tile by tile. Example: perfmodel matmul -m 8192 -n 128 -k 8192
    """
    from perfmodel.catalog import calibrated_devices
    from perfmodel.core.checks import measured_s
    from perfmodel.kernels.matmul import evaluate, scale_block
    from perfmodel.report.matmul import report
    from perfmodel.timing.base import check_state_read, state_named
    from perfmodel.timing.launched import as_predicted
    from perfmodel.timing.power import product_with_power
    from perfmodel.timing.predict import lower_in
    from perfmodel.timing.select_kernel import check_implementation, select_product

    plain_device = device_for(options.hardware)  # prices the kernel: no kernel was timed with the SRAM of --sram
    device = options.on(plain_device)  # counts tiles and traffic
    w = options.workload(device)
    w = replace(w, scale_block=scale_block(options.implementation or "", w.dtype.name))
    result = evaluate(w, device, options.tile_m, options.tile_n)
    if options.implementation is not None:
        check_implementation(options.implementation, "matmul", device, calibrated_devices)
    state = state_named(options.cache)
    lower, prediction, missing = lower_in(result.total, state), None, ""
    try:
        prediction = select_product(w, result.tile, plain_device, lower, calibrated_devices, options.implementation, state)
        if options.implementation and not options.sram:  # counts in the tile of the kernel that is named, unless an SRAM sets the tile
            result = as_predicted(result, prediction)
    except UnavailableError as error:
        missing = f"No time is predicted: {error.message}."
    check_state_read(state, prediction is not None)
    prediction = product_with_power(result, prediction, options.power_limit, options.clock)
    measured = measured_s(options.measured)
    to.emit(report(result, prediction=prediction, unpredicted=missing, explained=to.explained, pictures=to.pictures, measured_s=measured))
