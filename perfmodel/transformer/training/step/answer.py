"""A training step with all that is told of it: time, FLOP by convention, memory."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.errors import PerfmodelError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.timing.predict import Lenders
from perfmodel.transformer.training.checks import timed
from perfmodel.transformer.training.implementations import FUSED
from perfmodel.transformer.training.question import Training
from perfmodel.transformer.training.step.conventions import CONVENTIONS, Counted
from perfmodel.transformer.training.step.estimate import TrainingEstimate, estimate
from perfmodel.transformer.training.step.executed import run, utilization
from perfmodel.transformer.training.step.system import System
from perfmodel.transformer.training.timeline import Peak, peak


@dataclass(frozen=True, slots=True)
class TrainingAnswer:
    """``memory``: the peak of the fullest GPU; None where ``unknown`` says why."""

    found: TrainingEstimate
    counted: dict[str, Counted]
    memory: Peak | None
    unknown: str = ""

    @property
    def training(self) -> Training:
        """What was asked."""
        return self.found.training

    @property
    def device(self) -> Device:
        """Each of the GPUs."""
        return self.found.device

    @property
    def shares(self) -> dict[str, tuple[float, float]]:
        """Shares of the datasheet's peak by published conventions, without and with what runs again; above 1 where masked scores count."""
        rate = float(rates_of(self.device, self.found.job.frame.forward.dtype).matmul)
        gpus, seconds = self.training.parallel.gpus, self.found.seconds
        return {name: counted.shares(seconds, gpus, rate) for name, counted in self.counted.items()}

    @property
    def run(self) -> Counted:
        """FLOP that the kernels of all GPUs need and execute: masked scores are no need, and mostly not run."""
        return run(self.found.job)

    @property
    def utilization(self) -> tuple[float, float]:
        """MFU and HFU of what the kernels run; neither can be above 1."""
        return utilization(self.found.job, self.found.seconds)

    @property
    def capacity(self) -> int | None:
        """Bytes of one GPU; None where the profile does not say."""
        known = self.device.dram.capacity
        return None if known is None else int(known.number)

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits; None where either is unknown."""
        return None if self.memory is None or self.capacity is None else bool(self.memory.bytes <= self.capacity)


def answer(
    training: Training,
    device: Device,
    lenders: Lenders = tuple,
    system: System | None = None,
    implementation: str = FUSED,
    *,
    half: str = "bf16",
    overlap: bool = True,
) -> TrainingAnswer:
    """Everything about a step of ``training``."""
    found = estimate(timed(training), device, lenders, system, implementation, half=half, overlap=overlap)
    counted = {name: count(training) for name, count in CONVENTIONS.items()}
    try:
        return TrainingAnswer(found, counted, peak(training, implementation))
    except PerfmodelError as error:
        return TrainingAnswer(found, counted, None, error.message)
