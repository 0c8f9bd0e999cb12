"""Memory in equal parts, and how many of them each action of a chain's schedule needs beside what is stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import gcd

from perfmodel.core.arith import Number
from perfmodel.remat.chain import Chain

LEAST_PARTS, MOST_PARTS = 300, 600


@dataclass(frozen=True)
class Needs:
    """Sizes are rounded up to whole parts. The loss counts as a layer after the last."""

    chain: Chain
    memory: Number

    @cached_property
    def exact(self) -> Number:
        """The size that all sizes are whole multiples of, if the memory is few of it; else 0."""
        chain = self.chain
        fields = ("output", "interior", "scratch", "weights")
        sizes = {chain.input, *(getattr(layer, field) for layer in chain.layers for field in fields)}
        if not all(isinstance(size, int) for size in sizes):
            return 0
        common = gcd(*sizes)
        return common if common and self.memory // common <= MOST_PARTS else 0

    @cached_property
    def part(self) -> Number:
        """Size of one part of memory: of several, the one to which the sizes have to be rounded up the least."""
        if self.exact:
            return self.exact
        counts = Counter(size for layer in self.chain.layers for size in (layer.output, layer.output + layer.interior))

        def rounded(parts: int) -> float:
            part = self.memory / parts
            return float(sum(count * (-(-size // part) * part - size) for size, count in counts.items()))

        return self.memory / min(range(LEAST_PARTS, MOST_PARTS + 1), key=rounded)

    @cached_property
    def parts(self) -> int:
        """Parts in all."""
        return int(self.memory // self.part)

    def taken(self, size: Number) -> int:
        """Parts that ``size`` takes.

        >>> from perfmodel.remat.chain import uniform
        >>> Needs(uniform(10), 7).taken(3)
        3
        """
        return int(-(-size // self.part))

    @property
    def end(self) -> int:
        """Layers and the loss."""
        return len(self.chain) + 1

    @cached_property
    def _weights(self) -> list[Number]:
        """Weights and gradients of weights in memory once backward has reached x_i."""
        reached = list(accumulate((layer.weights for layer in reversed(self.chain.layers)), initial=self.chain.weights))
        return reached[::-1]

    def stored(self, layer: int) -> int:
        """Parts that the output and the interior of ``layer`` take."""
        return self.taken(self.chain.sizes[layer + 1] + self.chain.layers[layer].interior)

    def _beside(self, stop: int) -> Number:
        """What stands beside everything stored while the stretch before x_stop is reversed: weights, and the gradient of x_stop."""
        return self._weights[min(stop, self.end - 1)] + (0 if stop == self.end else self.chain.sizes[stop])

    def forward(self, start: int, to: int, stop: int) -> int:
        """Parts to run forward from x_start to x_to, within the stretch before x_stop."""
        return self.taken(self.chain.passing(start, to) + self._beside(stop))

    def tape(self, start: int, stop: int) -> int:
        """Parts to run layer ``start`` and keep its interior."""
        return self.taken(self.chain.passing(start, start + 1) + self.chain.layers[start].interior + self._beside(stop))

    def backward(self, layer: int) -> int:
        """Parts for the backward step of ``layer``, x_layer stored; for the loss, the gradient of x_n."""
        sizes = self.chain.sizes
        if layer == self.end - 1:
            return self.taken(self._weights[layer] + sizes[layer])
        record = self.chain.layers[layer]
        return self.taken(self._weights[layer] + record.interior + record.scratch + sizes[layer] + sizes[layer + 1])
