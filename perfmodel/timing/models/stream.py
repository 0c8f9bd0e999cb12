"""Kernels that pass once over rows of memory: element-wise operations, norms.

Time: launch, the latency of one row, rows one after another on each multiprocessor, and bytes at a share of the bandwidth.
Writes count like reads at every size, although a small kernel's stay in L2: measured copies from 1 MiB on show one rate.
Source: latency and bandwidth add up where a row is too short to hide the one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth, numbers_of

PARAMETERS = (
    Parameter("launch_us", "an empty kernel", 4.0),
    Parameter("bandwidth_share", "of the DRAM bandwidth that is reached", 0.9),
    Parameter("column_ns", "latency of a row, per element", 0.05),
    Parameter("row_ns", "per row on one multiprocessor", 1.0),
)


STREAM_SHARE = 0.92
"""Of the DRAM bandwidth, what element-wise kernels reach on an H200: bound of kernels that are timed in cycles."""
TUNED = ("STREAM_SHARE",)


def cycles_per_second(device: Device) -> float:
    """Of all multiprocessors together, at the highest clock; UnavailableError without one in the profile."""
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    return sms * clock


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without DRAM bandwidth or multiprocessors in the profile."""
    w: Stream = case.workload
    latency = w.cols * p["column_ns"] + w.rows / numbers_of(device, "multiprocessors")[0] * p["row_ns"]
    return float(p["launch_us"] * 1e-6 + latency * 1e-9 + (w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * p["bandwidth_share"]))


def covers(case: Case) -> bool:
    """Any but a copy, which has no rows, softmax, whose kernel changes with the row length, and a broadcast mask."""
    other = case.implementation == "torch-mask"
    return isinstance(case.workload, Stream) and case.workload.op not in ("copy", "softmax") and not other and case.direction == FORWARD


MODEL = Model(
    "stream",
    PARAMETERS,
    covers,
    seconds,
    "launch + latency + bytes over bandwidth",
    implementations=("torch-scale", "torch-add", "torch-silu-mul", "torch-rope", "torch-rms-norm", "torch-layer-norm"),
)
