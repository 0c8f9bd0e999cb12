"""A softmax that a block runs per row, in registers: launch, waves of rows over the multiprocessors, bytes."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter, Prior, dram_bandwidth, numbers_of

RESIDENT = 4  # tuned
"""Rows that a multiprocessor works on at once, chosen on its first run."""
PARAMETERS = (
    Parameter("launch_us", "until the first block starts", Prior(4.0)),
    Parameter("row_us", "latency of a row", Prior(1.0)),
    Parameter("share", "of the DRAM bandwidth that is reached", Prior(0.8)),
)


def covers(case: Case) -> bool:
    """Softmax, forward."""
    return isinstance(case.workload, Stream) and case.workload.op == "softmax" and case.direction == FORWARD


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Predicted seconds; UnavailableError without DRAM bandwidth or multiprocessors in the profile."""
    w: Stream = case.workload
    [multiprocessors] = numbers_of(device, "multiprocessors")
    waves = ceil_div(w.rows, RESIDENT * int(multiprocessors))
    moved = 2 * w.rows * w.cols * w.dtype.size / dram_bandwidth(device)
    return float(p["launch_us"] * 1e-6 + max(waves * p["row_us"] * 1e-6, moved / p["share"]))


MODEL = Model("my-softmax", PARAMETERS, covers, seconds, "its own kernel", implementations=("my-softmax",))
