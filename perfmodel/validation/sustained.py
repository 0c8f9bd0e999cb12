"""Records that ran for seconds beside the model: their time, clock, watts and joules, all predicted, or from the time alone as measured."""

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

FOR_SECONDS, USUAL = PowerOptions(clock=SUSTAINED), PowerOptions()


def for_seconds(prediction: Prediction, case: Case, record: Record, device: Device, fallbacks: FallbackDevices) -> Prediction:
    """``prediction``, of one run alone, as that of runs back to back for seconds. UnavailableError without a power model of them."""
    state = state_at(prediction.seconds, case, record, device, fallbacks)
    if state is None:
        FOR_SECONDS.check(device)
        raise UnavailableError(f"no power model of {record.group}")
    return scaled(prediction, state.sustained_s / prediction.seconds)._replace(power=state)


def state_at(seconds: float, case: Case, record: Record, device: Device, fallbacks: FallbackDevices) -> PowerState | None:
    """State of a call that takes ``seconds`` alone, as it runs for seconds; None without a power model of it.

    A kernel's launch hides behind the run before. Rows of a step keep the shares of its time that they are predicted to have.
    """
    if not isinstance(case.workload, ModelStep):
        try:
            follows = behind_itself(case, record.workload, seconds)
            return state_of([of_case(case, record.workload, record.dtype, device, follows)], device, USUAL, SUSTAINED)
        except UnavailableError:
            return None
    rows = case.workload.on(device, fallbacks)
    return state_of([of_row(row, device, seconds / rows.seconds) for row in rows.rows if row.seconds > 0], device, USUAL, SUSTAINED)
