"""What a dirty L2 costs a kernel, and what a warm one saves, against a clean L2.

- Clean: flushed by reads. Inputs come from DRAM, and nothing has to be written back.
- Dirty: flushed by writes, as ``triton.testing.do_bench`` does and as another kernel leaves it. A share of the L2 are lines that must be
  written to DRAM before others take their place. A kernel that moves B bytes pushes lines out at random: while it runs, 1 - exp(-pushing x
  B / L2) of the dirty ones are written back. Its reads wait for that, its writes do not. A part is hidden where the DRAM would pause: the
  more of the time after the launch the B bytes take, the smaller that part. The first line costs its latency.
- Warm: the same buffers again. What survives in the L2 (rule 2 of ``perfmodel.core.cache``) comes at the bandwidth of L2 and sooner; the
  rest comes from DRAM over dirty lines, those that the run before has written.

``tools/refresh/cache_state.py`` fits the numbers in ``cache_state.json`` to measured kernels that were timed in several states, apart from
their time models: 14,393 kernels of 22 families on an H200, 9,331 of them warm too.
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
    """Seconds that a kernel of ``clean_s`` loses as dirty lines are written back; 0 if the size of the L2 is unknown.

    ``read`` and ``written`` in bytes. UnavailableError without a DRAM bandwidth in the profile. Parameters ``p``:

    - ``dirty_share``: share of the L2 that waits to be written back. ``pushing``: share of the moved bytes that push others out.
    - ``start_us``: time at the start of a kernel in which DRAM is idle.
    - ``busy_power``: exponent of the DRAM's share of the rest of the time, which gives the part of the write-backs that is not hidden.
    - ``first_line_us``: latency of the first line that waits. ``first_line_mb``: megabytes moved from which there surely is one.
    """
    size, moved = device.cache_bytes, read + written
    if not size or not moved:
        return 0.0
    bandwidth = dram_bandwidth(device)
    moved_s = moved / bandwidth
    dram_share = moved_s / max(clean_s - p["start_us"] * 1e-6, moved_s)
    pushed_s = p["dirty_share"] * size * (1 - exp(-p["pushing"] * moved / size)) / bandwidth
    first_s = p["first_line_us"] * 1e-6 * (1 - exp(-moved / (p["first_line_mb"] * 1e6)))
    return float(pushed_s * read / moved * dram_share ** p["busy_power"] + first_s)


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
    l2_byte_s = 1 / l2.measured_bandwidth.number if l2 is not None and l2.measured_bandwidth else 0.0
    sooner_s = moved * (1 / dram_bandwidth(device) - l2_byte_s)
    lost = lost_share(moved / size, *scan_limits(device, alone=True))
    saved_s = (1 - lost) * (kernels * p["warm_latency_us"] * 1e-6 + max(min(sooner_s, clean_s - from_l2_s), 0.0))
    dirty_lines_s = lost * write_back_s(clean_s, read, written, device, p) * written / moved
    return clean_s - min(saved_s, LARGEST_SAVING * clean_s) + dirty_lines_s


@cached_by_identity
def as_fast_as_l2(device: Device) -> Device | None:
    """``device`` with a DRAM of the bandwidth that was measured of its L2; None if none was."""
    l2 = device.level("l2")
    if l2 is None or l2.measured_bandwidth is None:
        return None
    dram = replace(device.dram, bandwidth=l2.measured_bandwidth, max_bandwidth=None)
    return replace(device, memory=[*device.memory[:-1], dram])
