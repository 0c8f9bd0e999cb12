"""A pass through a model on a device: per row its bound, its roof and its predicted time; and their sums.

``lower_s`` takes every row as a kernel of its own, its operands in DRAM. ``lower_warm_s`` is what no execution of the rows beats:
activations count only beyond the caches, and once per step weights and KV cache may have stayed there as far as they fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perfmodel.arith import Number
from perfmodel.cache import beyond_caches
from perfmodel.dtypes import dtype_of_products
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Device
from perfmodel.ops.matmul import default_columns
from perfmodel.roofline import Estimate, rates_of, total
from perfmodel.timing.predict import CALIBRATED, Lenders, Prediction
from perfmodel.transformer.in_step import InStep, calibrated_for, in_step
from perfmodel.transformer.op import CACHE, WEIGHTS, Op, total_bytes
from perfmodel.transformer.op_time import as_multiplied, op_estimate, predict_op, scaled
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import hand_over
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Split, Step

PREDICTED, ROOF, MIXED = "predicted", "roofline", "predicted and roofline"


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of one op: ``cost`` and ``prediction`` are sums over them. Without a prediction, ``missing`` says why."""

    op: Op
    cost: Estimate
    prediction: Prediction | None
    missing: str = ""

    @property
    def seconds(self) -> float:
        """Predicted, else the roof."""
        return float(self.cost.roofline_s) if self.prediction is None else self.prediction.seconds


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of a model on a device, of one GPU per pipeline stage, stages one after the other."""

    model: ModelSpec
    step: Step
    device: Device
    graph: bool
    rows: Sequence[Row]
    within: InStep

    @property
    def cost(self) -> Estimate:
        """The sum of all rows; its warm bound lets the caches keep what they hold from the step before."""
        added = total(row.cost for row in self.rows)
        kept = cached_s(self)
        return replace(added, lower_warm_s=max(added.lower_warm_s - kept, needed_s(self)))

    @property
    def prediction(self) -> tuple[float, float, float] | None:
        """Seconds with the ends of the interval; None if a row has none.

        The interval is that of whole steps where those were calibrated; else as if the errors of all rows went together.
        """
        known = [row.prediction for row in self.rows if row.prediction is not None]
        if len(known) < len(self.rows):
            return None
        seconds = sum(p.seconds for p in known)
        block = self.within.block
        if block is not None and self.within.own and calibrated_for(self.model, self.step) and all(p.kind == CALIBRATED for p in known):
            lower = float(self.cost.lower_warm_s)
            return seconds, max(lower, min(seconds, seconds * block.low)), max(seconds, seconds * block.high)
        return seconds, sum(p.low for p in known), sum(p.high for p in known)

    @property
    def seconds(self) -> float:
        """The best known time: of each row the predicted one, else the roof, which makes the sum the least it takes."""
        return sum(row.seconds for row in self.rows)

    @property
    def times_from(self) -> str:
        """Of what ``seconds`` is the sum: predictions, roofs or both."""
        return times_from(self.rows)

    @property
    def flops(self) -> Number:
        """Matmul FLOP of the model, without what several GPUs each compute."""
        return sum(op.count * op.kernel.flops for op in self._undivided)

    @property
    def flops_by_format(self) -> dict[str, Number]:
        """The same, by the format that they are multiplied in."""
        found: dict[str, Number] = {}
        for op in self._undivided:
            if op.kernel.flops:
                name = as_multiplied(op, self.device).dtype.name
                found[name] = found.get(name, 0) + op.count * op.kernel.flops
        return found

    @property
    def at_peak_s(self) -> float:
        """Seconds of one GPU for ``flops`` at the datasheet's peaks, each at that of the format it is multiplied in."""
        return sum(float(flops / rates_of(self.device, dtype_of_products(name)).matmul) for name, flops in self.flops_by_format.items())

    @property
    def mfu(self) -> float:
        """``at_peak_s``, divided among all GPUs, over the time taken."""
        return self.at_peak_s / (self.seconds * self.step.split.gpus)

    @property
    def _undivided(self) -> list[Op]:
        return step_ops(self.model, replace(self.step, split=Split()))


def times_from(rows: Iterable[Row]) -> str:
    """Of what the sum of these rows' seconds is made: ``PREDICTED``, ``ROOF`` or ``MIXED``."""
    known = {row.prediction is not None for row in rows}
    return MIXED if len(known) > 1 else ROOF if False in known else PREDICTED


def run_pass(
    model: ModelSpec,
    step: Step,
    device: Device,
    lenders: Lenders = tuple,
    graph: bool = False,
    known: dict[tuple[Op, bool], Row] | None = None,
) -> Pass:
    """Estimates of every row. ``graph``: kernels are launched as a CUDA graph. ``lenders``: as for a prediction.

    ``known``: rows of other passes on the device, by op and ``graph``; those of this one are added.
    """
    within, known = in_step(device, lenders), {} if known is None else known
    step = on_device(step, device)
    ops = all_ops(model, step)
    for op in ops:
        if (op, graph) not in known:
            known[op, graph] = _row(op, device, lenders, graph, within)
    return Pass(model, step, device, graph, [known[op, graph] for op in ops], within)


def on_device(step: Step, device: Device) -> Step:
    """``step`` with the tiles that matmuls have there."""
    return replace(step, tile_columns=default_columns(device))


def all_ops(model: ModelSpec, step: Step) -> list[Op]:
    """Kernels and collectives of ``step``."""
    return [*step_ops(model, step), *hand_over(model, step)]


def _row(op: Op, device: Device, lenders: Lenders, graph: bool, within: InStep) -> Row:
    cost = op_estimate(op, device)
    try:
        alone = predict_op(op, device, float(cost.lower_s), lenders)
        one = within.of(alone, op, device, graph, float(cost.lower_s))
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
    links = sum(float(row.cost.lower_warm_s) for row in found.rows if "interconnect" in row.cost.terms)
    work = 0.0
    for row in found.rows:
        kernel = as_multiplied(row.op, found.device)
        needed = kernel.needed.tensor + kernel.needed.vector
        work += float(row.op.count * needed / rates_of(found.device, kernel.dtype).matmul_at_max_clock)
    return links + work
