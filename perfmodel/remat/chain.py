"""A chain of layers x_0 -> x_1 -> ... -> x_n: costs of forward and backward, and sizes of stored values.

Layers count from 0, and layer i makes x_(i+1) of x_i. Its backward needs x_i and the gradient of x_(i+1), and gives the gradient
of x_i. Costs are in any one unit, seconds or forward steps; sizes in any one, bytes or values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from perfmodel.core.arith import Number
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass

LARGEST_CHAIN = 20_000
"""Most layers of a chain: its schedule has at least as many actions, and takes seconds."""


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """A layer. ``output``: size of x_(i+1). ``weights``: size always in memory, and once more for their gradient from backward on.

    ``interior``: size of what backward needs besides x_i and only a forward run of this layer gives, such as the scores of an attention
    layer; 0 if x_i is enough, as in a linear layer. ``scratch``: further size while it runs, forward or backward.
    """

    forward: Number = 1
    backward: Number = 2
    output: Number = 1
    interior: Number = 0
    scratch: Number = 0
    weights: Number = 0


@dataclass(frozen=True)
class Chain:
    """A chain of layers. ``input``: size of x_0."""

    layers: tuple[ChainLayer, ...]
    input: Number = 1

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def sizes(self) -> list[Number]:
        """Size of x_0, x_1, ..., x_n."""
        return [self.input, *(layer.output for layer in self.layers)]

    @cached_property
    def uniform(self) -> bool:
        """Whether all layers are equal, and x_0 as large as their outputs, so that closed forms apply."""
        first = self.layers[0]
        return first.output == self.input and all(layer == first for layer in self.layers)

    @cached_property
    def taped(self) -> bool:
        """Whether some layer has an interior, so that it must run forward again right before its backward."""
        return any(layer.interior for layer in self.layers)

    @cached_property
    def _before(self) -> list[Number]:
        return [0, *accumulate(layer.forward for layer in self.layers)]

    def forward_cost(self, start: int, stop: int) -> Number:
        """Cost of running layers ``start`` to ``stop - 1`` forward."""
        return self._before[stop] - self._before[start]

    @cached_property
    def backward_cost(self) -> Number:
        """Cost of all backward steps."""
        return sum(layer.backward for layer in self.layers)

    @property
    def weights(self) -> Number:
        """Size of all weights."""
        return sum(layer.weights for layer in self.layers)

    @cached_property
    def _pairs(self) -> list[list[Number]]:
        """Sparse table whose row p has the largest of 2^p consecutive sums of a layer's input, output and scratch."""
        rows = [[a + b + layer.scratch for (a, b), layer in zip(pairwise(self.sizes), self.layers, strict=True)]]
        while 2 ** len(rows) <= len(self.layers):
            last, step = rows[-1], 2 ** (len(rows) - 1)
            rows.append([max(last[i], last[i + step]) for i in range(len(last) - step)])
        return rows

    def passing(self, start: int, stop: int) -> Number:
        """Peak size while layers run from x_start to x_stop and each value is dropped once the next exists; x_start not counted.

        >>> uniform(10).passing(0, 1), uniform(10).passing(0, 7)
        (1, 2)
        """
        first = self.sizes[start + 1] + self.layers[start].scratch
        if stop - start == 1:
            return first
        power = (stop - start - 1).bit_length() - 1
        row = self._pairs[power]
        return max(first, row[start + 1], row[stop - 2**power])


def uniform(length: int, **fields: Number) -> Chain:
    """A chain of equal layers, x_0 as large as their outputs.

    >>> len(uniform(10)), uniform(10).forward_cost(2, 5), uniform(10).backward_cost
    (10, 3, 20)
    """
    layer = ChainLayer(**fields)
    return Chain((layer,) * length, layer.output)


def spread(option: str, values: Sequence[Number], length: int) -> list[Number]:
    """Values, one per layer; a single one is used for all. UsageError names the option."""
    if len(values) not in (1, length):
        raise UsageError(f"--{option} has {len(values)} values for {length} layers", f"give one for all, or {length}")
    return list(values) * (length if len(values) == 1 else 1)


def check_length(length: int) -> int:
    """``length``, if a chain can have it; else UsageError."""
    if not 1 <= length <= LARGEST_CHAIN:
        raise UsageError(f"--layers is {length}", f"give a whole number from 1 to {LARGEST_CHAIN:,}")
    return length
