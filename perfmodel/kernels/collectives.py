"""Collectives between GPUs: bytes, lower bound, and rings and trees by latency (alpha) and bandwidth (beta).

``bytes`` is the full buffer, which one GPU holds before an all-reduce or an all-to-all, or after an all-gather. Source: Patarasuk & Yuan
2009 (ring); Thakur, Rabenseifner & Gropp 2005 (tree, all-to-all); volumes as in nccl-tests.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, P2P = "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "p2p"
DISPATCH, COMBINE = "dispatch", "combine"
"""An all-to-all of tokens to the GPUs of their experts, and back: ``expert_exchange.py``."""
AT_ONCE = (ALL_TO_ALL, DISPATCH, COMBINE)
OPS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, P2P)
ALPHA_S = 0.6e-6
"""Seconds per step of a ring or tree over NVLink. Source: NCCL src/graph/tuning.cc, hwLat of its low-latency protocol."""


@dataclass(frozen=True, slots=True)
class Collective:
    """``op`` among ``world`` GPUs on a buffer of ``bytes``."""

    op: str
    world: int
    bytes: Number
    dtype: Dtype

    @property
    def title(self) -> str:
        """Name of the collective in words, such as ``all-reduce``."""
        return self.op.replace("_", "-")

    def estimate(self, device: Device) -> Estimate:
        """Seconds on ``device``: the least bytes over the link's rate as the bound, the faster of ring and tree as the roof."""
        bandwidth = link_bandwidth(device, self.world)
        lower = float(least_bytes(self) / bandwidth)
        times = [ring_s(self, bandwidth), *([tree_s(self, bandwidth)] if self.op == ALL_REDUCE else [])]
        roof = max(float(min(times)), lower)
        return Estimate(terms={"interconnect": roof}, needs=Needs(link_s=lower), roofline_s=roof, no_overlap_s=roof)


def least_bytes(w: Collective) -> Number:
    """Bytes that at least one GPU has to receive or send with any algorithm, even if switches add up buffers.

    In an all-reduce a GPU receives at least a whole buffer, the sum of all others' buffers. In other collectives it needs the (n - 1) / n
    of the result that it does not hold.

    >>> least_bytes(Collective("all_reduce", 8, 800, Dtype("bf16", 2, "tensor")))
    800
    """
    if w.world == 1:
        return 0
    return w.bytes if w.op in (ALL_REDUCE, P2P) else w.bytes * (w.world - 1) / w.world


def sent_bytes(op: str, buffer: Number, world: int) -> Number:
    """Bytes that each of ``world`` GPUs sends, and receives, around a ring; an all-reduce is a reduce-scatter and an all-gather.

    >>> [sent_bytes(op, 400, 4) for op in ("all_gather", "all_reduce", "all_to_all", "p2p")]
    [300.0, 600.0, 300.0, 400]
    """
    if op == P2P:
        return buffer
    rounds = 2 if op == ALL_REDUCE else 1
    return rounds * buffer * (world - 1) / world


def ring_s(w: Collective, bandwidth: Number, alpha_s: float = ALPHA_S) -> Number:
    """All-reduce 2 (n - 1) (alpha + S / n / beta); reduce-scatter, all-gather and all-to-all half of it; p2p alpha + S / beta.

    >>> round(ring_s(Collective("all_reduce", 4, 4e9, Dtype("bf16", 2, "tensor")), 1e9, 0.5), 3)
    9.0
    """
    if w.op == P2P:
        return alpha_s + w.bytes / bandwidth
    rounds = (2 if w.op == ALL_REDUCE else 1) * (w.world - 1)
    return rounds * (alpha_s + w.bytes / w.world / bandwidth)


def tree_s(w: Collective, bandwidth: Number, alpha_s: float = ALPHA_S) -> Number:
    """All-reduce over a binary tree, up and down: 2 ceil(log2 n) alpha + 2 S / beta, the buffer in pieces that follow each other.

    >>> round(tree_s(Collective("all_reduce", 4, 4e9, Dtype("bf16", 2, "tensor")), 1e9, 0.5), 3)
    10.0
    """
    depth = (int(w.world) - 1).bit_length()
    return 2 * depth * alpha_s + 2 * w.bytes / bandwidth


def link_bandwidth(device: Device, world: int | None = None) -> float:
    """Bandwidth of a GPU in B/s per direction, in a mesh over links between ``world`` devices. UnavailableError if the profile has none."""
    if device.interconnect is None:
        fix = "add its interconnect to the profile, or take one GPU"
        raise UnavailableError(f"{device.id} has no interconnect in its profile", fix)
    link, share = device.interconnect, 1.0
    if is_mesh(device) and link.links is not None and world is not None:
        share = min(max(world - 1, 1) / link.links.number, 1.0)
    return link.bandwidth_per_direction.number * share


def is_mesh(device: Device) -> bool:
    """Whether each link of the device ends at one peer."""
    return device.interconnect is not None and device.interconnect.mesh


MOST_OF_A_HOST = 8  # known
"""GPUs on one baseboard of every HGX system."""


def host_gpus(device: Device) -> int:
    """GPUs of one host."""
    gpus = None if device.interconnect is None else device.interconnect.host
    return MOST_OF_A_HOST if gpus is None else int(gpus.number)


def joined_gpus(device: Device) -> int:
    """Number of GPUs that the device's links join; beyond them there is only a network."""
    gpus = None if device.interconnect is None else device.interconnect.joined
    return MOST_OF_A_HOST if gpus is None else int(gpus.number)


def network_bandwidth(device: Device) -> float:
    """Network bandwidth in B/s per GPU and direction; UnavailableError if the profile has none."""
    if device.interconnect is None or device.interconnect.network is None:
        raise UnavailableError(f"{device.id} has no network in its profile", "add it to its interconnect, or take fewer GPUs")
    return float(device.interconnect.network.number)
