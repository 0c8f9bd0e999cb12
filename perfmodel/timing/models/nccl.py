"""Collectives of NCCL, and of RCCL, its port to AMD, between the GPUs of one host.

Small messages are sent with a flag in every store (NCCL's low-latency protocols): little latency per step, a small share of the
link. Large ones are sent in chunks that wait for each other: a larger share after a longer start. NCCL takes whichever its tables
think faster. All-gather and reduce-scatter pass n - 1 steps of a ring, all-reduce twice as many; an all-to-all sends to all others
at once. From eight GPUs on an all-reduce may add in the switch. A GPU's own part is copied within its memory.
Source: NCCL's documentation of NCCL_PROTO and NCCL_ALGO; Patarasuk & Yuan 2009 (ring).
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD
from perfmodel.kernels.collectives import ALL_REDUCE, AT_ONCE, P2P, Collective, is_mesh, link_bandwidth
from perfmodel.timing.base import Case, Model, Parameter, dram_bandwidth

PARAMETERS = (
    Parameter("start_us", "a collective with nothing to send"),
    Parameter("step_us", "per step of a ring"),
    Parameter("pair_start_us", "an exchange with nothing to send"),
    Parameter("flagged_share", "of the link, small messages in a ring"),
    Parameter("chunk_us", "until chunks follow each other"),
    Parameter("chunked_share", "of the link, large messages"),
    Parameter("copy_share", "of the DRAM bandwidth, a GPU's own part"),
    Parameter("switch_factor", "by which an all-reduce among many is faster than a ring"),
)
FEWEST_FOR_SWITCH = 8  # tuned
"""GPUs from which an all-reduce is added up in the switch; in a mesh any number of them send to all others at once."""
PAIR_FACTOR = 1.5  # tuned
"""Gain in the rate of small messages if all channels send to different GPUs: two copies of a byte per hop, not three."""


def sent_bytes(w: Collective) -> float:
    """Bytes that each GPU sends; an all-reduce is a reduce-scatter and an all-gather.

    >>> from perfmodel.core.dtypes import DTYPES
    >>> [sent_bytes(Collective(op, 4, 400, DTYPES["bf16"])) for op in ("all_gather", "all_reduce", "all_to_all", "p2p")]
    [300.0, 600.0, 300.0, 400.0]
    """
    if w.op == P2P:
        return float(w.bytes)
    return float(w.bytes) * (w.world - 1) / w.world * (2 if w.op == ALL_REDUCE else 1)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one collective; UnavailableError without an interconnect or a DRAM bandwidth in the profile."""
    w: Collective = case.workload
    link, sent = link_bandwidth(device, w.world), sent_bytes(w)
    pairs = w.op in (*AT_ONCE, P2P)
    if pairs:
        start, flagged = p["pair_start_us"], PAIR_FACTOR * p["flagged_share"]
    else:
        start, flagged = p["start_us"] + p["step_us"] * (w.world - 1) * (2 if w.op == ALL_REDUCE else 1), p["flagged_share"]
    share = p["chunked_share"]
    if w.op == ALL_REDUCE and (w.world >= FEWEST_FOR_SWITCH or is_mesh(device)):
        share *= p["switch_factor"]
    own = 0.0 if w.op in (ALL_REDUCE, P2P) else float(w.bytes) / w.world / (dram_bandwidth(device) * p["copy_share"])
    return start * 1e-6 + min(sent / (link * flagged), p["chunk_us"] * 1e-6 + sent / (link * share) + own)


def covers(case: Case) -> bool:
    """Collectives among two to eight GPUs, of any size."""
    return isinstance(case.workload, Collective) and 2 <= case.workload.world <= 8 and case.direction == FORWARD


MODEL = Model(
    "nccl",
    PARAMETERS,
    covers,
    seconds,
    "latency per step + bytes over a share of the link, in two protocols",
    assumes="all GPUs start together, one collective behind another on the same buffers",
    implementations=("nccl", "rccl"),
)
