"""FlashAttention-2's split-KV kernel: decode attention of PyTorch everywhere, and of vLLM up to compute capability 8.9.

A block has 64 query rows, or as many as in the prefill kernel if nothing is split, and walks its part of the keys. The query heads of a KV
group are rows of one block only for a single query. Keys are split until blocks nearly fill two places per multiprocessor; a second kernel
then sums up the splits in turn from memory. mma.sync multiplies whole tiles, also rows without a query, so work is not hidden behind
streaming. vLLM's version, over pages, has separate kernels that transpose Q and O if it packs heads (a plain copy of O if there is nothing
to transpose), and it splits only with packed heads. Sources: Dao-AILab/flash-attention @0251105a and vllm-project/flash-attention
@617264c1, csrc/flash_attn/flash_api.cpp (set_params_splitkv, mha_varlen_fwd); how blocks stream: ``timing/streaming.py``.
"""

from __future__ import annotations

from perfmodel.core.architectures import MMA_SYNC, TCGEN05, WGMMA
from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, default_tile, effective_splits, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.kernels.latent_decode import NarrowCacheAttention
from perfmodel.timing.base import Case
from perfmodel.timing.models._attention_grid import padded
from perfmodel.timing.streaming import StreamLaunch, page, partial_bytes, resident, tile_cycles

PAGED = "vllm-flash-attn"
PACKED_ROWS = 64  # known
"""Query rows of a tile in the kernel that splits keys."""
REGISTERS, REGISTERS_PER_THREAD = 65536, 256  # known
"""Registers of a multiprocessor; registers per thread of the kernels (255, rounded up to 256)."""


def launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """PyTorch's launch: 64 rows and split keys, or the prefill kernel if heads fill the device without splits."""
    packed = w.n == 1 and w.group > 1
    heads, rows = (w.stored_kv_heads, w.group) if packed else (w.query_heads, w.n)
    tile, unsplit = (choose(w, device, device.sram_per_block, FORWARD) for choose in (default_tile, fa2_tile))
    if tile is None or unsplit is None:
        raise UnavailableError(f"{device.id} cannot hold a tile of FlashAttention-2 with head dim {w.d}", "take a smaller head dim")
    slots, tiles = BLOCKS_PER_MULTIPROCESSOR * multiprocessors, int(ceil_div(w.kv_len, tile.bc))
    splits = int(num_splits(int(heads * ceil_div(rows, tile.br)), slots, tiles))
    tile = tile if splits > 1 else unsplit
    row_tiles = int(ceil_div(rows, tile.br))
    narrower = ("narrow_factor",) if padded(w.d) != w.d else ()
    return StreamLaunch(
        int(heads) * row_tiles * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, tile.bc), splits)),
        2 * tile.bc * tile.head_dim * w.dtype.size,
        resident((tile.br + 2 * tile.bc) * tile.head_dim * w.dtype.size, device, REGISTERS // (REGISTERS_PER_THREAD * tile.threads)),
        tile_cycles(tile.br * tile.bc, 4 * tile.head_dim, w, device),
        rereads=row_tiles * (1 if packed else int(w.group)),
        gaps=int(splits > 1),
        moved_bytes=partial_bytes(w, splits, tile.head_dim),
        wait_factors=narrower,
        work_factors=narrower,
    )


def paged(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """vLLM's launch, over a paged cache."""
    bc, width = 256 if w.d <= 64 else 128 if w.d <= 128 else 64, padded(max(w.d, w.dv))
    tiles, packed = int(ceil_div(w.kv_len, bc)), w.n == 1 and w.group > 1
    blocks = int((w.stored_kv_heads if packed else w.query_heads) * ceil_div(w.n * (w.group if packed else 1), PACKED_ROWS))
    splits, transposed = 1, packed and w.batch > 1 and w.kv_heads > 1
    if packed:
        splits = int(effective_splits(tiles, w.splits or num_splits(blocks, BLOCKS_PER_MULTIPROCESSOR * multiprocessors, tiles)))
    return StreamLaunch(
        blocks * splits,
        splits,
        int(ceil_div(tiles, splits)),
        2 * bc * width * w.dtype.size,
        resident((PACKED_ROWS + 2 * bc) * max(w.d, w.dv) * w.dtype.size, device, BLOCKS_PER_MULTIPROCESSOR),
        tile_cycles(PACKED_ROWS * bc, 4 * width, w, device),
        rereads=1 if packed else int(w.group * ceil_div(w.n, PACKED_ROWS)),
        gaps=(splits > 1) + (2 if transposed else packed),
        moved_bytes=float((4 if transposed else 2 * packed) * w.query_heads * w.n * w.d * w.dtype.size),
        later_waits=2 * transposed,
    )


def covers(case: Case) -> bool:
    """A cache of 16 bits. With PyTorch not several queries over few keys: its main kernel runs these, as there is nothing to split."""
    w = case.workload
    one_tile = w.kv_len <= (256 if w.d <= 64 else 128 if w.d <= 128 else 64)
    return not isinstance(w, NarrowCacheAttention) and (w.n == 1 or case.implementation == PAGED or not one_tile)


MODEL = page(
    "decode-fa2",
    {PAGED: {MMA_SYNC: paged}, **dict.fromkeys(("torch-sdpa-flash", "fa2"), dict.fromkeys((MMA_SYNC, WGMMA, TCGEN05), launch))},
    "Dao et al. 2023, Flash-Decoding; csrc/flash_attn of FlashAttention-2",
    covers,
)
