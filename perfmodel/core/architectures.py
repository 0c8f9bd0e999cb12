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
from perfmodel.core.units import Quantity

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
    Traits(MMA_SYNC, BY_THREAD, 1, generation=0.0),
    Traits(MMA_SYNC, CP_ASYNC, 2, generation=8.0),
    Traits(MMA_SYNC, CP_ASYNC, 1, generation=8.6),
    Traits(WGMMA, BULK, 2, generation=9.0),
    Traits(TCGEN05, BULK, 2, generation=10.0),
    Traits(MMA_SYNC, BULK, 1, generation=12.0),
)
"""Traits from each compute capability on, up to that of the next entry."""
_AMD = {
    "gfx908": Traits(MFMA, BY_THREAD, 1, generation=1.0),
    "gfx90a": Traits(MFMA, BY_THREAD, 1, generation=2.0),
    "gfx942": Traits(MFMA, BY_THREAD, 8, generation=3.0),
    "gfx950": Traits(MFMA, CP_ASYNC, 8, generation=4.0),
}
"""Traits of CDNA by target; one L2 for each die of compute units that a program sees."""
_OTHER_MACHINES = ("TPU", "Gaudi", "Trainium")
"""First words of architectures that are no GPUs; a CPU has an L2 in each core."""
OTHER_L2 = 4  # known
"""Largest ratio of two L2 sizes of one kind: 3 to 6 MB until Ampere, 32 to 128 MB from Ada on, which hold the tensors of a layer."""
SAME = 0.005
"""Relative difference up to which two figures of a board are taken as equal: data sheets round."""


@cached_by_identity
def traits_of(device: Device) -> Traits:
    """The traits of ``device``, or of the last older architecture if its own is not listed."""
    first_word, number = device.architecture.partition(" ")[0], re.search(r"\d+", device.architecture)
    generation = float(number[0]) if number else 0.0
    if any(level.level == "l2" and level.scope == "multiprocessor" for level in device.memory):
        return Traits(generation=generation, machine="CPU")
    if first_word in _OTHER_MACHINES:
        return Traits(generation=generation, machine=first_word)
    if device.capability:
        traits = next(traits for traits in reversed(_NVIDIA) if device.capability >= traits.generation)
        return traits._replace(generation=device.capability)
    return _AMD.get(device.compute_capability or "", Traits(generation=generation))


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
    return (
        _agree(device.multiprocessors, other.multiprocessors)
        and _agree(device.clocks.max, other.clocks.max)
        and _agree(device.dram.bandwidth, other.dram.bandwidth)
    )


def _agree(first: Quantity | None, second: Quantity | None) -> bool:
    """Whether both quantities are unknown, or equal up to ``SAME``."""
    if first is None or second is None:
        return first is second
    return isclose(first.number, second.number, rel_tol=SAME)


def distance(device: Device, other: Device, products: bool = False) -> tuple[bool, int, float, bool, bool, str]:
    """Sort key that puts the device nearest to ``device`` first: by architecture, traits, generation (newer before older), and board.

    ``products``: for matrix products, whose libraries feed ``mma.sync`` by copies of threads even where there is a copy engine.
    """
    ours, theirs = traits_of(device), traits_of(other)
    unlike = 2 * (ours.matrix != theirs.matrix)
    unlike += abs(_copies_used(ours, products) - _copies_used(theirs, products))
    unlike += ours.l2_parts != theirs.l2_parts
    small, large = sorted((device.cache_bytes or 0, other.cache_bytes or 0))
    unlike += 0 < small < large / OTHER_L2
    generations = abs(theirs.generation - ours.generation)
    older = theirs.generation < ours.generation
    return other.architecture != device.architecture, unlike, generations, older, not same_board(device, other), other.id


def _copies_used(traits: Traits, products: bool) -> int:
    """The way in which kernels copy tiles into SRAM; ``products``: kernels of matrix products."""
    return min(traits.copies, CP_ASYNC) if products and traits.matrix == MMA_SYNC else traits.copies
