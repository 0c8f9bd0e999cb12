"""Seconds of the pieces of a step on one device: a row, a layer, an end of the model. Equal pieces are worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Device
from perfmodel.roofline import Estimate
from perfmodel.timing.predict import Lenders, Prediction
from perfmodel.transformer.op_time import op_estimate
from perfmodel.transformer.spec import Layer
from perfmodel.transformer.training.step.ends import embedding_ops, head_ops
from perfmodel.transformer.training.step.frame import Frame
from perfmodel.transformer.training.step.layer import LayerOps, layer_ops
from perfmodel.transformer.training.step.row import StepOp
from perfmodel.transformer.training.step.seconds import InTraining, in_training, predicted, taken

EMBEDDING, HEAD = "embedding", "head"


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A device with what its times are predicted by; equal only to itself. ``attention``: implementation of fused attention."""

    device: Device
    lenders: Lenders
    within: InTraining | None
    attention: str | None = None


def machine(device: Device, lenders: Lenders = tuple, attention: str | None = None) -> Machine:
    """``device`` as steps are timed on it; where no step was ever calibrated, at the roof."""
    try:
        return Machine(device, lenders, in_training(device, lenders), attention)
    except PerfmodelError:
        return Machine(device, lenders, None, attention)


@lru_cache(maxsize=16384)
def known(row: StepOp, on: Machine) -> tuple[Estimate, Prediction | None, str]:
    """Bound and roof of one run, its prediction, and why there is none."""
    cost = op_estimate(row.op, on.device)
    if on.within is None:
        return cost, None, "no training step is calibrated"
    try:
        return cost, predicted(row, on.device, float(cost.lower_s), on.within, on.lenders, on.attention), ""
    except PerfmodelError as error:
        return cost, None, error.message


@lru_cache(maxsize=16384)
def _once(row: StepOp, on: Machine) -> float:
    cost = op_estimate(row.op, on.device)
    if on.within is None:
        return float(cost.roofline_s)
    try:
        return taken(row, on.device, float(cost.lower_s), on.within, on.lenders, on.attention)
    except PerfmodelError:
        return float(cost.roofline_s)


def row_seconds(row: StepOp, on: Machine) -> float:
    """All runs of a row: predicted, else at the roof."""
    if row.share and on.within is not None:
        return float(row.op.count) * on.within.price(row, on.device)
    return float(row.op.count) * _once(row if row.op.count == 1 else replace(row, op=replace(row.op, count=1)), on)


def rows_seconds(rows: Iterable[StepOp], on: Machine) -> float:
    """The sum over rows."""
    return sum(row_seconds(row, on) for row in rows)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Seconds of the kernels of a layer or an end. ``core``, ``full``: of what selective and full recomputation run again.

    ``cover``: seconds of kernels that hide exchanges, by pass and by the word that those name.
    """

    ops: LayerOps
    forward_s: float
    backward_s: float
    core_s: float
    full_s: float
    cover: dict[tuple[str, str], float] = field(default_factory=dict)


def _piece(ops: LayerOps, on: Machine) -> Piece:
    forward = rows_seconds(ops.forward, on)
    unused = rows_seconds(ops.forward[len(ops.forward) - ops.unused :], on)
    cover = {}
    for way, rows, passed in (("forward", ops.forward, ops.forward_exchanges), ("backward", ops.backward, ops.backward_exchanges)):
        for word in {exchange.behind for exchange in passed if exchange.behind}:
            cover[way, word] = rows_seconds((row for row in rows if word in row.op.name), on)
    return Piece(ops, forward, rows_seconds(ops.backward, on), rows_seconds(ops.core, on), forward - unused, cover)


@lru_cache(maxsize=2048)
def layer_piece(frame: Frame, layer: Layer, on: Machine) -> Piece:
    """A layer of a micro-batch."""
    return _piece(layer_ops(layer, frame), on)


@lru_cache(maxsize=1024)
def end_piece(frame: Frame, where: str, on: Machine) -> Piece:
    """The embedding or the head."""
    ops: Any = embedding_ops if where == EMBEDDING else head_ops
    return _piece(ops(frame.model, frame), on)
