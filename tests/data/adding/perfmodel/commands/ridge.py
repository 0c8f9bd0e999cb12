"""Ridge points of a device: FLOP per byte from which the peak and not the DRAM bandwidth is the limit."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.commands._command import Destination, command, device_for
from perfmodel.core.question import Question, option


@dataclass(frozen=True, slots=True)
class RidgeQuestion(Question):
    """A device, and one format of its matrix units."""

    hardware: str | None = option("Device profile: id, alias or path.")
    dtype: str = option("Number format.", default="bf16")


@command
def ridge(asked: RidgeQuestion, to: Destination) -> None:
    """Ridge point of a device: FLOP per byte from which its peak and not its DRAM bandwidth is the limit.

    Example: perfmodel ridge --hardware h200 --dtype bf16
    """
    from perfmodel.core.dtypes import dtype_named
    from perfmodel.report import Report
    from perfmodel.report.metrics import Metric, as_json, as_table
    from perfmodel.timing.base import dram_bandwidth

    device, dtype = device_for(asked.hardware), dtype_named(asked.dtype)
    peak, bandwidth = float(device.matmul_peak(dtype.name, dtype.matmul_unit).number), dram_bandwidth(device)
    found = [
        Metric("flops_per_s", peak, "peak", "FLOP/s"),
        Metric("bytes_per_s", bandwidth, "DRAM bandwidth", "B/s"),
        Metric("ridge", peak / bandwidth, "ridge point", "FLOP/B"),
    ]
    data = {"schema": "perfmodel.ridge/1", "device": device.id, "dtype": dtype.name, **as_json(found)}
    title = f"Ridge point of {device.name}, {dtype.name}"
    to.emit(Report(title, [f"{peak / bandwidth:.0f} FLOP/B"], [as_table("", {"value": found})], [], data))
