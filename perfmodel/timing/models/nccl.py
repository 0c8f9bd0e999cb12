"""Collectives of NCCL, and of RCCL, its port to AMD, between the GPUs of one host.

Small messages are sent with a flag in every store (NCCL's low-latency protocols), with little latency per step but a small share of the
link. Large ones are sent in chunks that wait for each other: they start later and reach a larger share. NCCL takes the one that its tables
predict to be faster. All-gather and reduce-scatter pass n - 1 steps of a ring, all-reduce twice as many; an all-to-all sends to all others
at once, by fewer copies. A GPU's own part is copied within its memory. Over PCIe all GPUs of a host share its root and bridges: each
doubling of their number leaves a GPU a share of its rate. Source: NCCL's documentation of NCCL_PROTO and NCCL_ALGO; Hockney 1994 (latency
and bandwidth); Patarasuk & Yuan 2009 (ring).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.collectives import ALL_REDUCE, AT_ONCE, P2P, Collective, link_bandwidth, sent_bytes
from perfmodel.timing.base import Case, Model, dram_bandwidth


def steps(w: Collective) -> int:
    """Steps of a ring in which GPUs wait for each other; none in an all-to-all, where all send at once."""
    return 0 if w.op in (*AT_ONCE, P2P) else (w.world - 1) * (2 if w.op == ALL_REDUCE else 1)


def sooner_s(first: float, second: float, sharpness: float) -> float:
    """Seconds of the faster of two protocols, and less where both are nearly equal: a norm with a negative exponent.

    >>> round(sooner_s(2.0, 2.0, 1.0), 3), round(sooner_s(1.0, 9.0, 9.0), 3)
    (1.0, 1.0)
    """
    shorter, longer = min(first, second), max(first, second)
    return shorter * (1 + (shorter / longer) ** sharpness) ** (-1 / sharpness) if shorter else 0.0


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one collective; UnavailableError without an interconnect or a DRAM bandwidth in the profile."""
    w: Collective = case.workload
    sent, waits = float(sent_bytes(w.op, w.bytes, w.world)), steps(w)
    link = link_bandwidth(device, w.world)
    link *= p["crowd_factor"] ** log2(w.world / 2) if device.over_pcie else 1.0
    flagged_share = p["flagged_share"] * (1.0 if waits else p["flagged_pair_factor"])
    flagged_s = sent / (link * flagged_share)
    copy_s = 0.0 if w.op in (ALL_REDUCE, P2P) else float(w.bytes) / w.world / (dram_bandwidth(device) * p["copy_share"])
    chunked_s = p["chunk_us"] * 1e-6 + sent / (link * p["chunked_share"]) + copy_s
    start_us = p["start_us"] * (1.0 if waits else p["pair_factor"]) + p["step_us"] * waits
    return start_us * 1e-6 + sooner_s(flagged_s, chunked_s, p["sharpness"])


def covers(case: Case) -> bool:
    """Collectives among two to eight GPUs, of any size."""
    return isinstance(case.workload, Collective) and 2 <= case.workload.world <= 8 and case.direction == FORWARD


MODEL = Model(
    "nccl",
    "nccl",
    covers,
    seconds,
    "latency per step + bytes over a share of the link, in two protocols",
    assumes="all GPUs start together, one collective behind another on the same buffers",
    implementations=("nccl", "rccl"),
)
