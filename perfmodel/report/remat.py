"""The report of schedules that rebuild values of a chain: steps, memory, its peak, and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass
from perfmodel.core.units import format_si, format_time
from perfmodel.remat.chain import uniform
from perfmodel.remat.device_chain import Choice
from perfmodel.remat.evaluate import CurvePoint, ScheduleAnswer, ScheduleRow, explain
from perfmodel.remat.schedule import LOSS
from perfmodel.remat.simulate import Run
from perfmodel.remat.strategies.checkpoints import sqrt_length
from perfmodel.remat.strategies.revolve import slots_of
from perfmodel.report.answer import upper_first
from perfmodel.report.charts.format_number import percent, text
from perfmodel.report.charts.schema import Chart, Limit, LineChart, Mark, Series
from perfmodel.report.document import Figure, Meter, Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import HEIGHT, WIDTH, columns, head, memory_chart, sparkline, with_steps

SPARK = 54
"""Columns of a line of bars, which with its name fits 80 columns."""
POINTS = 200
"""Most moments of a timeline; of more, the largest in each of that many equal parts of the time."""
STEPS = 1000
"""Most actions of a schedule that are listed one by one."""
MOST_LINES = 4
"""Most schedules with memory drawn over time and with a meter."""
MOST_ROWS = 12
"""Most rows of a drawing in which each row is one value."""
TENSOR_NOTE = (
    "At the roofline: what perfmodel recompute says of keeping against computing again, inputs at hand. Frees: bytes per second of the "
    "kernel's roofline time; where memory is short, give up the uppermost first."
)
Moments = Sequence[tuple[Number, Number]]
"""End of each step of a schedule, and the memory during it."""
Runs = Sequence[tuple[str, Run]]
"""Names of strategies, with the runs of their schedules."""


@dataclass(frozen=True, slots=True)
class Units:
    """Units of a chain: costs are seconds if ``timed``, else steps; sizes are bytes if ``sized``, else values."""

    timed: bool
    sized: bool

    @property
    def cost_unit(self) -> str:
        """Unit of costs in JSON and charts."""
        return "s" if self.timed else "count"

    @property
    def size_unit(self) -> str:
        """Unit of sizes in JSON and charts."""
        return "B" if self.sized else "count"

    def cost(self, cost: Number) -> str:
        """A cost in a table."""
        return text(cost, self.cost_unit)

    def size(self, size: Number) -> str:
        """A size in a table."""
        return text(size, self.size_unit)

    def spent(self, cost: Number) -> str:
        """A cost in a sentence, seconds to three digits.

        >>> Units(True, True).spent(0.07527), Units(False, False).spent(38)
        ('75.3 ms', '38 steps')
        """
        return format_time(float(cost), 3) if self.timed else f"{self.cost(cost)} steps"

    def held(self, size: Number) -> str:
        """A size in a sentence, bytes to three digits.

        >>> Units(True, True).held(421100000), Units(False, False).held(8), Units(False, False).held(1)
        ('421 MB', '8 values', '1 value')
        """
        return format_si(float(size), "B", 3) if self.sized else f"{self.size(size)} value{'s' * (size != 1)}"

    def rows(self, peak: Number) -> int:
        """Rows of a drawing up to ``peak``: one per value if they are few."""
        return peak if isinstance(peak, int) and not self.sized and peak <= MOST_ROWS else HEIGHT


def report(
    answer: ScheduleAnswer,
    points: Sequence[CurvePoint] = (),
    ranked: Sequence[Choice] = (),
    *,
    explained: bool = False,
    pictures: bool = False,
) -> Report:
    """``answer`` as a Report with data of schema perfmodel.remat/1. ``points``: costs by memory; ``ranked``: tensors to keep or rebuild."""
    source, memory, units = answer.source, answer.plan.memory, Units(answer.source.timed, answer.source.sized)
    curve, tensors = [_point(point, units) for point in points], list(map(_tensor, ranked))
    tables = _tables(answer, units)
    tables += [replace(as_rows("what memory buys: the cheapest schedule within it", curve), align="rrr")] if curve else []
    tables += [as_rows("keep it or compute it again, tensor by tensor", tensors)] if tensors else []
    rows = [_metrics(row, memory, units) for row in answer.rows]
    heads = {
        "strategy": "strategy",
        "cost": "time" if units.timed else "steps",
        "extra_steps": "rebuilt",
        "values": "values",
        "peak": "peak",
    }
    runs = _drawn(answer)
    keep_all = dict(runs).get("keep-all")
    room = memory if memory is not None else keep_all.peak if keep_all is not None else 0
    plain = Report(
        f"Rematerialization: {source.title}",
        _headline(answer, units),
        tables,
        _notes(answer) + [TENSOR_NOTE] * bool(ranked),
        {**data(answer, units), "curve": list(map(as_json, curve)), "tensors": list(map(as_json, tensors))},
        charts=_charts(answer, runs, units) if pictures and runs else [],
        meters=[Meter(name, float(run.peak / room), f"{units.held(run.peak)}, {units.spent(run.cost)}") for name, run in runs if room],
        metered="" if not room else "budget" if memory is not None else "memory with everything kept",
        figures=_figures(*runs[0], keep_all, units) if runs else [],
        brief=[as_rows("", rows, labels=heads)],
        reasons=[f"{name}: {_sum(run, units)}, {units.held(run.peak)} at the peak." for name, run in _done(answer)] + _printed(answer),
    )
    return with_steps(plain, explain(answer)) if explained else plain


def data(answer: ScheduleAnswer, units: Units) -> dict[str, Any]:
    """The object of schema perfmodel.remat/1."""
    source, plan, row = answer.source, answer.plan, answer.featured
    inputs: dict[str, Any] = {"layers": len(source.chain), "checkpoints": None if plan.checkpoints is None else list(plan.checkpoints)}
    inputs |= {name: getattr(plan, name) for name in ("every", "slots", "memory")} | {"uniform": source.chain.uniform}
    first = head("remat", inputs, source.device)
    return {
        **first,
        "hardware": first.get("hardware"),
        "units": {"cost": "s" if source.timed else "forward steps", "size": "B" if source.sized else "values"},
        "results": [as_json(_metrics(row, plan.memory, units)) for row in answer.rows],
        "timeline": None if row is None or row.run is None else _timeline(row, row.run, units),
    }


def _timeline(row: ScheduleRow, run: Run, units: Units) -> dict[str, Any]:
    actions = [str(moment.action) for moment in run.moments] if len(run.moments) <= POINTS else None
    metrics = [Metric("cost", run.cost, unit=units.cost_unit), Metric("memory", bars(run, POINTS), unit=units.size_unit)]
    return {"strategy": row.strategy.name, **as_json(metrics), "actions": actions, "steps": _steps(run, units)}


def _steps(run: Run, units: Units) -> list[dict[str, Any]] | None:
    """Rows of a run's actions: the cost at the end, and the memory during each; None for more than ``STEPS``."""
    if len(run.moments) > STEPS:
        return None
    ends = ((moment, Metric("end", moment.end, unit=units.cost_unit)) for moment in run.moments)
    return [{"action": str(moment.action), **as_json([end, Metric("memory", moment.during, unit=units.size_unit)])} for moment, end in ends]


