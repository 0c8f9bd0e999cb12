"""The cheapest schedule of a chain within a memory budget: a dynamic program over stretches of layers and memory.

``cost(a, b, m)`` is the cost of reversing layers a to b - 1 with x_a and the gradient of x_b in memory and m left for the rest. The last
stretches are single layers; the loss counts as one after the last, which turns x_n into its gradient at no cost. A longer stretch either
runs forward to some x_j, reverses what comes after with x_j stored, and then what comes before; or runs layer a with its interior kept and
reverses the rest. A stored value stays until its backward step, as in Revolve, which is the case of equal layers and slots in place of
bytes: to give a value up for a while and build it again can be cheaper still where sizes differ.

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

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.remat.chain import Chain
from perfmodel.remat.schedule import BACKWARD, TAPE, Action, forward, from_input, loss

LARGEST = 128
"""Most layers: time grows with their third power, to a second or two if they differ, and space with their second, to 150 MB."""
KEEP = -1
"""The choice to keep the interior of the first layer; other choices are numbers of layers after which to store the next value."""
LEAST_PARTS, MOST_PARTS = 300, 600


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
        after = costs.copy()  # [stop, start, left]: once x_start has been stored too
        choices = np.zeros(costs.shape, dtype=np.int16)
        for length in range(1, end + 1):
            for start in range(end - length + 1):
                stop, stored = start + length, self.taken(self.chain.sizes[start])
                if self._is_uniform and start > 0 and stop < end:
                    costs[start, stop], choices[start, stop] = costs[0, length], choices[0, length]
                elif length == 1:
                    self._leaf(costs[start, stop], start)
                else:
                    self._fill(costs[start], after[stop], costs[start + 1, stop], choices[start, stop], start, stop)
                after[stop, start, stored:] = costs[start, stop, : max(self.parts + 1 - stored, 0)]
        return costs, choices

    @cached_property
    def _is_uniform(self) -> bool:
        """Whether stretches of equal length, without the loss, have equal costs and choices."""
        return self.chain.uniform and not self.chain.weights

    def _leaf(self, cost: Any, layer: int) -> None:
        """Cost of one layer alone, or of the loss: a forward run only for its interior."""
        need, runs = self._backward_parts(layer), layer < self.end - 1 and bool(self.chain.layers[layer].interior)
        if runs:
            need = max(need, self._tape_parts(layer, layer + 1))
        cost[need:] = self.chain.layers[layer].forward if runs else 0

    def _fill(self, costs: Any, after: Any, rest: Any, choice: Any, start: int, stop: int) -> None:
        """Fills in one stretch. Costs: ``costs[m]`` before x_m, ``after[m]`` after it, ``rest`` without the first layer."""
        import numpy as np

        chain, left = self.chain, np.arange(self.parts + 1)
        layer, middles = chain.layers[start], range(start + 1, stop)
        passed = np.array([chain.forward_cost(start, middle) for middle in middles])[:, None]
        needed = np.array([self._forward_parts(start, middle, stop) for middle in middles])[:, None]
        options = np.where(left >= needed, after[start + 1 : stop] + costs[start + 1 : stop] + passed, np.inf)
        best = options.argmin(axis=0)
        costs[stop], choice[:] = options[best, left], best + 1
        if layer.interior:
            kept = self._stored_parts(start)
            whole = np.full(self.parts + 1, np.inf)
            whole[kept:] = rest[: max(self.parts + 1 - kept, 0)] + layer.forward
            whole[: max(self._tape_parts(start, stop), self._backward_parts(start))] = np.inf
            choice[whole < costs[stop]] = KEEP
            costs[stop] = np.minimum(costs[stop], whole)

    @property
    def curve(self) -> list[tuple[Number, float]]:
        """Memory and forward cost wherever more memory makes the schedule cheaper, infeasible ones left out."""
        costs = self.tables[0][0, self.end]
        start, points = self.taken(self.chain.input), list[tuple[Number, float]]()
        for left, cost in enumerate(map(float, costs)):
            if cost < (points[-1][1] if points else float("inf")):
                points.append(((left + start) * self.part, cost))
        return [point for point in points if point[0] <= self.memory]

    def schedule(self) -> Iterator[Action]:
        """The cheapest actions; UnavailableError if none fit."""
        if self.least_cost is None:
            raise UnavailableError("no schedule of the chain fits the memory", "give more --budget")
        choices = self.tables[1]
        todo: list[tuple[int, int, int]] = [(0, self.end, self.left)]
        while todo:
            start, stop, left = todo.pop()
            if left < 0:  # the backward step of a layer whose interior was kept
                yield Action(BACKWARD, start, start)
            elif start == len(self.chain):
                yield loss(self.chain)
            elif stop - start == 1:
                yield from from_input(self.chain, start)
            else:
                yield from self._choose(start, stop, left, int(choices[start, stop][left]), todo)

    def _choose(self, start: int, stop: int, left: int, choice: int, todo: list[tuple[int, int, int]]) -> Iterator[Action]:
        chain = self.chain
        if choice == KEEP:
            yield Action(TAPE, start, start + 1)
            todo += [(start, start + 1, -1), (start + 1, stop, left - self._stored_parts(start))]
        else:
            middle = start + choice
            yield forward(start, middle)
            todo += [(start, middle, left), (middle, stop, left - self.taken(chain.sizes[middle]))]

    # Memory in parts

    @cached_property
    def exact(self) -> Number:
        """The size that all sizes are multiples of, if the memory is not too many of it; else 0."""
        chain = self.chain
        fields = ("output", "interior", "scratch", "weights")
        sizes = {chain.input, *(getattr(layer, field) for layer in chain.layers for field in fields)}
        if not all(isinstance(size, int) for size in sizes):
            return 0
        common = gcd(*sizes)
        return common if common and self.memory // common <= MOST_PARTS else 0

    @cached_property
    def part(self) -> Number:
        """Size of one part of memory: of several candidates, the one with the least rounding of sizes."""
        if self.exact:
            return self.exact
        counts = Counter(size for layer in self.chain.layers for size in (layer.output, layer.output + layer.interior))

        def rounded(parts: int) -> float:
            part = self.memory / parts
            return float(sum(count * (-(-size // part) * part - size) for size, count in counts.items()))

        return self.memory / min(range(LEAST_PARTS, MOST_PARTS + 1), key=rounded)

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
        return int(-(-size // self.part))

    @property
    def end(self) -> int:
        """Number of layers and the loss."""
        return len(self.chain) + 1

    @cached_property
    def _weights(self) -> list[Number]:
        """Sizes of weights and their gradients in memory once backward has reached x_i."""
        reached = list(accumulate((layer.weights for layer in reversed(self.chain.layers)), initial=self.chain.weights))
        return reached[::-1]

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
