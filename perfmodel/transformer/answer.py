"""The question that ``perfmodel model`` asks, and its answer: passes, their rows together, times to the first and to the next token.

Prefill runs over the ``n`` tokens of the prompt and gives the first token; its time is the time to the first token (TTFT). A decode
step gives one more token to every sequence, the last of ``kv_len``; its time is the time per output token (TPOT). Generation is a
prefill and then decode steps until a sequence has ``kv_len`` tokens; its TPOT is the mean over those steps. Without a KV cache every
step is a prefill over all tokens so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ
from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.frozen import dataclass
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, rates_of, total
from perfmodel.timing.reference_devices import FallbackDevices, listed_once
from perfmodel.transformer.estimate import MIXED, PREDICTED, ROOF, Interval, PassEstimate, PassRow, interval, run_pass
from perfmodel.transformer.host import Host
from perfmodel.transformer.op import ATTENTION, Op
from perfmodel.transformer.op_time import check_named, launch_correction, scaled
from perfmodel.transformer.ops import layer_ops
from perfmodel.transformer.parallel import MemoryFit, smallest_split, step_memory
from perfmodel.transformer.spec import most_seen
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, ModelPass, Request, Split

if TYPE_CHECKING:
    from perfmodel.transformer.step_power import StepPower

Pass = TypeVar("Pass", bound=PassEstimate)
MOST_LENGTHS = 16
"""Number of lengths at which a long generation is timed, besides a few for windows; in between, times are taken as linear."""


@dataclass(frozen=True, slots=True)
class Line:
    """All runs of one op in the whole answer. ``times``: predicted seconds with the ends of their interval.

    ``seconds``: sum over runs of the predicted time, else the roof.
    """

    phase: str
    row: PassRow
    count: Number
    cost: Estimate
    times: Interval | None
    seconds: float


@dataclass(frozen=True, slots=True)
class EagerRun:
    """How a program runs whose kernels were listed one by one: seconds in which one runs, and in which the device waits for the host.

    ``plans_s``: seconds of the host more the first time, for plans of attention. ``kernels``: name, start and seconds of each, for one step
    alone. ``notes``: what the times rest on, in sentences.
    """

    busy_s: float
    waits_s: float
    plans_s: float
    kernels: Sequence[tuple[str, float, float]]
    notes: Sequence[str]


@dataclass(frozen=True)
class ModelAnswer:
    """Answer to a request. ``steps``: passes, and how often each runs. ``eager``: how they run, if a captured program says so."""

    request: Request
    steps: Sequence[tuple[PassEstimate, int]]
    memory: MemoryFit
    eager: EagerRun | None = None

    @cached_property
    def curved(self) -> Mapping[tuple[str, str], int]:
        """FLOP of rows beyond these passes, by phase and name."""
        return {} if self.eager is not None else _curved(self.request, [(step.step, times) for step, times in self.steps])

    @cached_property
    def lines(self) -> list[Line]:
        """Rows of all passes; rows of one phase and name are joined."""
        rows_of: dict[tuple[str, str], list[tuple[PassRow, int]]] = {}
        for step, times in self.steps:
            for row in step.rows:
                rows_of.setdefault((step.step.phase, row.op.name), []).append((row, times))
        return [self._line(key, rows) for key, rows in rows_of.items()]

    def _line(self, key: tuple[str, str], rows: Sequence[tuple[PassRow, int]]) -> Line:
        costs = [scaled(row.cost, times) for row, times in rows]
        cost = reduce(lambda before, one: replace(before + one, needs=before.needs.disjoint_sum(one.needs)), costs)
        times = interval((row.interval, often) for row, often in rows)
        count, seconds = sum(row.op.count * often for row, often in rows), sum(row.seconds * often for row, often in rows)
        cost = replace(cost, flops=cost.flops + self.curved.get(key, 0))
        return Line(key[0], rows[0][0], count, cost, times, seconds)

    @cached_property
    def cost(self) -> Estimate:
        """Sum over all passes, with the bound of all of them as one workload."""
        costs = [(step.cost, times) for step, times in self.steps]
        needs = self._needs([(cost.needs, times) for cost, times in costs])
        summed = total(scaled(cost, times) for cost, times in costs)
        return replace(summed, flops=summed.flops + sum(self.curved.values()), needs=needs)

    def _needs(self, steps: Sequence[tuple[Needs, int]]) -> Needs:
        """Needs of all steps in turn: weights and KV cache pass DRAM in each, less what the caches keep from the step before.

        Sequences may take their steps in turn rather than together. Weights save nothing by that if each turn reads them all. If they fit
        the caches, or differ between sequences (experts), each turn may find as much as the caches hold.
        """
        alone, r = steps[0][0], self.request
        each = [needs.dram_bytes for needs, _ in steps]
        if alone.held is None:
            moved = max(each)
        else:
            together = each[0] >= alone.held and not r.model.is_moe
            kept = alone.held * (1 if together else r.batch)
            runs = sum(times for _, times in steps)
            moved = max(*each, sum(size * times for size, (_, times) in zip(each, steps, strict=True)) - kept * (runs - 1))
        work, links = (sum(times * getattr(needs, name) for needs, times in steps) for name in ("work_s", "link_s"))
        return replace(alone, work_s=work, link_s=links, tensors={(READ, "weights and KV cache"): moved})

    @property
    def prediction(self) -> Interval | None:
        """Seconds with their interval; None if a row has none."""
        return interval((step.prediction, times) for step, times in self.steps)

    @property
    def seconds(self) -> float:
        """Seconds by the best known time of each row: the predicted one, else the roof, which makes the sum a lower limit."""
        return sum(step.seconds * times for step, times in self.steps)

    @cached_property
    def rows(self) -> list[PassRow]:
        """Rows of all different passes."""
        return [row for step, _ in self.steps for row in step.rows]

    @property
    def times_from(self) -> str:
        """The times that ``seconds`` adds up: ``PREDICTED``, at the ``ROOF``, or both (``MIXED``)."""
        known = {row.prediction is not None for row in self.rows}
        return MIXED if len(known) > 1 else ROOF if False in known else PREDICTED

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token: the prefill's."""
        return self._mean_s(PREFILL)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token, which are those of a decode step."""
        return self._mean_s(DECODE)

    def _mean_s(self, phase: str) -> float | None:
        steps = [(step.seconds, times) for step, times in self.steps if step.step.phase == phase]
        return sum(seconds * times for seconds, times in steps) / sum(times for _, times in steps) if steps else None

    @property
    def power(self) -> StepPower | None:
        """Power of all passes; None if a pass has none."""
        known = [(step.power, times) for step, times in self.steps if step.power is not None]
        if len(known) < len(self.steps):
            return None
        from perfmodel.transformer.step_power import StepPower

        return StepPower(known, self.request.split.stage)

    @property
    def tokens(self) -> int:
        """Tokens read in prefill, or generated."""
        r = self.request
        return int(r.batch * {PREFILL: r.n, DECODE: 1, GENERATE: r.kv_len - r.n}[r.phase])

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all sequences."""
        return self.tokens / self.seconds

    @property
    def smallest_split(self) -> Split | None:
        """The fewest GPUs that would hold all of it, by ``parallel.smallest_split``."""
        r = self.request
        return smallest_split(r.model, replace(self.steps[0][0].step, kv_len=r.kv_len), r.device, r.reserve)

    @cached_property
    def flops(self) -> Number:
        """Matmul FLOP of the model over all passes."""
        whole = [(replace(step.step, split=Split()), times) for step, times in self.steps]
        straight = sum(sum(step.flops_by_format.values()) * times for step, times in self.steps)
        return straight + sum(_curved(self.request, whole).values())

    @property
    def mfu(self) -> float:
        """Model FLOP utilization: share of the time that the model's FLOP take at the datasheet's peaks, each in its format."""
        return sum(step.at_peak_s * times for step, times in self.steps) / (self.seconds * self.request.split.gpus)

    @property
    def mfu_peaks(self) -> dict[str, float]:
        """Peak FLOP/s of one GPU in each format that its products run in."""
        names = dict.fromkeys(name for step, _ in self.steps for name in step.flops_by_format)
        return {name: float(rates_of(self.request.device, dtype_of_products(name)).matmul) for name in names}