# Metrics


def _metrics(row: ScheduleRow, memory: Number | None, units: Units) -> list[Metric]:
    run = row.run
    named = [Metric("strategy", row.strategy.name, unit="text"), Metric("source", row.strategy.source)]
    if run is None:
        return [*named, Metric("fits", False), Metric("missing", row.missing), Metric("", row.missing, "summary", "text")]
    fits = None if memory is None else bool(run.peak <= memory)
    return [
        *named,
        Metric("forward_steps", run.forward_steps),
        Metric("extra_steps", run.extra_steps),
        Metric("forward_cost", run.forward_cost, unit=units.cost_unit),
        Metric("backward_cost", run.chain.backward_cost, unit=units.cost_unit),
        Metric("cost", run.cost, unit=units.cost_unit),
        Metric("values", run.values),
        Metric("peak", run.peak, unit=units.size_unit, after=" (too much)" if fits is False else ""),
        Metric("peak_without_gradients_and_weights", run.kept_peak, unit=units.size_unit),
        Metric("peak_at", str(run.worst.action)),
        Metric("fits", fits),
        Metric("", row.strategy.summary, "summary", "text"),
    ]


def _point(point: CurvePoint, units: Units) -> list[Metric]:
    return [
        Metric("memory", point.memory, "memory", units.size_unit),
        Metric("cost", point.cost, "time" if units.timed else "steps", units.cost_unit),
        Metric("overhead", point.overhead, "more than with everything kept", "share"),
    ]


