"""What a report of schedules says below its first screen: counts of each strategy, what they are made of, what they rest on."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.remat.chain import uniform
from perfmodel.remat.evaluate import ScheduleAnswer
from perfmodel.remat.lecture import input_only_steps, late_bound_steps, printed_steps
from perfmodel.remat.simulate import Run
from perfmodel.remat.strategies.revolve import slots_of
from perfmodel.remat.strategies.segments import sqrt_length
from perfmodel.report.charts.format_number import text
from perfmodel.report.op_common import HEIGHT

MOST_ROWS = 12
"""Rows of a chart up to which each is one value."""


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


def summary(answer: ScheduleAnswer, units: Units) -> list[str]:
    """What each schedule costs, and what it is made of."""
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


def notes(answer: ScheduleAnswer) -> list[str]:
    """What counts, costs and sizes rest on."""
    source, chain, found = answer.source, answer.source.chain, list[str]()
    if not source.timed and chain.uniform and chain.layers[0].backward == 2 * chain.layers[0].forward:
        found.append("A step runs one layer forward: a matmul, if it is linear. Backward takes two, for its weights and for its input.")
    found.append(
        "Layers count from 0. Values: x_0, the outputs kept, and those at work. The peak adds the gradients that pass through"
        + (", the weights and their gradients." if any(layer.weights for layer in chain.layers) else "; weights are left out.")
    )
    settings = [words for name, words in _settings(answer).items() if answer.of(name) is not None]
    found += [f"{'; '.join(settings)}."] if settings else []
    if chain.taped:
        found.append("Backward needs the interior of each layer, which only running it gives: each rebuilt layer runs once more for that.")
    papers: dict[str, list[str]] = {}
    for row in answer.rows:
        if row.run is not None and row.strategy.paper:
            papers.setdefault(row.strategy.paper, []).append(row.strategy.name)
    return [*found, *source.basis, *(f"{', '.join(names)}: {paper}." for paper, names in papers.items())]


def _settings(answer: ScheduleAnswer) -> dict[str, str]:
    """What strategies chose for themselves or were given."""
    plan, length = answer.plan, len(answer.source.chain)
    chosen = "as many as the checkpoints and x_0" if plan.checkpoints else "the fewest for which no layer runs more than twice"
    return {
        "every-k": f"every-k has segments of {plan.every or 1}",
        "sqrt-n": f"sqrt-n has segments of {sqrt_length(length)}",
        "revolve": f"revolve stores {slots_of(length, plan)} values, {chosen if plan.slots is None else 'as given'}",
    }
