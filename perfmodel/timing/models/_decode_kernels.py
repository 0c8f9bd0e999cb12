"""How the decode kernels of vLLM cut few queries over many keys: blocks, splits, resident blocks, kernels around them.

FlashAttention-2 up to compute capability 8.9, FlashAttention-3 on 9.0, TensorRT-LLM's generation kernels on 10.x. Steps are
dependent waits, counted in the latency that a model fits; their counts were set by cross-validation.

Sources: vllm-project/flash-attention @617264c1 csrc/flash_attn/flash_api.cpp (set_params_splitkv, mha_varlen_fwd), hopper/heuristics.h,
hopper/tile_size.h, hopper/flash_prepare_scheduler.cu, hopper/tile_scheduler.hpp; flashinfer-ai/flashinfer @fb28d724
include/flashinfer/trtllm/fmha/fmhaKernels.cuh (computeCtaAndClusterConfig).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.units import Quantity
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, default_tile, effective_splits, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.timing.models._attention_grid import padded

PACKED_ROWS = 64  # known
"""Query rows of a FlashAttention tile in decode."""
APPENDED = 1  # known
"""Keys of the new token, which vLLM appends to a cache of ``kv_len`` keys before the kernel reads it."""
PARTIAL_CYCLES = 100  # tuned
"""Clocks per split in vLLM's combine kernels: an L2 access (about 270 clocks), a few in flight. Cross-validated."""

# FlashAttention-3
GRAPH_SPLITS = 32  # known: vLLM's bound on splits under CUDA graphs, VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH
SPLIT_BATCHES = 992  # known: a larger batch is not split
SPREAD = 1.1  # known: tiles per multiprocessor are rounded up with this margin
BATCHES_PER_LOOK = 31  # known: sequences that the scheduler's warp passes at once in its search for the next block
LOOK_STEPS = 0.3  # tuned
"""Waits per look of FlashAttention-3's scheduler for its next block."""
FA2_STEPS, FA3_STEPS, TRTLLM_STEPS = (1, 1.5, 2), (1, 0.5, 1), (1, 0.1, 1)  # tuned
"""Waits of a block besides its tiles, per tile, and of the combine kernel. Cross-validated."""
# TensorRT-LLM
STEP_KEYS, STEPS_PER_SPLIT, GROUP_ROWS = 256, 2, 16  # known


@dataclass(frozen=True, slots=True)
class Decode:
    """One launch. ``blocks`` run ``resident`` per multiprocessor; each streams ``tiles`` tiles of ``rereads`` times the cache / ``blocks``.

    ``block_steps``: waits of a block besides its tiles; ``tile_steps``: waits per tile that no other tile hides.
    ``combine_steps``, ``gaps``, ``copies``: waits and launches after the streaming kernel, and whole passes over Q and O.
    ``partial_cycles``: clocks per split in the combine kernel. ``pipelined``: a block works on a tile while it loads the next;
    ``tile_cycles``: clocks for which that work occupies the multiprocessor's units, the blocks there one after the other.
    ``partial_bytes``: of the outputs of all splits, in fp32, which the combine kernel reads.
    """

    blocks: int
    splits: int
    tiles: int
    resident: int
    block_steps: float
    tile_steps: float
    combine_steps: float
    gaps: int = 0
    copies: int = 0
    rereads: int = 1
    partial_cycles: int = PARTIAL_CYCLES
    pipelined: bool = False
    tile_cycles: float = 0.0
    partial_bytes: float = 0.0


