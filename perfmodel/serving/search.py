"""A search over engines, layouts and numbers of users: the Pareto front of tokens/s per GPU and per user, and the best under limits.

A candidate is a replica (an engine, a layout, and from one user to as many as the cache holds), or pools of prefill and decode workers.
Candidates on fewer GPUs than there are run in several copies, so that all compare by what one GPU delivers. A closed form (``estimate``)
ranks all candidates. The best and some of the front are then simulated, as ``perfmodel serve`` does, and only these are shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

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
"""Formats of weights and KV cache; None: not searched."""


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
    """A replica with its ``users``, or pools of ``prefill_workers`` and ``workers``, with its times and rates.

    ``gpus``: GPUs of one copy; ``copies``: number of copies, 0 for as many as the GPUs hold. ``prefill``: layout of the prefill workers,
    None for a replica. ``request_s``: seconds of a whole request. ``at_least``: a good part of its times are roofs, so these are lower
    limits.
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
        return ceil(self.users / self.workers)

    def copied(self, gpus: int, users: int | None) -> Candidate:
        """This candidate with the mean rates of its copies on ``gpus`` GPUs. ``users``: those of all copies together, if given."""
        copies = self.copies or gpus // self.gpus
        if users is None:  # GPUs that hold no copy stay idle
            return replace(self, tokens_per_s_gpu=self.tokens_per_s_gpu * (copies * self.gpus / gpus))
        fill = users / (copies * self.users)  # the users of this copy are those of the fullest one
        return replace(self, tokens_per_s_gpu=self.tokens_per_s_gpu * fill, requests_per_s=self.requests_per_s * fill)

    def rated(self, load: Load, ttft_s: float, ttft_p99_s: float, tpot_s: float, requests_per_s: float) -> Candidate:
        """The candidate with its times, and with its rates under ``load``."""
        tokens_per_s = requests_per_s * load.osl
        return replace(
            self,
            ttft_s=ttft_s,
            ttft_p99_s=ttft_p99_s,
            tpot_s=tpot_s,
            request_s=ttft_s + tpot_s * (load.osl - 1),
            requests_per_s=requests_per_s,
            tokens_per_s_gpu=tokens_per_s / self.gpus,
            tokens_per_s_user=1 / tpot_s if tpot_s else tokens_per_s / self.users,
        )


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search. ``points``: the candidates simulated. ``missed``: layouts without room, if no other was found.

    ``counts``: candidates "evaluated", "simulated", and "behind", in which prefill does not keep up with decode; layouts "without room".
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
        return min(self.points, key=self.limits.worst, default=None) if self.best is None else None

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
        exceeded = {name: factor for name, factor in self.limits.excess(self.nearest).items() if factor > 1}
        words = " and ".join(f"{factor:,.{0 if factor > 100 else 2}f} times the {name}" for name, factor in exceeded.items())
        return f"nothing is within the limits: the nearest takes {words} allowed"


def _most(points: Iterable[Candidate], limits: Targets) -> Candidate | None:
    """The point with the most tokens/s per GPU within ``limits``."""
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
    return min(replica.most_running, replica.engine.batching.of_replica(replica.split).max_sequences, MOST_USERS)


def estimated(replica: Replica, load: Load, users: int) -> Candidate:
    """A replica with ``users`` as a candidate, by the closed form."""
    batching, request_s = replica.engine.batching.of_replica(replica.split), replica.engine.overhead.before_s(load.isl)
    loop = loop_estimate(replica.times, load, batching, request_s, users)
    candidate = Candidate(replica.engine.id, replica.split, users, replica.gpus)
    return candidate.rated(load, loop.ttft_s, loop.ttft_s, loop.decode_s / max(load.osl - 1, 1), loop.requests_per_s)


