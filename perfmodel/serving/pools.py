"""Disaggregated serving: pools of workers that only run prompts, and of workers that only decode.

A request runs its prompt on a prefill worker, its cache is sent to a decode worker, and it decodes there; no prompt lengthens a decode
step. Sources: Zhong et al. 2024 (DistServe), Patel et al. 2024 (Splitwise).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd

from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.serving.estimate import LoopEstimate
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.layouts import Replica
from perfmodel.serving.load import Load
from perfmodel.serving.scheduler import Pool
from perfmodel.serving.steps import KernelTimes
from perfmodel.transformer.parallel import joined_gpus
from perfmodel.transformer.step import Split

NETWORK = 50e9  # known
"""Network bandwidth of a GPU in B/s: one port of 400 Gb/s each. Source: NVIDIA DGX SuperPOD with DGX H100 reference architecture."""
KEEPS_UP = 0.95  # tuned
"""Largest share of the time that prefill workers may be busy in a search: beyond it, prompts queue too long."""


@dataclass(frozen=True)
class Pools:
    """Step times of a ``prefill`` and a ``decode`` worker, and the number of each."""

    prefill: KernelTimes
    decode: KernelTimes
    prefill_workers: int = 1
    decode_workers: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return self.prefill_workers * self.prefill.base_pass.split.gpus + self.decode_workers * self.decode.base_pass.split.gpus


def pool_of(times: StepTimes, engine: Engine, split: Split, slots: int, workers: int) -> Pool:
    """A pool of ``workers`` for the simulation, which only run prompts or only decode."""
    return Pool(times, replace(engine.batching.of_replica(split), mixed=False), slots, workers)


def link(device: Device, gpus: int) -> float:
    """Bandwidth in B/s between GPUs of two pools: the device's own links if they join all ``gpus``, else the network."""
    if device.interconnect is None or gpus > joined_gpus(device):
        return NETWORK
    return float(device.interconnect.bandwidth_per_direction.number)


def transfer_s(cache: float, before: Split, after: Split, device: Device, gpus: int) -> float:
    """Seconds to send a prompt's cache from a group laid out as ``before`` to one laid out as ``after``.

    ``cache``: bytes on each GPU of the prefill group. The group with fewer GPUs limits the number of links. ``gpus``: GPUs of all pools.
    """
    return cache * before.tp / (min(before.tp, after.tp) * link(device, gpus))


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """``seconds`` of a request's prompt, or of its decode steps, on a worker; ``per_s``: requests/s of the worker when it is full."""

    seconds: float
    per_s: float


def prompt_time(replica: Replica, load: Load) -> WorkerTime:
    """The time of prompts on a prefill worker, in chunks of the engine's token budget.

    ``seconds``: one prompt per data-parallel group; ``per_s``: the better of one prompt per group and as many as the token budget holds.
    """
    batching, groups, length = replica.engine.batching, replica.split.dp, load.new_tokens

    def seconds(prompts_per_group: int) -> float:
        """Seconds of all chunks of so many prompts per group, which run side by side."""
        prompts = prompts_per_group * groups
        chunk_tokens = max(batching.token_budget // prompts_per_group, 1) if batching.chunked else length
        total_s = 0.0
        for start in range(0, length, chunk_tokens):
            end = min(start + chunk_tokens, length)
            total_s += replica.times.seconds(Iteration((end - start) * prompts, load.prefix + end, prompts))
        return total_s

    budget_holds = max(batching.token_budget // length, 1)
    return WorkerTime(seconds(1), max(groups * per_group / seconds(per_group) for per_group in {1, budget_holds}))


@lru_cache(maxsize=256)
def ratios(prefill_gpus: int, decode_gpus: int, gpus: int) -> tuple[tuple[int, int], ...]:
    """Pairs of numbers of prefill and decode workers on up to ``gpus`` GPUs, by rising ratio; none is a multiple of another.

    >>> ratios(1, 1, 4)
    ((1, 3), (1, 2), (1, 1), (2, 1), (3, 1))
    """
    pairs = []
    for prefill_workers in range(1, gpus // prefill_gpus + 1):
        most_decode_workers = (gpus - prefill_workers * prefill_gpus) // decode_gpus
        for decode_workers in range(1, most_decode_workers + 1):
            if gcd(prefill_workers, decode_workers) == 1:
                pairs.append((prefill_workers, decode_workers))
    return tuple(sorted(pairs, key=lambda pair: pair[0] / pair[1]))


def pools_estimate(
    time: WorkerTime, sequences: int, decode_s: float, counts: tuple[int, int], before_s: float, load: Load
) -> LoopEstimate | None:
    """The closed form for ``counts`` of prefill and decode workers with ``sequences`` on each decode worker; None if prefill falls behind.

    Prompts queue as M/D/1 (Pollaczek 1930). ``time``: that of a prompt; ``decode_s``: seconds of a request's decode steps, the first of
    which gives the first token; ``before_s``: seconds until the scheduler knows a request, plus those in which its cache is sent.
    """
    prefill_workers, decode_workers = counts
    requests_per_s = decode_workers * sequences / decode_s
    most_prompts_per_s = prefill_workers * time.per_s
    busy_share = requests_per_s / most_prompts_per_s
    if busy_share > KEEPS_UP:
        return None
    queue_s = busy_share / (2 * (1 - busy_share)) / most_prompts_per_s
    first_step_s = decode_s / max((load.osl - 1) / load.tokens_per_step, 1)
    ttft_s = before_s + time.seconds + queue_s + first_step_s
    return LoopEstimate(requests_per_s * (ttft_s + decode_s), ttft_s, decode_s)
