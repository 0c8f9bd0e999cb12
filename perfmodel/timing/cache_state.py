"""What the L2 holds when a kernel starts, and what that costs or saves beside a clean one.

Clean: flushed by reads, so that inputs come from DRAM and nothing has to be written back. Dirty: flushed by writes, as
``triton.testing.do_bench`` does and as the kernel before leaves it: ``DIRTY_SHARE`` of the L2 are lines that must be written to DRAM
before others take their place. A kernel that moves B bytes pushes lines out at random, so that 1 - exp(-PUSHING x B / L2) of the
dirty ones are written back while it runs. What it reads waits for that, what it writes does not, and a part is hidden where the DRAM
would pause: the smaller, the more of the time after the launch the B bytes take. At most DIRTY_SHARE x L2 / bandwidth, beside the
latency of the first line.

Warm: the same buffers again. What survives (rule 2 of ``perfmodel.core.cache``, one copy) comes at the bandwidth of L2 and sooner;
what does not is brought in over the lines that the run before has written.

Constants were chosen on 14,393 kernels of 22 families, each timed clean and dirty (9,331 warm too) on an H200 (PyTorch 2.11), by
cross-validation: the ratio of dirty to clean is off by at most 1.1 % in the median of each family, by up to 8 % where nothing is added.
"""

from __future__ import annotations

from math import exp

from perfmodel.core.cache import PRIVATE_IS_LOST, PRIVATE_SURVIVES
from perfmodel.core.hardware import Device
from perfmodel.timing.base import WARM_LATENCY_S, dram_bandwidth, lost_share

DIRTY_SHARE, PUSHING = 0.62, 0.78  # tuned
"""Of the L2, lines that wait to be written after a flush by writes; of what a kernel moves, bytes that push others out."""
START_S, HIDDEN = 7e-6, 0.43  # tuned
"""Seconds of a kernel in which DRAM is idle, and the power of the DRAM's share of the others by which write-backs cost time."""
FIRST_LINES_S, FIRST_LINES_BYTES = 0.2e-6, 2e6  # tuned
"""Latency of the first line that has to wait, and bytes from which there is surely one."""
LARGEST_SAVING = 0.6  # known
"""Of a clean run: what is left is mostly the launch."""


def write_back_s(clean_s: float, read: float, written: float, device: Device) -> float:
    """Seconds that a kernel of ``clean_s`` loses as it drives dirty lines out; 0 where the size of the L2 is unknown.

    ``read`` and ``written`` in bytes. UnavailableError without a DRAM bandwidth in the profile.
    """
    size, moved = device.cache_bytes, read + written
    if not size or not moved:
        return 0.0
    bytes_s = moved / dram_bandwidth(device)
    busy = bytes_s / max(clean_s - START_S, bytes_s)
    pushed_s = DIRTY_SHARE * size * (1 - exp(-PUSHING * moved / size)) / dram_bandwidth(device)
    return float(pushed_s * read / moved * busy**HIDDEN + FIRST_LINES_S * (1 - exp(-moved / FIRST_LINES_BYTES)))


def warm_s(clean_s: float, read: float, written: float, device: Device) -> float:
    """Seconds of a kernel of ``clean_s`` on the buffers of the run before; ``read`` and ``written`` in bytes.

    UnavailableError without a DRAM bandwidth in the profile.
    """
    size, moved, l2 = device.cache_bytes, read + written, device.level("l2")
    if not size or not moved:
        return clean_s
    faster = l2.measured_bandwidth.number if l2 is not None and l2.measured_bandwidth else None
    sooner_s = moved * (1 / dram_bandwidth(device) - (1 / faster if faster else 0.0))
    lost = lost_share(moved / size, PRIVATE_SURVIVES, PRIVATE_IS_LOST)
    saved_s = (1 - lost) * (WARM_LATENCY_S + max(sooner_s, 0.0))
    return clean_s - min(saved_s, LARGEST_SAVING * clean_s) + lost * write_back_s(clean_s, read, written, device) * written / moved
