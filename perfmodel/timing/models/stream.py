"""Kernels that pass once over memory: copies, element-wise operations, a mask that is broadcast.

Writes count like reads at every size, although a small kernel's stay in L2: measured copies from 1 MiB on show one rate.
Sources: latency and bandwidth add up where a row is too short to hide the one behind the other. PyTorch, aten/src/ATen/native/cuda:
Loops.cuh, kernels with an offset calculator, which are not vectorized. Copies from 1 MiB on start later, by the driver's own kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from perfmodel.core.cache import PRIVATE_IS_LOST
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Stream
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth, lost_share, numbers_of

PARAMETERS = (
    Parameter("launch_us", "an empty kernel"),
    Parameter("bandwidth_share", "of the DRAM bandwidth that is reached"),
    Parameter("column_ns", "latency of a row, per element"),
    Parameter("row_ns", "per row on one multiprocessor"),
)

STREAM_SHARE = 0.92  # tuned
"""Share of DRAM bandwidth that element-wise kernels reach on an H200: upper limit for kernels timed in cycles."""
BLOCK_THREADS = 1024  # known
LARGE_COPY, PAGE = 1 << 20, 4096  # tuned
"""Bytes from which the driver copies by another kernel, and of what that one copies: what is left over is a kernel of its own."""
SPREAD_US, SPREAD_BYTES = 0.25, 3e4  # tuned
"""More of a copy by all multiprocessors than of one by a single block, and bytes that take many blocks."""
WORD, SHORT_COPY, UNALIGNED_US = 4, 1400, 0.5  # tuned
"""More of a smaller copy instead if it is no whole number of words, and not very short."""
KEPT_SHARE = 0.14  # tuned
"""Of the L2, what a kernel has written and leaves there: it reaches DRAM after the kernel has ended."""
HANDED_ON = {"torch-silu-mul": 2}  # known
"""Outputs' worth of bytes that kernels of one call write and read between them; what the L2 keeps of them costs less."""
HANDED_SURVIVES, HANDED_COST = 0.3, 0.6  # tuned
"""Of the L2, up to which it keeps all of them for the next kernel, and the time of such a byte over one of DRAM."""


def cycles_per_second(device: Device) -> float:
    """Sum of the clock cycles per second of all multiprocessors, at the highest clock; UnavailableError if the profile has none."""
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    return sms * clock


def copy_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launches, and of the bytes that reach DRAM meanwhile at a share of the bandwidth.

    UnavailableError without a DRAM bandwidth in the profile.
    """
    w: Stream = case.workload
    size, moved = w.write_bytes, float(w.read_bytes + w.write_bytes)
    launch_us = p["launch_us"] + _copy_latency_us(size, p["large_us"], case.implementation == "torch-copy")
    return launch_us * 1e-6 + (moved - _left_bytes(moved, size, device)) / (dram_bandwidth(device) * p["bandwidth_share"])


def _left_bytes(moved: float, written: float, device: Device) -> float:
    """Of the ``written`` bytes, those that the L2 still holds when a kernel ends that moved ``moved`` in all."""
    size = device.cache_bytes
    return min(written, KEPT_SHARE * size * (1 - exp(-((moved / size) ** 2)))) if size else 0.0


def _copy_latency_us(size: int, large_us: float, by_driver: bool) -> float:
    """Beside the launch, of a copy of ``size`` bytes."""
    spread_us = SPREAD_US * (1 - exp(-size / SPREAD_BYTES))
    if not by_driver:
        return spread_us
    if size >= LARGE_COPY:
        return spread_us + (large_us if size % PAGE else 0.0)
    return UNALIGNED_US if size % WORD and size > SHORT_COPY else spread_us


def row_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launch, latency of one row, rows one after another on each multiprocessor, and bytes at a share of the bandwidth.

    UnavailableError without DRAM bandwidth or multiprocessors in the profile.
    """
    w: Stream = case.workload
    latency = w.cols * p["column_ns"] + w.rows / numbers_of(device, "multiprocessors")[0] * p["row_ns"]
    handed = HANDED_ON.get(case.implementation, 0) * w.write_bytes
    lost = lost_share(handed / device.cache_bytes, HANDED_SURVIVES, PRIVATE_IS_LOST) if device.cache_bytes else 1.0
    moved = float(w.read_bytes + w.write_bytes + handed * (lost + (1 - lost) * HANDED_COST))
    moved -= _left_bytes(moved, float(w.write_bytes), device)
    return float(p["launch_us"] * 1e-6 + latency * 1e-9 + moved / (dram_bandwidth(device) * p["bandwidth_share"]))


def broadcast_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of adding one head's operand (a mask) to all heads, as PyTorch does it.

    Index arithmetic with a division per element, not the bytes, limits the rate.
    UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile.
    """
    w: Stream = case.workload
    moved = (w.read_bytes + w.write_bytes) / (dram_bandwidth(device) * STREAM_SHARE)
    return float(p["launch_us"] * 1e-6 + max(moved, w.rows * w.cols * p["element_cycles"] / cycles_per_second(device)))


def model_name(case: Case) -> str | None:
    """The model of a forward pass over rows: a copy has no rows, softmax's kernel changes with their length, masks are broadcast."""
    if not isinstance(case.workload, Stream) or case.direction != FORWARD:
        return None
    by_op = {"copy": "copy", "softmax": "softmax-rows", "norm": "norm-rows"}
    return by_op.get(case.workload.op, "broadcast" if case.implementation == "torch-mask" else "stream")


_LISTED = (
    Model(
        "copy",
        (*PARAMETERS[:2], Parameter("large_us", "of what a copy of 1 MiB or more leaves of its last 4 KiB")),
        lambda case: model_name(case) == "copy",
        copy_seconds,
        "launch + bytes over bandwidth",
        knows_warm=False,
        implementations=("numba-copy", "torch-copy"),
    ),
    Model(
        "stream",
        PARAMETERS,
        lambda case: model_name(case) == "stream",
        row_seconds,
        "launch + latency + bytes over bandwidth",
        knows_warm=False,
        implementations=("torch-scale", "torch-add", "torch-silu-mul", "torch-rope"),
    ),
    Model(
        "broadcast",
        (PARAMETERS[0], Parameter("element_cycles", "of a multiprocessor, per element")),
        lambda case: model_name(case) == "broadcast",
        broadcast_seconds,
        "elements by cycles, bytes by bandwidth",
        knows_warm=False,
        implementations=("torch-mask",),
    ),
)
MODELS = {model.name: model for model in _LISTED}
