"""What the L2 holds when a kernel starts, and what that costs or saves beside a clean one.

Clean: flushed by reads, so that inputs come from DRAM and nothing has to be written back. Dirty: flushed by writes, as
``triton.testing.do_bench`` does and as the kernel before leaves it: a share of the L2 are lines that must be written to DRAM before others
take their place. A kernel that moves B bytes pushes lines out at random, so that 1 - exp(-B / L2) of the dirty ones are written back while
it runs. What it reads waits for that, what it writes does not.

Warm: the same buffers again. What survives (rule 2 of ``perfmodel.core.cache``, one copy) comes at the bandwidth of L2 and sooner;
what does not is brought in over the lines that the run before has written.

The share and the latency are fitted to kernels that were timed in several states, whatever their models say of either; they stand in
``cache_state.json``, which ``tests/refresh_cache_state.py`` writes.
"""

from __future__ import annotations

from math import exp

from perfmodel.core.cache import PRIVATE_IS_LOST, PRIVATE_SURVIVES
from perfmodel.core.hardware import Device
from perfmodel.timing.base import L2_STATE, WARM_LATENCY_S, dram_bandwidth, lost_share

DIRTY_SHARE = L2_STATE["dirty_share"]
"""Of the L2, lines that wait to be written after a flush by writes."""
LARGEST_SAVING = 0.6  # known
"""Of a clean run: what is left is mostly the launch."""


def write_back_s(read: float, written: float, device: Device, dirty_share: float = DIRTY_SHARE) -> float:
    """Seconds that a kernel loses as it drives dirty lines out; 0 where the size of the L2 is unknown.

    ``read`` and ``written`` in bytes. UnavailableError without a DRAM bandwidth in the profile.
    """
    size, moved = device.cache_bytes, read + written
    if not size or not moved:
        return 0.0
    return float(dirty_share * size * (1 - exp(-moved / size)) / dram_bandwidth(device) * read / moved)


def warm_s(
    clean_s: float, read: float, written: float, device: Device, dirty_share: float = DIRTY_SHARE, latency_s: float = WARM_LATENCY_S
) -> float:
    """Seconds of a kernel of ``clean_s`` on the buffers of the run before; ``read`` and ``written`` in bytes.

    UnavailableError without a DRAM bandwidth in the profile.
    """
    size, moved, l2 = device.cache_bytes, read + written, device.level("l2")
    if not size or not moved:
        return clean_s
    faster = l2.measured_bandwidth.number if l2 is not None and l2.measured_bandwidth else None
    sooner_s = moved * (1 / dram_bandwidth(device) - (1 / faster if faster else 0.0))
    lost = lost_share(moved / size, PRIVATE_SURVIVES, PRIVATE_IS_LOST)
    saved_s = (1 - lost) * (latency_s + max(sooner_s, 0.0))
    own_lines_s = lost * write_back_s(read, written, device, dirty_share) * written / moved
    return clean_s - min(saved_s, LARGEST_SAVING * clean_s) + own_lines_s