def fa2(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """FlashAttention-2: heads of a KV group are rows of one block, and keys are split, only for a single query.

    Then Q and O are transposed by kernels of their own (a plain copy of O where there is nothing to transpose). K and V of
    a tile are waited for one after the other.
    """
    bc = 256 if w.d <= 64 else 128 if w.d <= 128 else 64
    tiles, packed = int(ceil_div(w.kv_len, bc)), w.n == 1 and w.group > 1
    heads = w.stored_kv_heads if packed else w.query_heads
    blocks, splits = int(heads * ceil_div(w.n * (w.group if packed else 1), PACKED_ROWS)), 1
    if packed:
        splits = int(effective_splits(tiles, w.splits or num_splits(blocks, BLOCKS_PER_MULTIPROCESSOR * multiprocessors, tiles)))
    transposed = packed and w.batch > 1 and w.kv_heads > 1
    extra = splits > 1
    return Decode(
        blocks * splits,
        splits,
        int(ceil_div(tiles, splits)),
        resident((PACKED_ROWS + 2 * bc) * max(w.d, w.dv) * w.dtype.size, device),
        *FA2_STEPS[:2],
        FA2_STEPS[2] * extra + 2 * transposed,
        gaps=extra + (2 if transposed else packed),
        copies=4 if transposed else 2 * packed,
        rereads=1 if packed else int(w.group * ceil_div(w.n, PACKED_ROWS)),
    )


def resident(sram_bytes: int, device: Device, most: int = BLOCKS_PER_MULTIPROCESSOR) -> int:
    """Resident blocks per multiprocessor, each with ``sram_bytes``; registers allow ``most``, by default two of 128 threads."""
    sram = device.level("sram")
    if sram is None or sram.capacity is None:
        raise UnavailableError(f"{device.id} has no SRAM capacity in its profile", "the model needs it for the blocks that run at once")
    return max(1, min(most, int(sram.capacity.number // sram_bytes)))


def fa3(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """FlashAttention-3 with a paged cache: persistent blocks, one per multiprocessor, splits chosen per sequence on the device.

    Its combine kernel starts early (programmatic dependent launch) and does nothing where nothing was split.
    """
    single = w.d in (64, 128) and w.n * w.group <= PACKED_ROWS
    bc = 192 if w.d <= 64 else 128 if w.d <= 128 else 80
    tiles = int(ceil_div(w.kv_len + APPENDED, bc))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, PACKED_ROWS if single else 2 * PACKED_ROWS))
    most = 1 if w.batch > SPLIT_BATCHES else w.splits or GRAPH_SPLITS
    per_multiprocessor = -int(-tiles * blocks * SPREAD // multiprocessors)
    splits = max(1, min(int(ceil_div(tiles, per_multiprocessor)), most))
    looks = multiprocessors / (BATCHES_PER_LOOK * w.kv_heads * splits)
    block, tile, combine = FA3_STEPS
    combine *= splits > 1
    return Decode(blocks * splits, splits, int(ceil_div(tiles, splits)), 1, block + LOOK_STEPS * looks, tile, float(combine))


def trtllm(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """TensorRT-LLM: as many splits as fill the device once, of 512 keys or more; the blocks of a head reduce among themselves."""
    steps = int(ceil_div(w.kv_len + APPENDED, STEP_KEYS))
    blocks = int(w.stored_kv_heads * ceil_div(w.n * w.group, GROUP_ROWS))
    splits = w.splits or min(int(ceil_div(steps, STEPS_PER_SPLIT)), max(1, multiprocessors // blocks))
    block, tile, combine = TRTLLM_STEPS
    return Decode(blocks * splits, splits, int(ceil_div(steps, splits)), 1, block, tile, float(combine * (splits > 1)))


REGISTERS, REGISTERS_PER_THREAD = 65536, 256  # known
"""Registers of a multiprocessor; registers per thread of FlashAttention-2's kernels (255, rounded up to 256)."""
PARTIAL_SIZE = 4  # known
FLASH_COMBINED_ROWS = {0: 4, 64: 8}  # known
"""Rows of a block of FlashAttention-2's combine kernel by head dim modulo 128, else 16 (flash_fwd_launch_template.h)."""
FLASH_PARTIAL_CYCLES = (280, 25)  # tuned
"""Clocks per split in FlashAttention-2's combine kernel, one L2 access after the other, and for each element of a thread. From its
durations at 2 to 128 splits."""
FLASH_STEPS = (1, 0.55, 0.72, 1.5)  # tuned
"""Waits of a block besides its tiles, per tile, per 32 KiB of its keys, and of the combine kernel. Cross-validated."""
FLASH_NARROWER, FLASH_MASKED = 1.22, 1.2  # tuned
"""Waits and work of a tile over those elsewhere: where heads are narrower than the kernel, which checks the columns of each load, and
under a causal mask."""
SOFTMAX_CYCLES = 1.3  # tuned
"""Clocks of FlashAttention-2's softmax over those of its exponentials."""

# cuDNN 9, as its kernels' names and grids say
ROWS, KEYS, MOST_COLUMNS, LEAST_WIDTH = 16, 128, 128, 64  # known
"""Its tile; columns of V that a block takes, so that two share wider heads; columns of its narrowest kernel."""
SHORT_TILE, SHORT_KEYS, UNSHARED_KEYS = (64, 64), 128, 256  # known
"""Another tile up to that many keys, and up to twice as many where query heads are no more than multiprocessors."""
UNSPLIT_KEYS, LEAST_SPLITS, MOST_SPLITS = 512, 4, 64  # known
COLUMNS_PER_SM = 256  # known
"""Columns of the blocks that registers allow: 4 blocks of 64 (120 registers a thread), 2 of 128 (160 to 186); short tiles 3 and 2."""
CUDNN_PARTIAL_CYCLES = 60  # tuned
"""From the durations of its reduction at 8 to 64 splits."""
CUDNN_COMBINE_STEPS = 1.35  # tuned
"""Waits of cuDNN's reduction of splits. Cross-validated."""
CUDNN_TILE_STEPS = {64: (0.56, 0.12), 128: (0.73, 0.15), 256: (2.5, 1.6)}  # tuned
"""Waits per tile by width of the kernel, of its tile and of the short one. Cross-validated."""
MOST_FLOP = 4096  # known
"""Of a multiprocessor per clock, of Hopper, on which the constants were tuned: later units are faster, but not by mma.sync."""
CUDNN_MMA = 2.4  # tuned
"""Clocks of its matmuls, mma.sync of few rows, over those at the tensor unit's peak."""
SECTOR_COLUMNS, STRADDLING = 16, 1.16  # known, tuned
"""Columns of a sector of DRAM, 32 B; waits and work per tile where rows of K and V do not start on one."""


def flash(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """FlashAttention-2: a tile of 64 rows and keys that are split, or the prefill kernel where heads fill the device without.

    Query heads of a KV group are rows of one block only for a single query.
    """
    packed = w.n == 1 and w.group > 1
    heads, rows = (w.stored_kv_heads, w.group) if packed else (w.query_heads, w.n)
    tile, unsplit = (choose(w, device, device.sram_per_block, FORWARD) for choose in (default_tile, fa2_tile))
    if tile is None or unsplit is None:
        raise UnavailableError(f"{device.id} cannot hold a tile of FlashAttention-2 with head dim {w.d}", "take a smaller head dim")
    slots = BLOCKS_PER_MULTIPROCESSOR * multiprocessors
    splits = num_splits(int(heads * ceil_div(rows, tile.br)), slots, int(ceil_div(w.kv_len, tile.bc)))
    tile = tile if splits > 1 else unsplit
    row_tiles = int(ceil_div(rows, tile.br))
    sram = (tile.br + 2 * tile.bc) * tile.head_dim * w.dtype.size
    slower = (1.0 if padded(w.d) == w.d else FLASH_NARROWER) * (FLASH_MASKED if w.causal and w.n > 1 else 1.0)
    steps = FLASH_STEPS[1] + FLASH_STEPS[2] * tile.bc * tile.head_dim * w.dtype.size / 32768
    elements = FLASH_COMBINED_ROWS.get(tile.head_dim % 128, 16) * tile.head_dim / 128  # of each of 128 threads
    return Decode(
        int(heads) * row_tiles * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, tile.bc), splits)),
        resident(sram, device, REGISTERS // (REGISTERS_PER_THREAD * tile.threads)),
        FLASH_STEPS[0],
        steps * slower,
        FLASH_STEPS[3] * (splits > 1),
        gaps=int(splits > 1),
        rereads=row_tiles * (1 if packed else int(w.group)),
        partial_cycles=int(FLASH_PARTIAL_CYCLES[0] + FLASH_PARTIAL_CYCLES[1] * elements),
        pipelined=True,
        tile_cycles=_tile_cycles(tile.br * tile.bc, 4 * tile.head_dim, SOFTMAX_CYCLES, w, device) * slower,
        partial_bytes=_partial_bytes(w, splits, tile.head_dim),
    )


def _partial_bytes(w: Attention, splits: int, columns: int) -> float:
    return float(splits * w.query_heads * w.n * columns * PARTIAL_SIZE) if splits > 1 else 0.0


def _tile_cycles(scores: int, flops: float, exps: float, w: Attention, device: Device) -> float:
    """Clocks of a tile's ``flops`` and ``exps`` per score; few warps do not hide the one behind the other."""
    unit = device.matmul_unit(w.dtype.name, "tensor")
    flop_rate = _per_clk(device, device.peaks_of(unit)[w.dtype.name], device.stated_clock(w.dtype.name, unit))
    exp_rate = _per_clk(device, device.peaks.exp, device.clocks.vector)
    if flop_rate is None or exp_rate is None:
        raise UnavailableError(
            f"{device.id} lacks FLOP or exponentials per clock in its profile", "add per_clk to its tensor and exp peaks"
        )
    return float(scores * (flops / min(flop_rate, MOST_FLOP) + exps / exp_rate))


def _per_clk(device: Device, peak: Quantity | None, clock: Quantity | None) -> float | None:
    """Operations of a multiprocessor per clock; None where the profile does not say."""
    if peak is None or peak.per_clk is not None:
        return None if peak is None else peak.per_clk
    return None if clock is None or device.multiprocessors is None else peak.number / (clock.number * device.multiprocessors.number)


def cudnn(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """cuDNN: a power of two of splits, at most what fills two blocks per multiprocessor and gives each a whole tile; 4 or none.

    Heads wider than ``MOST_COLUMNS`` take two blocks, each with all of K and half of V.
    """
    width = max(LEAST_WIDTH, 1 << (max(w.d, w.dv) - 1).bit_length())
    short = w.kv_len <= SHORT_KEYS or (w.kv_len <= UNSHARED_KEYS and w.query_heads <= multiprocessors)
    rows, keys = SHORT_TILE if short else (ROWS, KEYS)
    halves, columns = int(ceil_div(width, MOST_COLUMNS)), min(width, MOST_COLUMNS)
    row_tiles = int(ceil_div(w.n * w.group, rows))
    blocks, splits = int(w.stored_kv_heads) * row_tiles, 1
    if w.kv_len > UNSPLIT_KEYS:
        most = min(BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks, int(w.kv_len) // KEYS, MOST_SPLITS)
        splits = 1 << (most.bit_length() - 1) if most >= LEAST_SPLITS else 1
    slower = STRADDLING if w.d % SECTOR_COLUMNS else 1.0
    return Decode(
        blocks * halves * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, keys), splits)),
        COLUMNS_PER_SM // columns - (short and width == LEAST_WIDTH),
        block_steps=0.0,
        tile_steps=CUDNN_TILE_STEPS[width][short] * slower,
        combine_steps=CUDNN_COMBINE_STEPS * (splits > 1),
        gaps=int(splits > 1),
        rereads=row_tiles,
        partial_cycles=CUDNN_PARTIAL_CYCLES,
        pipelined=True,
        tile_cycles=_tile_cycles(rows * keys, 2 * (width + columns) * CUDNN_MMA, 1.0, w, device) * slower,
        partial_bytes=_partial_bytes(w, splits, width),
    )
