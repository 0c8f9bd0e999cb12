"""Passes over memory: kernels timed by themselves (``stream``), and those of programs (``pass``).

**stream**: copies, element-wise operations, a mask that is broadcast over heads.
A kernel takes its launch and the longer of two times: its bytes at a share of the DRAM bandwidth, and its elements at some cycles of a
multiprocessor each. Element-wise kernels are vectorized and wait for bytes; one that broadcasts an operand finds each offset by divisions,
and waits for those. The last bytes that a kernel writes are still in the L2 when it ends and reach DRAM later. They fill at most a share of
the L2, and little of it if the kernel moves less than the L2 holds, as lines are written out while it runs. A call of several kernels
launches each, and each tensor between two of them is written and read once more. Copies start later the more multiprocessors they take.
From 1 MiB on the driver copies whole pages, and the rest in a separate kernel. Sources: PyTorch, aten/src/ATen/native/cuda: Loops.cuh,
CUDALoops.cuh (vectorized kernels, offset calculators); copies of an H200, timed.

**pass**: element-wise kernels, casts, broadcasts, reductions, lookups, lists of tensors, as programs run them.
A kernel takes its launch, and the longer of its elements, by cycles of a multiprocessor, and of its bytes, by the bandwidth of DRAM; bytes
that the kernels before left in the L2 take none. Kinds differ in the instructions per element (an address by division where operands are
broadcast, a conversion of formats) and in the order in which they touch memory.
Source: PyTorch, aten/src/ATen/native/cuda: CUDALoops.cuh, Reduce.cuh, Shape.cu, ForeachFunctors.cuh; profiles of programs on an H200.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Pass, Stream
from perfmodel.timing.base import Case, Model, always, dram_bandwidth, never, numbers_of
from perfmodel.timing.engine import joined
from perfmodel.timing.implementations import find


def cycles_per_second(device: Device) -> float:
    """Sum of the clock cycles per second of all multiprocessors, at the highest clock; UnavailableError if the profile has none."""
    sms, clock = numbers_of(device, "multiprocessors", "highest clock")
    return sms * clock


# Kernels by themselves

LARGE_COPY, PAGE = 1 << 20, 4096  # known
"""Bytes from which the driver copies by another kernel; and bytes of a page: larger copies are 2 us faster if pages divide them."""
BROADCAST = ("torch-mask", "torch-rope")  # known
"""Implementations whose kernels broadcast an operand if it is smaller than the other."""
BY_DRIVER = "torch-copy"


def broadcasts(case: Case) -> bool:
    """Whether the kernels of ``case`` locate their elements by division; the mask of a single head is added like any other tensor."""
    w: Stream = case.workload
    return case.implementation in BROADCAST and w.shared < w.rows * w.cols


def left_in_l2(moved: float, written: float, share: float, device: Device) -> float:
    """Bytes of those ``written`` that the L2 still holds at the end of a kernel that moved ``moved`` bytes in all."""
    size = device.cache_bytes
    return min(written, share * size * (1 - exp(-((moved / size) ** 2)))) if size else 0.0


def stream_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of launches, and of bytes or elements, whichever take longer.

    UnavailableError without a DRAM bandwidth in the profile; for a broadcast also without clock or multiprocessors.
    """
    w: Stream = case.workload
    kernels, written = find(case.implementation).launches, float(w.write_bytes)
    start_us = kernels * (p["launch_us"] + p["spread_us"] * written / (written + PAGE))
    if case.implementation == BY_DRIVER and written >= LARGE_COPY and written % PAGE:
        start_us += p["rest_us"]
    moved = float(w.read_bytes) + written + 2 * (kernels - 1) * written
    passed_s = (moved - left_in_l2(moved, written, p["kept_share"], device)) / (dram_bandwidth(device) * p["bandwidth_share"])
    if broadcasts(case):
        passed_s = max(passed_s, kernels * float(w.rows * w.cols) * p["element_cycles"] / cycles_per_second(device))
    return float(start_us * 1e-6 + passed_s)


def covers_streams(case: Case) -> bool:
    """Forward passes over memory without reductions."""
    return isinstance(case.workload, Stream) and case.direction == FORWARD and case.workload.op not in ("softmax", "norm")


_STREAM = Model(
    "stream",
    "stream",
    covers_streams,
    stream_seconds,
    "launch + bytes over bandwidth, or elements by cycles",
    knows_warm=never,
    implementations=(
        *("numba-copy", "torch-copy", "torch-scale", "torch-add", "torch-silu-mul", "torch-rope", "torch-mask"),
        *("torch-compile-add", "torch-compile-silu-mul", "torch-compile-rope"),
    ),
)


# Kernels of programs

_NAMES = """elements functions fill cast strided strided-cast transposed random lists triton-elements triton-rows reduce reduce-columns
reduce-planes reduce-all reduce-norm argmax scan sort cat cat-strided gather scatter embedding-backward embedding-backward-few
loss layout softmax softmax-long softmax-backward log-softmax log-softmax-backward layer-norm rms-norm norm-backward batch-norm
batch-norm-inference batch-norm-backward batch-norm-last batch-norm-backward-last batch-norm-library batch-norm-backward-library
group-norm group-norm-backward pool pool-backward upsample-nearest upsample-bilinear upsample-bicubic depthwise depthwise-last
depthwise-backward depthwise-backward-last"""
KINDS = tuple(_NAMES.split())
"""Kinds of passes, each with its own implementation and parameters."""


def pass_seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of the launch, and of bytes or elements; UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile."""
    w: Pass = case.workload
    moved = float(w.read_bytes + w.write_bytes)
    kept = min(p["kept_share"], 1.0) * min(moved, float(device.cache_bytes or 0))
    bytes_s = (moved - kept) / (dram_bandwidth(device) * p["bandwidth_share"])
    [sms] = numbers_of(device, "multiprocessors")
    working = min(1.0, float(w.rows) / (sms * p["resident_blocks"])) if w.rows else 1.0
    cycles = float(w.elements) * (p["element_cycles"] + w.divisions * p["division_cycles"]) / working + float(w.rows) * p["row_cycles"]
    elements_s = cycles / cycles_per_second(device)
    before_us = p["launch_us"] + w.parts * p["part_us"]
    return float(before_us * 1e-6 + joined(p["overlap"], bytes_s, elements_s))


_PASS = Model(
    "pass",
    "pass",
    lambda case: isinstance(case.workload, Pass) and case.direction == FORWARD,
    pass_seconds,
    "launch + elements by cycles or bytes over bandwidth, less what the L2 holds",
    assumes="operands where the kernels before have left them, as in a program",
    knows_warm=always,
    implementations=tuple(f"torch-{kind}" for kind in KINDS),
)
MODELS = {model.name: model for model in (_STREAM, _PASS)}
