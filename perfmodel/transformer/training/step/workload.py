"""A training step as a workload whose time is measured and predicted whole."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.dtypes import Dtype
from perfmodel.core.hardware import Device
from perfmodel.timing.predict import Lenders
from perfmodel.transformer.estimate import ModelStep
from perfmodel.transformer.step import PREFILL, Step
from perfmodel.transformer.training.checks import timed
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.question import Training
from perfmodel.transformer.training.step.estimate import TrainingEstimate, estimate


@dataclass(frozen=True, slots=True)
class TrainingStep(ModelStep):
    """A step of ``training``; ``step`` is its forward pass."""

    training: Training | None = None
    implementation: str = HUGGINGFACE

    def on(self, device: Device, lenders: Lenders = tuple) -> TrainingEstimate:  # type: ignore[override]
        """Its rows on ``device``."""
        assert self.training is not None
        return estimate(self.training, device, lenders, None, self.implementation, half=self.step.dtype.name, attention=self.attention)

    def check(self) -> TrainingStep:
        """This step, if it has a meaning; else UsageError."""
        assert self.training is not None
        timed(self.training)
        return self


def training_step(training: Training, dtype: Dtype, implementation: str, attention: str | None = None) -> TrainingStep:
    """A step of ``training`` with activations in ``dtype``."""
    bits = 8 * dtype.size
    forward = Step(PREFILL, training.batch, training.n, training.n, dtype, bits, bits, cached=False)
    return TrainingStep(training.model, forward, False, attention, training, implementation).check()