def in_replicas(fitting: Iterable[Replica], load: Load, gpus: int, users: int | None) -> Iterator[Candidate]:
    """Candidates of all replicas: each number of users, or copies that share ``users`` if these are given."""
    for replica in fitting:
        most_running = most_users(replica)
        if users is None:
            yield from (estimated(replica, load, sequences) for sequences in ladder(most_running))
            continue
        for copies in ladder(min(gpus // replica.gpus, users)):
            users_of_copy = ceil(users / copies)
            if users_of_copy <= most_running:
                yield replace(estimated(replica, load, users_of_copy), copies=copies)


def in_pools(
    fitting: Sequence[Replica], load: Load, gpus: int, users: int | None, device: Device, counts: Counter[str]
) -> Iterator[Candidate]:
    """Candidates of pools of one engine, in ratios where prefill just keeps up and where it has twice the capacity.

    Layouts that another of their size beats in both latency and rate are left out. ``users``: users of all GPUs together, if given.
    ``counts``: its "behind" grows by the ratios without a candidate.
    """
    by_engine = defaultdict[str, list[Replica]](list)
    for replica in fitting:
        if replica.gpus < gpus and load.osl > 1:
            by_engine[replica.engine.id].append(replica)
    for same_engine in by_engine.values():
        prefill_workers = _fastest([_Worker(replica, prompt_time(replica, load)) for replica in same_engine])
        decode_workers = [_decode_worker(replica, load, sequences) for replica in same_engine for sequences in ladder(most_users(replica))]
        for decode in decode_workers if users else _fastest(decode_workers):
            for prefill in prefill_workers:
                for capacity in (1, 2):
                    candidate, keeps_up = _pools_of(prefill, decode, capacity, load, gpus, users, device)
                    counts["behind"] += not keeps_up
                    if candidate is not None:
                        yield candidate


@dataclass(frozen=True, slots=True)
class _Worker:
    """``replica`` as a worker of a pool, with its time per request; a decode worker runs ``sequences`` at a time."""

    replica: Replica
    time: WorkerTime
    sequences: int = 0


def _pools_of(
    prefill: _Worker, decode: _Worker, capacity: int, load: Load, gpus: int, users: int | None, device: Device
) -> tuple[Candidate | None, bool]:
    """The candidate with the fewest prefill workers that could serve ``capacity`` times the decode workers; None if there is none.

    Also returns whether prefill keeps up in the last ratio tried. If ``users`` are given, a copy must hold its part of them within 10 %.
    """
    first, second = prefill.replica, decode.replica
    least_ratio = capacity * (decode.time.per_s / prefill.time.per_s)
    pairs = [(before, after) for before, after in ratios(first.gpus, second.gpus, gpus) if before / after >= least_ratio]
    loop = None
    for prefill_workers, workers in pairs[:1] if users is None else pairs:
        used_gpus = prefill_workers * first.gpus + workers * second.gpus
        moved_s = transfer_s(first.cache_bytes, first.split, second.split, device, used_gpus)
        before_s = moved_s + second.engine.overhead.before_s(load.isl)
        loop = pools_estimate(prefill.time, decode.sequences, decode.time.seconds, (prefill_workers, workers), before_s, load)
        if loop is None:
            continue
        copies, users_of_copy = 0, max(round(loop.users), 1)
        if users is not None:
            copies = gpus // used_gpus
            users_of_copy = ceil(users / copies)
            if not 0.9 < loop.users / users_of_copy < 1.1:
                continue
        candidate = Candidate(second.engine.id, second.split, users_of_copy, used_gpus, workers=workers, copies=copies)
        candidate = replace(candidate, prefill=first.split, prefill_workers=prefill_workers)
        rated = candidate.rated(load, loop.ttft_s, loop.ttft_s, loop.decode_s / (load.osl - 1), loop.requests_per_s)
        return rated, True
    return None, loop is not None


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
    fitting, missed = replicas(model, device, gpus, engines, base_pass, load.with_users(1).check(), fallbacks)
    result = search_among(fitting, device, gpus, load, limits or Targets(), pools, users)
    return replace(result, missed=() if fitting else missed, counts={**result.counts, "without room": len(missed)})


def search_among(
    fitting: Sequence[Replica], device: Device, gpus: int, load: Load, limits: Targets, pools: bool = True, users: int | None = None
) -> Search:
    """The search among the replicas ``fitting``."""
    counts = Counter[str]()
    disaggregated = [candidate.copied(gpus, users) for candidate in in_pools(fitting, load, gpus, users, device, counts)] if pools else []
    together = [candidate.copied(gpus, users) for candidate in in_replicas(fitting, load, gpus, users)]
    simulate_point, simulated = simulator(fitting, load, device), dict[Candidate, Candidate]()

    def simulate_once(point: Candidate) -> Candidate:
        if point not in simulated:
            simulated[point] = simulate_point(point).copied(gpus, users)
        return simulated[point]

    for kind in (together, disaggregated):
        near_limits = [point for point in kind if limits.hold(point, CLOSED_FORM)]
        best_rate = 0.0
        for point in sorted(near_limits, key=lambda candidate: -candidate.tokens_per_s_gpu)[:MOST_BEST]:
            if point.tokens_per_s_gpu * CLOSED_FORM > best_rate:
                exact = simulate_once(point)
                if limits.hold(exact):
                    best_rate = max(best_rate, exact.tokens_per_s_gpu)
    for point in spread(front([*together, *disaggregated]), MOST_FRONT):
        simulate_once(point)
    if not any(limits.hold(point) for point in simulated.values()):
        for point in sorted([*together, *disaggregated], key=limits.worst)[:MOST_BEST]:
            simulate_once(point)
    judged = {"evaluated": len(together) + len(disaggregated), "simulated": len(simulated), "behind": counts["behind"]}
    return Search(list(simulated.values()), judged, limits)


def spread(points: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most ``most`` of ``points``, evenly spaced and with both ends."""
    if len(points) <= most:
        return list(points)
    return [points[place * (len(points) - 1) // (most - 1)] for place in range(most)]


def simulator(fitting: Sequence[Replica], load: Load, device: Device) -> Callable[[Candidate], Candidate]:
    """A function that simulates a candidate as ``perfmodel serve`` does, with the step times of its layout in fine tables."""
    fine: dict[tuple[str, Split], Replica] = {}

    def replica(engine: str, split: Split) -> Replica:
        """The replica of this engine and layout, with fine tables."""
        if (engine, split) not in fine:
            coarse = next(candidate for candidate in fitting if (candidate.engine.id, candidate.split) == (engine, split))
            fine[engine, split] = replace(coarse, times=coarse.times.finely()) if isinstance(coarse.times, KernelTimes) else coarse
        return fine[engine, split]

    def metrics(point: Candidate) -> ServingMetrics:
        decode, users = replica(point.engine, point.split), load.with_users(point.users)
        request_s = decode.engine.overhead.before_s(load.isl)
        if point.prefill is None:
            return simulate(Pool(decode.times, decode.engine.batching.of_replica(decode.split), decode.most_running), users, request_s)
        prefill = replica(point.engine, point.prefill)
        prefill_pool = pool_of(prefill.times, prefill.engine, prefill.split, prefill.most_running, point.prefill_workers)
        decode_pool = pool_of(decode.times, decode.engine, decode.split, decode.most_running, point.workers)
        moved_s = transfer_s(prefill.cache_bytes, prefill.split, decode.split, device, point.gpus)
        return simulate(decode_pool, users, request_s, prefill=prefill_pool, transfer_s=moved_s)

    def simulated(point: Candidate) -> Candidate:
        result = metrics(point)
        rated = point.rated(load, result.mean_ttft_s, result.p99_ttft_s, result.mean_tpot_s or 0.0, result.requests_per_s)
        step = Iteration(decodes=point.sequences, context=load.isl + load.osl // 2, queries=load.queries)
        times = replica(point.engine, point.split).times
        return replace(rated, at_least=isinstance(times, KernelTimes) and not mostly_predicted(times.estimate(step)))

    return simulated


def merged(searches: Mapping[Formats, Search]) -> Search:
    """One result of the searches with several formats, in which each candidate has its formats."""
    if len(searches) == 1:
        return next(iter(searches.values()))
    counts = Counter[str]()
    for part in searches.values():
        counts.update(part.counts)
    points = [replace(point, formats=formats) for formats, part in searches.items() for point in part.points]
    missed = [layout for part in searches.values() for layout in part.missed]
    return Search(points, counts, next(iter(searches.values())).limits, missed)
