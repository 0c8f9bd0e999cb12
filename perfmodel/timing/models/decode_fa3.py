"""FlashAttention-3 over a paged cache: decode attention of vLLM on Hopper, 16 or 8 bits a cache element.

A block has the query heads of a KV group as its rows, 64 or 128, and walks its part of the keys; one block at a time runs on each
multiprocessor. The device chooses the parts of a sequence: tiles per multiprocessor, rounded up with a margin, at most 32 in a CUDA graph.
Before a block starts, a warp looks for it through the sequences, 31 at a time. Loads are whole tiles by TMA, in turns with work. The kernel
that sums up splits starts early (programmatic dependent launch) and does nothing where nothing was split. With 8 bits V must be transposed
in SRAM, as wgmma takes it in one order only: this adds waits to each tile. Sources: vllm-project/flash-attention @617264c1,
hopper/heuristics.h, tile_size.h, flash_prepare_scheduler.cu, tile_scheduler.hpp; Shah et al. 2024, FlashAttention-3, section 3.3; how
blocks stream: ``timing/streaming.py``.
"""

from __future__ import annotations

from perfmodel.core.architectures import WGMMA
from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.timing.streaming import StreamLaunch, page

ROWS, WIDE = 64, 128  # known
"""Rows of a wgmma; and head dim above which a tile waits longer."""
APPENDED = 1  # known
"""Keys of the new token, which vLLM appends to a cache of ``kv_len`` keys before the kernel reads it."""
KEYS = {2: ((64, 192), (128, 128), (256, 80)), 1: ((64, 160), (192, 160), (256, 128))}  # known
"""Largest head dim and keys of a tile, by bytes of an element."""
GRAPH_SPLITS = 32  # known: vLLM's bound on splits under CUDA graphs, VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH
SPLIT_BATCHES = 992  # known: a larger batch is not split
SPREAD = 1.1  # known: tiles per multiprocessor are rounded up with this margin
BATCHES_PER_LOOK = 31  # known: sequences that the scheduler's warp passes at once in its search for the next block


def launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Launch of persistent blocks, with splits chosen per sequence on the device."""
    single = w.d in (64, 128) and w.n * w.group <= ROWS
    bc = next(keys for width, keys in KEYS[w.dtype.size] if w.d <= width)
    tiles = int(ceil_div(w.kv_len + APPENDED, bc))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, ROWS if single else 2 * ROWS))
    most = 1 if w.batch > SPLIT_BATCHES else w.splits or GRAPH_SPLITS
    per_multiprocessor = -int(-tiles * blocks * SPREAD // multiprocessors)
    splits = max(1, min(int(ceil_div(tiles, per_multiprocessor)), most))
    return StreamLaunch(
        blocks * splits,
        splits,
        int(ceil_div(tiles, splits)),
        bc * (w.d + w.dv) * w.dtype.size,
        block_terms={"look_waits": multiprocessors / (BATCHES_PER_LOOK * w.kv_heads * splits)},
        wait_factors=("wide_factor",) if w.d > WIDE else (),
    )


MODEL = page(
    "decode-fa3",
    {key: {WGMMA: launch} for key in ("vllm-flash-attn", "vllm-flash-attn-fp8-cache")},
    "Shah et al. 2024, FlashAttention-3; hopper/ of vLLM's version",
)
