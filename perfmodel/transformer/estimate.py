"""A pass through a model on a device: per row its bound, its roof and its predicted time; and their sums.

The bound of a row is that of its kernel alone, with all operands in DRAM. The bound of the pass is less than their sum: activations can
stay in the caches, a part of the batch at a time, and one part computes while another loads. It is the largest of all arithmetic, all
weights and KV cache once through DRAM, and all links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perfmodel.core.arith import Number, maximum
from perfmodel.core.cost import READ, WRITE
from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, rates_of, total
from perfmodel.kernels.matmul import default_columns
from perfmodel.timing.predict import CALIBRATED, FallbackDevices, Prediction
from perfmodel.transformer.launch_correction import LaunchCorrection, calibrated_for, launch_correction
from perfmodel.transformer.op import CACHE, WEIGHTS, Op, total_bytes
from perfmodel.transformer.op_time import as_multiplied, busy_s, in_time, op_estimate, predict_op, scaled
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import hand_over
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Split, Step

CONVENTION = "matmul FLOP of the model on scores that the mask leaves, over the datasheet's peak"
"""What an MFU counts. Kernels execute no less and take no less time than that at the peak, so that it is never above 1."""
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
    within: LaunchCorrection

    @property
    def cost(self) -> Estimate:
        """The sum of all rows, with the bound of the whole pass."""
        needs = pass_needs([(row.op, row.cost) for row in self.rows], self.step.split.pp)
        return replace(total(row.cost for row in self.rows), needs=needs)

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
            lower = max(float(self.cost.lower_warm_s), busy_s(self.cost, self.device))
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
    fallback_devices: FallbackDevices = tuple,
    graph: bool = False,
    known: dict[tuple[Op, bool], Row] | None = None,
) -> Pass:
    """Estimates of every row. ``graph``: kernels are launched as a CUDA graph. ``fallback_devices``: as for a prediction.

    ``known``: rows of other passes on the device, by op and ``graph``; those of this one are added.
    """
    within, known = launch_correction(device, fallback_devices), {} if known is None else known
    step = on_device(step, device)
    ops = all_ops(model, step)
    for op in ops:
        if (op, graph) not in known:
            known[op, graph] = _row(op, device, fallback_devices, graph, within)
    return Pass(model, step, device, graph, [known[op, graph] for op in ops], within)


def on_device(step: Step, device: Device) -> Step:
    """``step`` with the tiles that matmuls have there."""
    return replace(step, tile_columns=default_columns(device))


def all_ops(model: ModelSpec, step: Step) -> list[Op]:
    """Kernels and collectives of ``step``."""
    return [*step_ops(model, step), *hand_over(model, step)]


def _row(op: Op, device: Device, fallback_devices: FallbackDevices, graph: bool, within: LaunchCorrection) -> Row:
    cost = op_estimate(op, device)
    try:
        alone = predict_op(op, device, float(cost.lower_s), fallback_devices)
        one = in_time(within.of(alone, op, device, graph, float(cost.lower_s)), cost, device)
    except PerfmodelError as error:
        return Row(op, scaled(cost, op.count), None, error.message)
    times = {name: getattr(one, name) * op.count for name in ("seconds", "low", "high")}
    return Row(op, scaled(cost, op.count), replace(one, **times))


def pass_needs(rows: Sequence[tuple[Op, Estimate]], stages: int = 1) -> Needs:
    """What no schedule of ``rows`` does without; each with the estimate of all its runs. ``stages``: GPUs in turn, each with its caches.

    K and V that the step itself adds to the cache are read before they leave the chip.
    """
    alone = sum((cost.needs for _, cost in rows), Needs())
    added, read = (sum(op.count * op.bytes_of(CACHE, kind=kind) for op, _ in rows) for kind in (WRITE, READ))
    weights = total_bytes((op for op, _ in rows), WEIGHTS)
    tensors = {(READ, WEIGHTS): weights, (READ, CACHE): maximum(read - added, 0), (WRITE, CACHE): added}
    return replace(alone, tensors=tensors, held=None if alone.held is None else stages * alone.held)
