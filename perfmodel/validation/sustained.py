"""Predictions of sustained runs: calls repeated for seconds, where a power limit lowers the clock."""

from __future__ import annotations

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.power import SUSTAINED, PowerOptions, PowerState
from perfmodel.timing.base import Case
from perfmodel.timing.power import behind_itself, case_activity, scaled, state_of
from perfmodel.timing.predict import Prediction
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.estimate import ModelStep
from perfmodel.transformer.step_power import of_row
from perfmodel.validation.records import Record


def sustained_prediction(prediction: Prediction, case: Case, record: Record, device: Device, fallbacks: FallbackDevices) -> Prediction:
    """``prediction``, for one run alone, scaled to sustained runs; UnavailableError without a power model."""
    state = sustained_state(prediction.seconds, case, record, device, fallbacks)
    if state is None:
        PowerOptions(clock=SUSTAINED).check(device)
        raise UnavailableError(f"no power model of {record.group}")
    return scaled(prediction, state.sustained_s / prediction.seconds)._replace(power=state)


def sustained_state(seconds: float, case: Case, record: Record, device: Device, fallbacks: FallbackDevices) -> PowerState | None:
    """Clock, watts and joules of sustained calls that take ``seconds`` alone; None without a power model.

    The launch of a kernel hides behind the call before. The kernels of a step keep their predicted shares of its time.
    """
    if isinstance(case.workload, ModelStep):
        step = case.workload.on(device, fallbacks)
        works = [of_row(row, device, seconds / step.seconds) for row in step.rows if row.seconds > 0]
        return state_of(works, device, PowerOptions(), SUSTAINED)
    try:
        call_s = behind_itself(case, record.workload, seconds)
        return state_of([case_activity(case, record.workload, record.dtype, device, call_s)], device, PowerOptions(), SUSTAINED)
    except UnavailableError:
        return None
