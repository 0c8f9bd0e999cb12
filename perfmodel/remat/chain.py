"""A chain of layers x_0 -> x_1 -> ... -> x_n: cost of each forward and backward, and size of what it stores.

Layers count from 0, and layer i makes x_(i+1) of x_i. Its backward needs x_i and the gradient of x_(i+1), and gives the gradient
of x_i. Costs are in any one unit, seconds or forward steps; sizes in any one, bytes or values.

``peak_bytes``: peak memory in PyTorch of a chain of nn.Linear under segment checkpointing.

What ``torch.utils.checkpoint.checkpoint_sequential`` does beyond the schedule ``segments-last-kept``: gradients of weights pile up
and are copied once, because the matmul leaves them transposed; the gradient of the input is not made; the result stays; a ReLU
keeps its result; a value that was built again goes as soon as the matmul that wanted it is done; and the gradient of a bias, a sum
over the rows, takes a staging buffer for what its blocks have each added up.
Source: torch.utils.checkpoint (use_reentrant=False) and aten/src/ATen/native/cuda/Reduce.cuh of PyTorch 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.hardware import Device

LARGEST_CHAIN = 20_000
"""Layers: a schedule has at least as many actions, and is answered in seconds."""


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """A layer. ``output``: size of x_(i+1). ``weights``: always in memory, and as much again for their gradient from backward on.

    ``interior``: what backward needs besides x_i and only a forward run of this layer gives, such as the scores of an attention
    layer; 0 where x_i is enough, as in a linear layer. ``scratch``: what it holds besides while it runs, forward or backward.
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
        """Whether all layers are equal, and x_0 as large as their outputs: closed forms count such a chain."""
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
    """Values, one per layer; a single one serves all. UsageError names the option."""
    if len(values) not in (1, length):
        raise UsageError(f"--{option} has {len(values)} values for {length} layers", f"give one for all, or {length}")
    return list(values) * (length if len(values) == 1 else 1)


def check_length(length: int) -> int:
    """``length``, if a chain can have it; else UsageError."""
    if not 1 <= length <= LARGEST_CHAIN:
        raise UsageError(f"--layers is {length}", f"give a whole number from 1 to {LARGEST_CHAIN:,}")
    return length


BLOCK_COLUMNS, BLOCK_ROWS = 32, 4
"""Threads of a block of the sum over rows."""
VECTOR = 4
"""Columns per thread."""
LEAST_VALUES = 16
"""Rows per thread below which no further block is added."""
ACCUMULATOR_BYTES = 4


def staging_bytes(rows: int, columns: int, device: Device) -> int:
    """Bytes of the buffer in which PyTorch sums a bias gradient over [rows, columns]: every thread has room for each column.

    Blocks divide the rows until the device is full or a thread has LEAST_VALUES rows; a single block needs no buffer.
    UnavailableError if the profile lacks the multiprocessors.
    """
    threads = device.limits.max_threads_per_multiprocessor
    if device.multiprocessors is None or threads is None:
        raise UnavailableError(f"{device.id} lacks its multiprocessors or their threads", "add them to the profile")
    per_block = BLOCK_COLUMNS * VECTOR
    resident = int(device.multiprocessors.number) * (int(threads.number) // (BLOCK_COLUMNS * BLOCK_ROWS))
    blocks = min(ceil_div(resident, ceil_div(columns, per_block)), ceil_div(ceil_div(rows, BLOCK_ROWS), LEAST_VALUES))
    return int(ACCUMULATOR_BYTES * columns * blocks * per_block) if blocks > 1 else 0


def peak_bytes(layers: int, d: int, rows: int, dtype: Dtype, device: Device, *, relu: bool = False, segments: int = 1) -> int:
    """Peak bytes of forward and backward of ``layers`` times nn.Linear(d, d) with a bias on [rows, d], checkpointed in ``segments``.

    ``relu``: one after each layer. Weights, input and the gradient of the result are left out. UnavailableError as ``staging_bytes``.
    """
    size = layers // segments  # the last segment takes the remainder
    return max(
        _walk([*range(0, segments * size, size), layers], d, rows * d * dtype.size, dtype.size, relu, staging_bytes(rows, d, device))
    )


def _walk(bounds: list[int], d: int, value: int, element: int, relu: bool, staging: int) -> list[int]:
    """Bytes at every moment that may be the peak: each pass of each layer. ``bounds``: where segments begin, and the end."""
    weight, bias, end = d * d * element, d * element, bounds[-1]
    held = {*bounds[1:-1], *range(bounds[-2] + 1, end), end}  # x_0 is not counted, the result stays to the end
    moments = [(len(held) + relu) * value]
    gradients = 0
    for start, stop in reversed(list(pairwise(bounds))):
        incoming = 0 if stop == end else value
        if stop != end:
            held |= set(range(start + 1, stop + relu))  # a ReLU needs its own result again
            moments.append((len(held) + relu) * value + gradients + incoming)
        for layer in range(stop, start, -1):
            if relu:
                moments.append((len(held) + 1) * value + gradients + incoming)
                incoming = value
                held -= {layer} - {end}
            new_value = value if layer > 1 else 0
            working = len(held) * value + gradients + incoming + new_value + weight
            used = value if stop != end and layer - 1 > start and not relu else 0  # rebuilt for this matmul alone
            moments += [working, working - used + bias + max(staging, weight)]
            gradients += weight + bias
            held -= {layer - 1} if layer - 1 not in bounds or layer - 1 == start else set()
            incoming = value
    return moments
