"""Predicted time of collectives among more GPUs than one group of eight, in two levels: within groups, and between groups.

Between groups, GPUs of the same place in each group work together. An all-reduce is a reduce-scatter in the group, an all-reduce of each
GPU's part among the groups, and an all-gather in the group. An all-to-all sends within groups and between them at the same time. Groups of
one NVLink domain (NVL72) send over its links, others over the network. Source: NCCL, src/graph/tuning.cc (latencies of the Simple ring
protocol); Thakur, Rabenseifner & Gropp 2005. No measurement of several hosts backs it, so its interval is wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.kernels.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    AT_ONCE,
    MOST_OF_A_HOST,
    P2P,
    REDUCE_SCATTER,
    Collective,
    joined_gpus,
    link_bandwidth,
    network_bandwidth,
    ring_s,
)
from perfmodel.timing.base import Case
from perfmodel.timing.predict import BORROWED, Prediction, TimeRequest, added, predict
from perfmodel.timing.reference_devices import FallbackDevices

LINK_STEP_S, NETWORK_STEP_S = 3.4e-6, 9.6e-6  # known
"""Seconds per step of a ring over NVLink and over InfiniBand. Source: NCCL, tuning.cc, hwLat of the Simple protocol."""
LINK_SHARE, NETWORK_SHARE = 0.7, 0.97  # known
"""Shares of the bandwidth: NCCL over NVLink as calibrated on B200; 48.5 of 50 GB/s over a ConnectX-7 (aliyun/SimAI, calbusbw.h)."""
WIDTH = 1.5  # tuned
"""Factor from the prediction to either end of its interval."""


def predict_across(w: Collective, names: Sequence[str], device: Device, lower_s: float, fallbacks: FallbackDevices) -> Prediction:
    """The prediction of ``w`` in two levels; UnavailableError says why there is none.

    ``names``: implementations, the first calibrated one of which times the collectives within a group.
    """
    if w.world <= MOST_OF_A_HOST or w.op == P2P:
        raise UnavailableError(f"{w.title} among {w.world} GPUs is in one group")
    group_size, _ = groups(device, w.world)
    within = [_predict_within_group(part, names, device, fallbacks) for part in inner_parts(w, group_size)]
    within_s, between_s = sum(part.seconds for part in within), outer_s(w, device)
    seconds = max(within_s, between_s) if w.op in AT_ONCE else within_s + between_s
    seconds = max(seconds, lower_s)
    words = f"groups of {group_size} GPUs as {within[0].calibration.implementation} is calibrated, between them by bandwidth and latency"
    low, high = max(seconds / WIDTH, lower_s), seconds * WIDTH
    return added(within)._replace(parts=(), seconds=seconds, low=low, high=high, kind=BORROWED, provenance=words, reference=device)


def groups(device: Device, world: int) -> tuple[int, int]:
    """(GPUs per group, number of groups): as few groups as eight GPUs each allow. UnavailableError if they do not divide ``world``."""
    group_size = min(MOST_OF_A_HOST, joined_gpus(device))
    if world % group_size:
        raise UnavailableError(f"collectives among {world} GPUs are in groups of {group_size}, which do not divide them")
    return group_size, world // group_size


def inner_parts(w: Collective, group_size: int) -> list[Collective]:
    """Collectives that run within a group."""
    if w.op == ALL_REDUCE:
        return [replace(w, op=op, world=group_size) for op in (REDUCE_SCATTER, ALL_GATHER)]
    sent = w.bytes * group_size / w.world if w.op in AT_ONCE else w.bytes
    return [replace(w, world=group_size, bytes=sent)]


def outer_s(w: Collective, device: Device) -> float:
    """Seconds between groups. In an all-to-all all steps run at once, and each GPU sends the part of its buffer that leaves the group."""
    group_size, count = groups(device, w.world)
    if w.world <= joined_gpus(device):
        rate, step_s = link_bandwidth(device) * LINK_SHARE, LINK_STEP_S
    else:
        rate, step_s = network_bandwidth(device) * NETWORK_SHARE, NETWORK_STEP_S
    if w.op in AT_ONCE:
        return step_s + float(w.bytes) * (count - 1) / count / rate
    return float(ring_s(replace(w, world=count, bytes=w.bytes / group_size), rate, step_s))


def _predict_within_group(w: Collective, names: Sequence[str], device: Device, fallbacks: FallbackDevices) -> Prediction:
    """The prediction of ``w`` by the first of ``names`` that is calibrated; UnavailableError of the last one if none is."""
    reason = UnavailableError(f"no kernel of {w.title}")
    for name in names:
        try:
            return predict(TimeRequest(Case(w, name), "collective", w.dtype.name, device, 0.0, fallbacks))
        except UnavailableError as error:
            reason = error
    raise reason
