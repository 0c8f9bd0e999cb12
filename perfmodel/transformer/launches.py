"""What a launch costs: the one place where kernels in a CUDA graph differ from kernels launched one by one.

A calibration was fitted to a kernel timed alone, so its time contains one launch from a stream. In a graph the same kernel starts
sooner, by the difference between the two launch overheads of the profile. Eager launches are priced as a stream that never runs
dry: where the host takes longer to issue a kernel than the device to run it, as eager Python does in decode, steps take longer.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.hardware import Device
from perfmodel.timing.predict import Prediction


def graph_saving_s(device: Device) -> float | None:
    """Seconds by which a kernel starts sooner in a graph; None where the profile does not say."""
    overhead = device.launch_overhead
    if overhead is None or overhead.graph is None:
        return None
    return max(float(overhead.stream.number - overhead.graph.number), 0.0)


def in_graph(prediction: Prediction, saving_s: float, lower_s: float) -> Prediction:
    """``prediction`` for the same kernel in a graph, never below ``lower_s``."""
    times = {name: max(getattr(prediction, name) - saving_s, lower_s) for name in ("seconds", "low", "high")}
    return replace(prediction, **times)
