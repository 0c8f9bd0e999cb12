"""Passes of a model as they run for seconds: what its rows draw together, the clock that the limit leaves, and each row's time at it."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.hardware import Device
from perfmodel.core.power import SUSTAINED, PowerAsked
from perfmodel.timing import power
from perfmodel.timing.power import Activity
from perfmodel.transformer.estimate import PassEstimate, PassRow
from perfmodel.transformer.op import ATTENTION, COLLECTIVE, ELEMENTWISE, MATMUL
from perfmodel.transformer.op_time import as_multiplied

KIND_OF_GROUP = {MATMUL: power.MATMUL, ATTENTION: power.DECODE, ELEMENTWISE: power.ELEMENTWISE, COLLECTIVE: power.IDLE}
"""Of rows that nothing predicts."""


def of_row(row: PassRow, device: Device, factor: float = 1.0) -> Activity:
    """What all runs of a row do, in ``factor`` times its seconds."""
    op, found = row.op, row.prediction
    workload = op.timed.workload if op.timed is not None else None
    kind = KIND_OF_GROUP[op.group]
    if found is not None:
        block = found.calibration
        kind = power.kind_of(block.workload, workload, block.implementation, block.direction)
    blocks = None if workload is None or found is None else power.blocks_of([op.kernel], kind, workload)
    dtype = as_multiplied(op, device).dtype.name
    return power.activity(row.cost, factor * row.seconds, kind, dtype, device, blocks=blocks, runs=int(op.count))


def under_power(found: PassEstimate, asked: PowerAsked) -> PassEstimate:
    """``found`` at the clock of its headline, sustained unless asked otherwise; as it is where the device has no power model."""
    rows = [row for row in found.rows if row.seconds > 0]
    state = power.state_of([of_row(row, found.device) for row in rows], found.device, asked, SUSTAINED)
    if state is None:
        return found
    slower = {id(row): seconds / row.seconds for row, seconds in zip(rows, state.shown.each, strict=True)}
    return replace(found, rows=[_slowed(row, slower.get(id(row), 1.0)) for row in found.rows], power=state)


def _slowed(row: PassRow, factor: float) -> PassRow:
    return row if row.prediction is None else replace(row, prediction=power.scaled(row.prediction, factor))
