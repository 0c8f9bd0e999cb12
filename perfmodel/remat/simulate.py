"""Cost of running a schedule: forward steps, memory at every moment, its peak.

The simulation checks the schedule: an action whose input is not in memory, or a backward step out of order, is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.errors import DataError
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import BACKWARD, DROP, FORWARD, LOSS, TAPE, Action


class Moment(NamedTuple):
    """Memory while ``action`` runs; ``end``: the cost of everything so far."""

    action: Action
    end: Number
    during: Number


@dataclass(slots=True)
class Run:
    """Result of running a schedule. ``forward_steps``: layers run forward. ``peak``: with gradients and weights; ``kept_peak``: without.

    ``values``: the most values x_i in memory at once, with working ones and the input, without gradients.
    """

    chain: Chain
    moments: list[Moment] = field(default_factory=list)
    forward_steps: int = 0
    forward_cost: Number = 0
    peak: Number = 0
    kept_peak: Number = 0
    values: int = 0

    @property
    def extra_steps(self) -> int:
        """Number of extra forward runs of layers, beyond one for each."""
        return self.forward_steps - len(self.chain)

    @property
    def cost(self) -> Number:
        """Cost of forward and backward together."""
        return self.forward_cost + self.chain.backward_cost

    @property
    def worst(self) -> Moment:
        """The first moment of the peak."""
        return next(moment for moment in self.moments if moment.during == self.peak)


def simulate(chain: Chain, actions: Iterable[Action]) -> Run:
    """Run ``actions``; DataError if one of them is impossible, or a backward step is missing."""
    return _Memory(chain).run(actions)


class _Memory:
    """Memory as actions run."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.sizes, self.result = chain, chain.sizes, Run(chain)
        self.values, self.interiors = {0}, set[int]()  # numbers of the values, and of the layers whose interiors, are in memory
        self.kept: Number = chain.input  # size of these values and interiors
        self.gradient: int | None = None  # number of the value whose gradient backward has reached
        self.resident: Number = chain.weights  # size of weights, their gradients, and this gradient
        self.now: Number = 0

    def run(self, actions: Iterable[Action]) -> Run:
        steps = {FORWARD: self._forward, TAPE: self._forward, LOSS: self._loss, BACKWARD: self._backward, DROP: self._drop}
        for action in actions:
            steps[action.kind](action)
        if self.gradient != 0:
            reached = "the loss" if self.gradient is None else f"layer {self.gradient - 1}"
            raise DataError(f"the schedule ends before the backward step of {reached}", "every layer needs one, the last first")
        return self.result

    def _impossible(self, action: Action, what: str) -> DataError:
        """The error of an action that cannot run."""
        return DataError(f"action {len(self.result.moments)} of the schedule, {action}: {what}")

    def _note(self, action: Action, during: Number, values: int, gradient: Number = 0) -> None:
        """Records the moment of ``action``. ``during``: values and interiors while it runs; ``gradient``: a further gradient."""
        result, everything = self.result, during + gradient + self.resident
        result.moments.append(Moment(action, self.now, everything))
        result.peak = max(result.peak, everything)
        result.kept_peak = max(result.kept_peak, during)
        result.values = max(result.values, values)

    def _forward(self, action: Action) -> None:
        """Runs layers forward; a taped one leaves its interior."""
        kind, start, stop = action
        layer = self.chain.layers[start]
        if start not in self.values:
            raise self._impossible(action, f"x{start} is not in memory")
        has_interior = kind == TAPE and start in self.interiors
        if stop <= start or stop in self.values or has_interior:
            raise self._impossible(action, f"it gives nothing that is not in memory already, or x{stop} lies before x{start}")
        interior = layer.interior if kind == TAPE else 0
        during = self.kept + self.chain.passing(start, stop) + interior
        values = len(self.values) + (2 if stop > start + 1 else 1)
        cost = self.chain.forward_cost(start, stop)
        self.values.add(stop)
        self.kept += self.sizes[stop] + interior
        if kind == TAPE:
            self.interiors.add(start)
        result = self.result
        result.forward_steps += stop - start
        result.forward_cost += cost
        self.now += cost
        self._note(action, during, values)

    def _loss(self, action: Action) -> None:
        """Turns the last output into its gradient."""
        end = len(self.chain)
        if end not in self.values or self.gradient is not None:
            raise self._impossible(action, f"x{end} is not in memory, or the loss is known already")
        during, values = self.kept, len(self.values)
        self.gradient = end
        self.resident += self.sizes[end]
        self._release(end)
        self._note(action, during, values)

    def _backward(self, action: Action) -> None:
        """Runs the backward step of a layer and frees what only it needed."""
        layer = action.start
        record = self.chain.layers[layer]
        if self.gradient != layer + 1:
            raise self._impossible(action, f"the gradient of x{layer + 1} is not at hand")
        if layer not in self.values or (record.interior and layer not in self.interiors):
            raise self._impossible(action, f"x{layer} or the interior of layer {layer} is not in memory")
        # the gradient of the input comes while that of the output is there
        during, values = self.kept + record.scratch, len(self.values)
        self.gradient = layer
        if record.interior:
            self.interiors.remove(layer)
            self.kept -= record.interior
        self._release(layer)
        self.resident += record.weights + self.sizes[layer] - self.sizes[layer + 1]
        self.now += record.backward
        self._note(action, during, values, self.sizes[layer + 1])

    def _drop(self, action: Action) -> None:
        if action.start not in self.values:
            raise self._impossible(action, f"x{action.start} is not in memory")
        during, values = self.kept, len(self.values)
        self._release(action.start)
        self._note(action, during, values)

    def _release(self, value: int) -> None:
        self.values.remove(value)
        self.kept -= self.sizes[value]
