"""What the L2 holds when a kernel starts, and what that costs or saves beside a clean one.

Clean: flushed by reads, so that inputs come from DRAM and nothing has to be written back. Dirty: flushed by writes, as
``triton.testing.do_bench`` does and as the kernel before leaves it: ``DIRTY_SHARE`` of the L2 are lines that must be written to DRAM
before others take their place. A kernel that brings in B bytes pushes lines out at random, so that 1 - exp(-B / L2) of the dirty ones
are written back while it runs; they share the DRAM bandwidth, and nothing hides them. At most DIRTY_SHARE x L2 / bandwidth.

Warm: the same buffers again. What survives (rule 2 of ``perfmodel.core.cache``, one copy) comes at the bandwidth of L2 and sooner;
what does not is brought in over the lines that the run before has written.

Both constants were chosen on 9,331 kernels of 19 families, each timed clean, dirty and warm on an H200 (PyTorch 2.11), by
cross-validation: dirty over clean is within 0.3 to 4.9 % in the median of each family, 0 to 8.4 % where nothing is added.
"""

from __future__ import annotations

from math import exp

from perfmodel.core.cache import PRIVATE_IS_LOST, PRIVATE_SURVIVES
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.timing.base import CLEAN, DIRTY, WARM, dram_bandwidth, lost_share

STATES = (CLEAN, DIRTY, WARM)
DIRTY_SHARE = 0.32  # tuned
"""Of the L2, lines that wait to be written after a flush by writes."""
WARM_LATENCY_S = 0.8e-6  # tuned
"""By which first loads and last stores are sooner where the L2 holds them."""
WAITING_SAVED, BEFORE_S = 0.45, 4e-6  # tuned
"""Of the time that blocks wait for a row after another (norms, softmax on few rows), what they save where the L2 holds it; and what a
kernel takes besides."""
LARGEST_SAVING = 0.6  # known
"""Of a clean run: what is left is mostly the launch."""


def state_named(name: str) -> str:
    """``name``, if it is a state; else UsageError."""
    if name not in STATES:
        raise UsageError(f"--cache: there is no state {name!r}", suggest(name, list(STATES)))
    return name


def write_back_s(moved: float, device: Device) -> float:
    """Seconds in which a kernel that moves ``moved`` bytes drives dirty lines out; 0 where the size of the L2 is unknown.

    UnavailableError without a DRAM bandwidth in the profile.
    """
    size = device.cache_bytes
    return 0.0 if not size else DIRTY_SHARE * size * (1 - exp(-moved / size)) / dram_bandwidth(device)


def warm_s(clean_s: float, read: float, written: float, device: Device, *, waits: bool = False) -> float:
    """Seconds of a kernel of ``clean_s`` on the buffers of the run before; ``read`` and ``written`` in bytes.

    ``waits``: blocks take a row after another, and wait for each. UnavailableError without a DRAM bandwidth in the profile.
    """
    size, moved, l2 = device.cache_bytes, read + written, device.level("l2")
    if not size or not moved:
        return clean_s
    faster = l2.measured_bandwidth.number if l2 is not None and l2.measured_bandwidth else None
    sooner_s = moved * (1 / dram_bandwidth(device) - (1 / faster if faster else 0.0))
    lost = lost_share(moved / size, PRIVATE_SURVIVES, PRIVATE_IS_LOST)
    waited_s = clean_s - BEFORE_S - moved / dram_bandwidth(device) if waits else 0.0
    saved_s = (1 - lost) * max(WARM_LATENCY_S + max(sooner_s, 0.0), WAITING_SAVED * waited_s)
    return clean_s - min(saved_s, LARGEST_SAVING * clean_s) + lost * write_back_s(moved, device) * written / moved
