"""Seconds of a layer, of an end of the model, and of single rows of a training step on one device. Equal ones are computed once.

A row takes the time that its kernel takes alone, by that kernel's calibration: kernels that Python launches one by one leave gaps in a
step, and the measured time of a kernel alone includes such a gap. Rows that are never timed alone are priced by their bytes. A separate
calibration, fitted to steps, holds what differs in a step.

While kernels run, links are idle, and so is a part of DRAM. A ``Window`` counts for how many seconds of some kernels each resource is busy.
An exchange that runs beside these kernels takes idle seconds from the window. So two exchanges cannot use the same second of a link, and a
step is never shorter than the time for which any resource is busy.

If the host enqueues kernels one by one, the device may wait for the host. The step begins with an idle device, as the step before ends in
a wait for the device. A kernel starts once it is enqueued and the kernel before it has ended. So a step takes the longest of all paths
that follow the host up to some kernel and the device from there on. If host and device each have a constant pace within a phase, the
longest path changes over at a boundary of phases. Source: two machines in a row, Johnson 1954; the events of measured steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import NamedTuple

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

    ``calibration``: that of steps, fitted on this device (``calibrated_here``) or on another; ``parameters``: its numbers. Both are None if
    no step is calibrated; times are then at the roof.
    """

    device: Device
    fallbacks: FallbackDevices
    attention: str | None = None
    parameters: Mapping[str, float] | None = None
    calibration: Calibration | None = None
    calibrated_here: bool = False

    @property
    def kernels(self) -> dict[str, list[str]]:
        """Names of the implementations that were asked for, by kind of kernel; none where the choice is open."""
        return {"attention": [] if self.attention is None else [self.attention]}

    def price(self, op: Op, share: float) -> float:
        """Seconds of one run of a kernel, by its bytes at ``share`` of the DRAM bandwidth or by its vector operations."""
        vector = self.device.peaks.vector.get("fp32")
        vector_s = 0.0 if vector is None else op.kernel.work.vector / vector.number
        return max(float(op.kernel.bytes(READ, WRITE) / (dram_bandwidth(self.device) * share)), float(vector_s))


def machine_of(device: Device, fallbacks: FallbackDevices = tuple, attention: str | None = None) -> Machine:
    """``device`` with its own calibration of steps, or else that of the nearest architecture."""
    calibration, calibrated_here = model_calibration(MODEL, device, fallbacks)
    return Machine(device, fallbacks, attention, None if calibration is None else calibration.parameters, calibration, calibrated_here)


def bandwidth_share(op: Op) -> float | None:
    """The share of the DRAM bandwidth that prices ``op``; None if a calibration of its kernel prices it."""
    return None if op.timed is None else SHARES.get(op.timed.kind)


def predicted_alone(op: Op, machine: Machine, lower_s: float) -> Prediction:
    """Predicted time of the kernel run alone; UnavailableError says why there is none."""
    try:
        return predict_op(op, machine.device, lower_s, machine.fallbacks, machine.attention)
    except UnavailableError:
        timed = op.timed
        if timed is None or timed.obstacle:
            raise
        kernel_was_named = timed.implementations is not None or machine.attention is not None
        if timed.direction != BACKWARD or kernel_was_named:
            raise
        borrowed = replace(op, timed=timed._replace(implementations=BACKWARD_KERNELS))
        return predict_op(borrowed, machine.device, lower_s, machine.fallbacks)


def predicted(op: Op, machine: Machine, parameters: Mapping[str, float], lower_s: float) -> Prediction:
    """Predicted time of one run in a step, with its interval and origin."""
    share, calibration = bandwidth_share(op), machine.calibration
    if share is None:
        alone = predicted_alone(op, machine, lower_s)
        strided = op.timed is not None and op.timed.strided
        return scaled(alone, parameters["strided_factor"]) if strided else alone
    assert calibration is not None
    low, high = calibration.low, calibration.high
    if not machine.calibrated_here:
        low, high = calibration.borrowed_low or low, calibration.borrowed_high or high
    seconds, words = machine.price(op, share), f"bytes at {share:.0%} of the DRAM bandwidth, as in profiled steps"
    return Prediction(
        seconds, max(lower_s, seconds * low), seconds * high, CALIBRATED if machine.calibrated_here else BORROWED, words, calibration
    )


