"""``torch._grouped_mm``: products of routed experts in one launch of CUTLASS.

A kernel of one block first writes pointers and sizes of each group. The product is persistent: clusters of two blocks, one block a
multiprocessor, take tiles of C in turn. A tile walks k, and TMA loads operands while it multiplies: it takes the time of its products, plus
a start and an end. The tile is chosen by the mean rows per matrix; rows are padded to whole tiles, and tiles to pairs. Matrices come from
DRAM once while others multiply, which overlaps in part: the time is the root of the sum of the squares of both.

Source: pytorch @06c0cf01 aten/src/ATen/native/cuda/GroupMM.cu (tiles, clusters, schedules); CUTLASS, KernelPtrArrayTmaWarpSpecialized.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from perfmodel.core.architectures import wide_matrix
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import rates_of
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.grouped_matmul import GroupedMatmul
from perfmodel.timing.base import ALONE, Case, Model, numbers_of

SMALL, LARGE, FEW = (64, 128), (128, 256), 128  # known
"""Rows and columns of the small and the large tile. The small one is taken for up to ``FEW`` rows per matrix, or columns."""
CLUSTER = 2  # known
"""Blocks along the rows that load B together."""


def tile_of(w: GroupedMatmul) -> tuple[int, int]:
    """Rows and columns of a tile of C. The library goes by the mean rows of all matrices, those without rows included.

    >>> tile_of(GroupedMatmul(4096, 8, 64, 64, 4096, 2048)), tile_of(GroupedMatmul(64, 8, 64, 64, 4096, 2048))
    ((128, 256), (64, 128))
    """
    return SMALL if w.rows // w.experts <= FEW or w.n <= FEW else LARGE


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without multiprocessors, a clock, a peak of the format or a DRAM bandwidth in the profile."""
    w: GroupedMatmul = case.workload
    if not wide_matrix(device):
        raise UnavailableError(f"{case.implementation} has no grouped kernel for {device.id}: PyTorch multiplies group by group there")
    sms, clock, bandwidth = numbers_of(device, "multiprocessors", "tensor clock", "DRAM bandwidth")
    br, bc = tile_of(w)
    pairs = int(w.touched * ceil_div(ceil_div(w.rows_per_expert, br), CLUSTER) * ceil_div(w.n, bc))
    products_s = 2 * br * bc * w.k * sms / (rates_of(device, w.dtype).matmul * p["multiply_share"])
    tile_s = products_s + p["tile_cycles"] / clock
    moved = w.dtype.size * (w.rows * (w.k + w.n) + w.touched * w.k * w.n)
    multiplied_s, moved_s = ceil_div(pairs, int(sms) // CLUSTER) * tile_s, moved / (bandwidth * p["dram_share"])
    return float(p["launch_us"] * 1e-6 + hypot(multiplied_s, moved_s))


def covers(case: Case) -> bool:
    """Grouped products in bf16, forward, rows grouped by matrix."""
    return isinstance(case.workload, GroupedMatmul) and case.direction == FORWARD and case.workload.dtype.name == "bf16"


MODEL = Model(
    "grouped-matmul",
    "grouped-matmul",
    covers,
    seconds,
    "pytorch GroupMM.cu; persistent tiles over streamed matrices",
    assumes=f"{ALONE}; rows already sorted by matrix, as many for each",
    implementations=("torch-grouped-mm",),
)
