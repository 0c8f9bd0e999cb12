"""Bytes of a matrix product: its operands in their format, the scales of blocks of them, and its result in another format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import READ, Access, once

if TYPE_CHECKING:
    from perfmodel.kernels.matmul import Matmul

SCALE_SIZE = 4
"""Bytes of a scale of a block: fp32."""
SCALE_BLOCKS = {"aiter-blockscale": 128}
"""Edge of the blocks that share a scale, where operands in fp8 have one per block, by implementation.

Source: DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3: 1 x 128 of activations, 128 x 128 of weights.
"""


def scale_block(implementation: str, dtype: str) -> int:
    """Edge of the blocks of ``dtype`` that share a scale where ``implementation`` runs; 0 where none do."""
    return SCALE_BLOCKS.get(implementation, 0) if dtype == "fp8" else 0


def scales(m: Number, n: Number, k: Number, batch: Number, block: int) -> tuple[Access, ...]:
    """Reads of the scales of A [m, k] by 1 x ``block`` and of B [k, n] by its squares, each once; none without blocks.

    >>> [access.bytes for access in scales(16, 256, 512, 1, 128)]
    [256, 32]
    """
    if not block:
        return ()
    along, down = ceil_div(k, block), ceil_div(n, block)
    sizes = {"scales of A": batch * m * along, "scales of B": batch * along * down}
    return tuple(once(name, READ, count, SCALE_SIZE) for name, count in sizes.items())


def in_bytes(w: Matmul, elements: Number) -> Number:
    """Bytes of ``elements`` of A, B and C, all of C among them, and of the scales.

    >>> from perfmodel.core.dtypes import PRODUCTS
    >>> from perfmodel.kernels.matmul import Matmul
    >>> in_bytes(Matmul(32, 64, 128, dtype=PRODUCTS["mxfp4"]), 32 * 128 + 128 * 64 + 32 * 64)
    10624.0
    """
    wider = w.dtype.result_size - w.dtype.bytes
    moved = elements * w.dtype.bytes + w.outputs * wider if wider else elements * w.dtype.bytes
    listed = scales(w.m, w.n, w.k, w.batch, w.scale_block)
    return moved + sum(access.bytes for access in listed) if listed else moved
