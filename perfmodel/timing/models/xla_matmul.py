"""Matrix products as XLA compiles them for a TPU: y[m, n] = x[m, k] W[k, n].

The rows of x come into VMEM first. Then slices of W stream from HBM through the systolic units, and slices of y go back, both behind the
multiplication: what takes longer counts. A unit multiplies whole squares of its edge, and rows in groups of eight. All TensorCores of the
chip share the work, the peak and the bandwidth.
Sources: jax-ml/scaling-book, roofline.md and tpus.md (streamed weights, padding to the edge, registers of 8 x 128); jax-ml/jax,
docs/pallas/tpu/matmul.md (pipeline of blocks).

In a step that is compiled as a whole, XLA loads some weights into VMEM while the kernel before still runs, or loads the next kernel's
weights during this one. The shape of a product does not tell which: such kernels take from a fifth to twice the time predicted here.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import ALONE, Case, Model, dram_bandwidth, never, numbers_of

XLA = "xla"
SUBLANES = 8  # known
"""Rows of a vector register."""


def padded_flops(w: Matmul, edge: int) -> int:
    """FLOP of whole squares of ``edge`` and groups of ``SUBLANES`` rows.

    >>> padded_flops(Matmul(1, 4096, 100), 256) == 2 * 8 * 4096 * 256
    True
    """
    m, n, k = ceil_div(w.m, SUBLANES) * SUBLANES, ceil_div(w.n, edge) * edge, ceil_div(w.k, edge) * edge
    return int(2 * w.batch * m * n * k)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without a DRAM bandwidth, a matrix edge or a peak of the format in the profile."""
    w: Matmul = case.workload
    (edge,), bandwidth = numbers_of(device, "matrix edge"), dram_bandwidth(device)
    size = w.dtype.size * w.batch
    rows_s = size * w.m * w.k / (bandwidth * p["rows_share"])
    streamed_s = size * (w.k * w.n + w.m * w.n) / (bandwidth * p["hbm_share"])
    multiplied_s = padded_flops(w, int(edge)) / (device.matmul_peak(w.dtype.name, "tensor").number * p["peak_share"])
    return float(p["launch_us"] * 1e-6 + rows_s + max(streamed_s, multiplied_s))


def covers(case: Case) -> bool:
    """Products C[m, n] = A[m, k] B[k, n] by XLA, batched or not, forward, without split k."""
    w = case.workload
    return isinstance(w, Matmul) and w.split_k == 1 and case.direction == FORWARD and case.implementation == XLA


MODEL = Model(
    "xla-matmul",
    "xla-matmul",
    covers,
    seconds,
    "pipeline of blocks: jax-ml/scaling-book, roofline.md; jax-ml/jax, docs/pallas/tpu/matmul.md",
    assumes=f"{ALONE}; W and x in HBM when the kernel starts",
    implementations=(XLA,),
    knows_warm=never,
)
