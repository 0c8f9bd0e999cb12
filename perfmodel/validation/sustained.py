"""Records of sustained runs beside the model: time, clock, watts and joules, all predicted or from the measured time alone."""

from __future__ import annotations

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.power import SUSTAINED, PowerOptions, PowerState
from perfmodel.timing.base import Case
from perfmodel.timing.power import behind_itself, of_case, scaled, state_of
from perfmodel.timing.predict import Prediction
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.estimate import ModelStep
from perfmodel.transformer.step_power import of_row
from perfmodel.validation.records import Record

SUSTAINED_CLOCK, USUAL = PowerOptions(clock=SUSTAINED), PowerOptions()


def for_seconds(prediction: Prediction, case: Case, record: Record, device: Device, fallbacks: FallbackDevices) -> Prediction:
    """``prediction``, for one run alone, scaled to sustained runs; UnavailableError without a power model."""
    state = state_at(prediction.seconds, case, record, device, fallbacks)
    if state is None:
        SUSTAINED_CLOCK.check(device)
        raise UnavailableError(f"no power model of {record.group}")
    return scaled(prediction, state.sustained_s / prediction.seconds)._replace(power=state)


def state_at(seconds: float, case: Case, record: Record, device: Device, fallbacks: FallbackDevices) -> PowerState | None:
    """Power state of sustained calls that take ``seconds`` alone; None without a power model.

    A kernel's launch hides behind the run before. Rows of a step keep their predicted shares of its time.
    """
    if not isinstance(case.workload, ModelStep):
        try:
            follows = behind_itself(case, record.workload, seconds)
            return state_of([of_case(case, record.workload, record.dtype, device, follows)], device, USUAL, SUSTAINED)
        except UnavailableError:
            return None
    rows = case.workload.on(device, fallbacks)
    return state_of([of_row(row, device, seconds / rows.seconds) for row in rows.rows if row.seconds > 0], device, USUAL, SUSTAINED)