def _tensor(choice: Choice) -> list[Metric]:
    tensor, result = choice.tensor, choice.result
    return [
        Metric("tensor", tensor.name, "tensor", "text"),
        Metric("count", tensor.count, "number"),
        Metric("bytes", tensor.size, "size", "B"),
        Metric("flop_per_byte", result.intensity, "FLOP/B"),
        Metric("recompute_s", result.recompute_s),
        Metric("store_s", result.best.store_s),
        Metric("kernel_s", tensor.seconds, "to make again", "s"),
        Metric("freed_bytes_per_s", choice.freed_bytes_per_s, "frees", "B/s"),
        Metric("verdict", "recompute" if result.recomputes else "store", "at the roofline", "text"),
    ]


def bars(run: Run, width: int, *, whole_steps: bool = False) -> list[Number]:
    """Memory over the time of ``run`` in ``width`` columns."""
    return columns([(moment.end, moment.during) for moment in run.moments], width, whole_steps=whole_steps)


def _done(answer: ScheduleAnswer) -> list[tuple[str, Run]]:
    """Names and runs of strategies that have a schedule."""
    return [(row.strategy.name, row.run) for row in answer.rows if row.run is not None]


def _more(run: Run) -> float:
    """Relative extra cost over keeping everything."""
    chain = run.chain
    return float(run.cost / (chain.forward_cost(0, len(chain)) + chain.backward_cost)) - 1


def _sum(run: Run, units: Units) -> str:
    """Text with a run's cost and its parts.

    >>> from perfmodel.remat.schedule import Plan
    >>> from perfmodel.remat.simulate import simulate
    >>> from perfmodel.remat.strategies import find
    >>> chain = uniform(10)
    >>> _sum(simulate(chain, find("keep-none").schedule(chain, Plan())), Units(timed=False, sized=False))
    '75 = 30 + 45 steps'
    """
    extra = run.forward_cost - run.chain.forward_cost(0, len(run.chain))
    parts = f" = {units.cost(run.cost - extra)} + {units.cost(extra)}" if extra else ""
    return f"{units.cost(run.cost)}{parts}{'' if units.timed else ' steps'}"


# Headline, figures, tables


def _headline(answer: ScheduleAnswer, units: Units) -> list[str]:
    """The headline: the cheapest schedule within the budget, or the featured one beside keeping everything and nothing."""
    done, memory, row = dict(_done(answer)), answer.plan.memory, answer.featured
    if memory is not None:
        return _within(answer, done, units.held(memory), units)
    if row is None or row.run is None:
        return [f"No schedule: {row.missing}." for row in answer.rows if row.missing][:1]
    name, run = row.strategy.name, row.run
    rebuilt = f" ({percent(_more(run))} more than everything kept)" if run.extra_steps else ""
    ends = "; ".join(
        f"{words}: {units.spent(done[key].cost)}, {units.held(done[key].peak)}"
        for key, words in (("keep-all", "everything kept"), ("keep-none", "nothing kept"))
        if key in done and key != name
    )
    first = f"With {name}: {units.spent(run.cost)}{rebuilt}, {units.held(run.peak)} at the peak."
    return [first, *([f"{upper_first(ends)}."] if ends else []), _peak(run)]


def _peak(run: Run) -> str:
    """Phrase on the action at the peak."""
    action = run.worst.action
    return f"The peak is {'at the' if action.kind == LOSS else 'in'} {action}."


def _within(answer: ScheduleAnswer, done: dict[str, Run], budget: str, units: Units) -> list[str]:
    """Sentences on the cheapest schedule within the budget, or else on the one with the least memory."""
    if not answer.fitting:
        smallest = sorted(done.items(), key=lambda pair: (pair[1].peak, pair[1].cost))[:1]
        smallest_words = [f"The least is {units.held(run.peak)}, with {name}: {units.spent(run.cost)}." for name, run in smallest]
        return [f"Does not fit: no schedule takes {budget} or less.", *smallest_words]
    strategy, run = min(answer.fitting, key=lambda pair: (pair[1].cost, pair[0].name))
    excess = f"{percent(_more(run))} more" if _more(run) > 0 else "no more"
    return [
        f"Fits: {units.held(run.peak)} of {budget} with {strategy.name}, the {'fastest' if units.timed else 'cheapest'} that fits.",
        f"It takes {units.spent(run.cost)}, {excess} than with everything kept.",
        _peak(run),
    ]


