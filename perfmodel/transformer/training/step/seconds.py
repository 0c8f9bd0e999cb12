"""Seconds of one row in a training step: by the calibration of its kernel alone, or by its bytes; and what the host takes.

Kernels run as long as they do alone: launched one by one from Python, they leave gaps between them like those that timing one alone
includes. What differs in a step was fitted to steps and is a calibration of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import Parameter
from perfmodel.timing.offer import algorithm_of, offer
from perfmodel.timing.predict import BORROWED, CALIBRATED, Lenders, Prediction, nearest
from perfmodel.transformer.op_time import FUSED_ATTENTION
from perfmodel.transformer.training.step.row import SHARES, StepOp

MODEL = "torch-training"
"""Time model of the calibrations that hold these parameters."""

PARAMETERS = (
    Parameter("strided_factor", "of the time of an element-wise kernel that reads or writes another order of dimensions", 3.0),
    Parameter("host_forward_us", "of the host to enqueue a layer's forward pass", 500.0),
    Parameter("host_backward_us", "of the host to enqueue a layer's backward pass", 700.0),
    Parameter("host_checkpoint_us", "of the host, more for a layer that will run again", 500.0),
    Parameter("host_again_us", "of the host, more in the backward pass of a layer that runs again", 1000.0),
)


@dataclass(frozen=True, slots=True)
class InTraining:
    """The parameters that hold on a device, from ``block``. ``own``: its own; else another device's."""

    parameters: Mapping[str, float]
    block: Calibration | None = None
    own: bool = False

    def price(self, row: StepOp, device: Device) -> float:
        """Seconds of one run of a row that its bytes price, or its vector operations: above its bound, as the share is below 1."""
        bandwidth, vector = device.dram.bandwidth_bytes_per_s, device.peaks.vector.get("fp32")
        if bandwidth is None:
            raise UnavailableError(f"{device.id} has no DRAM bandwidth in its profile", "add the bandwidth of its dram level")
        worked = 0.0 if vector is None else row.op.kernel.work.vector / vector.number
        return max(float(row.bytes / (bandwidth * SHARES[row.share])), float(worked))

    def factor(self, row: StepOp) -> float:
        """By which one run takes longer than alone."""
        return self.parameters["strided_factor"] if row.op.timed is not None and row.op.timed.strided else 1.0


def in_training(device: Device, lenders: Lenders = tuple) -> InTraining:
    """The calibration of ``device``, or else of the nearest architecture; UnavailableError without any."""
    block = _block(device)
    if block is not None:
        return InTraining(block.parameters, block, True)
    lender = nearest(device, [other for other in lenders() if _block(other) is not None])
    block = None if lender is None else _block(lender)
    if block is None:
        raise UnavailableError("no training step is calibrated, here or to borrow")
    return InTraining(block.parameters, block)


def _block(device: Device) -> Calibration | None:
    return next((block for block in device.calibration if block.model == MODEL), None)


def alone(row: StepOp, device: Device, lower_s: float, lenders: Lenders, attention: str | None) -> Prediction:
    """The prediction of one run of the row's kernel alone; UnavailableError says why there is none.

    ``attention``: the implementation of fused attention, by default the fastest.
    """
    timed, dtype = row.op.timed, row.op.kernel.dtype.name
    if timed is None or timed.obstacle:
        raise UnavailableError(timed.obstacle if timed else f"no time model of {row.op.name}")
    if timed.implementations is None:
        try:
            return offer(timed.kind, dtype, timed.workload, row.direction, device, lower_s, attention, _is_fused, lenders)
        except UnavailableError:
            if attention is not None or row.direction == FORWARD:
                raise
    for source in (tuple, lenders):
        for name in timed.implementations or BACKWARD_KERNELS:
            try:
                return offer(timed.kind, dtype, timed.workload, row.direction, device, lower_s, name, lambda known: True, source)
            except UnavailableError:
                continue
    tried = timed.implementations or BACKWARD_KERNELS
    raise UnavailableError(f"no calibration of {timed.kind}/{tried[0]} in {dtype}, here or to borrow")


BACKWARD_KERNELS = ("torch-sdpa-cudnn", "torch-sdpa-flash")
"""Borrowed where a device's own calibrations of attention are of forward passes only."""


def _is_fused(implementation: str) -> bool:
    return algorithm_of(implementation) == FUSED_ATTENTION


def taken(row: StepOp, device: Device, lower_s: float, within: InTraining, lenders: Lenders, attention: str | None) -> float:
    """Seconds of one run in a step, never below ``lower_s``."""
    if row.share:
        return within.price(row, device)
    return alone(row, device, lower_s, lenders, attention).seconds * within.factor(row)


def predicted(row: StepOp, device: Device, lower_s: float, within: InTraining, lenders: Lenders, attention: str | None) -> Prediction:
    """The same with its interval and where it is from."""
    block = within.block
    if not row.share:
        found, factor = alone(row, device, lower_s, lenders, attention), within.factor(row)
        return replace(found, seconds=found.seconds * factor, low=found.low * factor, high=found.high * factor)
    assert block is not None
    low, high = (block.low, block.high) if within.own else (block.borrowed_low or block.low, block.borrowed_high or block.high)
    time = within.price(row, device)
    words = f"bytes at {SHARES[row.share]:.0%} of the DRAM bandwidth, as in profiled steps"
    return Prediction(time, max(lower_s, time * low), time * high, CALIBRATED if within.own else BORROWED, words, block)
