"""What a report of schedules says in words: costs and sizes in their units, and the notes."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.core.units import format_si, format_time
from perfmodel.remat.evaluate import Answer, Question
from perfmodel.remat.strategies.revolve import slots_of
from perfmodel.remat.strategies.sqrt_n import segment_length


@dataclass(frozen=True, slots=True)
class Words:
    """Costs and sizes as ``question`` has them."""

    question: Question

    def cost(self, cost: Number) -> str:
        """Seconds, or steps."""
        return format_time(float(cost)) if self.question.timed else _plain(cost)

    def size(self, size: Number) -> str:
        """Bytes, or values."""
        return format_si(size, "B") if self.question.sized else _plain(size)

    def amount(self, size: Number) -> str:
        """The same in a sentence."""
        return self.size(size) if self.question.sized else f"{self.size(size)} value{'' if size == 1 else 's'}"

    def notes(self, answer: Answer) -> list[str]:
        """What the numbers rest on."""
        chain, notes = self.question.chain, []
        if not self.question.timed and chain.uniform and chain.layers[0].backward == 2 * chain.layers[0].forward:
            notes.append("A step runs one layer forward: a matmul, if it is linear. Backward takes two, for its weights and for its input.")
        notes.append(
            "Layers count from 0. Values: x_0, the outputs kept, and those at work. The peak adds the gradients that pass through"
            + (", the weights and their gradients." if any(layer.weights for layer in chain.layers) else "; weights are left out.")
        )
        settings = [text for name, text in _settings(self.question) if answer.of(name) is not None]
        notes += [f"{'; '.join(settings)}."] if settings else []
        if chain.taped:
            notes.append(
                "Backward needs the interior of each layer, which only running it gives: each rebuilt layer runs once more for that."
            )
        papers: dict[str, list[str]] = {}
        for row in answer.rows:
            if row.run is not None and row.strategy.paper:
                papers.setdefault(row.strategy.paper, []).append(row.strategy.name)
        return [*notes, *self.question.basis, *(f"{', '.join(names)}: {paper}." for paper, names in papers.items())]


def _settings(question: Question) -> list[tuple[str, str]]:
    """What strategies chose for themselves or were told."""
    plan, length = question.plan, len(question.chain)
    slots = slots_of(length, plan)
    if plan.slots is not None:
        why = "as given"
    elif plan.checkpoints:
        why = "as many as the checkpoints and x_0"
    else:
        why = "the fewest for which no layer runs more than twice"
    return [
        ("every-k", f"every-k has segments of {plan.every or 1}"),
        ("sqrt-n", f"sqrt-n has segments of {segment_length(length)}"),
        ("revolve", f"revolve stores {slots} values, {why}"),
    ]


def _plain(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"
