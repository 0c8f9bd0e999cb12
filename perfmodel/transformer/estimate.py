"""A pass through a model on a device: per row its bound, its roof and its predicted time; and their sums.

``lower_s`` takes every row as a kernel of its own, its operands in DRAM. ``lower_warm_s`` is what no execution of the rows beats:
activations count only beyond the caches, and once per step weights and KV cache may have stayed there as far as they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.arith import Number
from perfmodel.cache import beyond_caches
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Device
from perfmodel.ops.tile import TENSOR_TILE, WIDE_COLUMNS
from perfmodel.roofline import Estimate, rates_of, total
from perfmodel.timing.predict import Lenders, Prediction
from perfmodel.transformer.launches import graph_saving_s, in_graph
from perfmodel.transformer.op import CACHE, WEIGHTS, Op, total_bytes
from perfmodel.transformer.op_time import op_estimate, predict_op, scaled
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import hand_over
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Split, Step


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of one op: ``cost`` and ``prediction`` are sums over them. Without a prediction, ``missing`` says why."""

    op: Op
    cost: Estimate
    prediction: Prediction | None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of a model on a device, of one GPU per pipeline stage, stages one after the other."""

    model: ModelSpec
    step: Step
    device: Device
    graph: bool
    rows: Sequence[Row]

    @property
    def cost(self) -> Estimate:
        """The sum of all rows; its warm bound lets the caches keep what they hold from the step before."""
        added = total(row.cost for row in self.rows)
        kept = cached_s(self)
        return replace(added, lower_warm_s=max(added.lower_warm_s - kept, needed_s(self)))

    @property
    def prediction(self) -> tuple[float, float, float] | None:
        """Seconds with the ends of the interval, as if the errors of all rows went together; None if a row has none."""
        known = [row.prediction for row in self.rows if row.prediction is not None]
        if len(known) < len(self.rows):
            return None
        return sum(p.seconds for p in known), sum(p.low for p in known), sum(p.high for p in known)

    @property
    def seconds(self) -> float:
        """The best known time: predicted, else the roof."""
        found = self.prediction
        return float(self.cost.roofline_s) if found is None else found[0]

    @property
    def flops(self) -> Number:
        """Matmul FLOP of the model, without what several GPUs each compute."""
        ops = step_ops(self.model, replace(self.step, split=Split()))
        return sum(op.count * op.kernel.flops for op in ops)

    @property
    def mfu(self) -> float:
        """FLOP of the model over what all GPUs could do in the time, at the datasheet's peak."""
        rate = rates_of(self.device, self.step.dtype).matmul
        return float(self.flops / (self.seconds * rate * self.step.split.gpus))


def run_pass(model: ModelSpec, step: Step, device: Device, lenders: Lenders = tuple, graph: bool = False) -> Pass:
    """Estimates of every row. ``graph``: kernels are launched as a CUDA graph. ``lenders``: as for a prediction."""
    saving = (graph_saving_s(device) or 0.0) if graph else 0.0
    step = replace(step, tile_columns=WIDE_COLUMNS if _is_wide(device) else TENSOR_TILE)
    ops = [*step_ops(model, step), *hand_over(model, step)]
    return Pass(model, step, device, graph, [_row(op, device, lenders, saving) for op in ops])


def _is_wide(device: Device) -> bool:
    return device.vendor == "NVIDIA" and float(device.compute_capability or 0) >= 9


def _row(op: Op, device: Device, lenders: Lenders, saving_s: float) -> Row:
    cost = op_estimate(op, device)
    try:
        one = in_graph(predict_op(op, device, float(cost.lower_s), lenders), saving_s, float(cost.lower_s))
    except PerfmodelError as error:
        return Row(op, scaled(cost, op.count), None, error.message)
    times = {name: getattr(one, name) * op.count for name in ("seconds", "low", "high")}
    return Row(op, scaled(cost, op.count), replace(one, **times))


def cached_s(found: Pass) -> float:
    """Seconds that weights and KV cache which stayed in the caches since the step before save at most."""
    rates = rates_of(found.device, found.step.dtype)
    lasting = total_bytes((row.op for row in found.rows), WEIGHTS, CACHE)
    return float((lasting - beyond_caches(lasting, found.device)) / rates.dram)


def needed_s(found: Pass) -> float:
    """Seconds of the arithmetic and the collectives alone."""
    rates = rates_of(found.device, found.step.dtype)
    links = sum(float(row.cost.lower_warm_s) for row in found.rows if "interconnect" in row.cost.terms)
    work = sum(row.op.count * (row.op.kernel.needed.tensor + row.op.kernel.needed.vector) for row in found.rows)
    return links + float(work / rates.matmul_at_max_clock)
