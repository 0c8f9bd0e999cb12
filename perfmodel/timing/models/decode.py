"""Decode attention of each library: what a block is and how keys are split. How blocks stream: ``timing/streaming.py``.

**FlashAttention-2's split-KV kernel**, of PyTorch everywhere, and of vLLM up to compute capability 8.9. A block has 64 query rows, or the
prefill kernel's where nothing is split, and walks its part of the keys. The query heads of a KV group are rows of one block only for a
single query. Keys are split until blocks nearly fill two places per multiprocessor; a second kernel then sums up the splits, one after the
other, from memory. mma.sync multiplies whole tiles, rows without a query too, so that work shows beside streaming. vLLM's version, over
pages, transposes Q and O by kernels of their own where it packs heads (a plain copy of O where there is nothing to transpose), and splits
for packed heads alone. Sources: Dao-AILab/flash-attention @0251105a and vllm-project/flash-attention @617264c1,
csrc/flash_attn/flash_api.cpp (set_params_splitkv, mha_varlen_fwd).

**FlashAttention-3 over a paged cache**, of vLLM on Hopper, 16 or 8 bits a cache element. A block has the query heads of a KV group for its
rows, 64 or 128 of them, and walks its part of the keys; one block at a time stays on each multiprocessor. How many parts a sequence has is
chosen on the device: tiles per multiprocessor, rounded up with a margin, at most 32 in a CUDA graph. A warp looks for the next block, 31
sequences at a time, before a block starts. Loads are whole tiles by TMA, in turns with work. The kernel that sums up splits starts early
(programmatic dependent launch) and does nothing where nothing was split. With 8 bits V has to be transposed in SRAM, as wgmma takes it only
one way round: a tile's work shows, as more waits per tile. Sources: vllm-project/flash-attention @617264c1, hopper/heuristics.h,
tile_size.h, flash_prepare_scheduler.cu, tile_scheduler.hpp; Shah et al. 2024, FlashAttention-3, section 3.3.

**TensorRT-LLM's generation kernels**, of vLLM on Blackwell, and of TensorRT-LLM over a cache of 8 bits. A block has 16 query heads of a KV
group for its rows and walks its part of the keys in steps of 256. As many parts as fill the device once, of 512 keys or more; the blocks of
a head sum up their parts among themselves, the last one to end. Loads run far ahead of the work, which hides behind them. On Hopper it is
XQA, whose blocks have a KV head each and walk tiles of 64 keys: as many parts of 128 keys or more as make eight blocks per multiprocessor.
Sources: flashinfer-ai/flashinfer @fb28d724 include/flashinfer/trtllm/fmha/fmhaKernels.cuh (computeCtaAndClusterConfig); NVIDIA
TensorRT-LLM, cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention (decoderXQAConstants.h).

**cuDNN 9's kernel on Hopper**, PyTorch's, for one query per sequence. A block has 16 query heads of a KV group for its rows and walks its
part of the keys in tiles of 128; up to 128 keys, and up to 256 where heads are no more than multiprocessors, tiles of 64 rows and keys take
their place. Heads wider than 128 take two blocks, each with all of K and half of V. The kernel is as wide as the next power of two, at
least 64. Keys are split in a power of two of parts, at most what fills two blocks per multiprocessor and gives each a whole tile; 4 or
none. A second kernel sums up the splits from memory. mma.sync multiplies, and a tile's waits go with its bytes; the widest kernel's two
blocks fill the SRAM, so that no next tile loads while one is worked on. Source: names, grids, tiles and registers of cuDNN 9.19's kernels
as profiled on an H200.
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

VLLM, VLLM_FP8 = "vllm-flash-attn", "vllm-flash-attn-fp8-cache"
APPENDED = 1  # known
"""Keys of the new token, which vLLM appends to a cache of ``kv_len`` keys before FlashAttention-3 or TensorRT-LLM's kernel reads it."""

# FlashAttention-2

