"""Interval of a sequence of kernels on a device that it was not timed on, composed of those of its kernels.

Errors of products go together, as they are of how one chip multiplies; so do those of passes over memory, as they are of how much of one
DRAM bandwidth is reached. The two have nothing to do with each other: errors add up within each kind, and as squares across both.
``spread.json``: between two devices, how far apart the shares are that copies reach of the DRAM bandwidth (``tests/refresh_pooled.py``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp, hypot, log
from pathlib import Path

from perfmodel.core.files import read_json
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import Case, Model
from perfmodel.timing.predict import lent_interval

FILE = Path(__file__).with_name("spread.json")
Ends = tuple[float, float]
"""Low and high end of an interval, in shares of the time."""
PRODUCTS = "matmul"


@cache
def bandwidth_spread() -> float:
    """Half width in log(time) of what the share of the DRAM bandwidth that is reached adds from one device to another."""
    return float(read_json(FILE)["half_width"])


def streamed_elsewhere(ends: Ends) -> Ends:
    """``ends`` of a pass over memory on another device than that of its calibration."""
    down, up = (hypot(log(end), bandwidth_spread()) for end in ends)
    return exp(-down), exp(up)


def composed(model: Model, block: Calibration, case: Case, device: Device, seconds: float) -> Ends:
    """Interval of ``seconds`` of a sequence by ``block``, which another device lends; kernels of ``device`` have theirs in its calibrations.

    What the kernels leave of the time is passes over memory that ``block`` itself was fitted to. No narrower than on the lender.
    """
    parts = list((model.parts or (lambda *_: ()))(case, device))
    listed = [(part.block.workload, part.seconds, (part.block.low, part.block.high)) for part in parts]
    left_s = max(seconds - sum(part.seconds for part in parts), 0.0)
    listed.append(("stream", left_s, streamed_elsewhere((block.low, block.high))))
    down, up = (
        hypot(*(sum(abs(ends[at] - 1) * time for name, time, ends in listed if (name == PRODUCTS) is products) for products in (True, False)))
        for at in (0, 1)
    )
    return min(1 - down / seconds, block.low), max(1 + up / seconds, block.high)


def lent_part(block: Calibration, device: Device, lender: Device) -> Calibration:
    """``block`` of a kernel of a sequence, with its interval on ``device``."""
    if lender.id == device.id:
        return block
    ends = lent_interval(block, device, lender) if block.workload == PRODUCTS else streamed_elsewhere((block.low, block.high))
    return replace(block, low=ends[0], high=ends[1])
