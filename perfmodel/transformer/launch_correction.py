"""What a kernel takes inside a step, beside what it takes alone: the one place where the two differ.

A calibration was fitted to a kernel timed alone, contiguous and with cold caches. In a step a kernel starts sooner behind another
one, more so in a CUDA graph; element-wise kernels find in L2 what the kernel before left there; and those that read a slice of a
wider matrix run PyTorch's slower strided loop. Eager launches are priced as a stream that never runs dry: where the host takes
longer to issue a kernel than the device to run it, as eager Python does in decode, steps take longer.

Where nothing was calibrated, a kernel in a graph starts sooner by the difference between the profile's launch overheads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import Parameter
from perfmodel.timing.predict import FallbackDevices, Prediction, model_calibration
from perfmodel.transformer.op import COLLECTIVE, ELEMENTWISE, Op
from perfmodel.transformer.spec import GroupedAttention, ModelSpec
from perfmodel.transformer.step import Split, Step

MODEL = "torch-step"
"""Time model of the calibrations that hold these parameters."""

PARAMETERS = (
    Parameter("stream_saving_us", "by which a kernel takes less behind another one than alone", 2.0),
    Parameter("graph_saving_us", "the same in a CUDA graph", 3.0),
    Parameter("handoff_share", "of the time of bytes that the kernel before has left in L2", 0.5),
    Parameter("strided_factor", "of the time of the bytes of a kernel that reads a slice of a wider matrix", 3.0),
)

LARGEST_SAVING = 0.5
"""Of the time alone: even the smallest kernel, alone mostly launch, keeps half of it."""

MEASURED_SPLITS = (Split(), Split(tp=2))
"""Those that steps were held against."""

TIMED_IN_GRAPHS = ("experts", "latent-attention")
"""Models of kernels whose measurements were graphs of many runs: there is no launch to take off."""
TUNED = ("LARGEST_SAVING",)


@dataclass(frozen=True, slots=True)
class LaunchCorrection:
    """The parameters that hold on a device. ``block``: where they are from; None: the profile's launch overheads. ``own``: its own."""

    parameters: Mapping[str, float]
    block: Calibration | None = None
    own: bool = False

    def saving_s(self, graph: bool) -> float:
        """By which a kernel takes less than alone."""
        return self.parameters["graph_saving_us" if graph else "stream_saving_us"] * 1e-6

    def seconds(self, alone_s: float, op: Op, device: Device, graph: bool, lower_s: float) -> float:
        """Of one run in a step; never below ``lower_s``."""
        if op.group == COLLECTIVE:  # those were timed one behind the other
            return max(alone_s, lower_s)
        p, found = self.parameters, alone_s
        if op.group == ELEMENTWISE:
            bandwidth = device.dram.bandwidth_bytes_per_s
            if bandwidth:
                slower = p["strided_factor"] - 1 if op.timed is not None and op.timed.strided else 0.0
                found += slower * float(op.activation_bytes) / bandwidth
                found -= handed_bytes(op, device) / bandwidth * (1 - min(p["handoff_share"], 1.0))
        return max(found - min(self.saving_s(graph), found * LARGEST_SAVING), lower_s)

    def of(self, prediction: Prediction, op: Op, device: Device, graph: bool, lower_s: float) -> Prediction:
        """``prediction`` of the kernel alone as that of the kernel in a step."""
        if prediction.calibration.model in TIMED_IN_GRAPHS:
            return prediction
        ends = (prediction.seconds, prediction.low, prediction.high)
        seconds, low, high = (self.seconds(end, op, device, graph, lower_s) for end in ends)
        return replace(prediction, seconds=seconds, low=low, high=high)


def handed_bytes(op: Op, device: Device) -> float:
    """Activations that an element-wise kernel finds in L2: about half of what it moves are inputs, and half of L2 is kept."""
    return min(float(op.activation_bytes), float(device.cache_bytes or 0)) / 2


def launch_correction(device: Device, fallback_devices: FallbackDevices = tuple) -> LaunchCorrection:
    """The calibration of ``device``, or else of the nearest architecture, or else the launch overheads of its profile."""
    block, own = model_calibration(MODEL, device, fallback_devices)
    if block is not None:
        return LaunchCorrection(block.parameters, block, own)
    return LaunchCorrection(
        {"stream_saving_us": 0.0, "graph_saving_us": 1e6 * (launch_saving_s(device) or 0.0), "handoff_share": 1.0, "strided_factor": 1.0}
    )


def launch_saving_s(device: Device) -> float | None:
    """Seconds between the launch overheads of a stream and of a graph; None where the profile does not say."""
    overhead = device.launch_overhead
    if overhead is None or overhead.graph is None:
        return None
    return max(float(overhead.stream.number - overhead.graph.number), 0.0)


def calibrated_for(model: ModelSpec, step: Step) -> bool:
    """Whether calibrated steps are like this one: dense layers in plain PyTorch, element-wise kernels apart, on one GPU or two."""
    dense = not model.is_moe and all(isinstance(layer.attention, GroupedAttention) for layer, _ in model.layer_kinds)
    return dense and not step.fused and step.cached and step.split in MEASURED_SPLITS
