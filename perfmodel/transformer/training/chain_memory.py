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
