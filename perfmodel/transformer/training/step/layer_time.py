"""Seconds of a layer, of an end of the model, and of single rows of a training step on one device. Equal ones are computed once.

A row takes the time of its kernel alone, by that kernel's calibration: kernels that Python launches one by one leave gaps, and timing a
kernel alone includes such a gap. Rows that are never timed alone are priced by their bytes. A separate calibration, fitted to steps, holds
what differs in a step.

While kernels run, links are idle, and so is a part of DRAM. An exchange that runs beside kernels asks a window of them for the seconds that
it hides, and the window books these. So two exchanges cannot hide in the same second of a link, and a step is never shorter than the time
for which any resource is busy.

If the host enqueues kernels one by one, the device may wait for the host. The host begins a step with nothing enqueued, as the step before
ends in a wait for the device. A kernel starts once it is enqueued and the kernel before it has ended. So a step takes the longest of all
paths that follow the host up to some kernel and the device from there on. If host and device each have a constant pace within a phase, the
longest path changes over at a boundary of phases. Source: two machines in a row, Johnson 1954; the events of measured steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.workload import BACKWARD
from perfmodel.timing.base import chosen, dram_bandwidth
from perfmodel.timing.power import scaled
from perfmodel.timing.predict import BORROWED, CALIBRATED, Prediction
from perfmodel.timing.reference_devices import FallbackDevices, model_calibration
from perfmodel.transformer.op import Op
from perfmodel.transformer.op_time import OpTime, at_least_busy, op_estimate, predict_op, time_of_run
from perfmodel.transformer.spec import Layer
from perfmodel.transformer.training.question import SELECTIVE, Recomputation
from perfmodel.transformer.training.step.layer import LayerOps, layer_ops
from perfmodel.transformer.training.step.row import SHARES, MicroBatch
from perfmodel.transformer.training.step.system import DRAM

MODEL = "torch-training"
"""Time model of the calibrations that hold these parameters."""
BACKWARD_KERNELS = ("torch-sdpa-cudnn", "torch-sdpa-flash")
"""Kernels whose backward pass is borrowed if a device has only forward calibrations of attention."""
FORWARD_PASS, BACKWARD_PASS = "forward", "backward"


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A device with what predicts its times; equal only to itself. ``attention``: implementation of fused attention.

    ``parameters``: parameters of the step calibration ``block``, which is its ``own`` or another device's; None if no step is calibrated,
    and times are then at the roof.
    """

    device: Device
    fallbacks: FallbackDevices
    attention: str | None = None
    parameters: Mapping[str, float] | None = None
    block: Calibration | None = None
    own: bool = False

    @property
    def kernels(self) -> dict[str, list[str]]:
        """Names of the implementations that were asked for, by kind of kernel; none where the choice is open."""
        return {"attention": [] if self.attention is None else [self.attention]}

    def price(self, op: Op, share: float) -> float:
        """Seconds of one run of a kernel, by its bytes or its vector operations; above its bound, as ``share`` is below 1."""
        vector = self.device.peaks.vector.get("fp32")
        worked = 0.0 if vector is None else op.kernel.work.vector / vector.number
        return max(float(op.kernel.bytes(READ, WRITE) / (dram_bandwidth(self.device) * share)), float(worked))


def machine(device: Device, fallbacks: FallbackDevices = tuple, attention: str | None = None) -> Machine:
    """``device`` with its own calibration of steps, or else that of the nearest architecture."""
    block, own = model_calibration(MODEL, device, fallbacks)
    return Machine(device, fallbacks, attention, None if block is None else block.parameters, block, own)


def bandwidth_share(op: Op) -> float | None:
    """The share of the DRAM bandwidth that prices ``op``; None if a calibration of its kernel prices it."""
    return None if op.timed is None else SHARES.get(op.timed.kind)


