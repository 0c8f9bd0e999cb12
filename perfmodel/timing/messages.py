"""Messages between GPUs: what each sends in a collective, and how long that takes by latency and bandwidth.

A collective takes a start, a latency for each step in which GPUs wait for each other, and what each sends over a share of its link. Where
two protocols are at hand, of which one starts sooner and the other ends faster, the time is near the shorter of theirs (a norm with a
negative exponent), as libraries change over in between.
Source: Hockney 1994 (latency and bandwidth); Patarasuk & Yuan 2009 (ring).
"""

from __future__ import annotations

from perfmodel.kernels.collectives import ALL_REDUCE, AT_ONCE, P2P, Collective


def sent_bytes(w: Collective) -> float:
    """Bytes that each GPU sends; an all-reduce is a reduce-scatter and an all-gather.

    >>> from perfmodel.core.dtypes import DTYPES
    >>> [sent_bytes(Collective(op, 4, 400, DTYPES["bf16"])) for op in ("all_gather", "all_reduce", "all_to_all", "p2p")]
    [300.0, 600.0, 300.0, 400.0]
    """
    if w.op == P2P:
        return float(w.bytes)
    return float(w.bytes) * (w.world - 1) / w.world * (2 if w.op == ALL_REDUCE else 1)


def steps(w: Collective) -> int:
    """Steps of a ring in which GPUs wait for each other; none where all send to all at once."""
    return 0 if w.op in (*AT_ONCE, P2P) else (w.world - 1) * (2 if w.op == ALL_REDUCE else 1)


def message_s(start_us: float, sent: float, rate: float) -> float:
    """Seconds until ``sent`` bytes are there at ``rate`` B/s.

    >>> round(message_s(2.0, 3000.0, 1e9), 9)
    5e-06
    """
    return start_us * 1e-6 + sent / rate


def at_once_s(start_us: float, *parts: tuple[float, float]) -> float:
    """Seconds until all ``parts`` are there, (bytes, B/s) each, over links of their own.

    >>> round(at_once_s(2.0, (3000.0, 1e9), (1000.0, 1e9)), 9)
    5e-06
    """
    return max(message_s(start_us, sent, rate) for sent, rate in parts)


def sooner_s(first: float, second: float, sharpness: float) -> float:
    """Seconds by whichever of two protocols is faster, and less near where they are equal.

    >>> round(sooner_s(2.0, 2.0, 1.0), 3), round(sooner_s(1.0, 9.0, 9.0), 3)
    (1.0, 1.0)
    """
    shorter, longer = min(first, second), max(first, second)
    return shorter * (1 + (shorter / longer) ** sharpness) ** (-1 / sharpness) if shorter else 0.0
