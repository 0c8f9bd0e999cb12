"""A pass through a model on a device: bound, roof and predicted time of each row, and their sums.

The bound of a row is the bound of its kernel alone, with all operands in DRAM. The bound of the pass is less than their sum: activations
can stay in the caches, a part of the batch at a time, and one part computes while another loads. It is the largest of all arithmetic, all
weights and KV cache once through DRAM, and all links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from perfmodel.core.arith import Number, maximum
from perfmodel.core.cost import READ, WRITE
from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.power import PowerState
from perfmodel.core.roofline import Estimate, clock_at_work, rates_of, total
from perfmodel.kernels.matmul import library_tile
from perfmodel.timing.predict import CALIBRATED, Prediction
from perfmodel.timing.reference_devices import FallbackDevices, listed_once
from perfmodel.transformer import op_time
from perfmodel.transformer.host import Host, Interval, launches
from perfmodel.transformer.op import CACHE, WEIGHTS, Op, total_bytes
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.parallel import hand_over
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import ModelPass, Split

CONVENTION = "matmul FLOP of the model on scores that the mask leaves, over the datasheet's peak"
"""FLOP that an MFU counts. Kernels execute no fewer and take no less time than these at the peak, so an MFU is at most 1."""
PREDICTED, ROOF, MIXED = "predicted", "roofline", "predicted and roofline"


def interval(intervals: Iterable[tuple[Interval | None, int]]) -> Interval | None:
    """Sum of ``intervals``, each times its number; None if one is unknown."""
    total_s = total_low = total_high = 0.0
    for known, times in intervals:
        if known is None:
            return None
        seconds, low, high = known
        total_s, total_low, total_high = total_s + seconds * times, total_low + low * times, total_high + high * times
    return total_s, total_low, total_high


def around(seconds: float, low: float, high: float, cost: Estimate, device: Device) -> Interval:
    """``seconds`` of a step with the interval from ``low`` to ``high``, no shorter than its bound and its busiest unit."""
    lower = max(float(cost.lower_warm_s), op_time.busy_s(cost, device))
    return seconds, max(lower, min(seconds, low)), max(seconds, high)


@dataclass(frozen=True)
class PassRow:
    """All runs of one op. ``each``: cost of one run; ``prediction``: sum over all runs; ``missing``: why there is no prediction."""

    op: Op
    each: Estimate
    prediction: Prediction | None
    missing: str = ""

    @cached_property
    def cost(self) -> Estimate:
        """Bound and roof of all runs."""
        return op_time.scaled(self.each, self.op.count)

    @property
    def interval(self) -> Interval | None:
        """Predicted seconds."""
        p = self.prediction
        return None if p is None else (p.seconds, p.low, p.high)

    @property
    def seconds(self) -> float:
        """Seconds: predicted, else at the roof."""
        return float(self.op.count * self.each.roofline_s) if self.prediction is None else self.prediction.seconds


@dataclass(frozen=True)
class PassEstimate:
    """One step of a model on a device: one GPU per pipeline stage, stages in turn.

    ``host``: launches its kernels one by one; None if it is assumed to keep ahead. ``power``: power of the step, if its rows have a power
    model.
    """

    model: ModelSpec
    step: ModelPass
    device: Device
    graph: bool
    rows: Sequence[PassRow]
    within: op_time.LaunchCorrection
    host: Host | None = None
    power: PowerState | None = None

    @property
    def launches(self) -> Number:
        """Kernels that the host launches one by one; 0 in a graph."""
        return 0 if self.graph else launches(row.op for row in self.rows)

    @property
    def host_s(self) -> Interval | None:
        """Seconds that the host takes to launch them, with their interval; None without a host."""
        return None if self.host is None or self.graph else self.host.seconds(float(self.launches))

    @cached_property
    def cost(self) -> Estimate:
        """The sum of all rows, with the bound of the whole pass."""
        needs = pass_needs([(row.op, row.cost) for row in self.rows], self.step.split.pp)
        return replace(total(row.cost for row in self.rows), needs=needs)

    @property
    def prediction(self) -> Interval | None:
        """Seconds with the ends of the interval, the host's included; None if a row has none."""
        device_s = self.on_device
        if device_s is None or self.host_s is None or self.host is None:
            return device_s
        return self.host.around(device_s, float(self.launches))

    @cached_property
    def on_device(self) -> Interval | None:
        """Seconds of the kernels with the ends of the interval; None if a row has none.

        The interval is that of calibrated whole steps, if there are any; else the errors of all rows add up.
        """
        summed, steps = interval((row.interval, 1) for row in self.rows), self.within.block
        if summed is None or steps is None or not self.within.own or not op_time.calibrated_for(self.model, self.step):
            return summed
        if any(row.prediction is None or row.prediction.kind != CALIBRATED for row in self.rows):
            return summed
        seconds, _, _ = summed
        return around(seconds, seconds * steps.low, seconds * steps.high, self.cost, self.device)

    @property
    def seconds(self) -> float:
        """Seconds by the predicted time of each row, else its roof (a lower limit of the sum); or the host's seconds if longer."""
        kernels = sum(row.seconds for row in self.rows)
        return kernels if self.host_s is None else max(kernels, self.host_s[0])

    @cached_property
    def flops_by_format(self) -> dict[str, Number]:
        """Matmul FLOP of the model by the format of multiplication; FLOP that several GPUs repeat count once."""
        flops: dict[str, Number] = {}
        for op in step_ops(self.model, replace(self.step, split=Split())):
            if op.kernel.flops:
                name = op_time.in_compute_dtype(op, self.device).dtype.name
                flops[name] = flops.get(name, 0) + op.count * op.kernel.flops
        return flops

    @property
    def at_peak_s(self) -> float:
        """Seconds of one GPU for these FLOP at the clock at work, each at the peak of its format."""
        peaks = {name: rates_of(self.device, dtype_of_products(name)).matmul * clock_at_work(self.device) for name in self.flops_by_format}
        return sum(float(flops / peaks[name]) for name, flops in self.flops_by_format.items())


