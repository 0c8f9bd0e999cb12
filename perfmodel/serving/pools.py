"""Prefill and decode on GPUs of their own: workers that run prompts alone, and workers that only decode.

A request visits a prefill worker, sends its cache over, and decodes with all others of its worker; no prompt ever lengthens a decode
step. DecodeWorker workers are full: c sequences each. Their rate is what the prefill workers must keep up with, x of them with y decode
workers; a prompt waits for those before it as in a queue with constant service (M/D/1; Pollaczek 1930), and for its cache.
Sources: Zhong et al. 2024 (DistServe), Patel et al. 2024 (Splitwise).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from perfmodel.core.hardware import Device
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.replica import Replica
from perfmodel.transformer.parallel import joined_gpus

NETWORK = 50e9  # known
"""B/s of a GPU to other nodes: one port of 400 Gb/s each. Source: NVIDIA DGX SuperPOD with DGX H100 reference architecture."""
KEEPS_UP = 0.95  # tuned
"""Share of the time that prefill workers may be busy: beyond it, prompts wait longer than any limit asks for."""


@dataclass(frozen=True, slots=True)
class PrefillWorker:
    """A worker that runs one prompt after the other: seconds of each, on how many GPUs; ``cache_bytes`` on each of them."""

    seconds: float
    gpus: int
    cache_bytes: float


@dataclass(frozen=True, slots=True)
class DecodeWorker:
    """A worker that decodes ``sequences``: seconds of a step, and of all of a request's."""

    sequences: int
    gpus: int
    step_s: float
    request_s: float


@dataclass(frozen=True, slots=True)
class Pooled:
    """Figures of ``x`` prefill and ``y`` decode workers."""

    ttft_s: float
    ttft_p99_s: float
    tpot_s: float
    requests_per_s: float
    gpus: int
    users: float
    prefill_busy: float


def prefill_worker(replica: Replica, load: Load) -> PrefillWorker:
    """Prompts one after the other, each in chunks of the engine's token budget."""
    budget = replica.engine.batching.token_budget if replica.engine.batching.chunked else load.new_tokens
    groups = replica.split.dp
    seconds, done = replica.engine.overhead.request_s, 0
    while done < load.new_tokens:
        chunk = min(budget // groups or 1, load.new_tokens - done)
        done += chunk
        seconds += replica.times.seconds(Iteration(chunk * groups, load.prefix + done, groups))
    return PrefillWorker(seconds, replica.gpus, replica.cache_bytes)


def decode_worker(replica: Replica, load: Load, sequences: int) -> DecodeWorker:
    """So many sequences, their outputs half done on average."""
    context = load.isl + load.osl // 2
    step_s = replica.times.seconds(Iteration(0, 0, 1, sequences, context, load.queries))
    return DecodeWorker(sequences, replica.gpus, step_s, (load.osl - 1) / load.tokens_per_step * step_s)


@lru_cache(maxsize=256)
def ratios(prefill_gpus: int, decode_gpus: int, gpus: int) -> tuple[tuple[int, int], ...]:
    """Numbers of workers on up to ``gpus`` GPUs, none a multiple of another: those deliver the same per GPU.

    >>> ratios(1, 1, 4)
    ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1))
    """
    pairs = ((x, y) for x in range(1, gpus // prefill_gpus + 1) for y in range(1, (gpus - x * prefill_gpus) // decode_gpus + 1))
    return tuple(pair for pair in pairs if gcd(*pair) == 1)


def link(device: Device, gpus: int) -> float:
    """B/s of a GPU to one of the other pool: of the device's own links where they join all of them, else of the network."""
    if device.interconnect is None or gpus > joined_gpus(device):
        return NETWORK
    return float(device.interconnect.bandwidth_per_direction.number)


def pooled(prefill: PrefillWorker, groups: int, decode: DecodeWorker, x: int, y: int, load: Load, link_rate: float) -> Pooled | None:
    """Figures of ``x`` workers of prefill, each with ``groups`` prompts at a time, and ``y`` of decode; None where prefill falls behind.

    The first token comes from prefill. ``link_rate``: B/s between them of each GPU.
    """
    rate = y * decode.sequences / decode.request_s if decode.request_s else 0.0
    busy = rate * prefill.seconds / (x * groups)
    if not rate or busy > KEEPS_UP:
        return None
    wait = busy / (2 * (1 - busy)) * prefill.seconds
    moved_s = prefill.cache_bytes * prefill.gpus / (min(prefill.gpus, decode.gpus) * link_rate)
    first = wait + prefill.seconds
    tail = 4.6 * wait + prefill.seconds  # known: an exponential tail of this mean exceeds ln(100) times it with 1 %
    tpot = decode.request_s / (load.osl - 1) + moved_s / (load.osl - 1)
    users = rate * (first + moved_s + decode.request_s)
    return Pooled(first, tail, tpot, rate, x * prefill.gpus + y * decode.gpus, users, busy)


def pairs(workers: list[Replica], gpus: int) -> Iterator[tuple[Replica, Replica]]:
    """Layouts for prefill and for decode under the same engine, with one worker of each on ``gpus`` GPUs at most."""
    for first in workers:
        for second in workers:
            if first.engine.id == second.engine.id and first.gpus + second.gpus <= gpus:
                yield first, second
