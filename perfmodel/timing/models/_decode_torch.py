"""How PyTorch's scaled_dot_product_attention cuts few queries over many keys: FlashAttention-2 as PyTorch builds it, and cuDNN.

Neither is written for Hopper: both multiply by mma.sync, block by block. FlashAttention-2 pads the rows of a KV head to a tile
of 64 or 128, so that its work counts beside streaming; cuDNN takes 16 rows.

Sources: pytorch/pytorch @03b7c19d aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_fwd, set_params_splitkv);
grids, registers and durations of both kernels in a profile of torch 2.11 on an H200. cuDNN is closed: its rules are what those
grids show for head dims 64 and 128; others are supposed to run as the next power of two.
"""

from __future__ import annotations

from perfmodel.core.arith import ceil_div
from perfmodel.core.cost import Tile
from perfmodel.core.errors import UnavailableError
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, default_tile, num_splits
from perfmodel.kernels.attention.tiles import fa2_tile
from perfmodel.timing.models._decode_kernels import Decode, resident

REGISTERS, REGISTERS_PER_THREAD = 65536, 256
"""Of a multiprocessor; of FlashAttention-2's kernels, which use 255."""
FLASH_PARTIAL_CYCLES = 350
"""Clocks per split in FlashAttention-2's combine kernel: one L2 access after the other. From its durations at 8 to 64 splits."""

# cuDNN
ROWS, KEYS = 16, 128
UNSPLIT_KEYS, LEAST_SPLITS = 512, 4
COLUMNS_PER_SM = 256
"""Head dims of the blocks that registers allow: 4 blocks of 64 (120 registers a thread), 2 of 128 (183)."""
CUDNN_PARTIAL_CYCLES = 60
"""From the durations of its reduction at 8 to 64 splits."""
FLASH_STEPS, CUDNN_STEPS = (1, 1, 2), (1, 0.5, 2)
"""Waits of a block besides its tiles, per tile (of cuDNN more for wide heads), and of the combine kernel. Cross-validated."""
TUNED = ("FLASH_PARTIAL_CYCLES", "CUDNN_PARTIAL_CYCLES", "FLASH_STEPS", "CUDNN_STEPS")
"""Chosen on measurements that fits may see, beside the fitted parameters."""
KNOWN = ("REGISTERS", "REGISTERS_PER_THREAD", "ROWS", "KEYS", "UNSPLIT_KEYS", "LEAST_SPLITS", "COLUMNS_PER_SM")
"""Given by hardware, by the source of a kernel, or by definition."""


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
    return Decode(
        int(heads) * row_tiles * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, tile.bc), splits)),
        resident(sram, device, REGISTERS // (REGISTERS_PER_THREAD * tile.threads)),
        block_steps=FLASH_STEPS[0],
        tile_steps=FLASH_STEPS[1],
        combine_steps=FLASH_STEPS[2] * (splits > 1),
        gaps=int(splits > 1),
        rereads=row_tiles * (1 if packed else int(w.group)),
        partial_cycles=FLASH_PARTIAL_CYCLES,
        pipelined=True,
        tile_cycles=_tile_cycles(w, tile, device),
    )


def _tile_cycles(w: Attention, tile: Tile, device: Device) -> float:
    """Clocks of a tile's two matmuls and, since its few warps do not hide them behind each other, of its exponentials."""
    peak, exp = device.peaks_of("tensor").get(w.dtype.name), device.peaks.exp
    if peak is None or peak.per_clk is None or exp is None or exp.per_clk is None:
        raise UnavailableError(
            f"{device.id} lacks FLOP or exponentials per clock in its profile", "add per_clk to its tensor and exp peaks"
        )
    return float(tile.br * tile.bc * (4 * tile.head_dim / peak.per_clk + 1 / exp.per_clk))


def cudnn(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """cuDNN: a power of two of splits, at most what fills two blocks per multiprocessor and gives each a whole tile; 4 or none."""
    width = 1 << (max(w.d, w.dv) - 1).bit_length()
    row_tiles = int(ceil_div(w.n * w.group, ROWS))
    blocks, splits = int(w.stored_kv_heads) * row_tiles, 1
    if w.kv_len > UNSPLIT_KEYS:
        most = min(BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks, int(w.kv_len) // KEYS)
        splits = 1 << (most.bit_length() - 1) if most >= LEAST_SPLITS else 1
    return Decode(
        blocks * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, KEYS), splits)),
        max(1, COLUMNS_PER_SM // width),
        block_steps=CUDNN_STEPS[0],
        tile_steps=CUDNN_STEPS[1] * (1 + width / 128),  # a wait, and loads of so many columns by 128 threads
        combine_steps=CUDNN_STEPS[2] * (splits > 1),
        gaps=int(splits > 1),
        rereads=row_tiles,
        partial_cycles=CUDNN_PARTIAL_CYCLES,
        pipelined=True,
    )