def predicted_alone(op: Op, on: Machine, lower_s: float) -> Prediction:
    """Predicted time of the kernel run alone; UnavailableError says why there is none."""
    try:
        return predict_op(op, on.device, lower_s, on.fallbacks, on.attention)
    except UnavailableError:
        timed = op.timed
        if timed is None or timed.obstacle or timed.direction != BACKWARD:
            raise
        if timed.implementations is not None or on.attention is not None:  # the kernel was named
            raise
        named = replace(op, timed=timed._replace(implementations=BACKWARD_KERNELS))
        return predict_op(named, on.device, lower_s, on.fallbacks)


def predicted(op: Op, on: Machine, parameters: Mapping[str, float], lower_s: float) -> Prediction:
    """Predicted time of one run in a step, with its interval and origin."""
    share, block = bandwidth_share(op), on.block
    if share is None:
        alone, strided = predicted_alone(op, on, lower_s), op.timed is not None and op.timed.strided
        return scaled(alone, parameters["strided_factor"]) if strided else alone
    assert block is not None
    low, high = (block.low, block.high) if on.own else (block.borrowed_low or block.low, block.borrowed_high or block.high)
    time, words = on.price(op, share), f"bytes at {share:.0%} of the DRAM bandwidth, as in profiled steps"
    return Prediction(time, max(lower_s, time * low), time * high, CALIBRATED if on.own else BORROWED, words, block)


@lru_cache(maxsize=16384)
def estimated(op: Op, on: Machine) -> OpTime:
    """Bound, roof and time of one run of ``op`` in a step."""
    parameters = on.parameters
    if parameters is None:
        return OpTime(op, op_estimate(op, on.device), None, "no training step is calibrated")
    run = time_of_run(op, on.device, on.fallbacks, lambda op, cost: predicted(op, on, parameters, float(cost.lower_s)))
    return run if run.prediction is None else run._replace(prediction=at_least_busy(run.prediction, run.cost, on.device))


@dataclass(slots=True)
class Window:
    """``seconds`` of kernels, and seconds for which each resource is ``busy`` in them. ``outer``: longer window that contains this one."""

    seconds: float
    busy: dict[str, float] = field(default_factory=dict)
    outer: Window | None = None

    def hide(self, seconds: float, needs: Mapping[str, float]) -> float:
        """The part of the ``seconds`` of an exchange that runs beside the kernels. ``needs``: seconds of each resource."""
        windows, share = [self] if self.outer is None else [self, self.outer], 1.0
        for window in windows:
            share = min([share, *(max(window.free(name), 0.0) / need for name, need in needs.items() if need)])
        for window in windows:
            window.book({name: share * need for name, need in needs.items()})
        return share * seconds

    def free(self, name: str) -> float:
        """Seconds in which the resource ``name`` is idle."""
        return self.seconds - self.busy.get(name, 0.0)

    def book(self, taken: Mapping[str, float], times: float = 1) -> None:
        """Books ``times`` the seconds ``taken`` of each resource."""
        for name, seconds in taken.items():
            self.busy[name] = self.busy.get(name, 0.0) + times * seconds


def joined(windows: Iterable[tuple[Window, float]]) -> Window:
    """One window of all ``windows`` in turn, given with their numbers."""
    whole = Window(0.0)
    for window, times in windows:
        whole.seconds += times * window.seconds
        whole.book(window.busy, times)
    return whole


@lru_cache(maxsize=16384)
def _run_window(op: Op, on: Machine) -> Window:
    """Window of one run of ``op``: predicted, else at the roof."""
    share = bandwidth_share(op)
    if share is not None and on.parameters is not None:
        seconds = on.price(op, share)
        return Window(seconds, {DRAM: seconds * share})  # no less than its bytes take
    alone = estimated(op, on)
    seconds = float(alone.cost.roofline_s) if alone.prediction is None else alone.prediction.seconds
    return Window(seconds, {DRAM: min(float(alone.cost.terms.get("dram", 0.0)), seconds)})


