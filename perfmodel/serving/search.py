"""Every layout, engine and number of users that fits: the front of tokens a second of a GPU and of a user, and the best under limits.

Candidates are replicas (one engine, layout and number of users each, from one to what the cache holds) and pools of prefill and decode
workers. Replicas of fewer GPUs than there are fill them, so that all compare by what one GPU delivers. A candidate is not evaluated
where it cannot be on the front nor the best: one that was, within the limits, delivers more in both than the candidate's bound, which
those with fewer and with more users of its replica give.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.serving.engine import Engine
from perfmodel.serving.front import Beaten, front
from perfmodel.serving.iteration import Iteration
from perfmodel.serving.load import Load
from perfmodel.serving.loop_steps import STANDS
from perfmodel.serving.pools import DecodeWorker, decode_worker, link, pairs, pooled, prefill_worker, ratios
from perfmodel.serving.replica import Missed, Replica, replicas
from perfmodel.serving.steady import Loop
from perfmodel.serving.steps import KernelTimes, mostly_predicted
from perfmodel.timing.lenders import FallbackDevices
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import ModelPass, Split

CLOSE = 1e-3
"""Change at which the fixed point of a steady state stands in a search."""
SLACK = 1.03  # tuned
"""Times what evaluated neighbours deliver that none between them exceeds: steps in kernels' times make small bumps."""
PER_OCTAVE = 6
"""Numbers of users that are tried per factor of two."""
MOST_ASKED = 8
"""Candidates that are asked exactly until one is within the limits."""
MOST_USERS = 4096
"""Of a replica, where neither cache nor engine ends it before."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Most seconds to the first token and per token after it; None for any. ``p99``: the first of 99 % of requests, else the mean."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    p99: bool = False

    def excess(self, point: Candidate) -> dict[str, float]:
        """How many times each limit the candidate takes: at most 1 within it."""
        asked = {"ttft": (point.ttft_p99_s if self.p99 else point.ttft_s, self.ttft_s), "tpot": (point.tpot_s, self.tpot_s)}
        return {name: value / limit for name, (value, limit) in asked.items() if limit is not None}

    def hold(self, point: Candidate) -> bool:
        """Whether the candidate is within all."""
        return all(times <= 1 for times in self.excess(point).values())


Formats = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """``users`` of a replica, or of a decode worker beside ``prefill`` workers. ``gpus``: of what is repeated to fill all GPUs.

    ``prefill``: their layout, ``prefill_workers`` to ``workers``; None where the same GPUs run prompts. ``formats``: of weights and of the
    KV cache, where several are searched.
    """

    engine: str
    split: Split
    users: int
    gpus: int
    ttft_s: float
    ttft_p99_s: float
    tpot_s: float
    requests_per_s: float
    tokens_per_s_gpu: float
    tokens_per_s_user: float
    prefill: Split | None = None
    prefill_workers: int = 0
    workers: int = 1
    formats: Formats = (None, None)

    def among(self, gpus: int, users: int | None) -> Candidate:
        """On average over its copies on ``gpus``, of which these may leave some idle, and per GPU of all.

        ``users``: of all copies, where they are given; ``self`` is the fullest of these.
        """
        copies = gpus // self.gpus
        share = 1.0 if users is None else users / (copies * self.workers * self.users)
        tokens, rate = self.tokens_per_s_gpu * share * copies * self.gpus / gpus, self.requests_per_s * share
        return replace(self, tokens_per_s_gpu=tokens, requests_per_s=rate)

    def dollars(self, gpu_hour: float) -> float:
        """Per million output tokens, at so many for an hour of a GPU."""
        return gpu_hour / 3600 / self.tokens_per_s_gpu * 1e6


@dataclass(frozen=True, slots=True)
class Search:
    """What was found. ``counts``: candidates that were evaluated, pruned, behind (prefill that does not keep up with decode), and layouts
    without room. ``best``: most tokens a second of a GPU within the limits; else ``nearest`` has the least of ``excess``.
    ``at_least``: its times are roofs for a good part. ``together``, ``pooled``: the best within the limits of each kind.
    """

    front: Sequence[Candidate]
    best: Candidate | None
    nearest: Candidate | None
    counts: Mapping[str, int]
    limits: Targets
    missed: Sequence[Missed] = ()
    at_least: bool = False
    together: Candidate | None = None
    pooled: Candidate | None = None

    @property
    def configurations(self) -> int:
        """All that were judged, by evaluation or by a bound."""
        return sum(self.counts[name] for name in ("evaluated", "pruned", "behind"))

    @property
    def why(self) -> str:
        """Why nothing is within the limits, in words; empty if something is."""
        if self.best is not None:
            return ""
        if self.nearest is None:
            least = min((one.lacks for one in self.missed), default=0.0)
            return f"no layout holds the model with one sequence: the nearest lacks {least / 2**30:.1f} GiB on each GPU"
        over = {name: times for name, times in self.limits.excess(self.nearest).items() if times > 1}
        words = " and ".join(f"{name} {times:,.{0 if times > 100 else 2}f} times" for name, times in over.items())
        return f"nothing is within the limits: the nearest takes {words} its limit"


@dataclass(slots=True)
class Seen:
    """Candidates on ``gpus``, with ``users`` of all where they are given, as they are evaluated.

    ``prune``: tests compare the front with that of all.
    """

    limits: Targets
    gpus: int
    users: int | None = None
    prune: bool = True
    found: list[Candidate] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    within: Beaten = field(default_factory=Beaten)
    every: Beaten = field(default_factory=Beaten)

    def hopeless(self, span: UserRange) -> bool:
        """Whether nothing in ``span`` can be on the front or the best; if so its numbers are counted.

        More users get more of a GPU and less each, so that the ends bound what is between them. Where even fewer users are over a
        limit, so are these: they need not be the best.
        """
        ends = (span.low, span.high)
        bound = SLACK * max(one.tokens_per_s_gpu for one in ends), SLACK * max(one.tokens_per_s_user for one in ends)
        over = any(times > SLACK for times in self.limits.excess(span.low).values())
        beaten = self.prune and (self.every if over else self.within).by(*bound)
        self.counts["pruned"] += beaten * len(span.between)
        return beaten

    def add(self, point: Candidate) -> Candidate:
        """One that was evaluated, per GPU of all."""
        self.counts["evaluated"] += 1
        point = point.among(self.gpus, self.users)
        self.found.append(point)
        self.every.see(point.tokens_per_s_gpu, point.tokens_per_s_user)
        if self.limits.hold(point):
            self.within.see(point.tokens_per_s_gpu, point.tokens_per_s_user)
        return point


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
    """That run at a time: more would wait."""
    return min(replica.most_running, replica.engine.batching.over(replica.split).max_sequences, MOST_USERS)


def evaluate(replica: Replica, load: Load, users: int, close: float = CLOSE) -> Candidate:
    """One replica with so many users in steady state. ``close``: as of ``Loop.closed``."""
    batching, overhead = replica.engine.batching.over(replica.split), replica.engine.overhead
    found = Loop(replica.times, load.of(users), batching, overhead, replica.most_running).closed(users, close)
    tpot, rate, gpus = found.tpot_s or 0.0, found.requests_per_s, replica.gpus
    per_user = 1 / tpot if tpot else rate * load.osl / users
    figures = found.ttft_s, found.ttft_p99_s, tpot, rate, rate * load.osl / gpus, per_user
    return Candidate(replica.engine.id, replica.split, users, gpus, *figures)


@dataclass(frozen=True, slots=True)
class UserRange:
    """Numbers of users of a replica between two that are evaluated, none of them evaluated yet."""

    replica: Replica
    low: Candidate
    high: Candidate
    between: Sequence[int]


def fixed_users(seen: Seen, known: Iterable[Replica], load: Load, gpus: int, users: int) -> None:
    """Every replica with its share of ``users``, as many copies as ``gpus`` hold; those with fewer slots are left out."""
    for replica in known:
        each = -(-users // (gpus // replica.gpus))
        if each <= most_users(replica):
            seen.add(evaluate(replica, load, each))


def in_replicas(seen: Seen, known: Iterable[Replica], load: Load) -> None:
    """Every number of users of every replica: the ends of all first, then the middle of each span that may hold something better."""
    spans = [span for replica in known for span in _spans(seen, replica, load)]
    while spans:
        spans = [half for span in spans if not seen.hopeless(span) for half in _halves(seen, span, load)]


def _spans(seen: Seen, replica: Replica, load: Load) -> list[UserRange]:
    """Of all its numbers of users: one ends where decode steps become too large for a CUDA graph, from where on they take longer."""
    rungs = ladder(most_users(replica))
    inside = bisect_right(rungs, replica.engine.graph_batch // load.queries)
    ends = sorted({0, max(inside - 1, 0), min(inside, len(rungs) - 1), len(rungs) - 1})
    points = [seen.add(evaluate(replica, load, rungs[end])) for end in ends]
    neighbours = zip(pairwise(points), pairwise(ends), strict=True)
    return [UserRange(replica, low, high, rungs[first + 1 : last]) for (low, high), (first, last) in neighbours if last > first + 1]


def _halves(seen: Seen, span: UserRange, load: Load) -> Iterator[UserRange]:
    """What the number in the middle of a span, once evaluated, leaves on both sides."""
    middle = len(span.between) // 2
    point = seen.add(evaluate(span.replica, load, span.between[middle]))
    sides = ((span.low, point, span.between[:middle]), (point, span.high, span.between[middle + 1 :]))
    yield from (UserRange(span.replica, *side) for side in sides if side[2])


def in_pools(seen: Seen, known: Sequence[Replica], device: Device, gpus: int, load: Load, users: int | None = None) -> None:
    """Every pair of layouts, number of sequences and ratio of workers; of ``users`` of all GPUs, the share of each decode worker."""
    if load.osl < 2:
        return
    first = {id(one): prefill_worker(one, load) for one in known if one.gpus < gpus}
    second = {
        id(one): [decode_worker(one, load, each) for each in ladder(most_users(one))] for one in known if one.gpus < gpus and not users
    }
    shares: dict[tuple[int, int], DecodeWorker] = {}
    for before, after in pairs(list(known), gpus):
        prefill = first[id(before)]
        for x, y in ratios(before.gpus, after.gpus, gpus):
            used = x * before.gpus + y * after.gpus
            rate = link(device, used)
            if users is None:
                workers = second[id(after)]
            else:
                each = -(-users // (y * (gpus // used)))
                if each <= most_users(after) and (id(after), each) not in shares:
                    shares[id(after), each] = decode_worker(after, load, each)
                workers = [shares[id(after), each]] if (id(after), each) in shares else []
            for decode in workers:
                found = pooled(prefill, before.split.dp, decode, x, y, load, rate)
                if found is None:
                    seen.counts["behind"] += 1
                    continue
                tokens = found.requests_per_s * load.osl / used
                figures = found.ttft_s, found.ttft_p99_s, found.tpot_s, found.requests_per_s, tokens, 1 / found.tpot_s
                seen.add(Candidate(after.engine.id, after.split, decode.sequences, used, *figures, before.split, x, y))


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
    found = search_among(
        known, device, gpus, load, limits or Targets(), pools, exactly=asked_exactly(known, load, gpus, users), users=users
    )
    at_least = (chosen := found.best or found.nearest) is not None and not predicted(known, chosen, load)
    return replace(found, missed=missed, counts={**found.counts, "without room": len(missed)}, at_least=at_least)


def predicted(known: Iterable[Replica], point: Candidate, load: Load) -> bool:
    """Whether its decode steps are, by time models."""
    own = next(one.times for one in known if one.engine.id == point.engine and one.split == point.split)
    step = Iteration(decodes=point.users, context=load.isl + load.osl // 2, queries=load.queries)
    return not isinstance(own, KernelTimes) or mostly_predicted(own.passed(step))


def search_among(
    known: Sequence[Replica],
    device: Device,
    gpus: int,
    load: Load,
    limits: Targets,
    pools: bool = True,
    prune: bool = True,
    exactly: Callable[[Candidate], Candidate] = lambda point: point,
    users: int | None = None,
) -> Search:
    """The same of ``known`` replicas. ``exactly``: figures of the best."""
    seen = Seen(limits, gpus, users, prune)
    if users is not None:
        fixed_users(seen, known, load, gpus, users)
    else:
        in_replicas(seen, known, load)
    if pools:
        in_pools(seen, known, device, gpus, load, users)
    best, points = _best(seen, exactly)
    nearest = None if best is not None else min(points, key=lambda one: max(limits.excess(one).values(), default=0.0), default=None)
    counts = {name: seen.counts[name] for name in ("evaluated", "pruned", "behind")}
    kinds = ([one for one in points if limits.hold(one) and (one.prefill is None) == mixed] for mixed in (True, False))
    together, pooled = (max(kind, key=lambda one: one.tokens_per_s_gpu, default=None) for kind in kinds)
    return Search(front(points), best, nearest, counts, limits, together=together, pooled=pooled)


def _best(seen: Seen, exactly: Callable[[Candidate], Candidate]) -> tuple[Candidate | None, list[Candidate]]:
    """The best of those seen that is within the limits when it is asked ``exactly``, and all points with those that were asked so."""
    within = [one for one in seen.found if seen.limits.hold(one)]
    ranked = sorted(within, key=lambda one: (-one.tokens_per_s_gpu, -one.tokens_per_s_user))
    asked: dict[Candidate, Candidate] = {}
    best: Candidate | None = None
    for point in ranked[:MOST_ASKED]:
        if best is not None and point.tokens_per_s_gpu <= best.tokens_per_s_gpu:
            break
        found = asked[point] = exactly(point)
        if seen.limits.hold(found) and (best is None or found.tokens_per_s_gpu > best.tokens_per_s_gpu):
            best = found
    points = [asked.get(one, one) for one in seen.found]
    if best is None:
        return max((one for one in points if seen.limits.hold(one)), key=lambda one: one.tokens_per_s_gpu, default=None), points
    most = best.tokens_per_s_gpu  # interpolated figures above it are none
    return best, [one for one in points if one.tokens_per_s_gpu <= most or not seen.limits.hold(one)]


def asked_exactly(known: Sequence[Replica], load: Load, gpus: int, users: int | None) -> Callable[[Candidate], Candidate]:
    """A candidate as ``perfmodel serve`` answers for it: its steps in the tables of one layout. Pools stay as they are.

    ``gpus``, ``users``: as of ``search``.
    """
    fine: dict[tuple[str, Split], Replica] = {}

    def exactly(point: Candidate) -> Candidate:
        if point.prefill is not None:
            return point
        if (place := (point.engine, point.split)) not in fine:
            replica = next(one for one in known if (one.engine.id, one.split) == place)
            fine[place] = replace(replica, times=replica.times.finely()) if isinstance(replica.times, KernelTimes) else replica
        return evaluate(fine[place], load, point.users, STANDS).among(gpus, users)

    return exactly


def merged(searches: Mapping[Formats, Search]) -> Search:
    """One search of all, each candidate with its formats."""
    if len(searches) == 1:
        return next(iter(searches.values()))

    def tagged(name: str) -> list[tuple[Candidate, Search]]:
        listed = ((formats, found, getattr(found, name)) for formats, found in searches.items())
        return [(replace(point, formats=formats), found) for formats, found, point in listed if point is not None]

    def most(name: str) -> Candidate | None:
        return max((point for point, _ in tagged(name)), key=lambda one: one.tokens_per_s_gpu, default=None)

    first, *_ = searches.values()
    best, limits = most("best"), first.limits
    near = [point for point, _ in tagged("nearest")]
    nearest = None if best else min(near, key=lambda one: max(limits.excess(one).values(), default=0.0), default=None)
    chosen = best or nearest
    at_least = any(found.at_least for name in ("best", "nearest") for point, found in tagged(name) if point == chosen)
    points = [replace(one, formats=formats) for formats, found in searches.items() for one in found.front]
    counts = Counter[str]()
    for found in searches.values():
        counts.update(found.counts)
    missed = [one for found in searches.values() for one in found.missed]
    return Search(front(points), best, nearest, counts, limits, missed, at_least, most("together"), most("pooled"))
