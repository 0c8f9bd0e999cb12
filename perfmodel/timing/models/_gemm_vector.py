"""A matrix times a vector: cuBLAS leaves the tiles to kernels that stream the matrix once.

Where C has a single row (or column), cuBLAS of CUDA 13 runs ``gemv2T``, ``gemvx`` or ``dot_kernel`` on an H200: in fp32 and tf32
always, in 16 bits where rows are no multiples of 16 bytes. A row is summed by a warp or more; that sum takes longer the longer the row.
"""

from __future__ import annotations

from math import log2

BANDWIDTH_SHARE = 0.86  # tuned
"""Of the DRAM bandwidth."""
CONVERSION = 0.55  # tuned
"""16-bit elements that start off a word are loaded and converted one by one: by how much longer their bytes take."""
SUM_S, SHORT_ROW_BYTES = 0.6e-6, 1024  # tuned
"""A row's sum: seconds for each doubling of its length, from that length on."""
CACHED_SHARE = 0.5  # tuned
"""What a byte costs that the L2 holds, of one from DRAM."""
FEW_ROWS, LONG_ROW, SECOND_KERNEL_S = 128, 640, 1.5e-6  # tuned
"""Up to so many rows longer than that, ``dot_kernel`` splits a row over blocks and a second kernel adds up."""


def vector_seconds(rows: int, k: int, element_size: int, dram: float, bandwidth: float) -> float:
    """Seconds, launch apart, of a matrix of ``rows`` of ``k`` times a vector; ``dram``: bytes not in the L2, ``bandwidth`` in B/s."""
    size = rows * k * element_size
    streamed = dram + CACHED_SHARE * max(size - dram, 0)
    slower = 1 + (CONVERSION if element_size < 4 else 0)
    split_s = SECOND_KERNEL_S if rows <= FEW_ROWS and k > LONG_ROW else 0
    return streamed * slower / (bandwidth * BANDWIDTH_SHARE) + SUM_S * log2(1 + k * element_size / SHORT_ROW_BYTES) + split_s
