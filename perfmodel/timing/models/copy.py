"""A copy from memory to memory: launch, then bytes at a share of the DRAM bandwidth."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, dram_bandwidth
from perfmodel.timing.models import stream

PARAMETERS = stream.PARAMETERS[:2]


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without a DRAM bandwidth in the profile."""
    w: Stream = case.workload
    return p["launch_us"] * 1e-6 + float(w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * p["bandwidth_share"])


def covers(case: Case) -> bool:
    """Copies alone."""
    return isinstance(case.workload, Stream) and case.workload.op == "copy" and case.direction == FORWARD


MODEL = Model(
    "copy",
    PARAMETERS,
    covers,
    seconds,
    "launch + bytes over bandwidth",
    implementations=("numba-copy", "torch-copy"),
)
