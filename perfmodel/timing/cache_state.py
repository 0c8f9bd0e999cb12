"""What the L2 holds when a kernel starts, and what that costs or saves beside a clean one.

Clean: flushed by reads, so that inputs come from DRAM and nothing has to be written back. Dirty: flushed by writes, as
``triton.testing.do_bench`` does and as the kernel before leaves it: a share of the L2 are lines that must be written to DRAM before others
take their place. A kernel that moves B bytes pushes lines out at random, so that 1 - exp(-pushing x B / L2) of the dirty ones are written
back while it runs. What it reads waits for that, what it writes does not, and a part is hidden where the DRAM would pause: the smaller, the
more of the time after the launch the B bytes take. At most the share of the L2 over the bandwidth, beside the latency of the first line.

Warm: the same buffers again. What survives (rule 2 of ``perfmodel.core.cache``, one copy) comes at the bandwidth of L2 and sooner;
what does not is brought in over the lines that the run before has written.

The numbers stand in ``cache_state.json``, which ``tools/refresh/cache_state.py`` fits to shipped kernels that were timed in several states,
whatever their models say. The fit starts from 14,393 kernels of 22 families on an H200, 9,331 of them warm too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp

from perfmodel.core.cache import scan_limits
from perfmodel.core.hardware import Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.timing.base import L2_STATE, dram_bandwidth, lost_share

LARGEST_SAVING = 0.6  # known
"""Largest share of a clean run that a warm one saves: what is left is mostly the launch."""


def write_back_s(clean_s: float, read: float, written: float, device: Device, p: Mapping[str, float] = L2_STATE) -> float:
    """Seconds that a kernel of ``clean_s`` loses as it drives dirty lines out; 0 where the size of the L2 is unknown.

    ``read`` and ``written`` in bytes. ``p``: ``dirty_share``, share of the L2 that waits to be written after a flush by writes;
    ``pushing``, share of the moved bytes that push others out; ``start_us``, start of a kernel in which DRAM is idle; ``busy_power``,
    exponent of the DRAM's share of the rest with which write-backs cost time; ``first_line_us``, latency of the first line that has to
    wait, and ``first_line_mb``, megabytes moved from which there surely is one. UnavailableError without a DRAM bandwidth in the profile.
    """
    size, moved = device.cache_bytes, read + written
    if not size or not moved:
        return 0.0
    bandwidth = dram_bandwidth(device)
    bytes_s = moved / bandwidth
    busy = bytes_s / max(clean_s - p["start_us"] * 1e-6, bytes_s)
    pushed_s = p["dirty_share"] * size * (1 - exp(-p["pushing"] * moved / size)) / bandwidth
    first_s = p["first_line_us"] * 1e-6 * (1 - exp(-moved / (p["first_line_mb"] * 1e6)))
    return float(pushed_s * read / moved * busy ** p["busy_power"] + first_s)


def warm_s(
    clean_s: float, read: float, written: float, device: Device, p: Mapping[str, float] = L2_STATE, from_l2_s: float = 0.0, kernels: int = 1
) -> float:
    """Seconds of a kernel of ``clean_s`` on the buffers of the run before; ``read`` and ``written`` in bytes.

    ``p``: as in ``write_back_s``, and ``warm_latency_us``, which first loads and last stores save. ``from_l2_s``: seconds of the kernel
    where DRAM is as fast as the L2 (``as_fast_as_l2``), which a warm run does not beat. UnavailableError without a DRAM bandwidth in the
    profile. ``kernels``: those of the call that read buffers from before it; each saves its latency.
    """
    size, moved, l2 = device.cache_bytes, read + written, device.level("l2")
    if not size or not moved:
        return clean_s
    faster = l2.measured_bandwidth.number if l2 is not None and l2.measured_bandwidth else None
    sooner_s = moved * (1 / dram_bandwidth(device) - (1 / faster if faster else 0.0))
    lost = lost_share(moved / size, *scan_limits(device, alone=True))
    saved_s = (1 - lost) * (kernels * p["warm_latency_us"] * 1e-6 + max(min(sooner_s, clean_s - from_l2_s), 0.0))
    own_lines_s = lost * write_back_s(clean_s, read, written, device, p) * written / moved
    return clean_s - min(saved_s, LARGEST_SAVING * clean_s) + own_lines_s


@cached_by_identity
def as_fast_as_l2(device: Device) -> Device | None:
    """``device`` with a DRAM of the bandwidth that was measured of its L2; None if none was."""
    l2 = device.level("l2")
    if l2 is None or l2.measured_bandwidth is None:
        return None
    dram = replace(device.dram, bandwidth=l2.measured_bandwidth, max_bandwidth=None)
    return replace(device, memory=[*device.memory[:-1], dram])
