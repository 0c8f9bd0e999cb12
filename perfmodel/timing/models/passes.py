"""Passes over memory as programs run them: element-wise kernels, casts, broadcasts, reductions, lookups, lists of tensors.

A kernel takes its launch plus the longer of two times: its elements at some cycles of a multiprocessor each, and its bytes at the bandwidth
of DRAM. Bytes that earlier kernels left in the L2 take no time. Kinds differ in the instructions per element (an address by division where
operands are broadcast, a conversion of formats) and in the order in which they touch memory. Source: PyTorch, aten/src/ATen/native/cuda:
CUDALoops.cuh, Reduce.cuh, Shape.cu, ForeachFunctors.cuh; profiles of programs on an H200.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Pass
from perfmodel.timing.base import Case, Model, always, dram_bandwidth, numbers_of
from perfmodel.timing.engine import joined
from perfmodel.timing.models.streams import cycles_per_second

_NAMES = """elements functions fill cast strided strided-cast transposed random lists triton-elements triton-rows reduce
reduce-columns reduce-all reduce-norm argmax scan sort cat cat-strided gather scatter embedding-backward
embedding-backward-few loss layout softmax softmax-long softmax-backward log-softmax log-softmax-backward layer-norm
rms-norm norm-backward batch-norm batch-norm-inference batch-norm-backward group-norm group-norm-backward pool
pool-backward upsample-nearest upsample-bilinear upsample-bicubic depthwise depthwise-last depthwise-backward
depthwise-backward-last"""
KINDS = tuple(_NAMES.split())
"""Kinds of passes, each with its own implementation and parameters."""


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of the launch, and of bytes or elements; UnavailableError without DRAM bandwidth, clock or multiprocessors in the profile."""
    w: Pass = case.workload
    moved = float(w.read_bytes + w.write_bytes)
    kept = min(p["kept_share"], 1.0) * min(moved, float(device.cache_bytes or 0))
    bytes_s = (moved - kept) / (dram_bandwidth(device) * p["bandwidth_share"])
    [sms] = numbers_of(device, "multiprocessors")
    working = min(1.0, float(w.rows) / (sms * p["resident_blocks"])) if w.rows else 1.0
    cycles = float(w.elements) * (p["element_cycles"] + w.divisions * p["division_cycles"]) / working + float(w.rows) * p["row_cycles"]
    elements_s = cycles / cycles_per_second(device)
    return float(p["launch_us"] * 1e-6 + joined(p["overlap"], bytes_s, elements_s))


MODEL = Model(
    "pass",
    "pass",
    lambda case: isinstance(case.workload, Pass) and case.direction == FORWARD,
    seconds,
    "launch + elements by cycles or bytes over bandwidth, less what the L2 holds",
    assumes="operands where the kernels before have left them, as in a program",
    knows_warm=always,
    implementations=tuple(f"torch-{kind}" for kind in KINDS),
)