def run_pass(
    model: ModelSpec,
    step: ModelPass,
    device: Device,
    fallbacks: FallbackDevices = tuple,
    graph: bool = False,
    known: dict[tuple[Op, bool], PassRow] | None = None,
    host: Host | None = None,
    priced: op_time.Pricing | None = None,
    within: op_time.LaunchCorrection | None = None,
    attention: str | None = None,
) -> PassEstimate:
    """Estimates of every row. ``graph``: kernels are launched as a CUDA graph. ``fallbacks``: as for a prediction.

    ``known``: rows of other passes on the device, by op and ``graph``; this pass adds its own. ``host``: launches the kernels. ``priced``:
    gives the time of a kernel in place of its time model. ``attention``: the only implementation of fused attention.
    """
    fallbacks = listed_once(fallbacks)
    within = within or op_time.launch_correction(device, fallbacks)
    known = {} if known is None else known
    step = on_device(step, device)
    ops = all_ops(model, step)
    for op in ops:
        if (op, graph) not in known:
            known[op, graph] = row_of(op, device, fallbacks, graph, within, priced, attention)
    return PassEstimate(model, step, device, graph, [known[op, graph] for op in ops], within, host)


def on_device(step: ModelPass, device: Device) -> ModelPass:
    """``step`` with the tile that matmuls have on ``device``."""
    return replace(step, tile=library_tile(device, step.dtype))


def all_ops(model: ModelSpec, step: ModelPass) -> list[Op]:
    """Kernels and collectives of ``step``."""
    return [*step_ops(model, step), *hand_over(model, step)]


def row_of(
    op: Op,
    device: Device,
    fallbacks: FallbackDevices,
    graph: bool,
    within: op_time.LaunchCorrection,
    priced: op_time.Pricing | None = None,
    attention: str | None = None,
) -> PassRow:
    """Row with all runs of ``op`` in a step; ``priced`` and ``attention`` as in ``run_pass``."""
    alone = op_time.time_of_run(op, device, fallbacks, priced, attention)
    if alone.prediction is None:
        return PassRow(op, alone.cost, None, alone.missing)
    seconds, low, high = alone.in_step(device, graph, within)
    return PassRow(op, alone.cost, alone.prediction._replace(seconds=seconds, low=low, high=high))


def pass_needs(rows: Sequence[tuple[Op, Estimate]], stages: int = 1) -> Needs:
    """Needs that every schedule of ``rows`` has; each row comes with the estimate of all its runs.

    ``stages``: GPUs in turn, each with its caches. K and V that the step itself adds to the cache are read before they leave the chip.
    """
    needs = sum((cost.needs for _, cost in rows), Needs())
    added, read = (sum(op.count * op.bytes_of(CACHE, kind=kind) for op, _ in rows) for kind in (WRITE, READ))
    weights = total_bytes((op for op, _ in rows), WEIGHTS)
    tensors = {(READ, WEIGHTS): weights, (READ, CACHE): maximum(read - added, 0), (WRITE, CACHE): added}
    return replace(needs, tensors=tensors, held=None if needs.held is None else stages * needs.held)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """``step`` of ``model``, launched as a CUDA graph or kernel by kernel. ``attention``: implementation of its fused attention."""

    model: ModelSpec
    step: ModelPass
    graph: bool
    attention: str | None = None

    def on(self, device: Device, fallbacks: FallbackDevices = tuple) -> PassEstimate:
        """Estimate of the step's rows on ``device``, with their predictions."""
        return run_pass(self.model, self.step, device, fallbacks, self.graph, attention=self.attention)

    def estimate(self, device: Device) -> Estimate:
        """Bound and roof of the whole step on ``device``."""
        return self.on(device).cost

    def check(self) -> ModelStep:
        """This step, if it has a meaning; else UsageError."""
        self.step.split.check(self.model)
        self.step.check()
        return self


class KnownDevice:
    """A device hashed by identity, as its calibrations are part of what was predicted."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __hash__(self) -> int:
        return hash(self.device.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownDevice) and other.device is self.device