def _drawn(answer: ScheduleAnswer) -> list[tuple[str, Run]]:
    """The schedules to draw: the cheapest within the budget or the featured one, keeping everything, and others by peak."""
    done, row = dict(_done(answer)), answer.featured
    fitting = answer.fitting if answer.plan.memory is not None else []
    first = fitting[0][0].name if fitting else row.strategy.name if row is not None else ""
    names = dict.fromkeys((first, "keep-all", "segments", "sqrt-n", "revolve", *sorted(done, key=lambda name: done[name].peak)))
    return [(name, done[name]) for name in names if name in done][:MOST_LINES]


def _figures(name: str, run: Run, keep_all: Run | None, units: Units) -> list[Figure]:
    """Figures of the schedule ``name``: its cost, the rebuilt share, and its peak."""
    return [
        Figure(f"cost of {name}", units.spent(run.cost)),
        Figure("rebuilt layers", f"{run.extra_steps:,}"),
        Figure("more than with everything kept", f"{_more(run):.1%}"),
        Figure("peak", units.held(run.peak)),
        *([Figure("peak with everything kept", units.held(keep_all.peak))] if keep_all is not None and name != "keep-all" else []),
    ]


def _tables(answer: ScheduleAnswer, units: Units) -> list[Table]:
    before, behind = ({"cost": "time"}, {}) if units.timed else ({}, {"cost": "steps"})
    labels = {"strategy": "strategy", **before, "forward_steps": "forward", "extra_steps": "rebuilt", **behind}
    labels |= {"values": "values", "peak": "peak", "summary": "kept; rebuilt"}
    lines = [[name, sparkline(bars(run, SPARK), run.peak)] for name, run in _done(answer)]
    title = "memory, each schedule over its own time and up to its own peak"
    metrics = [
        as_rows("", [_metrics(row, answer.plan.memory, units) for row in answer.rows], labels=labels),
        Table(title, ["strategy", "first to last step"], lines, "ll", drawn=True),
    ]
    row = answer.featured
    if row is None or row.run is None:
        return metrics
    steps = [
        [str(place), step["action"], units.cost(step["end"]), units.size(step["memory"])]
        for place, step in enumerate(_steps(row.run, units) or [], 1)
    ]
    heads = ["step", "action", "time at its end" if units.timed else "steps at its end", "in memory"]
    trace = [Table(f"{row.strategy.name}: memory step by step", heads, steps, "rlrr")] if steps else []
    return [*metrics, _over_time(row.strategy.name, row.run, units), *trace]


def _over_time(name: str, run: Run, units: Units) -> Table:
    heights = bars(run, WIDTH, whole_steps=True)
    loss = next(moment.end for moment in run.moments if moment.action.kind == LOSS)
    ahead = round(len(heights) * float(loss / run.cost)) if run.cost else 0
    parts = [(ahead, "forward"), (len(heights) - ahead, "backward, rebuilding" if run.extra_steps else "backward")]
    title = f"{name}: memory over time, at most {units.size(run.peak)} at {run.worst.action}"
    return memory_chart(title, heights, run.peak, parts, units.size, units.rows(run.peak))


# Charts


def _charts(answer: ScheduleAnswer, runs: Runs, units: Units) -> list[Chart]:
    """Charts of memory over time of ``runs``, and of peak against cost; schedules with equal cost and peak share a mark."""
    cost, memory = "time" if units.timed else "steps", answer.plan.memory
    over_time = timeline([(name, moments_of(run)) for name, run in runs], cost, units, memory)
    places: dict[tuple[float, float], list[str]] = {}
    for name, run in _done(answer):
        places.setdefault((float(run.cost), float(run.peak)), []).append(name)
    marks = [Mark(x, ", ".join(names), y) for (x, y), names in places.items()]
    series, form = [Series("schedules", sorted(places), "markers")], (units.cost_unit, units.size_unit)
    title = f"Peak memory against {cost}"
    return [over_time, LineChart(title, cost, "peak memory", series, *form, marks=marks, limits=over_time.limits)]


