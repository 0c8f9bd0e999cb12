"""A search over engines, layouts and numbers of users: the Pareto front of tokens/s per GPU and per user, and the best under limits.

A candidate is a replica (an engine, a layout, and from one user to as many as the cache holds), or pools of prefill and decode workers.
Candidates on fewer GPUs than there are run in several copies, so that all compare by what one GPU delivers. A closed form (``estimate``)
ranks all candidates. The best and some of the front are then simulated, as ``perfmodel serve`` does, and only these are shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si
from perfmodel.serving.engine import Engine
from perfmodel.serving.estimate import loop_estimate
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.layouts import Missed, Replica, replicas
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import ServingMetrics
from perfmodel.serving.pools import WorkerTime, pool_of, pools_estimate, prompt_time, ratios, transfer_s
from perfmodel.serving.scheduler import Pool
from perfmodel.serving.simulate import simulate
from perfmodel.serving.steps import KernelTimes, mostly_predicted
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import ModelPass, Split

CLOSED_FORM = 1.15  # tuned
"""Factor by which the closed form may be off: candidates further beyond a limit or behind the best are not simulated."""
PER_OCTAVE = 6
"""Numbers of users tried per factor of two."""
MOST_BEST, MOST_FRONT = 4, 8
"""Candidates simulated to find the best replica or pools, and candidates simulated of the front."""
MOST_USERS = 4096
"""Most users of a replica, if neither cache nor engine sets a lower limit."""
Formats = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Targets:
    """Limits in seconds: to the first token, per token after it, and for a whole request; None for no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    request_s: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """The limits in seconds that are set, by the names that reports use."""
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "request latency": self.request_s}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def excess(self, point: Candidate) -> dict[str, float]:
        """The candidate's time over each limit; at most 1 within it."""
        figures = {"ttft": point.ttft_s, "tpot": point.tpot_s, "request latency": point.request_s}
        return {name: figures[name] / limit for name, limit in self.given.items()}

    def worst(self, point: Candidate) -> float:
        """The largest of the candidate's times over their limits; 0 without limits."""
        return max(self.excess(point).values(), default=0.0)

    def hold(self, point: Candidate, slack: float = 1.0) -> bool:
        """Whether the candidate is within ``slack`` times every limit."""
        return self.worst(point) <= slack


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica with its ``users``, or pools of ``prefill_workers`` and ``workers``.

    ``gpus``: GPUs of one copy; ``copies``: number of copies, 0 for as many as the GPUs hold. ``prefill``: layout of the prefill workers,
    None for a replica. ``formats``: of weights and KV cache, if several are searched. ``at_least``: a good part of its times are roofs.
    """

    engine: str
    split: Split
    users: int
    gpus: int
    ttft_s: float = 0.0
    ttft_p99_s: float = 0.0
    tpot_s: float = 0.0
    requests_per_s: float = 0.0
    tokens_per_s_gpu: float = 0.0
    tokens_per_s_user: float = 0.0
    request_s: float = 0.0
    prefill: Split | None = None
    prefill_workers: int = 0
    workers: int = 1
    formats: Formats = (None, None)
    at_least: bool = False
    copies: int = 0

    @property
    def sequences(self) -> int:
        """Users of one decode worker."""
        return -(-self.users // self.workers)

    def among(self, gpus: int, users: int | None) -> Candidate:
        """This candidate with the mean rates of its copies on ``gpus``. Per-GPU rates count GPUs that stay idle.

        ``users``: users of all copies together, if given; ``self`` is then the fullest copy, and no other GPUs are needed.
        """
        copies = self.copies or gpus // self.gpus
        share, used = (1.0, copies * self.gpus / gpus) if users is None else (users / (copies * self.users), 1.0)
        return replace(self, tokens_per_s_gpu=self.tokens_per_s_gpu * share * used, requests_per_s=self.requests_per_s * share)

    def rated(self, load: Load, first_s: float, last_s: float, tpot_s: float, requests_per_s: float) -> Candidate:
        """The candidate with its figures: mean and p99 seconds to the first token, seconds per token, requests/s."""
        tokens, whole_s = requests_per_s * load.osl, first_s + tpot_s * (load.osl - 1)
        speeds = {"tokens_per_s_gpu": tokens / self.gpus, "tokens_per_s_user": 1 / tpot_s if tpot_s else tokens / self.users}
        times = {"ttft_s": first_s, "ttft_p99_s": last_s, "tpot_s": tpot_s, "request_s": whole_s}
        figures: dict[str, Any] = {**times, **speeds, "requests_per_s": requests_per_s}
        return replace(self, **figures)


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search. ``points``: the candidates simulated. ``counts``: candidates evaluated, simulated, and behind (prefill does
    not keep up with decode), and layouts without room. ``missed``: these layouts if no other was found.
    """

    points: Sequence[Candidate]
    counts: Mapping[str, int]
    limits: Targets
    missed: Sequence[Missed] = ()

    @property
    def front(self) -> list[Candidate]:
        """The Pareto front of all points, within the limits or not."""
        return front(self.points)

    @property
    def best(self) -> Candidate | None:
        """The candidate with the most tokens/s per GPU within the limits."""
        return _most(self.points, self.limits)

    @property
    def nearest(self) -> Candidate | None:
        """The candidate nearest to the limits if none is within them."""
        over = min(self.points, key=self.limits.worst, default=None)
        return over if self.best is None else None

    @property
    def together(self) -> Candidate | None:
        """The best replica within the limits."""
        return _most([point for point in self.points if point.prefill is None], self.limits)

    @property
    def pooled(self) -> Candidate | None:
        """The best pools within the limits."""
        return _most([point for point in self.points if point.prefill is not None], self.limits)

    @property
    def chosen(self) -> Candidate | None:
        """The best candidate within the limits, else the nearest to them."""
        return self.best or self.nearest

    @property
    def at_least(self) -> bool:
        """Whether a good part of the chosen candidate's times are roofs."""
        return self.chosen is not None and self.chosen.at_least

    @property
    def configurations(self) -> int:
        """Number of candidates that were judged."""
        return self.counts["evaluated"] + self.counts["behind"]

    @property
    def why(self) -> str:
        """Sentence that says why no candidate is within the limits; empty if one is."""
        if self.best is not None:
            return ""
        if self.nearest is None and not self.missed:
            return "no layout has room for so many users at once"
        if self.nearest is None:
            lacking = min((layout.lacks for layout in self.missed), default=0.0)
            return f"no layout holds the model with one sequence: the nearest lacks {format_si(lacking, 'B', 3)} on each GPU"
        over = {name: times for name, times in self.limits.excess(self.nearest).items() if times > 1}
        words = " and ".join(f"{times:,.{0 if times > 100 else 2}f} times the {name}" for name, times in over.items())
        return f"nothing is within the limits: the nearest takes {words} allowed"


