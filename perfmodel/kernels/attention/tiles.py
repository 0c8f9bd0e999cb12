"""The tile of an algorithm: the one given, the published kernel's, or the largest that fits."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.core.cost import Tile
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_binary
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.base import Algorithm, Tiling

LARGEST_EDGE = 128
"""Edge of the largest square tile proposed if no published kernel sets one; the largest edge of FlashAttention-2."""
_FA2 = "FlashAttention-2's"


class _Row(NamedTuple):
    """A tile of FlashAttention-2's launch templates and the conditions for its choice; None means any."""

    direction: str
    head_dim: int
    br: int
    bc: int
    warps: int
    dropout: bool | None = None
    causal: bool | None = None
    small_sram: bool | None = None  # compute capability 8.6 or 8.9
    min_sram_per_block: int = 0
    max_sram_per_multiprocessor: int = 1 << 62


_KIB = 1024
# Dao-AILab/flash-attention @0251105a csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h. The first row that applies.
_FA2_ROWS = (
    _Row(FORWARD, 32, 128, 128, 4),
    _Row(FORWARD, 64, 128, 128, 4, dropout=False),
    _Row(FORWARD, 64, 128, 64, 4, dropout=True),
    _Row(FORWARD, 96, 64, 64, 4, causal=True, small_sram=True),
    _Row(FORWARD, 96, 128, 64, 4),
    _Row(FORWARD, 128, 64, 64, 4, dropout=False, causal=True, small_sram=True),
    _Row(FORWARD, 128, 128, 32, 4, dropout=False, small_sram=True),
    _Row(FORWARD, 128, 128, 64, 4, dropout=False),
    _Row(FORWARD, 128, 128, 32, 4, dropout=True),
    _Row(FORWARD, 192, 128, 64, 8, dropout=False),
    _Row(FORWARD, 192, 64, 64, 4, dropout=True),
    # 128 x 64 only where two blocks of 64 x 64 do not fit one multiprocessor anyway (A100)
    _Row(FORWARD, 256, 128, 64, 8, min_sram_per_block=128 * _KIB, max_sram_per_multiprocessor=192 * _KIB),
    _Row(FORWARD, 256, 64, 64, 4),
    _Row(BACKWARD, 32, 128, 128, 8),
    _Row(BACKWARD, 64, 128, 128, 8, min_sram_per_block=144 * _KIB),
    _Row(BACKWARD, 64, 64, 128, 8),
    _Row(BACKWARD, 96, 64, 128, 8),
    _Row(BACKWARD, 128, 64, 128, 8, min_sram_per_block=144 * _KIB),
    _Row(BACKWARD, 128, 64, 64, 8),
    _Row(BACKWARD, 192, 64, 64, 8, min_sram_per_block=136 * _KIB),
)


def fa2_tile(w: Attention, device: Device, sram_bytes: int, direction: str) -> Tile | None:
    """Tile of FlashAttention-2's kernel for this head dim, or None: not 16 bit, a head dim over 256, too little SRAM."""
    if w.dtype.name not in ("fp16", "bf16"):
        return None
    rows = [row for row in _FA2_ROWS if row.direction == direction and row.head_dim >= max(w.d, w.dv)]
    compiled_head_dim = min((row.head_dim for row in rows), default=0)
    sram = device.level("sram")
    capacity = sram.capacity.number if sram and sram.capacity else 0
    for row in rows:
        if (
            row.head_dim == compiled_head_dim
            and row.dropout in (None, w.dropout > 0)
            and row.causal in (None, w.causal)
            and row.small_sram in (None, device.compute_capability in ("8.6", "8.9"))
            and row.min_sram_per_block <= sram_bytes
            and capacity <= row.max_sram_per_multiprocessor
        ):
            return Tile(row.br, row.bc, 32 * row.warps, _FA2, row.head_dim)
    return None


def tallest(rows: int) -> int:
    """Rows of the tallest tile for ``rows`` query rows: the next power of two, up to LARGEST_EDGE.

    >>> tallest(1), tallest(5), tallest(10**6)
    (1, 8, 128)
    """
    return min(1 << max(rows - 1, 0).bit_length(), LARGEST_EDGE)


def fitting_tile(
    algorithm: Algorithm, w: Attention, device: Device, direction: str, sram_bytes: int, br: int | None = None, bc: int | None = None
) -> Tile:
    """The tile of ``algorithm`` for one pass, before its ``complete``: ``br`` and ``bc`` if given, else its default.

    Lengths matter only through the query rows up to LARGEST_EDGE (``tallest``). If the tile does not fit ``sram_bytes``, the UsageError
    says how much is missing and which tile would fit.
    """
    tiling = algorithm.tiling
    if tiling is None:
        return Tile(1, 1)

    def fits(tile: Tile) -> bool:
        return bool(tiling.sram_elements(w, tile, direction) * w.dtype.size <= sram_bytes)

    tile, rows = tiling.default(w, device, sram_bytes, direction), tallest(w.row_group * w.n)
    edges = (LARGEST_EDGE >> shift for shift in range(LARGEST_EDGE.bit_length()))
    squares = (Tile(min(edge, rows), edge, origin="largest power-of-two square that fits") for edge in edges)
    square = next(filter(fits, squares), None)
    if tile is None or not (fits(tile) or tiling.settles_work(w)):
        tile = square or Tile(1, 1)
    if br is not None or bc is not None:
        tile = tile._replace(br=br or tile.br, bc=bc or tile.bc, origin="given", head_dim=0)
    if not fits(tile):
        raise _misfit(algorithm, tiling, w, direction, sram_bytes, tile, square)
    return tile


def _misfit(
    algorithm: Algorithm, tiling: Tiling, w: Attention, direction: str, sram_bytes: int, tile: Tile, fitting: Tile | None
) -> UsageError:
    needed = tiling.sram_elements(w, tile, direction) * w.dtype.size
    tile_text = f"{algorithm.name} {direction}: a {tile.br} x {tile.bc} tile"
    if fitting is None:
        tile_text = f"{algorithm.name} {direction}: --d {w.d} is larger than any tile: even {tile.br} x {tile.bc}"
    missing = f"{needed - sram_bytes:,} B more than the {sram_bytes:,} B of a block"
    message = f"{tile_text} keeps {tiling.resident[direction]} in SRAM, {needed:,} B, {missing}"
    if fitting is None:
        return UsageError(message, "give a smaller --d or a device (or --sram) with more SRAM per block")
    return UsageError(message, f"--block-q {fitting.br} --block-kv {fitting.bc} fits (SRAM: {format_binary(sram_bytes)})")
