"""cuDNN 9's decode attention on Hopper: PyTorch's, for one query per sequence.

A block has 16 query heads of a KV group as its rows and walks its part of the keys in tiles of 128. Up to 128 keys, and up to 256 if there
are no more heads than multiprocessors, tiles have 64 rows and keys. Heads wider than 128 take two blocks, each with all of K and half of V.
The kernel is as wide as the next power of two, at least 64. Keys are split into a power of two of parts, at least 4 or none: at most as
many as fill two blocks per multiprocessor, and each has a whole tile. A second kernel sums up the splits from memory. mma.sync multiplies,
and the waits of a tile grow with its bytes. The two blocks of the widest kernel fill the SRAM, so no tile loads while another is worked on.
Source: names, grids, tiles and registers of cuDNN 9.19's kernels as profiled on an H200; how blocks stream: ``timing/streaming.py``.
"""

from __future__ import annotations

from perfmodel.core.architectures import WGMMA
from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing.base import Case
from perfmodel.timing.streaming import StreamLaunch, page, partial_bytes, tile_cycles

ROWS, KEYS, MOST_COLUMNS, LEAST_WIDTH = 16, 128, 128, 64  # known
"""Rows and keys of a tile; most columns of V of a block, so that two blocks share wider heads; columns of the narrowest kernel."""
SHORT_TILE, SHORT_KEYS, UNSHARED_KEYS = (64, 64), 128, 256  # known
"""Tile for short caches; most keys for it; and most keys if there are no more query heads than multiprocessors."""
UNSPLIT_KEYS, LEAST_SPLITS, MOST_SPLITS = 512, 4, 64  # known
COLUMNS_PER_SM = 256  # known
"""Columns of all blocks that registers allow: 4 blocks of 64 (120 registers a thread), 2 of 128 (160 to 186); 3 and 2 with short tiles."""
SECTOR_COLUMNS = 16  # known
"""Columns in a 32-byte sector of DRAM, which rows of K and V may or may not start on."""


def launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Launch with a power of two of splits; heads wider than ``MOST_COLUMNS`` take two blocks."""
    width = int(max(LEAST_WIDTH, 1 << (max(w.d, w.dv) - 1).bit_length()))
    short = w.kv_len <= SHORT_KEYS or (w.kv_len <= UNSHARED_KEYS and w.query_heads <= multiprocessors)
    (rows, keys), columns = SHORT_TILE if short else (ROWS, KEYS), min(width, MOST_COLUMNS)
    row_tiles = int(ceil_div(w.n * w.group, rows))
    blocks, splits = int(w.stored_kv_heads) * row_tiles, 1
    if w.kv_len > UNSPLIT_KEYS:
        most = min(BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks, int(w.kv_len) // KEYS, MOST_SPLITS)
        splits = 1 << (most.bit_length() - 1) if most >= LEAST_SPLITS else 1
    uneven = ("uneven_factor",) if w.d % SECTOR_COLUMNS else ()
    return StreamLaunch(
        blocks * int(ceil_div(width, MOST_COLUMNS)) * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, keys), splits)),
        keys * (width + columns) * w.dtype.size,
        COLUMNS_PER_SM // columns - (short and width == LEAST_WIDTH),
        tile_cycles(rows * keys, 2 * (width + columns), w, device),
        rereads=row_tiles,
        gaps=int(splits > 1),
        moved_bytes=partial_bytes(w, splits, width),
        wait_factors=(*uneven, "wide_factor") if width > MOST_COLUMNS else uneven,
        work_factors=uneven,
    )


def covers(case: Case) -> bool:
    """One query per sequence over a cache of 16 bits; with more queries cuDNN takes its prefill kernel."""
    return bool(case.workload.n == 1) and not isinstance(case.workload, NarrowCacheAttention)


MODEL = page("decode-cudnn", {"torch-sdpa-cudnn": {WGMMA: launch}}, "cuDNN 9.19's kernels as profiled", covers)