@lru_cache(maxsize=16384)
def estimated(op: Op, machine: Machine) -> OpTime:
    """Bound, roof and time of one run of ``op`` in a step."""
    parameters = machine.parameters
    if parameters is None:
        return OpTime(op, op_estimate(op, machine.device), None, "no training step is calibrated")
    run = time_of_run(op, machine.device, machine.fallbacks, lambda op, cost: predicted(op, machine, parameters, float(cost.lower_s)))
    return run if run.prediction is None else run._replace(prediction=at_least_busy(run.prediction, run.cost, machine.device))


@dataclass(slots=True)
class Window:
    """``seconds`` of kernels, and the seconds for which each resource is ``busy`` meanwhile, by name.

    ``outer``: the window of a whole pass that contains this one; what hides here takes idle seconds of both.
    """

    seconds: float
    busy: dict[str, float] = field(default_factory=dict)
    outer: Window | None = None

    def hide(self, seconds: float, needs: Mapping[str, float]) -> float:
        """Lets an exchange of ``seconds`` run beside the kernels as far as it can; returns its seconds that do, and books their resources.

        ``needs``: seconds for which the whole exchange occupies each resource.
        """
        windows = [self] if self.outer is None else [self, self.outer]
        share = 1.0
        for window in windows:
            for name, need_s in needs.items():
                if need_s:
                    share = min(share, max(window.idle_s(name), 0.0) / need_s)
        for window in windows:
            window.book({name: share * need_s for name, need_s in needs.items()})
        return share * seconds

    def idle_s(self, name: str) -> float:
        """Seconds in which the resource ``name`` is idle."""
        return self.seconds - self.busy.get(name, 0.0)

    def book(self, taken: Mapping[str, float], times: float = 1) -> None:
        """Books ``times`` the seconds ``taken`` of each resource."""
        for name, seconds in taken.items():
            self.busy[name] = self.busy.get(name, 0.0) + times * seconds


def joined(windows: Iterable[tuple[Window, float]]) -> Window:
    """One window of all ``windows`` in turn, each given with how many times it runs."""
    whole = Window(0.0)
    for window, times in windows:
        whole.seconds += times * window.seconds
        whole.book(window.busy, times)
    return whole


@lru_cache(maxsize=16384)
def _run_window(op: Op, machine: Machine) -> Window:
    """Window of one run of ``op``: predicted, else at the roof."""
    share = bandwidth_share(op)
    if share is not None and machine.parameters is not None:
        seconds = machine.price(op, share)
        return Window(seconds, {DRAM: seconds * share})  # no less than its bytes take
    alone = estimated(op, machine)
    seconds = float(alone.cost.roofline_s) if alone.prediction is None else alone.prediction.seconds
    return Window(seconds, {DRAM: min(float(alone.cost.terms.get("dram", 0.0)), seconds)})


def ops_window(ops: Iterable[Op], machine: Machine) -> Window:
    """Window of all runs of ``ops`` in turn."""
    return joined((_run_window(op if op.count == 1 else replace(op, count=1), machine), float(op.count)) for op in ops)


class Repeated(NamedTuple):
    """Kernels that run again in a ``share`` of the layers, and their window."""

    ops: list[Op]
    window: Window
    share: Number


