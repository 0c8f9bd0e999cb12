"""An operand of one head added to all of them, element by element, as PyTorch does it: a mask that is broadcast.

Elements are looked up one by one, by indices that are divided out: that, not the bytes, sets the pace.
Source: PyTorch, aten/src/ATen/native/cuda/Loops.cuh, kernels with an offset calculator, which are not vectorized.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth
from perfmodel.timing.models.stream import STREAM_SHARE, cycles_per_second

PARAMETERS = (
    Parameter("launch_us", "an empty kernel", 4.0),
    Parameter("element_cycles", "of a multiprocessor, per element", 0.6),
)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile."""
    w: Stream = case.workload
    moved = (w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * STREAM_SHARE)
    return float(p["launch_us"] * 1e-6 + max(moved, w.rows * w.cols * p["element_cycles"] / cycles_per_second(device)))


def covers(case: Case) -> bool:
    """A mask added to several heads."""
    return isinstance(case.workload, Stream) and case.implementation == "torch-mask" and case.direction == FORWARD


MODEL = Model("broadcast", PARAMETERS, covers, seconds, "elements by cycles, bytes by bandwidth", implementations=("torch-mask",))
