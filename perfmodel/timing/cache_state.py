"""What the L2 holds when a kernel starts, and what that costs or saves beside a clean one.

Clean: flushed by reads, so that inputs come from DRAM and nothing has to be written back. Dirty: flushed by writes, as
``triton.testing.do_bench`` does and as the kernel before leaves it: ``DIRTY_SHARE`` of the L2 are lines that must be written to DRAM
before others take their place. A kernel that brings in B bytes pushes lines out at random, so that 1 - exp(-B / L2) of the dirty ones
are written back while it runs. They cost their whole time where the kernel keeps the DRAM busy, and down to ``LEAST_SHOWN`` of it where
its loads leave gaps. A kernel that writes drains dirty lines for itself, clean or not: what it reads, of what it moves, pays.

Warm: the same buffers again. What survives (rule 2 of ``perfmodel.core.cache``, one copy) comes at the bandwidth of L2 and sooner;
what does not is brought in over the lines that the run before has written.

The constants were chosen on 9,331 kernels of 19 families, each timed clean, dirty and warm on an H200 (PyTorch 2.11), by
cross-validation: dirty over clean is within 0.3 to 4.7 % in the median of each family, 0.3 to 8.1 % where nothing is added. Those of
DRAM busy and of reads were seen alike on 5,062 others: of the L2's time, kernels that read lose 0.1 to 0.25 below a third of the
bandwidth and 0.6 to 0.7 above two thirds, kernels that write half lose 0.25 to 0.3.
"""

from __future__ import annotations

from math import exp

from perfmodel.core.cache import PRIVATE_IS_LOST, PRIVATE_SURVIVES
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.timing.base import CLEAN, DIRTY, WARM, dram_bandwidth, lost_share

STATES = (CLEAN, DIRTY, WARM)
DIRTY_SHARE = 0.6  # tuned
"""Of the L2, lines that wait to be written after a flush by writes."""
BUSY, LEAST_SHOWN = 0.65, 0.4  # tuned
"""Share of the DRAM bandwidth from which a kernel leaves no gaps to write lines back in; of their time, what shows at the least."""
STARTING_S = 5e-6  # tuned
"""Of a kernel's time, its launch, first loads and last stores, in which little streams."""
LEFT_SHARE = 0.32  # tuned
"""Of the L2, lines that a run of the same kernel before leaves to be written."""
WARM_LATENCY_S = 0.8e-6  # tuned
"""By which first loads and last stores are sooner where the L2 holds them."""
LARGEST_SAVING = 0.6  # known
"""Of a clean run: what is left is mostly the launch."""


def state_named(name: str) -> str:
    """``name``, if it is a state; else UsageError."""
    if name not in STATES:
        raise UsageError(f"--cache: there is no state {name!r}", suggest(name, list(STATES)))
    return name


def write_back_s(clean_s: float, read: float, written: float, device: Device) -> float:
    """Seconds by which dirty lines delay a kernel of ``clean_s`` that reads and writes so many bytes; 0 without the size of the L2.

    UnavailableError without a DRAM bandwidth in the profile.
    """
    moved = read + written
    if not device.cache_bytes or not moved:
        return 0.0
    busy = moved / dram_bandwidth(device) / max(clean_s - STARTING_S, STARTING_S)
    return DIRTY_SHARE * read / moved * min(max(busy / BUSY, LEAST_SHOWN), 1.0) * _pushed_out_s(moved, device)


def _pushed_out_s(moved: float, device: Device) -> float:
    """Seconds in which the DRAM takes the lines of an L2 that ``moved`` bytes push out."""
    size = device.cache_bytes or 0
    return size * (1 - exp(-moved / size)) / dram_bandwidth(device) if size else 0.0


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
    return clean_s - min(saved_s, LARGEST_SAVING * clean_s) + lost * LEFT_SHARE * _pushed_out_s(moved, device) * written / moved
