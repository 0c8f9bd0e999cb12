"""FlashAttention-2's split-KV kernel: decode attention of PyTorch everywhere, and of vLLM up to compute capability 8.9.

A block has 64 query rows, or the prefill kernel's where nothing is split, and walks its part of the keys. The query heads of a KV group are
rows of one block only for a single query. Keys are split until blocks nearly fill two places per multiprocessor; a second kernel then sums
up the splits, one after the other, from memory. mma.sync multiplies whole tiles, rows without a query too, so that work shows beside
streaming. vLLM's version, over pages, transposes Q and O by kernels of their own where it packs heads (a plain copy of O where there is
nothing to transpose), and splits for packed heads alone.
Sources: Dao-AILab/flash-attention @0251105a and vllm-project/flash-attention @617264c1, csrc/flash_attn/flash_api.cpp (set_params_splitkv,
mha_varlen_fwd); how blocks stream: ``timing/streaming.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.core.architectures import MMA_SYNC, TCGEN05, WGMMA
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, default_tile, effective_splits, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing import streaming
from perfmodel.timing.base import Case, Model, Parameter, numbers_of, once_per_case
from perfmodel.timing.models._attention_grid import padded
from perfmodel.timing.streaming import CACHE, ENGINE, PARTIAL_SIZE, Stream, check_kernel, decodes, resident, runs_on, tile_cycles

PACKED_ROWS = 64  # known
"""Query rows of a tile whose keys are split."""
PAGED = "vllm-flash-attn"
REGISTERS, REGISTERS_PER_THREAD = 65536, 256  # known
"""Registers of a multiprocessor; registers per thread of the kernels (255, rounded up to 256)."""
TRANSPOSE_WAITS = 2  # known
"""Waits of the kernels that transpose Q and O: one each."""

PARAMETERS = (
    *ENGINE,
    Parameter("split_waits", "waits of the kernel that sums up splits, for each of them"),
    Parameter("narrow_factor", "waits and work of a tile over others, where heads are narrower than the kernel: columns are checked"),
)


def launch(w: Attention, device: Device) -> Stream:
    """PyTorch's: 64 rows and keys that are split, or the prefill kernel where heads fill the device without."""
    packed = w.n == 1 and w.group > 1
    heads, rows = (w.stored_kv_heads, w.group) if packed else (w.query_heads, w.n)
    tile, unsplit = (choose(w, device, device.sram_per_block, FORWARD) for choose in (default_tile, fa2_tile))
    if tile is None or unsplit is None:
        raise UnavailableError(f"{device.id} cannot hold a tile of FlashAttention-2 with head dim {w.d}", "take a smaller head dim")
    slots = BLOCKS_PER_MULTIPROCESSOR * int(numbers_of(device, "multiprocessors")[0])
    splits = num_splits(int(heads * ceil_div(rows, tile.br)), slots, int(ceil_div(w.kv_len, tile.bc)))
    tile = tile if splits > 1 else unsplit
    row_tiles = int(ceil_div(rows, tile.br))
    return Stream(
        int(heads) * row_tiles * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, tile.bc), splits)),
        resident((tile.br + 2 * tile.bc) * tile.head_dim * w.dtype.size, device, REGISTERS // (REGISTERS_PER_THREAD * tile.threads)),
        tile_cycles(tile.br * tile.bc, 4 * tile.head_dim, w, device),
        2 * tile.bc * tile.head_dim * w.dtype.size,
        rereads=row_tiles * (1 if packed else int(w.group)),
        gaps=int(splits > 1),
        moved_bytes=float(splits * w.query_heads * w.n * tile.head_dim * PARTIAL_SIZE) if splits > 1 else 0.0,
    )


def transposes(w: Attention) -> bool:
    """Whether vLLM's version packs the query heads of several KV groups of several sequences."""
    return bool(w.n == 1 and w.group > 1 and w.batch > 1 and w.kv_heads > 1)


def paged(w: Attention, device: Device) -> Stream:
    """vLLM's, over a paged cache."""
    slots = BLOCKS_PER_MULTIPROCESSOR * int(numbers_of(device, "multiprocessors")[0])
    bc = 256 if w.d <= 64 else 128 if w.d <= 128 else 64
    tiles, packed = int(ceil_div(w.kv_len, bc)), w.n == 1 and w.group > 1
    heads = w.stored_kv_heads if packed else w.query_heads
    blocks, splits = int(heads * ceil_div(w.n * (w.group if packed else 1), PACKED_ROWS)), 1
    if packed:
        splits = int(effective_splits(tiles, w.splits or num_splits(blocks, slots, tiles)))
    return Stream(
        blocks * splits,
        splits,
        int(ceil_div(tiles, splits)),
        resident((PACKED_ROWS + 2 * bc) * max(w.d, w.dv) * w.dtype.size, device, BLOCKS_PER_MULTIPROCESSOR),
        tile_cycles(PACKED_ROWS * bc, 4 * padded(max(w.d, w.dv)), w, device),
        2 * bc * padded(max(w.d, w.dv)) * w.dtype.size,
        rereads=1 if packed else int(w.group * ceil_div(w.n, PACKED_ROWS)),
        gaps=(splits > 1) + (2 if transposes(w) else packed),
        moved_bytes=float((4 if transposes(w) else 2 * packed) * w.query_heads * w.n * w.d * w.dtype.size),
    )


@once_per_case
def launched(case: Case, device: Device) -> Stream:
    """The launch of the library that the case names."""
    return (paged if case.implementation == PAGED else launch)(case.workload, device)


def seconds(case: Case, device: Device, p: Mapping[str, float]) -> float:
    """Seconds of one call, of vLLM with the append of the new token to its cache; UnavailableError without kernel or number."""
    check_kernel(case.implementation, device, MATRICES)
    stream, slower = launched(case, device), p["narrow_factor"] if padded(case.workload.d) != case.workload.d else 1.0
    later = stream.splits * p["split_waits"] if stream.splits > 1 else 0.0
    later += TRANSPOSE_WAITS if case.implementation == PAGED and transposes(case.workload) else 0.0
    return streaming.seconds(case, device, stream, p, slower, slower, later_waits=later)


def covers(case: Case) -> bool:
    """Forward, up to 16 queries per sequence, a 16-bit cache, head dims up to 256; no mask, window, dropout or blocks."""
    w = case.workload
    if not decodes(case) or isinstance(w, NarrowCacheAttention):
        return False
    return w.n == 1 or case.implementation == PAGED or not _one_tile(w)


def _one_tile(w: Attention) -> bool:
    """Whether FlashAttention-2 has nothing to split (csrc/flash_attn flash_api.cpp, set_params_splitkv): its main kernel runs."""
    return bool(w.kv_len <= (256 if w.d <= 64 else 128 if w.d <= 128 else 64))


MATRICES = {PAGED: (MMA_SYNC,), **dict.fromkeys(("torch-sdpa-flash", "fa2"), (MMA_SYNC, WGMMA, TCGEN05))}
"""Matrix instructions of devices on which each library takes this kernel; all need asynchronous copies."""
MODEL = Model(
    "decode-fa2",
    PARAMETERS,
    covers,
    seconds,
    "Dao et al. 2023, Flash-Decoding; csrc/flash_attn of FlashAttention-2",
    assumes=CACHE,
    implementations=tuple(MATRICES),
    runs_on=runs_on(MATRICES),
)