SPLIT_ROWS = 64  # known
"""Query rows of a tile whose keys are split (flash_api.cpp, set_params_splitkv)."""
REGISTERS, REGISTERS_PER_THREAD = 65536, 256  # known
"""Registers of a multiprocessor; registers per thread of the kernels (255, rounded up to 256)."""


def split_keys(w: Attention) -> int:
    """Keys of a tile of the kernel that splits them (flash_fwd_launch_template.h), which paged caches take as well."""
    return 256 if w.d <= 64 else 128 if w.d <= 128 else 64


def fa2_launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """PyTorch's launch: 64 rows and split keys, or the prefill kernel if heads fill the device without splits."""
    packed = w.n == 1 and w.group > 1
    heads, rows = (w.stored_kv_heads, w.group) if packed else (w.query_heads, w.n)
    tile = default_tile(w, device, device.sram_per_block, FORWARD)
    unsplit = fa2_tile(w, device, device.sram_per_block, FORWARD)
    if tile is None or unsplit is None:
        raise UnavailableError(f"{device.id} cannot hold a tile of FlashAttention-2 with head dim {w.d}", "take a smaller head dim")
    slots, tiles = BLOCKS_PER_MULTIPROCESSOR * multiprocessors, int(ceil_div(w.kv_len, tile.bc))
    splits = int(num_splits(int(heads * ceil_div(rows, tile.br)), slots, tiles))
    tile = tile if splits > 1 else unsplit
    row_tiles = int(ceil_div(rows, tile.br))
    sram_bytes = (tile.br + 2 * tile.bc) * tile.head_dim * w.dtype.size
    blocks_by_registers = REGISTERS // (REGISTERS_PER_THREAD * tile.threads)
    narrower = ("narrow_factor",) if padded(w.d) != w.d else ()
    return StreamLaunch(
        blocks=int(heads) * row_tiles * splits,
        splits=splits,
        tiles=int(ceil_div(ceil_div(w.kv_len, tile.bc), splits)),
        tile_bytes=2 * tile.bc * tile.head_dim * w.dtype.size,
        resident=resident(sram_bytes, device, blocks_by_registers),
        tile_cycles=tile_cycles(tile.br * tile.bc, 4 * tile.head_dim, w, device),
        rereads=row_tiles * (1 if packed else int(w.group)),
        gaps=int(splits > 1),
        moved_bytes=partial_bytes(w, splits, tile.head_dim),
        wait_factors=narrower,
        work_factors=narrower,
    )