def _most(points: Iterable[Candidate], limits: Targets) -> Candidate | None:
    return max((point for point in points if limits.hold(point)), key=lambda point: point.tokens_per_s_gpu, default=None)


def front(points: Iterable[Candidate]) -> list[Candidate]:
    """Pareto-optimal ``points`` in tokens/s per GPU and tokens/s per user.

    They go from the most per GPU to the most per user. Of equal points only the first is kept.
    """
    pareto: list[Candidate] = []
    for point in sorted(points, key=lambda candidate: (-candidate.tokens_per_s_gpu, -candidate.tokens_per_s_user)):
        if not pareto or point.tokens_per_s_user > pareto[-1].tokens_per_s_user:
            pareto.append(point)
    return pareto


def ladder(most: int) -> list[int]:
    """Numbers from 1 to ``most``, ``PER_OCTAVE`` per factor of two.

    >>> ladder(10), len(ladder(1024))
    ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 50)
    """
    numbers, value = [], 1.0
    while round(value) < most:
        numbers.append(round(value))
        value = max(value * 2 ** (1 / PER_OCTAVE), round(value) + 1)
    return [*numbers, most]


def most_users(replica: Replica) -> int:
    """Most users of a replica that run at a time; more would wait."""
    return min(replica.most_running, replica.engine.batching.over(replica.split).max_sequences, MOST_USERS)


def estimated(replica: Replica, load: Load, users: int) -> Candidate:
    """A replica with ``users`` as a candidate, by the closed form."""
    batching, request_s = replica.engine.batching.over(replica.split), replica.engine.overhead.before_s(load.isl)
    loop = loop_estimate(replica.times, load, batching, request_s, users)
    candidate = Candidate(replica.engine.id, replica.split, users, replica.gpus)
    return candidate.rated(load, loop.ttft_s, loop.ttft_s, loop.decode_s / max(load.osl - 1, 1), loop.requests_per_s)