def ops_window(ops: Iterable[Op], on: Machine) -> Window:
    """Window of all runs of ``ops`` in turn."""
    return joined((_run_window(op if op.count == 1 else replace(op, count=1), on), float(op.count)) for op in ops)


@dataclass(frozen=True, slots=True, eq=False)
class LayerTime:
    """Windows of the lists of kernels ``ops`` of a layer, the embedding or the head.

    ``cover``: windows that hide exchanges, by pass and ``Exchange.behind``.
    """

    where: Layer | str
    ops: LayerOps
    forward: Window
    backward: Window
    core: Window
    full: Window
    rest: Window
    cover: dict[tuple[str, str], Window]

    def repeated(self, recompute: Recomputation) -> list[tuple[str, Number]]:
        """Lists of kernels that the backward pass runs again, each with the share of layers in which it does; empty at the ends of the
        model. Only the last layer of a segment can leave out ``rest``.
        """
        if not isinstance(self.where, Layer):
            return []
        if recompute.of_layers:
            return [("full", 1), *([("rest", 1 - 1 / recompute.every)] if recompute.every > 1 else [])]
        return [("core", 1)] if recompute.kind == SELECTIVE else []


@lru_cache(maxsize=2048)
def layer_time(batch: MicroBatch, where: Layer | str, on: Machine) -> LayerTime:
    """Times of a layer of a micro-batch, or of the embedding or the head."""
    ops = layer_ops(where, batch)
    passes = ((FORWARD_PASS, ops.forward, ops.forward_exchanges), (BACKWARD_PASS, ops.backward, ops.backward_exchanges))
    cover = {
        (way, exchange.behind): ops_window((op for op in kernels if exchange.behind in op.name), on)
        for way, kernels, passed in passes
        for exchange in passed
        if exchange.behind
    }
    lists = (ops.forward, ops.backward, ops.core, ops.full, ops.rest)
    forward, backward, core, full, rest = (ops_window(kernels, on) for kernels in lists)
    return LayerTime(where, ops, forward, backward, core, full, rest, cover)


US = 1e-6


def longest_way(phases: Sequence[tuple[float, float]]) -> float:
    """Seconds of the longest path through ``phases``, each given as (host, device) seconds.

    >>> longest_way([(1.0, 3.0), (1.0, 3.0)]), longest_way([(4.0, 1.0), (4.0, 2.0)])
    (6.0, 8.0)
    """
    longest, device = 0.0, 0.0
    hosts = [0.0]
    for host, _ in phases:
        hosts.append(hosts[-1] + host)
    for index in range(len(phases) - 1, -1, -1):
        # the last kernel of a phase is enqueued at its end, the first as it begins
        longest = max(longest, hosts[index + 1] + device)
        device += phases[index][1]
        longest = max(longest, hosts[index] + device)
    return longest


def host_phases(parameters: Mapping[str, float], layers: int, tensors: int, *, again: bool) -> tuple[float, float, float]:
    """Seconds of the host for forward pass, backward pass and optimizer. ``again``: layers run again backward."""
    p = parameters
    forward = p["host_forward_us"] + (p["host_checkpoint_us"] if again else 0.0)
    backward = p["host_backward_us"] + (p["host_forward_us"] + p["host_again_us"] if again else 0.0)
    return layers * forward * US, layers * backward * US, tensors * chosen("optimizer_tensor_us") * US


def exposed_host_s(host: tuple[float, float, float], forward_s: float, backward_s: float, micro_batches: int, optimizer_s: float) -> float:
    """Seconds of a step beyond its kernels, in which the GPU waits for the host. The head counts as backward: few, long kernels."""
    phases = [(host[0], forward_s), (host[1], backward_s)] * micro_batches
    phases += [(host[2], 0.0), (0.0, optimizer_s)]  # the host goes over all tensors before it enqueues the first update
    return max(longest_way(phases) - sum(device for _, device in phases), 0.0)