def timeline(runs: Sequence[tuple[str, Moments]], time: str, units: Units, budget: Number | None = None) -> LineChart:
    """Chart of memory over time of ``runs``, with a mark at the peak of the first."""
    series = [Series(name, [(float(x), float(y)) for x, y in outline(moments)]) for name, moments in runs]
    name, first = runs[0]
    peak = max(during for _, during in first)
    at = next(place for place, (_, during) in enumerate(first) if during == peak)
    begin = first[at - 1][0] if at else 0
    marks = [Mark(float(begin + first[at][0]) / 2, f"peak of {name}", float(peak))]
    limits = [] if budget is None else [Limit("budget", float(budget))]
    return LineChart("Memory over time", time, "memory", series, units.cost_unit, units.size_unit, "linear", "linear", marks, limits)


def moments_of(run: Run) -> Moments:
    """End of each step of ``run``, and the memory during it."""
    return [(moment.end, moment.during) for moment in run.moments]


def outline(moments: Moments) -> list[tuple[Number, Number]]:
    """Points (time, memory) of a line with a step per moment.

    >>> outline([(1, 5), (3, 7)])
    [(0, 5), (1, 5), (1, 7), (3, 7)]
    """
    if len(moments) > POINTS:
        heights, end = columns(moments, POINTS), float(moments[-1][0])
        moments = [(end * place / len(heights), height) for place, height in enumerate(heights, 1)]
    begins = [0, *(end for end, _ in moments)]
    return [point for begin, (end, during) in zip(begins, moments, strict=False) for point in ((begin, during), (end, during))]


# Notes


def _printed(answer: ScheduleAnswer) -> list[str]:
    """Notes on the counts of a lecture's code for one checkpoint in the middle of equal layers: claims S047 and S048."""
    n, half = len(answer.source.chain), len(answer.source.chain) // 2
    if n % 2 or set(answer.plan.checkpoints or ()) != {half} or answer.source.timed or answer.source.chain != uniform(n):
        return []
    late, wrong = 3 * n + n * (n - 1) // 2, 3 * n + half * (half + 1) - 1
    return [
        f"A count of {late} with this checkpoint is that of nothing kept, or of closures in a loop that all rebuild the last output, with "
        f"wrong gradients; weights[{half} : i + 1] runs layer {half} twice, {wrong} and {wrong - half} steps and wrong gradients too."
    ]


def _notes(answer: ScheduleAnswer) -> list[str]:
    """Notes on the assumptions of counts, costs and sizes."""
    source, plan, chain, notes = answer.source, answer.plan, answer.source.chain, list[str]()
    if not source.timed and chain.uniform and chain.layers[0].backward == 2 * chain.layers[0].forward:
        notes.append("A step runs one layer forward: a matmul, if it is linear. Backward takes two, for its weights and for its input.")
    notes.append(
        "Layers count from 0. Values: x_0, the outputs kept, and those at work. The peak adds the gradients that pass through"
        + (", the weights and their gradients." if any(layer.weights for layer in chain.layers) else "; weights are left out.")
    )
    chosen = "as many as the checkpoints and x_0" if plan.checkpoints else "the fewest for which no layer runs more than twice"
    settings = {
        "every-k": f"every-k has segments of {plan.every or 1}",
        "sqrt-n": f"sqrt-n has segments of {sqrt_length(len(chain))}",
        "revolve": f"revolve stores {slots_of(len(chain), plan)} values, {chosen if plan.slots is None else 'as given'}",
    }
    listed = [words for name, words in settings.items() if answer.run_of(name) is not None]
    notes += [f"{'; '.join(listed)}."] if listed else []
    if chain.taped:
        notes.append("Backward needs the interior of each layer, which only running it gives: each rebuilt layer runs once more for that.")
    papers: dict[str, list[str]] = {}
    for row in answer.rows:
        if row.run is not None and row.strategy.paper:
            papers.setdefault(row.strategy.paper, []).append(row.strategy.name)
    return [*notes, *source.basis, *(f"{', '.join(names)}: {paper}." for paper, names in papers.items())]
