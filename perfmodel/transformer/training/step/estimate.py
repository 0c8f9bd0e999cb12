"""A training step on a device: kernels of its slowest GPU with bound, roof and prediction; time, FLOP and memory of the step.

The lower bound is the larger of the kernels' needed work, without recomputation, and of weights and optimizer state once through DRAM.
Exchanges and waits add nothing to it, as another schedule may hide them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, total
from perfmodel.timing.power import scaled
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.estimate import ModelStep, PassRow, around, interval
from perfmodel.transformer.host import Interval
from perfmodel.transformer.op import WEIGHTS, Op, total_bytes
from perfmodel.transformer.op_time import check_named, op_estimate
from perfmodel.transformer.ops import merged
from perfmodel.transformer.step import PREFILL, ModelPass
from perfmodel.transformer.training.implementations import FUSED, HUGGINGFACE
from perfmodel.transformer.training.memory import Peak, peak
from perfmodel.transformer.training.question import TrainingConfig, timed
from perfmodel.transformer.training.step.flops import CONVENTIONS, Counted, run
from perfmodel.transformer.training.step.job import TrainingJob, adding_up, clearing, job_of, least_bytes, optimizer
from perfmodel.transformer.training.step.layer_time import Machine, estimated, machine_of
from perfmodel.transformer.training.step.row import recomputed
from perfmodel.transformer.training.step.step_time import StepTime, step_time
from perfmodel.transformer.training.step.system import System, over_network

FORWARD, RECOMPUTE, BACKWARD, UPDATE = "forward", "recompute", "backward", "optimizer"
IN_PLACE = 2
"""Passes through DRAM that a byte in the caches saves between two steps: updated weights are read and written again."""


@dataclass(frozen=True, slots=True)
class TrainingKernel(PassRow):
    """All runs of one kernel in a step on one GPU. ``part``: forward, recompute, backward or optimizer."""

    part: str = ""


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """One step. ``lines``: kernels of a GPU of the slowest stage; ``time``: time with exchanges and waits.

    ``memory``: peak of the fullest GPU; None if not asked for, or for the reason ``unknown``. ``notes``: sentences on how kernels are
    launched, in place of those of the implementation.
    """

    job: TrainingJob
    implementation: str
    time: StepTime
    lines: Sequence[TrainingKernel]
    memory: Peak | None = None
    unknown: str = ""
    notes: Sequence[str] = ()

    @property
    def training(self) -> TrainingConfig:
        """The training step that was asked for."""
        return self.job.training

    @property
    def device(self) -> Device:
        """The device of each GPU."""
        return self.job.machine.device

    @property
    def cost(self) -> Estimate:
        """The sum of all lines, with the bound of the whole step."""
        needs = sum((line.cost.needs for line in self.lines), Needs())
        forward_weights = total_bytes((line.op for line in self.lines if line.part == FORWARD), WEIGHTS)
        tensors = least_bytes(self.training, self.job.state(self.time.stage), forward_weights / self.time.micro_batches)
        held = None if needs.held is None else IN_PLACE * needs.held
        return replace(total(line.cost for line in self.lines), needs=replace(needs, tensors=tensors, held=held))

    @property
    def seconds(self) -> float:
        """Seconds of the step; the roof replaces missing predictions of kernels."""
        return self.time.seconds

    @property
    def prediction(self) -> Interval | None:
        """Seconds with the ends of the interval; None if a kernel has no prediction.

        The interval is that of calibrated whole steps, if there are any. Else the errors of all kernels add up, and exchanges, bubble and
        host count as known.
        """
        kernels = interval((line.interval, 1) for line in self.lines)
        if kernels is None:
            return None
        seconds, machine = self.seconds, self.job.machine
        if self.job.micro_batch.eager and machine.calibrated_here and machine.calibration is not None and self.training.parallel.gpus == 1:
            return around(seconds, seconds * machine.calibration.low, seconds * machine.calibration.high, self.cost, self.device)
        kernels_s, kernels_low_s, kernels_high_s = kernels
        other_s = seconds - kernels_s
        return around(seconds, max(kernels_low_s + other_s, self.time.exchanged_s), kernels_high_s + other_s, self.cost, self.device)

    @property
    def validated(self) -> bool:
        """Whether steps of this kind of layout were measured and compared: ZeRO stages 2 and 3 over a network were not."""
        return self.job.system is None or not over_network(self.job.system, self.training.parallel)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all sequences."""
        return float(self.training.batch * self.training.n / self.seconds)

    @property
    def counted(self) -> dict[str, Counted]:
        """FLOP of the step by published conventions."""
        return {name: count(self.training) for name, count in CONVENTIONS.items()}

    @property
    def shares(self) -> dict[str, tuple[float, float]]:
        """Shares of the datasheet's peak by published conventions, without and with recomputation; above 1 if masked scores count."""
        return {name: counted.shares(self.job, self.seconds) for name, counted in self.counted.items()}

    @property
    def run(self) -> Counted:
        """FLOP that the kernels of all GPUs need and execute: masked scores are not needed, and mostly not executed."""
        return run(self.job)

    @property
    def utilization(self) -> tuple[float, float]:
        """MFU and HFU by the FLOP of the kernels; neither can be above 1."""
        return self.run.shares(self.job, self.seconds)

    @property
    def capacity(self) -> int | None:
        """Bytes of one GPU; None if the profile does not say."""
        known = self.device.dram.capacity
        return None if known is None else int(known.number)

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits; None if peak or capacity is unknown."""
        return None if self.memory is None or self.capacity is None else bool(self.memory.bytes <= self.capacity)


def estimate(
    training: TrainingConfig,
    device: Device,
    fallbacks: FallbackDevices = tuple,
    system: System | None = None,
    implementation: str = FUSED,
    *,
    half: str = "bf16",
    overlap: bool = True,
    attention: str | None = None,
) -> TrainingEstimate:
    """``training`` on GPUs like ``device``, joined by ``system``; UsageError if there are too few, UnavailableError without a peak rate."""
    job = job_of(training, machine_of(device, fallbacks, attention), system, implementation, half=half, overlap=overlap)
    return of_job(job, implementation)


def of_job(job: TrainingJob, implementation: str = FUSED) -> TrainingEstimate:
    """Estimate of the step of ``job``, kernel by kernel."""
    time = step_time(job)
    lines = [_line(part, op, job.machine) for part, ops in stage_ops(job, time.stage) for op in merged((kernel, 1) for kernel in ops)]
    check_named(job.machine.attention, (line.op for line in lines))
    return TrainingEstimate(job, implementation, time, lines)


def stage_ops(job: TrainingJob, stage: int) -> Iterator[tuple[str, list[Op]]]:
    """Kernels of a step on a GPU of ``stage``, part by part."""
    t, step, state, micro_batches = job.training, job.micro_batch.forward, job.state(stage), int(job.training.micro_batches)
    times = [(place, count * micro_batches) for place, count in job.times(stage)]
    yield FORWARD, [op.times(count) for place, count in times for op in place.ops.forward]
    yield RECOMPUTE, job.repeated_ops(times)
    yield BACKWARD, [op.times(count) for place, count in reversed(times) for op in place.ops.backward]
    yield UPDATE, [*(op.times(micro_batches) for op in adding_up(t, state, step)), optimizer(t, state, step), *clearing(t, state, step)]


def _line(part: str, op: Op, machine: Machine) -> TrainingKernel:
    """All runs of ``op`` as a row; ``cost`` is that of one run."""
    once = replace(op, count=1)
    alone = estimated(once, machine)
    cost = alone.cost
    prediction = None if alone.prediction is None else scaled(alone.prediction, float(op.count))
    if part == RECOMPUTE:  # takes as long as the first time, but is not needed
        op, cost = recomputed(op), op_estimate(recomputed(once), machine.device)
    return TrainingKernel(op, cost, prediction, alone.missing, part)


def answer(
    training: TrainingConfig,
    device: Device,
    fallbacks: FallbackDevices = tuple,
    system: System | None = None,
    implementation: str = FUSED,
    **options: Any,
) -> TrainingEstimate:
    """A step of ``training`` with its memory; ``options`` as in ``estimate``; UsageError if a value has no meaning."""
    step = estimate(timed(training), device, fallbacks, system, implementation, **options)
    try:
        return replace(step, memory=peak(training, implementation))
    except PerfmodelError as error:
        return replace(step, unknown=error.message)


@dataclass(frozen=True, slots=True)
class TrainingStep(ModelStep):
    """A step of ``training`` as a workload whose time is measured and predicted whole; ``step`` is its forward pass."""

    training: TrainingConfig | None = None
    implementation: str = HUGGINGFACE

    def on(self, device: Device, fallbacks: FallbackDevices = tuple) -> TrainingEstimate:  # type: ignore[override]
        """Estimate of the step's rows on ``device``, with their predictions."""
        assert self.training is not None
        return estimate(self.training, device, fallbacks, None, self.implementation, half=self.step.dtype.name, attention=self.attention)

    def check(self) -> TrainingStep:
        """This step, if it has a meaning; else UsageError."""
        assert self.training is not None
        timed(self.training)
        return self


def training_step(training: TrainingConfig, dtype: Dtype, implementation: str, attention: str | None = None) -> TrainingStep:
    """A step of ``training`` with activations in ``dtype``."""
    bits = 8 * dtype.size
    forward = ModelPass(PREFILL, training.batch, training.n, training.n, dtype, bits, bits, cached=False)
    return TrainingStep(training.model, forward, False, attention, training, implementation).check()