@dataclass(frozen=True, slots=True, eq=False)
class LayerTime:
    """The kernels ``ops`` of a layer, the embedding or the head, and windows of their lists: ``forward``, ``core`` and the others.

    ``cover``: windows of kernels that can hide an exchange, by pass and ``Exchange.behind``.
    """

    where: Layer | str
    ops: LayerOps
    forward: Window
    backward: Window
    core: Window
    full: Window
    skippable: Window
    cover: dict[tuple[str, str], Window]

    def repeated(self, recompute: Recomputation) -> list[Repeated]:
        """The kernels that the backward pass runs again; none at the ends of the model."""
        if not isinstance(self.where, Layer):
            return []
        if recompute.of_layers:
            whole = Repeated(self.ops.full, self.full, 1)
            not_last = 1 - 1 / recompute.every  # only the last layer of a segment can leave out ``skippable``
            return [whole, Repeated(self.ops.skippable, self.skippable, not_last)] if recompute.every > 1 else [whole]
        return [Repeated(self.ops.core, self.core, 1)] if recompute.kind == SELECTIVE else []


@lru_cache(maxsize=2048)
def layer_time(batch: MicroBatch, where: Layer | str, machine: Machine) -> LayerTime:
    """Times of a layer of a micro-batch, or of the embedding or the head."""
    ops = layer_ops(where, batch)
    cover = {}
    for pass_name, kernels, exchanges in (
        (FORWARD_PASS, ops.forward, ops.forward_exchanges),
        (BACKWARD_PASS, ops.backward, ops.backward_exchanges),
    ):
        for behind in {exchange.behind for exchange in exchanges if exchange.behind}:
            cover[pass_name, behind] = ops_window((op for op in kernels if behind in op.name), machine)
    lists = (ops.forward, ops.backward, ops.core, ops.full, ops.skippable)
    forward, backward, core, full, skippable = (ops_window(kernels, machine) for kernels in lists)
    return LayerTime(where, ops, forward, backward, core, full, skippable, cover)


# The host


US = 1e-6


class HostTime(NamedTuple):
    """Seconds that the host needs to enqueue the kernels of one forward pass, one backward pass, and the optimizer's step."""

    forward_s: float
    backward_s: float
    optimizer_s: float


def host_time(parameters: Mapping[str, float], layers: int, tensors: int, *, recomputes: bool) -> HostTime:
    """Seconds of the host. ``recomputes``: whether the backward pass runs layers again."""
    p = parameters
    forward_us, backward_us = p["host_forward_us"], p["host_backward_us"]
    if recomputes:
        backward_us = backward_us + (forward_us + p["host_again_us"])
        forward_us = forward_us + p["host_checkpoint_us"]
    return HostTime(layers * forward_us * US, layers * backward_us * US, tensors * chosen("optimizer_tensor_us") * US)


def exposed_host_s(host: HostTime, forward_s: float, backward_s: float, micro_batches: int, optimizer_s: float) -> float:
    """Seconds of a step beyond its kernels, in which the GPU waits for the host. The head counts as backward: few, long kernels."""
    phases = [(host.forward_s, forward_s), (host.backward_s, backward_s)] * micro_batches
    phases += [(host.optimizer_s, 0.0), (0.0, optimizer_s)]  # the host goes over all tensors before it enqueues the first update
    return max(longest_path_s(phases) - sum(device_s for _, device_s in phases), 0.0)


def longest_path_s(phases: Sequence[tuple[float, float]]) -> float:
    """Seconds of the longest path through ``phases``, each given as (host, device) seconds.

    >>> longest_path_s([(1.0, 3.0), (1.0, 3.0)]), longest_path_s([(4.0, 1.0), (4.0, 2.0)])
    (6.0, 8.0)
    """
    host_begins_s = [0.0]  # when the host begins each phase, and ends the last
    for host_s, _ in phases:
        host_begins_s.append(host_begins_s[-1] + host_s)
    longest_s = device_left_s = 0.0
    for index in range(len(phases) - 1, -1, -1):
        # a path leaves the host with the last kernel of a phase, enqueued at its end, or with the first, enqueued as it begins
        longest_s = max(longest_s, host_begins_s[index + 1] + device_left_s)
        device_left_s += phases[index][1]
        longest_s = max(longest_s, host_begins_s[index] + device_left_s)
    return longest_s