def in_replicas(known: Iterable[Replica], load: Load, gpus: int, users: int | None) -> Iterator[Candidate]:
    """Candidates of all replicas: each number of users, or copies that share ``users`` if these are given."""
    for replica in known:
        most_running = most_users(replica)
        if users is None:
            yield from (estimated(replica, load, sequences) for sequences in ladder(most_running))
            continue
        for copies in ladder(min(gpus // replica.gpus, users)):
            share = -(-users // copies)
            if share <= most_running:
                yield replace(estimated(replica, load, share), copies=copies)


def in_pools(
    known: Sequence[Replica], load: Load, gpus: int, users: int | None, device: Device, counts: Counter[str]
) -> Iterator[Candidate]:
    """Candidates of pools of one engine, in ratios where prefill just keeps up and where it has twice the capacity.

    Layouts that another of their size beats in both latency and rate are left out. ``users``: users of all GPUs together, if given.
    """
    by_engine = defaultdict[str, list[Replica]](list)
    for replica in known:
        if replica.gpus < gpus and load.osl > 1:
            by_engine[replica.engine.id].append(replica)

    def pairs(before: _Worker, after: _Worker) -> Iterator[Candidate]:
        """Candidates with the fewest prefill workers that keep up, and the fewest with twice the capacity."""
        first, second, decode_s = before.replica, after.replica, after.time.seconds
        wanted = after.time.per_s / before.time.per_s
        for room in (1, 2):
            fits = [pair for pair in ratios(first.gpus, second.gpus, gpus) if pair[0] / pair[1] >= room * wanted]
            loop = None
            for numbers in fits[:1] if users is None else fits:
                prefill_workers, workers = numbers
                used = prefill_workers * first.gpus + workers * second.gpus
                moved_s = transfer_s(first.cache_bytes, first.split, second.split, device, used)
                before_s = moved_s + second.engine.overhead.before_s(load.isl)
                loop = pools_estimate(before.time, after.sequences, decode_s, numbers, before_s, load)
                share = None if users is None else -(-users // (gpus // used))
                if loop is None or (share and not 0.9 < loop.users / share < 1.1):
                    continue
                copies, group = gpus // used if users else 0, share or max(round(loop.users), 1)
                candidate = Candidate(second.engine.id, second.split, group, used, workers=workers, copies=copies)
                candidate = replace(candidate, prefill=first.split, prefill_workers=prefill_workers)
                yield candidate.rated(load, loop.ttft_s, loop.ttft_s, loop.decode_s / (load.osl - 1), loop.requests_per_s)
                break
            counts["behind"] += loop is None

    for same_engine in by_engine.values():
        prefilling = _fastest([_Worker(replica, prompt_time(replica, load)) for replica in same_engine])
        decoding = [_decode_worker(replica, load, sequences) for replica in same_engine for sequences in ladder(most_users(replica))]
        for after in decoding if users else _fastest(decoding):
            for before in prefilling:
                yield from pairs(before, after)


@dataclass(frozen=True, slots=True)
class _Worker:
    """``replica`` as a worker of a pool, with its time per request; a decode worker runs ``sequences`` at a time."""

    replica: Replica
    time: WorkerTime
    sequences: int = 0


def _decode_worker(replica: Replica, load: Load, sequences: int) -> _Worker:
    """A decode worker with ``sequences`` whose outputs are half done on average."""
    step = Iteration(decodes=sequences, context=load.isl + load.osl // 2, queries=load.queries)
    decode_s = (load.osl - 1) / load.tokens_per_step * replica.times.seconds(step)
    return _Worker(replica, WorkerTime(decode_s, sequences / decode_s), sequences)


def _fastest(workers: list[_Worker]) -> list[_Worker]:
    """Pareto-optimal ``workers`` of each size, in the fewest seconds and most requests/s."""
    best_rate: dict[int, float] = defaultdict(float)
    fastest = []
    for worker in sorted(workers, key=lambda worker: (worker.time.seconds, -worker.time.per_s)):
        if worker.time.per_s > best_rate[worker.replica.gpus]:
            best_rate[worker.replica.gpus] = worker.time.per_s
            fastest.append(worker)
    return fastest


def search(
    model: ModelSpec,
    device: Device,
    gpus: int,
    load: Load,
    engines: Iterable[Engine],
    base_pass: ModelPass,
    limits: Targets | None = None,
    fallbacks: FallbackDevices = tuple,
    pools: bool = True,
    users: int | None = None,
) -> Search:
    """The search over all layouts on up to ``gpus`` GPUs that fit. ``base_pass``: a pass with the number formats.

    ``pools``: also pools of prefill and decode workers. ``users``: users of all GPUs together, None to try all numbers.
    """
    if gpus < 1:
        raise UsageError(f"--gpus is {gpus}", "give a whole number from 1")
    known, missed = replicas(model, device, gpus, engines, base_pass, load.of(1).check(), fallbacks)
    result = search_among(known, device, gpus, load, limits or Targets(), pools, users)
    return replace(result, missed=() if known else missed, counts={**result.counts, "without room": len(missed)})


def search_among(
    known: Sequence[Replica], device: Device, gpus: int, load: Load, limits: Targets, pools: bool = True, users: int | None = None
) -> Search:
    """The search among the replicas ``known``."""
    counts = Counter[str]()
    disaggregated = [candidate.among(gpus, users) for candidate in in_pools(known, load, gpus, users, device, counts)] if pools else []
    together = [candidate.among(gpus, users) for candidate in in_replicas(known, load, gpus, users)]
    exactly, seen = simulated(known, load, device), dict[Candidate, Candidate]()

    def simulate_all(points: Iterable[Candidate]) -> list[Candidate]:
        return [seen[point] if point in seen else seen.setdefault(point, exactly(point).among(gpus, users)) for point in points]

    for kind in (together, disaggregated):
        near = [point for point in kind if limits.hold(point, CLOSED_FORM)]
        best = 0.0
        for point in sorted(near, key=lambda candidate: -candidate.tokens_per_s_gpu)[:MOST_BEST]:
            if point.tokens_per_s_gpu * CLOSED_FORM > best:
                best = max([best, *(point.tokens_per_s_gpu for point in simulate_all([point]) if limits.hold(point))])
    simulate_all(spread(front([*together, *disaggregated]), MOST_FRONT))
    if not any(map(limits.hold, seen.values())):
        simulate_all(sorted([*together, *disaggregated], key=limits.worst)[:MOST_BEST])
    counted = {"evaluated": len(together) + len(disaggregated), "simulated": len(seen), "behind": counts["behind"]}
    return Search(list(seen.values()), counted, limits)


def spread(points: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most ``most`` of ``points``, evenly spaced and with both ends."""
    if len(points) <= most:
        return list(points)
    return [points[place * (len(points) - 1) // (most - 1)] for place in range(most)]


def simulated(known: Sequence[Replica], load: Load, device: Device) -> Callable[[Candidate], Candidate]:
    """A function that simulates a candidate as ``perfmodel serve`` does, with the step times of its layout in fine tables."""
    fine: dict[tuple[str, Split], Replica] = {}

    def replica(engine: str, split: Split) -> Replica:
        if (engine, split) not in fine:
            coarse = next(candidate for candidate in known if (candidate.engine.id, candidate.split) == (engine, split))
            fine[engine, split] = replace(coarse, times=coarse.times.finely()) if isinstance(coarse.times, KernelTimes) else coarse
        return fine[engine, split]

    def metrics(point: Candidate) -> ServingMetrics:
        after, of = replica(point.engine, point.split), load.of(point.users)
        request_s = after.engine.overhead.before_s(load.isl)
        if point.prefill is None:
            return simulate(Pool(after.times, after.engine.batching.over(after.split), after.most_running), of, request_s)
        before = replica(point.engine, point.prefill)
        first = pool_of(before.times, before.engine, before.split, before.most_running, point.prefill_workers)
        second = pool_of(after.times, after.engine, after.split, after.most_running, point.workers)
        moved_s = transfer_s(before.cache_bytes, before.split, after.split, device, point.gpus)
        return simulate(second, of, request_s, prefill=first, transfer_s=moved_s)

    def exactly(point: Candidate) -> Candidate:
        measured = metrics(point)
        step = Iteration(decodes=point.sequences, context=load.isl + load.osl // 2, queries=load.queries)
        times = replica(point.engine, point.split).times
        at_least = isinstance(times, KernelTimes) and not mostly_predicted(times.passed(step))
        seconds = measured.mean_ttft_s, measured.p99_ttft_s, measured.mean_tpot_s or 0.0
        return replace(point.rated(load, *seconds, measured.requests_per_s), at_least=at_least)

    return exactly


def merged(searches: Mapping[Formats, Search]) -> Search:
    """One search of several, in which each candidate has its formats."""
    if len(searches) == 1:
        return next(iter(searches.values()))
    counts = Counter[str]()
    for part in searches.values():
        counts.update(part.counts)
    points = [replace(point, formats=formats) for formats, part in searches.items() for point in part.points]
    missed = [layout for part in searches.values() for layout in part.missed]
    return Search(points, counts, next(iter(searches.values())).limits, missed)
