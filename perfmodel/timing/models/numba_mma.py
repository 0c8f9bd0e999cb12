"""numba-flash-mma: FlashAttention-2's forward pass with tensor cores, by this project.

A block keeps br queries and visits tiles of bc keys, as ``fa2`` explains; tile and threads are those that the launch names. Each warp has
32 br / threads rows. No variant of it masks odd lengths, and none splits the keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.timing.base import Case, Model
from perfmodel.timing.models._attention_grid import ASSUMES, AttentionLaunch, dense, resident_blocks, work_of

WIDEST = 128  # known
_LAUNCH = {"br": 128, "bc": 64, "threads": 128}  # known


def launch(case: Case, device: Device) -> AttentionLaunch:
    """Tile, threads and shared memory of the case's launch."""
    br, bc, threads = (case.launch.get(name, default) for name, default in _LAUNCH.items())
    resident = resident_blocks(device, br, bc, threads, case.workload, case.launch.get("shared_bytes"))
    return AttentionLaunch(br, bc, max(16, 32 * br // threads), resident=resident, threads=threads)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; a block of more warps hides more of its own latencies."""
    work = work_of(case, device, launch)
    return work.seconds(p, work.grid.cycles(work.tile_cycles(p), p["block_cycles"], p["alone"] * 128 / work.launch.threads))


def covers(case: Case) -> bool:
    """Forward over several queries, dense, with d = d_v of at most 128."""
    return dense(case, FORWARD) and case.workload.n > 1 and case.workload.d <= WIDEST


MODEL = Model(
    "numba-mma",
    "attention",
    covers,
    seconds,
    "FlashAttention-2 (Dao 2023, Alg. 1); list scheduling, Graham 1966",
    ASSUMES,
    ("numba-flash-mma",),
    launch=launch,
)
