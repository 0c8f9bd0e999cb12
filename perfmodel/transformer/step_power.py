"""Steps of a model that run for seconds: power of all rows together, the clock under the power limit, and each row's time at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.power import BURST, SUSTAINED, PowerOptions, PowerState
from perfmodel.timing import power
from perfmodel.timing.power import Activity
from perfmodel.transformer.estimate import PassEstimate, PassRow
from perfmodel.transformer.op import ATTENTION, COLLECTIVE, ELEMENTWISE, MATMUL
from perfmodel.transformer.op_time import in_compute_dtype

if TYPE_CHECKING:
    from perfmodel.transformer.training.step.estimate import TrainingEstimate

Pass = TypeVar("Pass", bound=PassEstimate)
KIND_OF_GROUP = {MATMUL: power.MATMUL, ATTENTION: power.DECODE, ELEMENTWISE: power.ELEMENTWISE, COLLECTIVE: power.IDLE}
"""Kinds of rows without a prediction, by group."""


def of_row(row: PassRow, device: Device, factor: float = 1.0) -> Activity:
    """Activity of all runs of a row, in ``factor`` times its seconds."""
    op, prediction = row.op, row.prediction
    timed = op.timed
    if timed is not None and timed.preferred is not None and prediction is not None and prediction.calibration.workload != timed.kind:
        timed = timed.preferred
    workload = timed.workload if timed is not None else None
    kind, implementation = KIND_OF_GROUP[op.group], ""
    if prediction is not None:
        block = prediction.calibration
        implementation = block.implementation
        kind = power.kind_of(block.workload, workload, block.implementation, block.direction)
    blocks = None if workload is None or prediction is None else power.blocks_of([op.kernel], kind, workload)
    dtype = in_compute_dtype(op, device).dtype.name
    runs, case = int(op.count), (workload, implementation)
    return power.activity(row.cost, factor * row.seconds, kind, dtype, device, case, blocks=blocks, runs=runs, calls=runs)


def under_power(estimate: Pass, options: PowerOptions) -> Pass:
    """``estimate`` at the clock of its headline, by default sustained; unchanged if the device has no power model.

    If the host is slower than the kernels, the device waits for it at static power, and average power sets the clock.
    """
    device, timed_rows = estimate.device, [row for row in estimate.rows if row.seconds > 0]
    host_s = 0.0 if estimate.host_s is None else estimate.host_s[0]
    state = power.state_of([of_row(row, device) for row in timed_rows], device, options, SUSTAINED, host_s)
    if state is None:
        return estimate
    slowdowns = {id(row): seconds / row.seconds for row, seconds in zip(timed_rows, state.shown.each, strict=True)}

    def at_clock(row: PassRow) -> PassRow:
        return replace(row, prediction=row.prediction and power.scaled(row.prediction, slowdowns.get(id(row), 1.0)))

    return replace(estimate, rows=[at_clock(row) for row in estimate.rows], power=state)


def slowdown(estimate: PassEstimate, options: PowerOptions, idle_s: float) -> float:
    """Seconds of the kernels of ``estimate`` under ``options`` over their seconds without, for steps with ``idle_s`` between them."""
    rows = [row for row in estimate.rows if row.seconds > 0]
    waits = [Activity((), power.IDLE, 0.0, idle_s, idle_s)] if idle_s > 0 else []
    state = power.state_of([*(of_row(row, estimate.device) for row in rows), *waits], estimate.device, options, SUSTAINED)
    if state is None:
        return 1.0
    kernels_s = sum(state.shown.each[: len(rows)])  # without the waits
    return kernels_s / sum(row.seconds for row in rows)


@dataclass(frozen=True, slots=True)
class StepPower:
    """Power of a run on ``gpus`` GPUs: ``steps`` and how often each runs. During ``waits_s`` each GPU draws ``static_w`` watts."""

    steps: Sequence[tuple[PowerState, int]]
    gpus: int
    waits_s: float = 0.0
    static_w: float = 0.0

    def _over_steps(self, value: Callable[[PowerState], float]) -> float:
        return sum(value(state) * times for state, times in self.steps)

    @property
    def burst_s(self) -> float:
        """Seconds with each kernel as fast as after a pause."""
        return self._over_steps(lambda state: state.burst_s) + self.waits_s

    @property
    def sustained_s(self) -> float:
        """Seconds at the sustained clock."""
        return self._over_steps(lambda state: state.sustained_s) + self.waits_s

    @property
    def joules(self) -> float:
        """Joules of all GPUs."""
        return self.gpus * (self._over_steps(lambda state: state.joules) + self.static_w * self.waits_s)

    @property
    def watts(self) -> float:
        """Mean watts of one GPU."""
        return self.joules / self.gpus / self.sustained_s

    @property
    def sm_hz(self) -> float:
        """Clock of the multiprocessors in Hz, the mean over the time of the kernels."""
        return self._over_steps(lambda state: state.sm_hz * state.sustained_s) / self._over_steps(lambda state: state.sustained_s)

    @property
    def limit_w(self) -> float:
        """Power limit of one GPU in watts."""
        return self.steps[0][0].limit_w

    @property
    def clock(self) -> str:
        """Name of the clock of the headline time."""
        return self.steps[0][0].clock


def training_power(estimate: TrainingEstimate, options: PowerOptions) -> StepPower | None:
    """Power of a training step; the headline stays that of measured steps, as GPUs wait or exchange between kernels.

    None if the device has no power model.
    """
    device, rows = estimate.device, [row for row in estimate.lines if row.seconds > 0]
    options.check(device)
    state = power.state_of([of_row(row, device) for row in rows], device, options, BURST)
    if state is None or device.power is None:
        return None
    waits = max(estimate.seconds - sum(row.seconds for row in rows), 0.0)
    return StepPower([(state, 1)], estimate.training.parallel.gpus, waits, device.power.static_w)
