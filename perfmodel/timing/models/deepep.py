"""DeepEP's dispatch and combine: low-latency kernels of small batches, normal kernels of large ones.

Low-latency kernels send a token once for each of its experts: over NVLink within the domain and at the same time over the network beyond.
Normal kernels send it once to each GPU; over the network once to each domain, and on over NVLink there. Source: deepseek-ai/DeepEP,
docs/legacy.md and README.md (published tables), csrc/kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.collectives import joined_gpus, link_bandwidth, network_bandwidth
from perfmodel.kernels.expert_exchange import ExpertExchange
from perfmodel.timing.base import Case, Model

LOW_LATENCY_TOKENS = 256  # known
"""Most tokens per GPU for which low-latency kernels are meant. Source: docs/legacy.md."""
NORMAL_LINK_SHARE, NORMAL_NETWORK_SHARE = 0.78, 1.0  # known
"""Shares of the bandwidth that normal kernels reach: 153 and 158 of 200 GB/s on eight H800, 726 and 740 of 900 on eight B200; 43 to 58 of
50 GB/s between hosts, as these count the bytes that stay on a host too."""


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one exchange; UnavailableError without an interconnect, or without a network among more GPUs than it joins."""
    w: ExpertExchange = case.workload
    domain = min(joined_gpus(device), w.world)
    link, network = link_bandwidth(device, w.world), network_bandwidth(device) if w.world > domain else 1.0
    if float(w.tokens) <= LOW_LATENCY_TOKENS:
        near, far = float(w.sent) * (domain - 1) / w.world, float(w.sent) * (w.world - domain) / w.world
        return p["start_us"] * 1e-6 + max(near / (link * p["link_share"]), far / (network * p["network_share"]))
    near = float(w.bytes) * (w.world - 1) / w.world
    far = float(w.to_groups(w.world // domain)) if w.world > domain else 0.0
    return p["start_us"] * 1e-6 + max(near / (link * NORMAL_LINK_SHARE), far / (network * NORMAL_NETWORK_SHARE))


def covers(case: Case) -> bool:
    """Dispatch and combine of experts, among any number of GPUs."""
    return isinstance(case.workload, ExpertExchange) and case.direction == FORWARD


MODEL = Model(
    "deepep",
    "deepep",
    covers,
    seconds,
    "start + the slower of NVLink and network, each at a share of its bandwidth",
    assumes="experts picked all alike, all GPUs start together, nothing hidden behind other work",
    implementations=("deepep",),
)
