"""Seconds of the pieces of a step on one device: a row, a layer, an end of the model. Equal pieces are worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.timing.predict import Lenders, Prediction
from perfmodel.transformer.op_time import busy_s, in_time, op_estimate
from perfmodel.transformer.spec import Layer
from perfmodel.transformer.training.step.frame import Frame
from perfmodel.transformer.training.step.layer import LayerOps, embedding_ops, head_ops, layer_ops
from perfmodel.transformer.training.step.row import SHARES, StepOp
from perfmodel.transformer.training.step.seconds import InTraining, in_training, predicted, taken
from perfmodel.transformer.training.step.window import DRAM, Window, joined

EMBEDDING, HEAD = "embedding", "head"
FORWARD, BACKWARD = "forward", "backward"


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
        found = predicted(row, on.device, float(cost.lower_s), on.within, on.lenders, on.attention)
    except PerfmodelError as error:
        return cost, None, error.message
    return cost, in_time(found, cost, on.device), ""


@lru_cache(maxsize=16384)
def _once(row: StepOp, on: Machine) -> Window:
    """One run: predicted, else at the roof."""
    cost = op_estimate(row.op, on.device)
    seconds = float(cost.roofline_s)
    try:
        if on.within is not None:
            seconds = max(taken(row, on.device, float(cost.lower_s), on.within, on.lenders, on.attention), busy_s(cost, on.device))
    except PerfmodelError:
        seconds = float(cost.roofline_s)
    return Window(seconds, {DRAM: min(float(cost.terms.get("dram", 0.0)), seconds)})


def _run(row: StepOp, on: Machine) -> Window:
    if row.share and on.within is not None:
        seconds = on.within.price(row, on.device)
        return Window(seconds, {DRAM: seconds * SHARES[row.share]})  # no less than its bytes take
    return _once(row if row.op.count == 1 else replace(row, op=replace(row.op, count=1)), on)


def rows_window(rows: Iterable[StepOp], on: Machine) -> Window:
    """All runs of ``rows``, one after the other."""
    return joined((_run(row, on), float(row.op.count)) for row in rows)


def rows_seconds(rows: Iterable[StepOp], on: Machine) -> float:
    """Seconds of them."""
    return sum(float(row.op.count) * _run(row, on).seconds for row in rows)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The kernels of a layer or an end. ``core``, ``full``: what selective and full recomputation run again.

    ``cover``: kernels that hide exchanges, by pass and by the word that those name.
    """

    ops: LayerOps
    forward: Window
    backward: Window
    core: Window
    full: Window
    cover: dict[tuple[str, str], Window] = field(default_factory=dict)


def _piece(ops: LayerOps, on: Machine) -> Piece:
    full = rows_window(ops.forward[: len(ops.forward) - ops.unused], on)
    cover = {}
    for way, rows, passed in ((FORWARD, ops.forward, ops.forward_exchanges), (BACKWARD, ops.backward, ops.backward_exchanges)):
        for word in {exchange.behind for exchange in passed if exchange.behind}:
            cover[way, word] = rows_window((row for row in rows if word in row.op.name), on)
    return Piece(ops, rows_window(ops.forward, on), rows_window(ops.backward, on), rows_window(ops.core, on), full, cover)


@lru_cache(maxsize=2048)
def layer_piece(frame: Frame, layer: Layer, on: Machine) -> Piece:
    """A layer of a micro-batch."""
    return _piece(layer_ops(layer, frame), on)


@lru_cache(maxsize=1024)
def end_piece(frame: Frame, where: str, on: Machine) -> Piece:
    """The embedding or the head."""
    ops: Any = embedding_ops if where == EMBEDDING else head_ops
    return _piece(ops(frame.model, frame), on)
