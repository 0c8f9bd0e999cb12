"""numba-flash-mma: FlashAttention-2's forward pass with tensor cores, by this project.

A block keeps br queries and visits tiles of bc keys, as ``fa2`` explains; the launch names tile and threads. Each warp has 32 br / threads
rows. No variant of it masks odd lengths, and none splits the keys.
"""

from __future__ import annotations

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import Case
from perfmodel.timing.models._attention_grid import AttentionLaunch, dense, page, resident_blocks

WIDEST = 128  # known
_LAUNCH = {"br": 128, "bc": 64, "threads": 128}  # known


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Tile, threads and shared memory of the case's launch."""
    br, bc, threads = (case.launch.get(name, default) for name, default in _LAUNCH.items())
    resident = resident_blocks(device, br, bc, threads, case.workload, case.launch.get("shared_bytes"))
    return AttentionLaunch(br, bc, max(16, 32 * br // threads), resident=resident, threads=threads)


def covers(case: Case) -> bool:
    """Forward over several queries, dense, with d = d_v of at most 128."""
    return dense(case, FORWARD) and case.workload.n > 1 and case.workload.d <= WIDEST


MODEL = page("numba-mma", launch, covers, "FlashAttention-2 (Dao 2023, Alg. 1); list scheduling, Graham 1966", ("numba-flash-mma",))
