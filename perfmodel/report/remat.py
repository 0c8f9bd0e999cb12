"""The report of schedules that rebuild values of a chain: steps, memory, when it peaks, and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.remat.chain import uniform
from perfmodel.remat.device_chain import Choice
from perfmodel.remat.evaluate import CurvePoint, ScheduleAnswer, ScheduleRow, explain
from perfmodel.remat.graph import GraphRun
from perfmodel.remat.lecture import input_only_steps, late_bound_steps, printed_steps
from perfmodel.remat.schedule import LOSS
from perfmodel.remat.simulate import Run
from perfmodel.remat.strategies.revolve import slots_of
from perfmodel.remat.strategies.segments import sqrt_length
from perfmodel.report.charts.format_number import text
from perfmodel.report.document import Report, Table
from perfmodel.report.metrics import Metric, as_json, as_rows
from perfmodel.report.op_common import HEIGHT, WIDTH, columns, head, memory_chart, sparkline, with_steps
from perfmodel.report.remat_first import charts, figures, listed, meters, verdict

SPARK, MOST_ROWS = 54, 12
"""Columns of a line of bars; rows of a chart up to which each is one value. All fit 80 columns."""
POINTS = 200
"""Points of the timeline in the JSON object, and the most actions of a schedule that it lists."""
TENSOR_NOTE = (
    "At the roofline: what perfmodel recompute says of keeping against computing again, inputs at hand. Frees: bytes per second of the "
    "kernel's roofline time; where memory is short, give up the uppermost first."
)


@dataclass(frozen=True, slots=True)
class Units:
    """``timed``: costs are seconds, else steps; ``sized``: sizes are bytes, else values."""

    timed: bool
    sized: bool

    def cost(self, cost: Number) -> str:
        """Seconds, or steps."""
        return text(cost, self.cost_unit)

    def size(self, size: Number) -> str:
        """Bytes, or values."""
        return text(size, self.size_unit)

    def amount(self, size: Number) -> str:
        """A size in a sentence."""
        return self.size(size) if self.sized else f"{self.size(size)} value{'' if size == 1 else 's'}"

    def rows(self, peak: Number) -> int:
        """Rows of a chart up to ``peak``: one per value if they are few."""
        return peak if isinstance(peak, int) and not self.sized and peak <= MOST_ROWS else HEIGHT

    @property
    def cost_unit(self) -> str:
        """Unit of costs."""
        return "s" if self.timed else "count"

    @property
    def size_unit(self) -> str:
        """Unit of sizes."""
        return "B" if self.sized else "count"


def report(
    answer: ScheduleAnswer,
    points: Sequence[CurvePoint] = (),
    ranked: Sequence[Choice] = (),
    *,
    explained: bool = False,
    pictures: bool = False,
) -> Report:
    """``answer`` as a Report; its data follows the schema perfmodel.remat/1. ``explained``: with every closed form.

    ``points``: what memory buys; ``ranked``: tensors to keep or compute again. ``pictures``: with memory over time and against cost.
    """
    source, units = answer.source, Units(answer.source.timed, answer.source.sized)
    curve, tensors = [_point(point, units) for point in points], list(map(_tensor, ranked))
    tables = _tables(answer, units)
    tables += [replace(as_rows("what memory buys: the cheapest schedule within it", curve), align="rrr")] if curve else []
    tables += [as_rows("keep it or compute it again, tensor by tensor", tensors)] if tensors else []
    found = {**data(answer, units), "curve": list(map(as_json, curve)), "tensors": list(map(as_json, tensors))}
    notes = _notes(answer) + [TENSOR_NOTE] * bool(ranked)
    brief, reasons = _brief(answer, units), _summary(answer, units)
    plain = Report(f"Rematerialization: {source.title}", [], tables, notes, found, brief=brief, reasons=reasons)
    plain = _first(plain, answer, units, pictures)
    return with_steps(plain, explain(answer)) if explained else plain


def _brief(answer: ScheduleAnswer, units: Units) -> list[Table]:
    """Costs and peaks alone."""
    heads = {"strategy": "strategy", "cost": "time" if units.timed else "steps"}
    heads |= {"extra_steps": "rebuilt", "values": "values", "peak": "peak"}
    return [as_rows("", [_metrics(row, answer.plan.memory, units) for row in answer.rows], labels=heads)]


def _first(plain: Report, answer: ScheduleAnswer, units: Units, pictures: bool) -> Report:
    """``plain`` with what it says first, and its ``pictures``."""
    memory, form = answer.plan.memory, (units.timed, units.sized)
    runs = listed(answer.rows, answer.featured, memory)
    metered, found = meters(runs, memory, *form)
    drawn = charts(answer.rows, runs, memory, *form) if pictures else []
    said = verdict(answer.rows, answer.featured, memory, *form)
    said = said or [f"No schedule: {row.missing}." for row in answer.rows if row.missing][:1]
    return replace(plain, verdict=said, meters=found, metered=metered, figures=figures(runs, *form), charts=drawn)


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
        "timeline": None if row is None or row.run is None else _timeline(row, row.run),
    }


def _timeline(row: ScheduleRow, run: Run) -> dict[str, Any]:
    listed = [str(moment.action) for moment in run.moments] if len(run.moments) <= POINTS else None
    return {"strategy": row.strategy.name, "cost": run.cost, "memory": bars(run, POINTS), "actions": listed}


def bars(run: Run | GraphRun, width: int, *, whole_steps: bool = False) -> list[Number]:
    """Memory over the time of ``run``, in ``width`` columns."""
    return columns([(moment.end, moment.during) for moment in run.moments], width, whole_steps=whole_steps)


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
        Metric("forward_cost", run.forward_cost),
        Metric("backward_cost", run.chain.backward_cost),
        Metric("cost", run.cost, unit=units.cost_unit),
        Metric("values", run.values),
        Metric("peak", run.peak, unit=units.size_unit, after=" (too much)" if fits is False else ""),
        Metric("peak_without_gradients_and_weights", run.kept_peak),
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


def _tables(answer: ScheduleAnswer, units: Units) -> list[Table]:
    before, behind = ({"cost": "time"}, {}) if units.timed else ({}, {"cost": "steps"})
    labels = {"strategy": "strategy", **before, "forward_steps": "forward", "extra_steps": "rebuilt", **behind}
    labels |= {"values": "values", "peak": "peak", "summary": "kept; rebuilt"}
    runs = [(row.strategy.name, row.run) for row in answer.rows if row.run is not None]
    lines = [[name, sparkline(bars(run, SPARK), run.peak)] for name, run in runs]
    found = [
        as_rows("", [_metrics(row, answer.plan.memory, units) for row in answer.rows], labels=labels),
        Table(
            "memory, each schedule over its own time and up to its own peak", ["strategy", "first to last step"], lines, "ll", drawn=True
        ),
    ]
    row = answer.featured
    return found if row is None or row.run is None else [*found, _chart(row.strategy.name, row.run, units)]


def _chart(name: str, run: Run, units: Units) -> Table:
    heights = bars(run, WIDTH, whole_steps=True)
    loss = next(moment.end for moment in run.moments if moment.action.kind == LOSS)
    ahead = round(len(heights) * float(loss / run.cost)) if run.cost else 0
    parts = [(ahead, "forward"), (len(heights) - ahead, "backward, rebuilding" if run.extra_steps else "backward")]
    title = f"{name}: memory over time, at most {units.size(run.peak)} at {run.worst.action}"
    return memory_chart(title, heights, run.peak, parts, units.size, units.rows(run.peak))


def _summary(answer: ScheduleAnswer, units: Units) -> list[str]:
    plan = answer.plan
    if plan.memory is not None:
        return [_budget(answer, plan.memory, units)]
    found = [*_checkpoints(answer, units), *_printed(answer)] if plan.checkpoints else _kept_or_not(answer, units)
    done = [(row.strategy.name, row.run) for row in answer.rows if row.run is not None]
    return found or [f"{name}: {_sum(run, units)}, {units.amount(run.peak)} at the peak." for name, run in done]


def _sum(run: Run, units: Units) -> str:
    """A run's cost and what it is made of.

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


