"""Most bytes that PyTorch allocates for a chain of linear layers whose forward pass runs in checkpointed segments.

What ``torch.utils.checkpoint.checkpoint_sequential`` does beyond the schedule ``segments-last-kept``: gradients of weights pile up
and are copied once, because the matmul leaves them transposed; the gradient of the input is not made; the result stays; a ReLU
keeps its result; a value that was built again goes as soon as the matmul that wanted it is done; and the gradient of a bias, a sum
over the rows, takes a staging buffer for what its blocks have each added up.
Source: torch.utils.checkpoint (use_reentrant=False) and aten/src/ATen/native/cuda/Reduce.cuh of PyTorch 2.11.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import ceil_div
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device

BLOCK_COLUMNS, BLOCK_ROWS = 32, 4
"""Threads of a block of the sum over rows."""
VECTOR = 4
"""Columns per thread."""
LEAST_VALUES = 16
"""Rows per thread below which no further block is added."""
ACCUMULATOR_BYTES = 4


@dataclass(frozen=True, slots=True)
class TorchChain:
    """``layers`` times nn.Linear(d, d) with a bias, each followed by a ReLU or not, on [rows, d], in ``segments``."""

    layers: int
    d: int
    rows: int
    dtype: Dtype
    relu: bool = False
    segments: int = 1

    @property
    def bounds(self) -> list[int]:
        """Where segments begin, and the end; the last one takes the remainder.

        >>> from perfmodel.core.dtypes import DTYPES
        >>> TorchChain(24, 8, 8, DTYPES["bf16"], segments=5).bounds
        [0, 4, 8, 12, 16, 24]
        """
        size = self.layers // self.segments
        return [index * size for index in range(self.segments)] + [self.layers]


def staging_bytes(rows: int, columns: int, device: Device) -> int:
    """Of a sum over ``rows``: every thread of every block has room for each column.

    Blocks divide the rows until the device is full or a thread has LEAST_VALUES rows. UnavailableError if the profile lacks the
    multiprocessors.
    """
    threads = device.limits.max_threads_per_multiprocessor
    if device.multiprocessors is None or threads is None:
        raise UnavailableError(f"{device.id} lacks its multiprocessors or their threads", "add them to the profile")
    per_block = BLOCK_COLUMNS * VECTOR
    resident = int(device.multiprocessors.number) * (int(threads.number) // (BLOCK_COLUMNS * BLOCK_ROWS))
    blocks = min(ceil_div(resident, ceil_div(columns, per_block)), ceil_div(ceil_div(rows, BLOCK_ROWS), LEAST_VALUES))
    return int(ACCUMULATOR_BYTES * columns * blocks * per_block) if blocks > 1 else 0


def peak_bytes(chain: TorchChain, device: Device) -> int:
    """Bytes beyond weights, input and the gradient of the result: the most while forward and backward run."""
    return max(_walk(chain, staging_bytes(chain.rows, chain.d, device)))


def _walk(chain: TorchChain, staging: int) -> list[int]:
    """Bytes at the worst moment of each pass of each layer."""
    value = chain.rows * chain.d * chain.dtype.size
    weight, bias = chain.d * chain.d * chain.dtype.size, chain.d * chain.dtype.size
    bounds, end = chain.bounds, chain.layers
    held = {*bounds[1:-1], *range(bounds[-2] + 1, end), end}  # x_0 is not counted, the result stays to the end
    moments = [(len(held) + chain.relu) * value]
    gradients = 0
    for start, stop in zip(reversed(bounds[:-1]), reversed(bounds[1:]), strict=True):
        incoming = 0 if stop == end else value
        if stop != end:
            held |= set(range(start + 1, stop + chain.relu))  # a ReLU needs its own result again
            moments.append((len(held) + chain.relu) * value + gradients + incoming)
        for layer in range(stop, start, -1):
            if chain.relu:
                moments.append((len(held) + 1) * value + gradients + incoming)
                incoming = value
                held -= {layer} - {end}
            made = value if layer > 1 else 0
            working = len(held) * value + gradients + incoming + made + weight
            used = value if stop != end and layer - 1 > start and not chain.relu else 0  # rebuilt for this matmul alone
            moments += [working, working - used + bias + max(staging, weight)]
            gradients += weight + bias
            held -= {layer - 1} if layer - 1 not in bounds or layer - 1 == start else set()
            incoming = value
    return moments
