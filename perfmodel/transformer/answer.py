"""The question that ``perfmodel model`` asks, and its answer: passes, their rows together, times to the first and to the next token.

Prefill runs over the ``n`` tokens of the prompt and gives the first token; its time is the time to the first token (TTFT). A decode
step gives one more token to every sequence, the last of ``kv_len``; its time is the time per output token (TPOT). Generation is a
prefill and then decode steps until a sequence has ``kv_len`` tokens; its TPOT is the mean over those steps. Without a KV cache every
step is a prefill over all tokens so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.core.arith import Number
from perfmodel.core.cost import READ
from perfmodel.core.dtypes import dtype_of_products
from perfmodel.core.frozen import dataclass
from perfmodel.core.lower_bound import Needs
from perfmodel.core.roofline import Estimate, rates_of, total
from perfmodel.timing.reference_devices import FallbackDevices, listed_once
from perfmodel.transformer.estimate import MIXED, PREDICTED, ROOF, PassEstimate, PassRow, interval, run_pass
from perfmodel.transformer.host import Host, Interval
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
        """The line of one phase and name (``key``), of ``rows`` with how often each runs."""
        phase, _ = key
        first_row, first_times = rows[0]
        cost = scaled(first_row.cost, first_times)
        for row, times in rows[1:]:
            further = scaled(row.cost, times)
            cost = replace(cost + further, needs=cost.needs.disjoint_sum(further.needs))
        return Line(
            phase,
            first_row,
            count=sum(row.op.count * times for row, times in rows),
            cost=replace(cost, flops=cost.flops + self.curved.get(key, 0)),
            times=interval((row.interval, times) for row, times in rows),
            seconds=sum(row.seconds * times for row, times in rows),
        )

    @cached_property
    def cost(self) -> Estimate:
        """Sum over all passes, with the bound of all of them as one workload."""
        costs = [(step.cost, times) for step, times in self.steps]
        needs = self._needs([(cost.needs, times) for cost, times in costs])
        summed = total(scaled(cost, times) for cost, times in costs)
        return replace(summed, flops=summed.flops + sum(self.curved.values()), needs=needs)

    def _needs(self, steps: Sequence[tuple[Needs, int]]) -> Needs:
        """Needs of all ``steps`` (with how often each runs): weights and KV cache pass DRAM in each, less what the caches keep between two.

        A schedule may run one sequence after another. Then each of them may find as much in the caches as these hold, if the weights fit
        the caches or differ between sequences (experts). Otherwise each sequence reads all weights again, and nothing is saved.
        """
        first, _ = steps[0]
        step_bytes = [needs.dram_bytes for needs, _ in steps]
        if first.held is None:
            moved = max(step_bytes)
        else:
            saves_once = step_bytes[0] >= first.held and not self.request.model.is_moe
            kept = first.held * (1 if saves_once else self.request.batch)
            runs = sum(times for _, times in steps)
            all_bytes = sum(needs.dram_bytes * times for needs, times in steps)
            moved = max(*step_bytes, all_bytes - kept * (runs - 1))
        return replace(
            first,
            work_s=sum(times * needs.work_s for needs, times in steps),
            link_s=sum(times * needs.link_s for needs, times in steps),
            tensors={(READ, "weights and KV cache"): moved},
        )

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
        predicted = [row.prediction is not None for row in self.rows]
        if all(predicted):
            return PREDICTED
        return MIXED if any(predicted) else ROOF

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
        if not steps:
            return None
        return sum(seconds * times for seconds, times in steps) / sum(times for _, times in steps)

    @property
    def power(self) -> StepPower | None:
        """Power of all passes; None if a pass has none."""
        states = [(step.power, times) for step, times in self.steps if step.power is not None]
        if len(states) < len(self.steps):
            return None
        from perfmodel.transformer.step_power import StepPower

        return StepPower(states, self.request.split.stage)

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
        on_one_gpu = [(replace(step.step, split=Split()), times) for step, times in self.steps]
        at_steps = sum(sum(step.flops_by_format.values()) * times for step, times in self.steps)
        return at_steps + sum(_curved(self.request, on_one_gpu).values())

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
    rows: dict[tuple[Op, bool], PassRow] = {}
    fallbacks = listed_once(fallbacks)
    options: dict[str, Any] = {
        "known": rows,
        "host": Host(r.host_us),
        "within": launch_correction(r.device, fallbacks),
        "attention": r.attention,
    }
    steps = [(run_pass(r.model, step, r.device, fallbacks, r.in_graph(step.phase), **options), times) for step, times in wanted]
    check_named(r.attention, (row.op for step, _ in steps for row in step.rows))
    memory = step_memory(r.model, replace(first, kv_len=r.kv_len), r.device, r.reserve)
    return ModelAnswer(r, clocked(steps, r), memory)


def clocked(steps: list[tuple[Pass, int]], r: Request) -> list[tuple[Pass, int]]:
    """``steps`` at the clocks that the power limit leaves; unchanged if the device has no power model and no power is asked for."""
    if r.device.power is None and not r.power.given:
        return steps
    from perfmodel.transformer.step_power import under_power

    return [(under_power(step, r.power), times) for step, times in steps]


def lengths(first: int, last: int, breaks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Lengths that represent all from ``first`` to ``last``, and how many each represents: middles of stretches, none across a break.

    A sum over them is exact for terms linear in the length, and no more than the true sum for terms that grow faster.

    >>> lengths(5, 7), lengths(1, 100)[:2], sum(length * times for length, times in lengths(1, 100))
    ([(5, 1), (6, 1), (7, 1)], [(4, 7), (11, 7)], 5050)
    """
    longest = -(-max(last - first + 1, 1) // MOST_LENGTHS)
    if longest % 2 == 0:  # only an odd stretch has a middle
        longest += 1
    ends = [*(end for end in breaks if first <= end < last), last]
    middles, start = [], first
    while start <= last:
        end = next(end for end in ends if end >= start)
        size = min(longest, end - start + 1)
        if size % 2 == 0:
            size -= 1
        middles.append((start + size // 2, size))
        start += size
    return middles


def _curved(r: Request, wanted: Sequence[tuple[ModelPass, int]]) -> dict[tuple[str, str], int]:
    """FLOP of attention beyond ``times`` those of each step of ``wanted``, by phase and name of the row.

    A step without a cache stands for ``times`` = 2 d + 1 lengths around its own length c, and attention's FLOP f grow with their square:
    the sum over these lengths is (2 d + 1) (f(c) + (d + 1) (f(c - d) - 2 f(c) + f(c + d)) / (6 d)).
    """
    if r.cached:
        return {}
    flops: dict[tuple[str, str], int] = {}
    for step, times in wanted:
        d = times // 2
        if d == 0:
            continue
        curvature: Counter[str] = Counter()  # f(c - d) - 2 f(c) + f(c + d) by name of the row
        for offset, weight in ((-d, 1), (0, -2), (d, 1)):
            for name, size in _attention_flops(r, step, step.kv_len + offset).items():
                curvature[name] += weight * size
        for name, size in curvature.items():
            key = (step.phase, name)
            flops[key] = flops.get(key, 0) + size * times * (d + 1) // (6 * d)
    return {key: size for key, size in flops.items() if size}


def _attention_flops(r: Request, step: ModelPass, length: int) -> Counter[str]:
    """FLOP of attention in ``step`` over all of ``length`` tokens, by name of the row."""
    flops: Counter[str] = Counter()
    for layer, count in r.model.layer_kinds:
        for op in layer_ops(layer, r.model, replace(step, n=length, kv_len=length), lambda op: op.part == ATTENTION):
            if op.group == ATTENTION:
                flops[op.name] += int(count * op.count * op.kernel.flops)
    return flops
