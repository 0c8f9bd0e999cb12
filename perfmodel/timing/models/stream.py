"""Kernels that pass once over rows of memory: element-wise operations, norms.

Time: launch, the latency of one row, rows one after another on each multiprocessor, and bytes at a share of the bandwidth.
Writes count like reads at every size, although a small kernel's stay in L2: measured copies from 1 MiB on show one rate.
Source: latency and bandwidth add up where a row is too short to hide the one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter

PARAMETERS = (
    Parameter("launch_us", "an empty kernel", 4.0),
    Parameter("bandwidth_share", "of the DRAM bandwidth that is reached", 0.9),
    Parameter("column_ns", "latency of a row, per element", 0.05),
    Parameter("row_ns", "per row on one multiprocessor", 1.0),
)


def dram_bandwidth(device: Device) -> float:
    """B/s; UnavailableError without one in the profile."""
    bandwidth = device.dram.bandwidth_bytes_per_s
    if bandwidth is None:
        raise UnavailableError(f"{device.id} has no DRAM bandwidth in its profile", "add the bandwidth of its dram level")
    return bandwidth


STREAM_SHARE = 0.92
"""Of the DRAM bandwidth, what element-wise kernels reach on an H200: bound of kernels that are timed in cycles."""
TUNED = ("STREAM_SHARE",)
"""Chosen on measurements that fits may see, beside the fitted parameters."""


def cycles_per_second(device: Device) -> float:
    """Of all multiprocessors together, at the highest clock; UnavailableError without one in the profile."""
    if device.clocks.max is None:
        raise UnavailableError(f"{device.id} has no highest clock in its profile", "add clocks.max")
    return multiprocessors(device) * device.clocks.max.number


def multiprocessors(device: Device) -> int:
    """Their number; UnavailableError without one in the profile."""
    if device.multiprocessors is None:
        raise UnavailableError(f"{device.id} lacks its multiprocessors", "add multiprocessors to the profile")
    return int(device.multiprocessors.number)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds."""
    w: Stream = case.workload
    latency = w.cols * p["column_ns"] + w.rows / multiprocessors(device) * p["row_ns"]
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
    implementations=(
        "torch-scale",
        "torch-add",
        "torch-silu-mul",
        "torch-rope",
        "torch-rms-norm",
        "torch-layer-norm",
    ),
)
