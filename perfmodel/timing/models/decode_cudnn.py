"""cuDNN 9's decode attention on Hopper: PyTorch's, for one query per sequence.

A block has 16 query heads of a KV group for its rows and walks its part of the keys in tiles of 128; up to 128 keys, and up to 256 where
heads are no more than multiprocessors, tiles of 64 rows and keys take their place. Heads wider than 128 take two blocks, each with all of K
and half of V. The kernel is as wide as the next power of two, at least 64. Keys are split in a power of two of parts, at most what fills
two blocks per multiprocessor and gives each a whole tile; 4 or none. A second kernel sums up the splits from memory. mma.sync multiplies,
and a tile's waits go with its bytes; the widest kernel's two blocks fill the SRAM, so that no next tile loads while one is worked on.
Source: names, grids, tiles and registers of cuDNN 9.19's kernels as profiled on an H200; how blocks stream: ``timing/streaming.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.architectures import WGMMA
from perfmodel.core.arith import ceil_div
from perfmodel.core.hardware import Device
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR
from perfmodel.timing import streaming
from perfmodel.timing.base import Case, Model, Parameter, numbers_of, once_per_case
from perfmodel.timing.streaming import CACHE, ENGINE, PARTIAL_SIZE, Stream, check_kernel, decodes, runs_on, tile_cycles

ROWS, KEYS, MOST_COLUMNS, LEAST_WIDTH = 16, 128, 128, 64  # known
"""Its tile; columns of V that a block takes, so that two share wider heads; columns of its narrowest kernel."""
SHORT_TILE, SHORT_KEYS, UNSHARED_KEYS = (64, 64), 128, 256  # known
"""Another tile up to that many keys, and up to twice as many where query heads are no more than multiprocessors."""
UNSPLIT_KEYS, LEAST_SPLITS, MOST_SPLITS = 512, 4, 64  # known
COLUMNS_PER_SM = 256  # known
"""Columns of the blocks that registers allow: 4 blocks of 64 (120 registers a thread), 2 of 128 (160 to 186); short tiles 3 and 2."""
SECTOR_COLUMNS = 16  # known
"""Columns of a sector of DRAM, 32 B, on which rows of K and V start or not."""
MATRICES = {"torch-sdpa-cudnn": (WGMMA,)}

PARAMETERS = (
    *ENGINE,
    Parameter("wide_factor", "waits for a tile of the widest kernel over others of its bytes: SRAM has no room for the next"),
    Parameter("uneven_factor", "waits and work of a tile over others, where rows of K and V do not start on a sector"),
    Parameter("mma", "clocks of its matmuls, mma.sync of few rows, over those at the tensor unit's peak"),
)


def width(w: Attention) -> int:
    """Head dim for which its kernel is compiled."""
    return int(max(LEAST_WIDTH, 1 << (max(w.d, w.dv) - 1).bit_length()))


def tile_of(w: Attention, multiprocessors: int) -> tuple[int, int]:
    """Rows and keys of its tile."""
    short = w.kv_len <= SHORT_KEYS or (w.kv_len <= UNSHARED_KEYS and w.query_heads <= multiprocessors)
    return SHORT_TILE if short else (ROWS, KEYS)


def launch(w: Attention, device: Device, multiprocessors: int) -> Stream:
    """The launch on ``multiprocessors``."""
    (rows, keys), columns = tile_of(w, multiprocessors), min(width(w), MOST_COLUMNS)
    row_tiles = int(ceil_div(w.n * w.group, rows))
    blocks, splits = int(w.stored_kv_heads) * row_tiles, 1
    if w.kv_len > UNSPLIT_KEYS:
        most = min(BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks, int(w.kv_len) // KEYS, MOST_SPLITS)
        splits = 1 << (most.bit_length() - 1) if most >= LEAST_SPLITS else 1
    return Stream(
        blocks * int(ceil_div(width(w), MOST_COLUMNS)) * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, keys), splits)),
        COLUMNS_PER_SM // columns - (rows == SHORT_TILE[0] and width(w) == LEAST_WIDTH),
        tile_cycles(rows * keys, 2 * (width(w) + columns), w, device),
        keys * (width(w) + columns) * w.dtype.size,
        rereads=row_tiles,
        gaps=int(splits > 1),
        moved_bytes=float(splits * w.query_heads * w.n * width(w) * PARTIAL_SIZE) if splits > 1 else 0.0,
    )


@once_per_case
def launched(case: Case, device: Device) -> Stream:
    """The launch on all multiprocessors of ``device``."""
    return launch(case.workload, device, int(numbers_of(device, "multiprocessors")[0]))


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call; UnavailableError without kernel or number."""
    check_kernel(case.implementation, device, MATRICES)
    w, stream = case.workload, launched(case, device)
    uneven = p["uneven_factor"] if w.d % SECTOR_COLUMNS else 1.0
    return streaming.seconds(case, device, stream, p, uneven * (p["wide_factor"] if width(w) > MOST_COLUMNS else 1.0), uneven * p["mma"])


def covers(case: Case) -> bool:
    """Forward, one query per sequence, a 16-bit cache, head dims up to 256; no mask, window, dropout or blocks."""
    return decodes(case, 1) and not hasattr(case.workload, "kv_bits")


MODEL = Model(
    "decode-cudnn",
    PARAMETERS,
    covers,
    seconds,
    "cuDNN 9.19's kernels as profiled",
    assumes=CACHE,
    implementations=tuple(MATRICES),
    runs_on=runs_on(MATRICES),
)
