"""Traits of an architecture, which decide the kernels that a library runs there and the devices from which calibrations carry over.

Sources: CUDA C++ Programming Guide, technical specifications by compute capability; PTX ISA: ``cp.async`` from 8.0 on,
``cp.async.bulk.tensor`` (TMA) from 9.0, ``wgmma`` of 9.0a alone, ``tcgen05`` of 10.x and 11.0, of 12.x neither. L2: A100 and H100
whitepapers (two partitions), Blackwell Architecture Technical Brief (two dies), Ada and RTX Blackwell whitepapers (one). AMD CDNA 1 to
4 white papers: an L2 for each die of compute units, from CDNA 4 on loads of 16 bytes into LDS.
"""

from __future__ import annotations

import re
from math import isclose
from typing import NamedTuple

from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity

MMA_SYNC, WGMMA, TCGEN05, MFMA = "mma.sync", "wgmma", "tcgen05", "mfma"
"""Matrix instructions: of a warp; of a warpgroup that reads SRAM; of a block into tensor memory; of AMD's wave."""
BY_THREAD, CP_ASYNC, BULK = 0, 1, 2
"""Ways to copy tiles into SRAM: through registers, by asynchronous copies of threads, as a whole by a copy engine (TMA)."""


class Traits(NamedTuple):
    """Traits of an architecture that decide how kernels run.

    ``matrix``: the matrix instruction that reaches the peak, empty if unknown. ``copies``: how tiles come to SRAM. ``l2_parts``: parts of
    the L2, each with its own copy of data that all multiprocessors read. ``generation``: the maker's number for it. ``machine``: the kind
    of machine, such as GPU or TPU.
    """

    matrix: str = ""
    copies: int = BY_THREAD
    l2_parts: int = 1
    generation: float = 0.0
    machine: str = "GPU"


_NVIDIA = (
    (0.0, MMA_SYNC, BY_THREAD, 1),
    (8.0, MMA_SYNC, CP_ASYNC, 2),
    (8.6, MMA_SYNC, CP_ASYNC, 1),
    (9.0, WGMMA, BULK, 2),
    (10.0, TCGEN05, BULK, 2),
    (12.0, MMA_SYNC, BULK, 1),
)
"""Rows of lowest compute capability, matrix instruction, copies into SRAM and parts of the L2; the last matching row is used."""
_AMD = {"gfx908": (1.0, BY_THREAD, 1), "gfx90a": (2.0, BY_THREAD, 1), "gfx942": (3.0, BY_THREAD, 8), "gfx950": (4.0, CP_ASYNC, 8)}
"""CDNA generation, copies into SRAM, and number of L2s, one for each die of compute units that a program sees."""
_OTHER_MACHINES = ("TPU", "Gaudi", "Trainium")
"""First words of architectures that are no GPUs; a CPU has an L2 in each core."""
OTHER_L2 = 4  # known
"""Ratio of sizes beyond which an L2 is another one: 3 to 6 MB until Ampere, 32 to 128 MB from Ada on, which hold the tensors of a layer."""
SAME = 0.005
"""Relative difference up to which two figures of a board are taken as equal: data sheets round."""


@cached_by_identity
def traits_of(device: Device) -> Traits:
    """The traits of ``device``, or of the last older architecture if its own is not listed."""
    first, number = device.architecture.partition(" ")[0], re.search(r"\d+", device.architecture)
    per_core = any(level.level == "l2" and level.scope == "multiprocessor" for level in device.memory)
    if per_core or first in _OTHER_MACHINES:
        return Traits(generation=float(number[0]) if number else 0.0, machine="CPU" if per_core else first)
    if device.capability:
        _, matrix, copies, parts = next(row for row in reversed(_NVIDIA) if device.capability >= row[0])
        return Traits(matrix, copies, parts, device.capability)
    if device.compute_capability in _AMD:
        generation, copies, parts = _AMD[device.compute_capability]
        return Traits(MFMA, copies, parts, generation)
    return Traits(generation=float(number[0]) if number else 0.0)