def _kept_or_not(answer: ScheduleAnswer, units: Units) -> list[str]:
    kept, nothing = answer.of("keep-all"), answer.of("keep-none")
    if kept is None or nothing is None:
        return []
    between = [(name, run) for name in ("sqrt-n", "revolve") if (run := answer.of(name)) is not None]
    rest = "".join(f"; {name} takes {_sum(run, units)} and {units.amount(run.peak)}" for name, run in between)
    return [
        f"With everything kept {_sum(kept, units)} and at most {units.amount(kept.peak)} in memory{rest}.",
        f"With nothing kept but the input: {_sum(nothing, units)}.",
    ]


def _checkpoints(answer: ScheduleAnswer, units: Units) -> list[str]:
    """Two counts a line: everything or nothing kept; each value rebuilt on its own; each segment rebuilt as a whole."""
    layers = sorted(set(answer.plan.checkpoints or ()))
    listed = ", ".join(map(str, layers[:8])) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")
    kept = f"the output of layer {listed}" if len(layers) == 1 else f"the outputs of layers {listed}"
    lines = [
        [("keep-all", "Everything kept"), ("keep-none", "nothing kept but the input")],
        [
            ("nearest-and-output", f"With {kept} kept, each value rebuilt from the nearest one"),
            ("nearest", "the last output, which no backward step needs, not rebuilt"),
        ],
        [("segments", "Each segment rebuilt once"), ("segments-last-kept", "the last segment kept from the forward pass")],
    ]
    parts = ["; ".join(f"{what}: {_sum(run, units)}" for name, what in line if (run := answer.of(name)) is not None) for line in lines]
    return [f"{part[:1].upper()}{part[1:]}." for part in parts if part]


