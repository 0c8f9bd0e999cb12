"""The cheapest schedule of a chain within a memory budget: a dynamic program over stretches of layers and memory.

A stretch (a, b) is the layers a to b - 1; the loss counts as one more layer at the end, which turns x_n into its gradient at no cost.
``cost(a, b, m)`` is the cost of reversing a stretch with x_a and the gradient of x_b in memory and m left for the rest. A stretch of one
layer runs its backward step. A longer stretch has two ways. Either it runs forward to some x_j, reverses the layers after it with x_j
stored, and then those before it; or it runs layer a with its interior kept and reverses the layers after it, then a. A stored value stays
until its backward step, as in Revolve, which is the case of equal layers with slots in place of bytes. Where sizes differ, a schedule that
gives a value up for a while and builds it again can be cheaper still; such schedules are not considered.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova 2019, Optimal checkpointing for heterogeneous chains, arXiv 1911.13214.
Memory is cut into equal parts and sizes are rounded up to them, so a schedule found fits; it is exact where sizes are whole parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from math import gcd
from typing import Any

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import BACKWARD, TAPE, Action, forward, from_input, loss

LARGEST = 128
"""Most layers: time grows with their third power, to a second or two if they differ, and space with their second, to 150 MB."""
KEEP = -1
"""The choice to keep the interior of the first layer; other choices are numbers of layers after which to store the next value."""
INTERIOR_KEPT = -1
"""Stands in place of the parts left for a layer whose interior was kept, so that only its backward step remains."""
FEWEST_PARTS, MOST_PARTS = 300, 600
"""Numbers of parts into which the memory may be cut."""


@dataclass(frozen=True)
class Program:
    """Costs and choices of every stretch (a, b) by parts of memory left once x_a is stored; sizes are rounded up to whole parts."""

    chain: Chain
    memory: Number

    @property
    def left(self) -> int:
        """Parts left beside the input; negative if there are none."""
        return self.parts - self.taken(self.chain.input)

    @property
    def least_cost(self) -> float | None:
        """Forward cost of the cheapest schedule; None if none fits."""
        cost = float(self.tables[0][0, self.end][self.left]) if self.left >= 0 else float("inf")
        return cost if cost < float("inf") else None

    @cached_property
    def tables(self) -> tuple[Any, Any]:
        """Cost and choice of every stretch over the parts left: arrays [start, stop, left]."""
        import numpy as np

        end = self.end
        costs = np.full((end + 1, end + 1, self.parts + 1), np.inf)
        costs_after = costs.copy()  # [stop, start, left]: the same costs by what is left before x_start is stored
        choices = np.zeros(costs.shape, dtype=np.int16)
        for length in range(1, end + 1):
            for start in range(end - length + 1):
                stop, stored = start + length, self.taken(self.chain.sizes[start])
                if self._is_uniform and start > 0 and stop < end:
                    costs[start, stop], choices[start, stop] = costs[0, length], choices[0, length]
                elif length == 1:
                    self._fill_one_layer(costs[start, stop], start)
                else:
                    self._fill(costs[start], costs_after[stop], costs[start + 1, stop], choices[start, stop], start, stop)
                costs_after[stop, start, stored:] = costs[start, stop, : max(self.parts + 1 - stored, 0)]
        return costs, choices

    @cached_property
    def _is_uniform(self) -> bool:
        """Whether stretches of equal length, without the loss, have equal costs and choices."""
        return self.chain.uniform and not self.chain.weights

    def _fill_one_layer(self, cost: Any, layer: int) -> None:
        """Fills in the cost of one layer, or of the loss: a forward run if the layer has an interior, else nothing."""
        needed_parts, forward_cost = self._backward_parts(layer), 0
        if layer < self.end - 1 and self.chain.layers[layer].interior:
            needed_parts = max(needed_parts, self._tape_parts(layer, layer + 1))
            forward_cost = self.chain.layers[layer].forward
        cost[needed_parts:] = forward_cost

    def _fill(self, costs: Any, costs_after: Any, costs_without_first: Any, choice: Any, start: int, stop: int) -> None:
        """Fills in the costs and choices of one longer stretch.

        ``costs[j]``: of the layers before x_j; ``costs_after[j]``: of those from x_j on, which is stored; ``costs_without_first``: of all
        but layer ``start``.
        """
        import numpy as np

        chain, left = self.chain, np.arange(self.parts + 1)
        layer, middles = chain.layers[start], range(start + 1, stop)
        forward_costs = np.array([chain.forward_cost(start, middle) for middle in middles])[:, None]
        needed_parts = np.array([self._forward_parts(start, middle, stop) for middle in middles])[:, None]
        by_middle = np.where(left >= needed_parts, costs_after[start + 1 : stop] + costs[start + 1 : stop] + forward_costs, np.inf)
        best = by_middle.argmin(axis=0)
        costs[stop], choice[:] = by_middle[best, left], best + 1
        if layer.interior:
            stored_parts = self._stored_parts(start)
            keeping = np.full(self.parts + 1, np.inf)
            keeping[stored_parts:] = costs_without_first[: max(self.parts + 1 - stored_parts, 0)] + layer.forward
            keeping[: max(self._tape_parts(start, stop), self._backward_parts(start))] = np.inf
            choice[keeping < costs[stop]] = KEEP
            costs[stop] = np.minimum(costs[stop], keeping)

    @property
    def curve(self) -> list[tuple[Number, float]]:
        """Pairs of memory and forward cost, from the least memory of any schedule on, wherever more memory makes the schedule cheaper."""
        input_parts, least_cost = self.taken(self.chain.input), float("inf")
        points: list[tuple[Number, float]] = []
        for left, cost in enumerate(map(float, self.tables[0][0, self.end])):
            memory = (left + input_parts) * self.part
            if cost < least_cost and memory <= self.memory:
                points.append((memory, cost))
                least_cost = cost
        return points

    def schedule(self) -> Iterator[Action]:
        """The cheapest actions; UnavailableError if none fit."""
        if self.least_cost is None:
            raise UnavailableError("no schedule of the chain fits the memory", "give more --budget")
        choices = self.tables[1]
        stack = [(0, self.end, self.left)]  # stretches to be reversed, each with the parts left
        while stack:
            start, stop, left = stack.pop()
            if left == INTERIOR_KEPT:
                yield Action(BACKWARD, start, start)
            elif start == len(self.chain):
                yield loss(self.chain)
            elif stop - start == 1:
                yield from from_input(self.chain, start)
            elif (choice := int(choices[start, stop][left])) == KEEP:
                yield Action(TAPE, start, start + 1)
                stack += [(start, start + 1, INTERIOR_KEPT), (start + 1, stop, left - self._stored_parts(start))]
            else:
                middle = start + choice
                yield forward(start, middle)
                stack += [(start, middle, left), (middle, stop, left - self.taken(self.chain.sizes[middle]))]

    # Memory in parts

    @cached_property
    def exact(self) -> Number:
        """The greatest common divisor of all sizes, if it cuts the memory into at most ``MOST_PARTS``; else 0."""
        sizes = {self.chain.input}
        for layer in self.chain.layers:
            sizes |= {layer.output, layer.interior, layer.scratch, layer.weights}
        if not all(isinstance(size, int) for size in sizes):
            return 0
        divisor = gcd(*sizes)
        return divisor if divisor and self.memory // divisor <= MOST_PARTS else 0

    @cached_property
    def part(self) -> Number:
        """Size of one part of memory: of several candidates, the one with the least rounding of sizes."""
        if self.exact:
            return self.exact
        counts = Counter(size for layer in self.chain.layers for size in (layer.output, layer.output + layer.interior))

        def rounding(parts: int) -> float:
            """Sum of what all sizes grow by when they are rounded up."""
            part = self.memory / parts
            return float(sum(count * (ceil_div(size, part) * part - size) for size, count in counts.items()))

        return self.memory / min(range(FEWEST_PARTS, MOST_PARTS + 1), key=rounding)

    @cached_property
    def parts(self) -> int:
        """Number of parts."""
        return int(self.memory // self.part)

    def taken(self, size: Number) -> int:
        """Parts that ``size`` takes.

        >>> from perfmodel.remat.chain import uniform
        >>> Program(uniform(10), 7).taken(3)
        3
        """
        return int(ceil_div(size, self.part))

    @property
    def end(self) -> int:
        """Number of layers and the loss."""
        return len(self.chain) + 1

    @cached_property
    def _weights(self) -> list[Number]:
        """Sizes of weights and their gradients in memory once backward has reached x_i."""
        from_the_end = list(accumulate((layer.weights for layer in reversed(self.chain.layers)), initial=self.chain.weights))
        return from_the_end[::-1]

    def _stored_parts(self, layer: int) -> int:
        """Parts that the output and the interior of ``layer`` take."""
        return self.taken(self.chain.sizes[layer + 1] + self.chain.layers[layer].interior)

    def _size_beside(self, stop: int) -> Number:
        """Size beside stored values while the stretch before x_stop is reversed: weights, and the gradient of x_stop."""
        return self._weights[min(stop, self.end - 1)] + (0 if stop == self.end else self.chain.sizes[stop])

    def _forward_parts(self, start: int, to: int, stop: int) -> int:
        """Parts to run forward from x_start to x_to, within the stretch before x_stop."""
        return self.taken(self.chain.passing(start, to) + self._size_beside(stop))

    def _tape_parts(self, start: int, stop: int) -> int:
        """Parts to run layer ``start`` and keep its interior."""
        return self.taken(self.chain.passing(start, start + 1) + self.chain.layers[start].interior + self._size_beside(stop))

    def _backward_parts(self, layer: int) -> int:
        """Parts for the backward step of ``layer``, x_layer stored; for the loss, the gradient of x_n."""
        sizes = self.chain.sizes
        if layer == self.end - 1:
            return self.taken(self._weights[layer] + sizes[layer])
        record = self.chain.layers[layer]
        return self.taken(self._weights[layer] + record.interior + record.scratch + sizes[layer] + sizes[layer + 1])