def wide_matrix(device: Device) -> bool:
    """Whether only matrix instructions that read SRAM, fed by a copy engine, reach the peak of ``device``."""
    return traits_of(device).matrix in (WGMMA, TCGEN05)


WGMMA_FLOPS = 4096  # known
"""16-bit FLOP per clock and multiprocessor of ``wgmma`` on Hopper: H100 whitepaper."""


@cached_by_identity
def tensor_share(device: Device) -> float:
    """Share of its chip's tensor rate that ``device`` has: below 1 where it was cut for export to less than half (H20).

    L2, power limit and vector unit of such a device are not cut.
    """
    clock, count, peak = device.clocks.tensor or device.clocks.max, device.multiprocessors, device.peaks.tensor.get("fp16")
    if traits_of(device).matrix != WGMMA or clock is None or count is None or peak is None:
        return 1.0
    share = peak.number / (WGMMA_FLOPS * count.number * clock.number)
    return share if share < 1 / 2 else 1.0


def copies_kept(device: Device) -> int:
    """Copies that the last cache of ``device`` holds of data that all multiprocessors read; 1 for a cache on the memory side."""
    return 1 if device.level("llc") is not None else traits_of(device).l2_parts


def undivided_l2(device: Device) -> bool:
    """Whether ``device`` has one L2 that all multiprocessors share without a second copy, as NVIDIA's have from 8.6 on."""
    traits = traits_of(device)
    return traits.l2_parts == 1 and traits.copies >= CP_ASYNC and traits.matrix == MMA_SYNC


def transferable(device: Device, other: Device) -> bool:
    """Whether a calibration of one device may serve the other: they have one maker and are the same kind of machine."""
    return device.vendor == other.vendor and are_alike(device, other)


def are_alike(device: Device, other: Device) -> bool:
    """Whether both devices are the same kind of machine, such as GPUs, whoever makes them."""
    return traits_of(device).machine == traits_of(other).machine


def run_the_same_code(device: Device, other: Device) -> bool:
    """Whether both have the same multiprocessors, so that kernels compiled for one run on the other."""
    same = device.compute_capability == other.compute_capability is not None
    return device.vendor == other.vendor and (same or device.architecture == other.architecture)


def same_board(device: Device, other: Device) -> bool:
    """Whether kernels take the same time on both: one architecture, and ``SAME`` multiprocessors, clock and DRAM bandwidth."""
    if device.architecture != other.architecture or device.dram.bandwidth is None:
        return False
    boards = ((board.multiprocessors, board.clocks.max, board.dram.bandwidth) for board in (device, other))
    pairs = zip(*boards, strict=True)
    return all(
        first is second if first is None or second is None else isclose(first.number, second.number, rel_tol=SAME)
        for first, second in pairs
    )


def distance(device: Device, other: Device, products: bool = False) -> tuple[bool, int, float, bool, bool, str]:
    """Sort key that puts the nearest device first: by architecture, traits, generation (newer before older), and board.

    ``products``: for matrix products, whose libraries feed ``mma.sync`` by copies of threads even where there is a copy engine.
    """
    nearest_to, its = traits_of(device), traits_of(other)
    copies = (min(traits.copies, CP_ASYNC if products and traits.matrix == MMA_SYNC else BULK) for traits in (nearest_to, its))
    sizes = [each.cache_bytes or 0 for each in (device, other)]
    unlike = 2 * (nearest_to.matrix != its.matrix) + abs(next(copies) - next(copies)) + (nearest_to.l2_parts != its.l2_parts)
    unlike += min(sizes) > 0 and max(sizes) > OTHER_L2 * min(sizes)
    generations = abs(its.generation - nearest_to.generation)
    older = its.generation < nearest_to.generation
    return other.architecture != device.architecture, unlike, generations, older, not same_board(device, other), other.id