def answer(request: Request, fallbacks: FallbackDevices = tuple) -> ModelAnswer:
    """Answer with every pass of ``request``: its estimate, and its predicted time if kernels are calibrated."""
    r = request.check()
    first = r.step(DECODE if r.phase == DECODE else PREFILL)
    wanted = [(first, 1)]
    if r.phase == GENERATE:
        windows = sorted({int(w) for layer, _ in r.model.layer_kinds if (w := most_seen(layer.attention)) is not None})
        wanted += [(r.step(DECODE, length), times) for length, times in lengths(r.n + 1, r.kv_len - 1, windows)]
    known: dict[tuple[Op, bool], PassRow] = {}
    fallbacks = listed_once(fallbacks)
    host, within = Host(r.host_us), launch_correction(r.device, fallbacks)
    options: dict[str, Any] = {"known": known, "host": host, "within": within, "attention": r.attention}
    plain = [(run_pass(r.model, step, r.device, fallbacks, r.in_graph(step.phase), **options), times) for step, times in wanted]
    check_named(r.attention, (row.op for step, _ in plain for row in step.rows))
    memory = step_memory(r.model, replace(first, kv_len=r.kv_len), r.device, r.reserve)
    return ModelAnswer(r, clocked(plain, r), memory)


def clocked(steps: list[tuple[Pass, int]], r: Request) -> list[tuple[Pass, int]]:
    """``steps`` at the clocks that the power limit leaves; unchanged if the device has no power model and no power is asked for."""
    if r.device.power is None and not r.power.given:
        return steps
    from perfmodel.transformer.step_power import under_power

    return [(under_power(step, r.power), times) for step, times in steps]


