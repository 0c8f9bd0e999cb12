"""How PyTorch's scaled_dot_product_attention cuts few queries over many keys: FlashAttention-2 as PyTorch builds it, and cuDNN.

Both multiply with mma.sync, on Hopper too. FlashAttention-2 pads the rows of a KV head to a tile of 64 or 128, so that its
matmuls count; cuDNN takes 16 rows.

Sources: pytorch/pytorch @03b7c19d aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_fwd, set_params_splitkv);
grids, registers and durations of both kernels from a profile of torch 2.11 on an H200. cuDNN is closed: its split rule is what
those grids show.
"""

from __future__ import annotations

from perfmodel.arith import ceil_div
from perfmodel.attention.algorithms.split_kv import BLOCKS_PER_MULTIPROCESSOR, num_splits
from perfmodel.attention.tiles import fa2_tile
from perfmodel.cost import Tile
from perfmodel.errors import UnavailableError
from perfmodel.hardware import Device
from perfmodel.timing.models._decode_kernels import PACKED_ROWS, Decode, resident
from perfmodel.timing.models._flash_plan import padded
from perfmodel.workload import FORWARD, Attention

MMA_SHARE = {"8": 1.0, "9": 0.62}
"""Of the tensor peak that mma.sync reaches, by compute capability: on Hopper only wgmma reaches it. Luo et al. 2024, arXiv 2402.13499."""
REGISTERS = 256
"""Per thread: 255 are used, of which a multiprocessor has 65,536."""
FLASH_PARTIAL_CYCLES = 350
"""Clocks per split in FlashAttention-2's combine kernel: one L2 access after another. From its durations with 8 to 64 splits."""

# cuDNN
ROWS, KEYS = 16, 128
LEAST_TILES = 8
"""Tiles of a head that is split at all."""
CUDNN_PARTIAL_CYCLES = 60
"""From the durations of its reduction with 8 to 64 splits."""


def flash(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """FlashAttention-2: 64 rows and keys that are split, or where the heads fill the device, the prefill kernel's tile.

    Heads of a KV group are rows of one block for a single query; nothing is transposed for it.
    """
    packed = w.n == 1 and w.group > 1
    heads, rows = (w.stored_kv_heads, w.group) if packed else (w.query_heads, w.n)
    bc = 256 if w.d <= 64 else 128 if w.d <= 128 else 64
    slots = BLOCKS_PER_MULTIPROCESSOR * multiprocessors
    splits = num_splits(int(heads * ceil_div(rows, PACKED_ROWS)), slots, int(ceil_div(w.kv_len, bc)))
    tile = Tile(PACKED_ROWS, bc) if splits > 1 else fa2_tile(w, device, device.sram_per_block, FORWARD)
    if tile is None:
        raise UnavailableError(
            f"{device.id} cannot hold a tile of FlashAttention-2 with head dim {max(w.d, w.dv)}", "take a smaller head dim"
        )
    row_tiles = int(ceil_div(rows, tile.br))
    sram = (tile.br * padded(w.d) + tile.bc * (padded(w.d) + padded(w.dv))) * w.dtype.size
    return Decode(
        int(heads * row_tiles) * splits,
        splits,
        int(ceil_div(ceil_div(w.kv_len, tile.bc), splits)),
        resident(sram, device, 65536 // (REGISTERS * tile.threads)),
        block_steps=1,
        tile_steps=1,
        combine_steps=2 * (splits > 1),
        gaps=int(splits > 1),
        rereads=row_tiles * (1 if packed else w.group),
        partial_cycles=FLASH_PARTIAL_CYCLES,
        tile_cycles=_tile_cycles(w, tile, device),
    )


def _tile_cycles(w: Attention, tile: Tile, device: Device) -> float:
    """Clocks of a tile's two matmuls, then of its exponentials: warps of a block wait for each other between them."""
    peak, exp = device.peaks_of("tensor").get(w.dtype.name), device.peaks.exp
    if peak is None or peak.per_clk is None or exp is None or exp.per_clk is None:
        raise UnavailableError(f"{device.id} lacks the FLOP or exponentials per clock in its profile", "add peaks with per_clk")
    scores = tile.br * tile.bc
    return scores * (
        2 * (padded(w.d) + padded(w.dv)) / (peak.per_clk * MMA_SHARE[(device.compute_capability or "").partition(".")[0]]) + 1 / exp.per_clk
    )


def cudnn(w: Attention, device: Device, multiprocessors: int) -> Decode:
    """cuDNN: as many splits as fill two blocks per multiprocessor, none of them without a tile; few tiles or many heads are not split."""
    tiles, blocks = int(ceil_div(w.kv_len, KEYS)), int(w.stored_kv_heads * ceil_div(w.n * w.group, ROWS))
    splits = 1
    if tiles >= LEAST_TILES and 2 * blocks <= multiprocessors:
        splits = min(tiles, BLOCKS_PER_MULTIPROCESSOR * multiprocessors // blocks)
    return Decode(
        blocks * splits,
        splits,
        int(ceil_div(tiles, splits)),
        max(1, REGISTERS // max(w.d, w.dv)),
        block_steps=1,
        tile_steps=0.5,
        combine_steps=2 * (splits > 1),
        gaps=int(splits > 1),
        partial_cycles=CUDNN_PARTIAL_CYCLES,
    )
