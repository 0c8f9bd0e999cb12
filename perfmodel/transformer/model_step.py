"""A step of a model as a workload whose time is measured and predicted whole."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate
from perfmodel.timing.predict import FallbackDevices
from perfmodel.transformer.estimate import Pass, run_pass
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Step


@dataclass(frozen=True, slots=True)
class ModelStep:
    """``step`` of ``model``, launched as a CUDA graph or kernel by kernel. ``attention``: implementation of its fused attention."""

    model: ModelSpec
    step: Step
    graph: bool
    attention: str | None = None

    def on(self, device: Device, fallback_devices: FallbackDevices = tuple) -> Pass:
        """Its rows on ``device``."""
        return run_pass(self.model, self.step, device, fallback_devices, self.graph)

    def estimate(self, device: Device) -> Estimate:
        """Bound and roof of the whole step on ``device``."""
        return self.on(device).cost

    def check(self) -> ModelStep:
        """This step, if it has a meaning; else UsageError."""
        self.step.split.check(self.model)
        self.step.check()
        return self


class KnownDevice:
    """A device by identity: its calibrations are part of what was predicted."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __hash__(self) -> int:
        return hash(self.device.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownDevice) and other.device is self.device
