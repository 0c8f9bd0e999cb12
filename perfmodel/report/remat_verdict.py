"""The verdict of a report of schedules: what is kept, what it costs, what fits."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.remat.chain import uniform
from perfmodel.remat.evaluate import Answer, Question
from perfmodel.remat.lecture import input_only_steps, late_bound_steps, printed_steps
from perfmodel.remat.simulate import Run
from perfmodel.report.remat_words import Words


def verdict(answer: Answer, words: Words) -> list[str]:
    """Sentences to read first."""
    question = answer.question
    if question.plan.memory is not None:
        return _budget(answer, words)
    found = [*_checkpoints(answer, words), *_printed(question)] if question.plan.checkpoints else _kept_or_not(answer, words)
    return found or _each(answer, words)


def _kept_or_not(answer: Answer, words: Words) -> list[str]:
    kept, nothing = answer.of("keep-all"), answer.of("keep-none")
    if kept is None or nothing is None:
        return []
    between = [(name, run) for name in ("sqrt-n", "revolve") if (run := answer.of(name)) is not None]
    rest = [f"; {name} takes {_sum(run, words)} and {words.amount(run.peak)}" for name, run in between]
    return [
        f"With everything kept {_sum(kept, words)} and at most {words.amount(kept.peak)} in memory{''.join(rest)}.",
        f"With nothing kept but the input: {_sum(nothing, words)}.",
    ]


def _each(answer: Answer, words: Words) -> list[str]:
    done = [(row.strategy.name, row.run) for row in answer.rows if row.run is not None]
    return [f"{name}: {_sum(run, words)}, {words.amount(run.peak)} at the peak." for name, run in done]


def _sum(run: Run, words: Words) -> str:
    """A run's cost and what it is made of.

    >>> from perfmodel.remat.schedule import Plan
    >>> from perfmodel.remat.chain import uniform
    >>> from perfmodel.remat.simulate import simulate
    >>> from perfmodel.remat.strategies import find
    >>> chain = uniform(10)
    >>> _sum(simulate(chain, find("keep-none").schedule(chain, Plan())), Words(Question(chain, Plan(), "")))
    '75 = 30 + 45 steps'
    """
    extra = run.forward_cost - run.chain.forward_cost(0, len(run.chain))
    unit = "" if words.question.timed else " steps"
    whole = words.cost(run.cost)
    return f"{whole} = {words.cost(run.cost - extra)} + {words.cost(extra)}{unit}" if extra else f"{whole}{unit}"


def _checkpoints(answer: Answer, words: Words) -> list[str]:
    """Two counts a line: everything or nothing kept; each value rebuilt on its own; each segment rebuilt as a whole."""
    layers = sorted(set(answer.question.plan.checkpoints or ()))
    kept = f"the output of layer {layers[0]}" if len(layers) == 1 else f"the outputs of layers {_listed(layers)}"
    lines = [
        [("keep-all", "Everything kept"), ("keep-none", "nothing kept but the input")],
        [
            ("nearest-and-output", f"With {kept} kept, each value rebuilt from the nearest one"),
            ("nearest", "the last output, which no backward step needs, not rebuilt"),
        ],
        [("segments", "Each segment rebuilt once"), ("segments-last-kept", "the last segment kept from the forward pass")],
    ]
    parts = [[f"{what}: {_sum(run, words)}" for name, what in line if (run := answer.of(name)) is not None] for line in lines]
    return [f"{text[:1].upper()}{text[1:]}." for part in parts if (text := "; ".join(part))]


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers[:8])) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")


def _printed(question: Question) -> list[str]:
    """Where the count of a lecture's code comes from, for one checkpoint in equal layers."""
    n, kept = len(question.chain), set(question.plan.checkpoints or ())
    if len(kept) != 1 or question.timed or question.chain != uniform(n):
        return []
    [checkpoint] = kept
    late, none = late_bound_steps(n, checkpoint), input_only_steps(n)
    if late != none or n < 2:
        return []
    wrong = " and ".join(str(printed_steps(n, checkpoint, last=last)) for last in (True, False))
    return [
        f"A count of {late} with this checkpoint is that of nothing kept, or of closures in a loop that all rebuild the last output, with "
        f"wrong gradients; weights[{checkpoint} : i + 1] runs layer {checkpoint} twice, {wrong} steps and wrong gradients too."
    ]


def _budget(answer: Answer, words: Words) -> list[str]:
    memory, fitting = answer.question.plan.memory, answer.fitting
    assert memory is not None
    least = min((row.run.peak for row in answer.rows if row.run is not None), default=None)
    if not fitting:
        tail = "" if least is None else f"; the least that any of them takes is {words.amount(least)}"
        return [f"None of the schedules fits {words.amount(memory)}{tail}."]
    strategy, run = fitting[0]
    kept = run.chain.forward_cost(0, len(run.chain)) + run.chain.backward_cost
    more = f", {float(run.cost / kept - 1):.1%} more than with everything kept" if run.cost > kept else ""
    peak = words.amount(run.peak)
    return [f"Within {words.amount(memory)} the cheapest is {strategy.name}: {_sum(run, words)}{more}, {peak} at the peak."]
