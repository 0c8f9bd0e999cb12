"""Every layout, engine and number of users that fits: the front of tokens a second of a GPU and of a user, and the best under limits.

Candidates are replicas (one engine, layout and number of users each, from one to what the cache holds) and pools of prefill and decode
workers. Replicas of fewer GPUs than there are fill them, so that all compare by what one GPU delivers. A closed form ranks all
(``estimate``); the best and some of the front are simulated, as ``perfmodel serve`` answers for each, and only those are shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_si
from perfmodel.serving.engine import Engine
from perfmodel.serving.estimate import loop_estimate
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.layouts import Missed, Replica, replicas
from perfmodel.serving.load import Load
from perfmodel.serving.metrics import ServingMetrics
from perfmodel.serving.pools import PromptTime, pool_of, pools_estimate, prompt_time, ratios, transfer_s
from perfmodel.serving.scheduler import Pool
from perfmodel.serving.simulate import simulate
from perfmodel.serving.steps import KernelTimes, mostly_predicted
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import ModelPass, Split

CLOSED_FORM = 1.15  # tuned
"""By how much the closed form may be off: candidates so far beyond a limit or behind the best are not simulated."""
PER_OCTAVE = 6
"""Numbers of users that are tried per factor of two."""
MOST_BEST, MOST_FRONT = 4, 8
"""Candidates that are simulated to find the best of a kind, and of the front."""
MOST_USERS = 4096
"""Of a replica, where neither cache nor engine ends it before."""
Formats = tuple[str | None, str | None]
Worked = TypeVar("Worked")


@dataclass(frozen=True, slots=True)
class Targets:
    """Most seconds to the first token, per token after it and of a whole request; None for any."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    request_s: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """Limits in seconds that were given, by their names on the screen."""
        known = {"ttft": self.ttft_s, "tpot": self.tpot_s, "request latency": self.request_s}
        return {name: limit for name, limit in known.items() if limit is not None}

    def excess(self, point: Candidate) -> dict[str, float]:
        """How many times each limit the candidate takes: at most 1 within it."""
        taken = {"ttft": point.ttft_s, "tpot": point.tpot_s, "request latency": point.request_s}
        return {name: taken[name] / limit for name, limit in self.given.items()}

    def worst(self, point: Candidate) -> float:
        """How many times its limit the figure takes that is furthest beyond; 0 without limits."""
        return max(self.excess(point).values(), default=0.0)

    def hold(self, point: Candidate, slack: float = 1.0) -> bool:
        """Whether the candidate is within all."""
        return self.worst(point) <= slack


@dataclass(frozen=True, slots=True)
class Candidate:
    """``users`` of a replica, or of ``prefill_workers`` and ``workers``. ``gpus``: of what is repeated, ``copies`` times; where that is 0
    as often as all GPUs hold.

    ``prefill``: their layout; None where the same GPUs run prompts. ``formats``: of weights and of the KV cache, where several are
    searched. ``at_least``: its times are roofs for a good part.
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
        """Users of one worker that decodes."""
        return -(-self.users // self.workers)

    def among(self, gpus: int, users: int | None) -> Candidate:
        """The mean over its copies on ``gpus``, of which these may leave some idle, and per GPU of all.

        ``users``: of all copies, where they are given; ``self`` is the fullest of these, and GPUs beyond its copies are not needed.
        """
        copies = self.copies or gpus // self.gpus
        share, used = (1.0, copies * self.gpus / gpus) if users is None else (users / (copies * self.users), 1.0)
        return replace(self, tokens_per_s_gpu=self.tokens_per_s_gpu * share * used, requests_per_s=self.requests_per_s * share)

    def dollars(self, gpu_hour: float) -> float:
        """Dollars per million output tokens, at ``gpu_hour`` dollars an hour of a GPU."""
        return gpu_hour / 3600 / self.tokens_per_s_gpu * 1e6

    def rated(self, load: Load, first_s: float, last_s: float, tpot_s: float, requests_per_s: float) -> Candidate:
        """The candidate with these figures: seconds to the first token, those of the latest, seconds per token, requests a second."""
        tokens, whole_s = requests_per_s * load.osl, first_s + tpot_s * (load.osl - 1)
        speeds = {"tokens_per_s_gpu": tokens / self.gpus, "tokens_per_s_user": 1 / tpot_s if tpot_s else tokens / self.users}
        times = {"ttft_s": first_s, "ttft_p99_s": last_s, "tpot_s": tpot_s, "request_s": whole_s}
        figures: dict[str, Any] = {**times, **speeds, "requests_per_s": requests_per_s}
        return replace(self, **figures)


@dataclass(frozen=True, slots=True)
class Search:
    """``points``: the candidates that were simulated. ``counts``: of those evaluated, simulated, behind (prefill that does not keep up with
    decode), and of layouts without room; where all are, they are ``missed``.
    """

    points: Sequence[Candidate]
    counts: Mapping[str, int]
    limits: Targets
    missed: Sequence[Missed] = ()

    @property
    def front(self) -> list[Candidate]:
        """The front of all points, whether within the limits or not."""
        return front(self.points)

    @property
    def best(self) -> Candidate | None:
        """Most tokens a second of a GPU within the limits."""
        return _most(self.points, self.limits)

    @property
    def nearest(self) -> Candidate | None:
        """The least beyond the limits, where nothing is within them."""
        over = min(self.points, key=self.limits.worst, default=None)
        return over if self.best is None else None

    @property
    def together(self) -> Candidate | None:
        """The best of replicas that run prompts themselves."""
        return _most([one for one in self.points if one.prefill is None], self.limits)

    @property
    def pooled(self) -> Candidate | None:
        """The best of pools."""
        return _most([one for one in self.points if one.prefill is not None], self.limits)

    @property
    def chosen(self) -> Candidate | None:
        """The best within the limits, else the nearest to them."""
        return self.best or self.nearest

    @property
    def at_least(self) -> bool:
        """Whether the times of the chosen one are roofs for a good part."""
        return self.chosen is not None and self.chosen.at_least

    @property
    def configurations(self) -> int:
        """All that were judged."""
        return self.counts["evaluated"] + self.counts["behind"]

    @property
    def why(self) -> str:
        """Why nothing is within the limits, in words; empty if something is."""
        if self.best is not None:
            return ""
        if self.nearest is None and not self.missed:
            return "no layout has room for so many users at once"
        if self.nearest is None:
            least = min((one.lacks for one in self.missed), default=0.0)
            return f"no layout holds the model with one sequence: the nearest lacks {format_si(least, 'B', 3)} on each GPU"
        over = {name: times for name, times in self.limits.excess(self.nearest).items() if times > 1}
        words = " and ".join(f"{times:,.{0 if times > 100 else 2}f} times the {name}" for name, times in over.items())
        return f"nothing is within the limits: the nearest takes {words} allowed"


def _most(points: Iterable[Candidate], limits: Targets) -> Candidate | None:
    return max((one for one in points if limits.hold(one)), key=lambda one: one.tokens_per_s_gpu, default=None)


def front(points: Iterable[Candidate]) -> list[Candidate]:
    """Pareto-optimal ``points``: no other has as many tokens a second of a GPU and of a user, and more of one.

    From most per GPU to most per user; of equal points the first.
    """
    found: list[Candidate] = []
    for point in sorted(points, key=lambda one: (-one.tokens_per_s_gpu, -one.tokens_per_s_user)):
        if not found or point.tokens_per_s_user > found[-1].tokens_per_s_user:
            found.append(point)
    return found


def ladder(most: int) -> list[int]:
    """Numbers from 1 to ``most``, ``PER_OCTAVE`` per factor of two.

    >>> ladder(10), len(ladder(1024))
    ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 50)
    """
    found, value = [], 1.0
    while round(value) < most:
        found.append(round(value))
        value = max(value * 2 ** (1 / PER_OCTAVE), round(value) + 1)
    return [*found, most]


def most_users(replica: Replica) -> int:
    """Users that run at a time: more would wait."""
    return min(replica.most_running, replica.engine.batching.over(replica.split).max_sequences, MOST_USERS)


def estimated(replica: Replica, load: Load, users: int) -> Candidate:
    """One replica with so many users, by the closed form."""
    batching, request_s = replica.engine.batching.over(replica.split), replica.engine.overhead.before_s(load.isl)
    loop = loop_estimate(replica.times, load, batching, request_s, users)
    one = Candidate(replica.engine.id, replica.split, users, replica.gpus)
    return one.rated(load, loop.ttft_s, loop.ttft_s, loop.decode_s / max(load.osl - 1, 1), loop.requests_per_s)


def in_replicas(known: Iterable[Replica], load: Load, gpus: int, users: int | None) -> Iterator[Candidate]:
    """Every number of users of every replica; or its share of ``users``, where it has the slots, among one copy and more."""
    for replica in known:
        most = most_users(replica)
        if users is None:
            yield from (estimated(replica, load, each) for each in ladder(most))
            continue
        for copies in ladder(min(gpus // replica.gpus, users)):
            share = -(-users // copies)
            if share <= most:
                yield replace(estimated(replica, load, share), copies=copies)


def in_pools(
    known: Sequence[Replica], load: Load, gpus: int, users: int | None, device: Device, counts: Counter[str]
) -> Iterator[Candidate]:
    """Prefill and decode workers of one engine, each number of sequences with the ratios that just keep up and that have twice the room.

    Of the layouts of one size, those count that no other beats in both speed and rate. ``users``: share of those of all GPUs.
    """
    by_engine = defaultdict[str, list[Replica]](list)
    for replica in known:
        if replica.gpus < gpus and load.osl > 1:
            by_engine[replica.engine.id].append(replica)

    def pairs(before: Replica, time: PromptTime, after: Replica, sequences: int, decode_s: float) -> Iterator[Candidate]:
        """Numbers of both workers: the least prefill that keeps up, and the least with twice the room."""
        wanted = sequences / decode_s / time.per_s
        for room in (1, 2):
            fits = [pair for pair in ratios(before.gpus, after.gpus, gpus) if pair[0] / pair[1] >= room * wanted]
            found = None
            for x, y in fits[:1] if users is None else fits:
                used = x * before.gpus + y * after.gpus
                moved_s = transfer_s(before.cache_bytes, before.split, after.split, device, used)
                found = pools_estimate(time, sequences, decode_s, (x, y), moved_s + after.engine.overhead.before_s(load.isl), load)
                share = None if users is None else -(-users // (gpus // used))
                if found is None or (share and not 0.9 < found.users / share < 1.1):
                    continue
                one = Candidate(after.engine.id, after.split, share or max(round(found.users), 1), used)
                one = replace(one, prefill=before.split, prefill_workers=x, workers=y, copies=gpus // used if users else 0)
                yield one.rated(load, found.ttft_s, found.ttft_s, found.decode_s / (load.osl - 1), found.requests_per_s)
                break
            counts["behind"] += found is None

    for own in by_engine.values():
        first = _fastest([(one, time.seconds, time.per_s, time) for one in own for time in [prompt_time(one, load)]])
        each = [(one, sequences, _decode_s(one, load, sequences)) for one in own for sequences in ladder(most_users(one))]
        second = [(one, decode_s, sequences / decode_s, sequences) for one, sequences, decode_s in each]
        for after, decode_s, _, sequences in second if users else _fastest(second):
            for before, _, _, time in first:
                yield from pairs(before, time, after, sequences, decode_s)


def _decode_s(replica: Replica, load: Load, sequences: int) -> float:
    """Seconds of all decode steps of a request beside ``sequences``, their outputs half done on average."""
    step = Iteration(decodes=sequences, context=load.isl + load.osl // 2, queries=load.queries)
    return (load.osl - 1) / load.tokens_per_step * replica.times.seconds(step)


def _fastest(workers: list[tuple[Replica, float, float, Worked]]) -> list[tuple[Replica, float, float, Worked]]:
    """Replicas with seconds and requests a second: of each size, those with the least of one of all that have as much of the other."""
    most: dict[int, float] = defaultdict(float)
    found = []
    for one in sorted(workers, key=lambda each: (each[1], -each[2])):
        if one[2] > most[one[0].gpus]:
            most[one[0].gpus] = one[2]
            found.append(one)
    return found


def search(
    model: ModelSpec,
    device: Device,
    gpus: int,
    load: Load,
    engines: Iterable[Engine],
    like: ModelPass,
    limits: Targets | None = None,
    fallbacks: FallbackDevices = tuple,
    pools: bool = True,
    users: int | None = None,
) -> Search:
    """Everything on up to ``gpus`` GPUs that fits. ``like``: a pass with the formats.

    ``pools``: prefill and decode apart, too. ``users``: of all GPUs.
    """
    if gpus < 1:
        raise UsageError(f"--gpus is {gpus}", "give a whole number from 1")
    known, missed = replicas(model, device, gpus, engines, like, load.of(1).check(), fallbacks)
    found = search_among(known, device, gpus, load, limits or Targets(), pools, users)
    return replace(found, missed=() if known else missed, counts={**found.counts, "without room": len(missed)})


def search_among(
    known: Sequence[Replica], device: Device, gpus: int, load: Load, limits: Targets, pools: bool = True, users: int | None = None
) -> Search:
    """``search`` among replicas that are ``known``."""
    counts = Counter[str]()
    apart = [one.among(gpus, users) for one in in_pools(known, load, gpus, users, device, counts)] if pools else []
    together = [one.among(gpus, users) for one in in_replicas(known, load, gpus, users)]
    exactly, seen = simulated(known, load, device), dict[Candidate, Candidate]()

    def asked(points: Iterable[Candidate]) -> list[Candidate]:
        return [seen[point] if point in seen else seen.setdefault(point, exactly(point).among(gpus, users)) for point in points]

    for kind in (together, apart):
        near = [one for one in kind if limits.hold(one, CLOSED_FORM)]
        best = 0.0
        for point in sorted(near, key=lambda one: -one.tokens_per_s_gpu)[:MOST_BEST]:
            if point.tokens_per_s_gpu * CLOSED_FORM > best:
                best = max([best, *(one.tokens_per_s_gpu for one in asked([point]) if limits.hold(one))])
    asked(spread(front([*together, *apart]), MOST_FRONT))
    if not any(map(limits.hold, seen.values())):
        asked(sorted([*together, *apart], key=limits.worst)[:MOST_BEST])
    found = {"evaluated": len(together) + len(apart), "simulated": len(seen), "behind": counts["behind"]}
    return Search(list(seen.values()), found, limits)


def spread(points: Sequence[Candidate], most: int) -> list[Candidate]:
    """Up to so many of them, the ends among them."""
    if len(points) <= most:
        return list(points)
    return [points[place * (len(points) - 1) // (most - 1)] for place in range(most)]


def simulated(known: Sequence[Replica], load: Load, device: Device) -> Callable[[Candidate], Candidate]:
    """A candidate as ``perfmodel serve`` answers for it: its steps in the tables of one layout."""
    fine: dict[tuple[str, Split], Replica] = {}

    def replica(engine: str, split: Split) -> Replica:
        if (engine, split) not in fine:
            own = next(one for one in known if (one.engine.id, one.split) == (engine, split))
            fine[engine, split] = replace(own, times=own.times.finely()) if isinstance(own.times, KernelTimes) else own
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
        found = metrics(point)
        step = Iteration(decodes=point.sequences, context=load.isl + load.osl // 2, queries=load.queries)
        times = replica(point.engine, point.split).times
        least = isinstance(times, KernelTimes) and not mostly_predicted(times.passed(step))
        seconds = found.mean_ttft_s, found.p99_ttft_s, found.mean_tpot_s or 0.0
        return replace(point.rated(load, *seconds, found.requests_per_s), at_least=least)

    return exactly


def merged(searches: Mapping[Formats, Search]) -> Search:
    """One search of all, each candidate with its formats."""
    if len(searches) == 1:
        return next(iter(searches.values()))
    counts = Counter[str]()
    for found in searches.values():
        counts.update(found.counts)
    points = [replace(one, formats=formats) for formats, found in searches.items() for one in found.points]
    missed = [one for found in searches.values() for one in found.missed]
    return Search(points, counts, next(iter(searches.values())).limits, missed)