def _printed(answer: ScheduleAnswer) -> list[str]:
    """Where the count of a lecture's code comes from, for one checkpoint in equal layers."""
    chain, kept = answer.source.chain, set(answer.plan.checkpoints or ())
    n = len(chain)
    if len(kept) != 1 or n < 2 or answer.source.timed or chain != uniform(n):
        return []
    [checkpoint] = kept
    late = late_bound_steps(n, checkpoint)
    if late != input_only_steps(n):
        return []
    wrong = " and ".join(str(printed_steps(n, checkpoint, last=last)) for last in (True, False))
    return [
        f"A count of {late} with this checkpoint is that of nothing kept, or of closures in a loop that all rebuild the last output, with "
        f"wrong gradients; weights[{checkpoint} : i + 1] runs layer {checkpoint} twice, {wrong} steps and wrong gradients too."
    ]


def _budget(answer: ScheduleAnswer, memory: Number, units: Units) -> str:
    if not answer.fitting:
        least = min((row.run.peak for row in answer.rows if row.run is not None), default=None)
        tail = "" if least is None else f"; the least that any of them takes is {units.amount(least)}"
        return f"None of the schedules fits {units.amount(memory)}{tail}."
    strategy, run = answer.fitting[0]
    kept = run.chain.forward_cost(0, len(run.chain)) + run.chain.backward_cost
    more = f", {float(run.cost / kept - 1):.1%} more than with everything kept" if run.cost > kept else ""
    within = f"Within {units.amount(memory)} the cheapest is {strategy.name}"
    return f"{within}: {_sum(run, units)}{more}, {units.amount(run.peak)} at the peak."


def _notes(answer: ScheduleAnswer) -> list[str]:
    source, chain, notes = answer.source, answer.source.chain, []
    if not source.timed and chain.uniform and chain.layers[0].backward == 2 * chain.layers[0].forward:
        notes.append("A step runs one layer forward: a matmul, if it is linear. Backward takes two, for its weights and for its input.")
    notes.append(
        "Layers count from 0. Values: x_0, the outputs kept, and those at work. The peak adds the gradients that pass through"
        + (", the weights and their gradients." if any(layer.weights for layer in chain.layers) else "; weights are left out.")
    )
    settings = [words for name, words in _settings(answer).items() if answer.of(name) is not None]
    notes += [f"{'; '.join(settings)}."] if settings else []
    if chain.taped:
        notes.append("Backward needs the interior of each layer, which only running it gives: each rebuilt layer runs once more for that.")
    papers: dict[str, list[str]] = {}
    for row in answer.rows:
        if row.run is not None and row.strategy.paper:
            papers.setdefault(row.strategy.paper, []).append(row.strategy.name)
    return [*notes, *source.basis, *(f"{', '.join(names)}: {paper}." for paper, names in papers.items())]


def _settings(answer: ScheduleAnswer) -> dict[str, str]:
    """What strategies chose for themselves or were given."""
    plan, length = answer.plan, len(answer.source.chain)
    chosen = "as many as the checkpoints and x_0" if plan.checkpoints else "the fewest for which no layer runs more than twice"
    return {
        "every-k": f"every-k has segments of {plan.every or 1}",
        "sqrt-n": f"sqrt-n has segments of {sqrt_length(length)}",
        "revolve": f"revolve stores {slots_of(length, plan)} values, {chosen if plan.slots is None else 'as given'}",
    }