def lengths(first: int, last: int, breaks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Lengths that represent all from ``first`` to ``last``, and how many each represents: middles of odd stretches, none across a break.

    A sum over them is exact for terms linear in the length, and no more than the true sum for terms that grow faster.

    >>> lengths(5, 7), lengths(1, 100)[:2], sum(length * times for length, times in lengths(1, 100))
    ([(5, 1), (6, 1), (7, 1)], [(4, 7), (11, 7)], 5050)
    """
    size = -(-max(last - first + 1, 1) // MOST_LENGTHS) | 1
    ends = [*(end for end in breaks if first <= end < last), last]
    middles, start = [], first
    while start <= last:
        end = next(end for end in ends if end >= start)
        times = min(size, end - start + 1)
        times -= times % 2 == 0
        middles.append((start + times // 2, times))
        start += times
    return middles


def _curved(r: Request, wanted: Sequence[tuple[ModelPass, int]]) -> dict[tuple[str, str], int]:
    """FLOP of rows that grow with the square of the length, summed over all lengths, beyond those at the middles.

    Only steps without a cache have any.

    Sum of f over the 2 d + 1 lengths around c: (2 d + 1) (f(c) + (d + 1) (f(c - d) - 2 f(c) + f(c + d)) / (6 d)).
    """
    flops: dict[tuple[str, str], int] = {}
    for step, times in wanted if not r.cached else ():
        d, bends = times // 2, dict[tuple[str, str], int]()
        for place, weight in ((-d, 1), (0, -2), (d, 1)) if d else ():
            length = step.kv_len + place
            at = replace(step, n=length, kv_len=length)
            for layer, count in r.model.layer_kinds:
                for op in layer_ops(layer, r.model, at, lambda op: op.part == ATTENTION):
                    if op.group == ATTENTION:
                        key = (step.phase, op.name)
                        bends[key] = bends.get(key, 0) + weight * int(count * op.count * op.kernel.flops)
        for key, bend in bends.items():
            flops[key] = flops.get(key, 0) + bend * times * (d + 1) // (6 * d)
    return {key: more for key, more in flops.items() if more}