def fa2_paged(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """vLLM's launch, over a paged cache."""
    bc, head_dim = split_keys(w), max(w.d, w.dv)
    width, tiles = padded(head_dim), int(ceil_div(w.kv_len, bc))
    packed = w.n == 1 and w.group > 1
    heads, rows = (w.stored_kv_heads, w.group) if packed else (w.query_heads, w.n)
    blocks = int(heads * ceil_div(rows, SPLIT_ROWS))
    splits = 1
    if packed:
        splits = int(effective_splits(tiles, w.splits or num_splits(blocks, BLOCKS_PER_MULTIPROCESSOR * multiprocessors, tiles)))
    transposed = packed and w.batch > 1 and w.kv_heads > 1
    return StreamLaunch(
        blocks=blocks * splits,
        splits=splits,
        tiles=int(ceil_div(tiles, splits)),
        tile_bytes=2 * bc * width * w.dtype.size,
        resident=resident((SPLIT_ROWS + 2 * bc) * head_dim * w.dtype.size, device, BLOCKS_PER_MULTIPROCESSOR),
        tile_cycles=tile_cycles(SPLIT_ROWS * bc, 4 * width, w, device),
        rereads=1 if packed else int(w.group * ceil_div(w.n, SPLIT_ROWS)),
        gaps=(splits > 1) + (2 if transposed else packed),
        moved_bytes=float((4 if transposed else 2 * packed) * w.query_heads * w.n * w.d * w.dtype.size),
        later_waits=2 * transposed,
    )


def covers_fa2(case: Case) -> bool:
    """A cache of 16 bits. With PyTorch not several queries over few keys: its main kernel runs these, as there is nothing to split."""
    w = case.workload
    return not isinstance(w, NarrowCacheAttention) and (w.n == 1 or case.implementation == VLLM or w.kv_len > split_keys(w))


FA2 = page(
    "decode-fa2",
    {VLLM: {MMA_SYNC: fa2_paged}, **dict.fromkeys(("torch-sdpa-flash", "fa2"), dict.fromkeys((MMA_SYNC, WGMMA, TCGEN05), fa2_launch))},
    "Dao et al. 2023, Flash-Decoding; csrc/flash_attn of FlashAttention-2",
    covers_fa2,
)


# FlashAttention-3

WGMMA_ROWS, WIDE = 64, 128  # known
"""Rows of a wgmma; and head dim above which a tile waits longer."""
FA3_KEYS = {2: ((64, 192), (128, 128), (256, 80)), 1: ((64, 160), (192, 160), (256, 128))}  # known
"""Largest head dim and keys of a tile, by bytes of an element."""
GRAPH_SPLITS = 32  # known: vLLM's bound on splits under CUDA graphs, VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH
SPLIT_BATCHES = 992  # known: a larger batch is not split
SPREAD = 1.1  # known: tiles per multiprocessor are rounded up with this margin
BATCHES_PER_LOOK = 31  # known: sequences that the scheduler's warp passes at once in its search for the next block


def fa3_launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Launch of persistent blocks, with splits chosen per sequence on the device."""
    single = w.d in (64, 128) and w.n * w.group <= WGMMA_ROWS
    bc = next(keys for width, keys in FA3_KEYS[w.dtype.size] if w.d <= width)
    tiles = int(ceil_div(w.kv_len + APPENDED, bc))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, WGMMA_ROWS if single else 2 * WGMMA_ROWS))
    most = 1 if w.batch > SPLIT_BATCHES else w.splits or GRAPH_SPLITS
    per_multiprocessor = -int(-tiles * blocks * SPREAD // multiprocessors)
    splits = max(1, min(int(ceil_div(tiles, per_multiprocessor)), most))
    return StreamLaunch(
        blocks=blocks * splits,
        splits=splits,
        tiles=int(ceil_div(tiles, splits)),
        tile_bytes=bc * (w.d + w.dv) * w.dtype.size,
        block_terms={"look_waits": multiprocessors / (BATCHES_PER_LOOK * w.kv_heads * splits)},
        wait_factors=("wide_factor",) if w.d > WIDE else (),
    )


FA3 = page(
    "decode-fa3", {key: {WGMMA: fa3_launch} for key in (VLLM, VLLM_FP8)}, "Shah et al. 2024, FlashAttention-3; hopper/ of vLLM's version"
)


# TensorRT-LLM

STEP_KEYS, STEPS_PER_SPLIT, GROUP_ROWS = 256, 2, 16  # known
XQA_KEYS, XQA_KEYS_PER_SPLIT, XQA_WAVES = 64, 128, 8  # known
"""XQA's keys per tile, fewest keys per part, and most blocks per multiprocessor (kMinHistoryTokensPerBlock, kTargetWaveFactor)."""


def trtllm_launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Blackwell's launch: as many splits as fill the device once."""
    steps = int(ceil_div(w.kv_len + APPENDED, STEP_KEYS))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, GROUP_ROWS))
    splits = w.splits or min(int(ceil_div(steps, STEPS_PER_SPLIT)), max(1, multiprocessors // blocks))
    return _launch_without_work(w, blocks, int(splits), steps, STEP_KEYS)


def xqa(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Hopper's launch: as many splits as make eight waves."""
    keys, blocks = int(w.kv_len + APPENDED), int(w.stored_kv_heads)
    splits = w.splits or max(1, min(keys // XQA_KEYS_PER_SPLIT, XQA_WAVES * multiprocessors // blocks))
    return _launch_without_work(w, blocks, int(splits), int(ceil_div(keys, XQA_KEYS)), XQA_KEYS)


def _launch_without_work(w: Attention, blocks: int, splits: int, tiles: int, tile_keys: int) -> StreamLaunch:
    """Launch of ``blocks`` over all keys, ``tiles`` of ``tile_keys``, before these are split. Loads hide the work."""
    return StreamLaunch(
        blocks=blocks * splits, splits=splits, tiles=int(ceil_div(tiles, splits)), tile_bytes=tile_keys * (w.d + w.dv) * w.dtype.size
    )


TRTLLM = page(
    "decode-trtllm",
    {**{key: {TCGEN05: trtllm_launch} for key in (VLLM, VLLM_FP8)}, "trtllm-attention-fp8-cache": {TCGEN05: trtllm_launch, WGMMA: xqa}},
    "NVIDIA TensorRT-LLM's generation kernels, as in FlashInfer",
)


# cuDNN

ROWS, KEYS = 16, 128  # known
"""Rows and keys of a tile."""
MOST_COLUMNS, LEAST_WIDTH = 128, 64  # known
"""Most columns of V of a block, so that two blocks share wider heads; and columns of the narrowest kernel."""
SHORT_TILE, SHORT_KEYS, UNSHARED_KEYS = (64, 64), 128, 256  # known
"""Tile for short caches; most keys for it; and most keys if there are no more query heads than multiprocessors."""
UNSPLIT_KEYS, LEAST_SPLITS, MOST_SPLITS = 512, 4, 64  # known
COLUMNS_PER_SM = 256  # known
"""Columns of all blocks that registers allow: 4 blocks of 64 (120 registers a thread), 2 of 128 (160 to 186); 3 and 2 with short tiles."""
SECTOR_COLUMNS = 16  # known
"""Columns in a 32-byte sector of DRAM, which rows of K and V may or may not start on."""


def cudnn_launch(w: Attention, device: Device, multiprocessors: int) -> StreamLaunch:
    """Launch with a power of two of splits; heads wider than ``MOST_COLUMNS`` take two blocks."""
    width = int(max(LEAST_WIDTH, 1 << (max(w.d, w.dv) - 1).bit_length()))
    columns, column_blocks = min(width, MOST_COLUMNS), int(ceil_div(width, MOST_COLUMNS))
    short = w.kv_len <= SHORT_KEYS or (w.kv_len <= UNSHARED_KEYS and w.query_heads <= multiprocessors)
    rows, keys = SHORT_TILE if short else (ROWS, KEYS)
    row_tiles = int(ceil_div(w.n * w.group, rows))
    blocks = int(w.stored_kv_heads) * row_tiles
    splits = 1
    if w.kv_len > UNSPLIT_KEYS:
        most = min(BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks, int(w.kv_len) // KEYS, MOST_SPLITS)
        splits = 1 << (most.bit_length() - 1) if most >= LEAST_SPLITS else 1
    uneven = ("uneven_factor",) if w.d % SECTOR_COLUMNS else ()
    return StreamLaunch(
        blocks=blocks * column_blocks * splits,
        splits=splits,
        tiles=int(ceil_div(ceil_div(w.kv_len, keys), splits)),
        tile_bytes=keys * (width + columns) * w.dtype.size,
        resident=COLUMNS_PER_SM // columns - (short and width == LEAST_WIDTH),
        tile_cycles=tile_cycles(rows * keys, 2 * (width + columns), w, device),
        rereads=row_tiles,
        gaps=int(splits > 1),
        moved_bytes=partial_bytes(w, splits, width),
        wait_factors=(*uneven, "wide_factor") if width > MOST_COLUMNS else uneven,
        work_factors=uneven,
    )


def covers_cudnn(case: Case) -> bool:
    """One query per sequence over a cache of 16 bits; with more queries cuDNN takes its prefill kernel."""
    return bool(case.workload.n == 1) and not isinstance(case.workload, NarrowCacheAttention)


CUDNN = page("decode-cudnn", {"torch-sdpa-cudnn": {WGMMA: cudnn_launch}}, "cuDNN 9.19's kernels as profiled", covers_cudnn)
MODELS = {model.name: model for model in (FA2, FA3, TRTLLM, CUDNN)}
