"""Peak memory in PyTorch of a chain of nn.Linear under segment checkpointing.

Differences of ``torch.utils.checkpoint.checkpoint_sequential`` from the schedule ``segments-last-kept``: gradients of weights pile up and
are copied once, because the matmul leaves them transposed; the gradient of the input is not made; the result stays; a ReLU keeps its
result; a rebuilt value is freed as soon as its matmul is done; and the gradient of a bias, a sum over the rows, takes a staging buffer for
the partial sums of its blocks. Source: torch.utils.checkpoint (use_reentrant=False) and aten/src/ATen/native/cuda/Reduce.cuh of PyTorch
2.11.
"""

from __future__ import annotations

from itertools import pairwise

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


def staging_bytes(rows: int, columns: int, device: Device) -> int:
    """Bytes of the buffer in which PyTorch sums a bias gradient over [rows, columns]; every thread has room for each of its columns.

    Blocks divide the rows until the device is full or a thread has LEAST_VALUES rows; a single block needs no buffer. UnavailableError if
    the profile lacks the multiprocessors.
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
    per_segment = layers // segments  # the last segment takes the remainder
    bounds = [*range(0, segments * per_segment, per_segment), layers]
    return max(_moments(bounds, d, rows * d * dtype.size, dtype.size, relu, staging_bytes(rows, d, device)))


def _moments(bounds: list[int], d: int, value_bytes: int, element_bytes: int, relu: bool, staging: int) -> list[int]:
    """Bytes at every moment that may be the peak: each pass of each layer. ``bounds``: where segments begin, and the end.

    Value number ``i`` is the output of layer ``i``; value 0, the input, is not counted.
    """
    weight, bias, end = d * d * element_bytes, d * element_bytes, bounds[-1]
    held = {*bounds[1:-1], *range(bounds[-2] + 1, end), end}  # values; the result stays to the end
    moments = [(len(held) + relu) * value_bytes]
    gradients = 0  # of weights and biases
    for start, stop in reversed(list(pairwise(bounds))):
        last_segment = stop == end
        gradient = 0 if last_segment else value_bytes  # of the value that the backward pass has reached
        if not last_segment:
            held |= set(range(start + 1, stop + relu))  # a ReLU needs its own result again
            moments.append((len(held) + relu) * value_bytes + gradients + gradient)
        for layer in range(stop, start, -1):
            if relu:
                moments.append((len(held) + 1) * value_bytes + gradients + gradient)
                gradient = value_bytes
                if layer != end:
                    held -= {layer}
            new_gradient = value_bytes if layer > 1 else 0
            working = len(held) * value_bytes + gradients + gradient + new_gradient + weight
            rebuilt_for_this = not last_segment and layer - 1 > start and not relu
            freed = value_bytes if rebuilt_for_this else 0
            moments += [working, working - freed + bias + max(staging, weight)]
            gradients += weight + bias
            if layer - 1 not in bounds or layer - 1 == start:
                held -= {layer - 1}
            gradient = value_bytes
    return moments
