"""The tile of C that one thread block of a matmul computes, and whether it fits on the chip."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import TENSOR, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device, MemoryLevel
from perfmodel.core.occupancy import RESERVED_BYTES, ThreadBlock
from perfmodel.core.units import Quantity, format_binary

SLICE_DEPTH = 32
"""Depth of the slices of A and B in SRAM, the BK of CUTLASS's 16-bit kernels."""
ACCUMULATOR_SIZE = 4
"""Bytes of a partial sum: fp32."""
TENSOR_TILE = 128
"""Edge of the default tile of 16-bit matmuls on a tensor unit: the middle of cuBLAS's and CUTLASS's tiles."""
SQUARE_TILE = Tile(TENSOR_TILE, TENSOR_TILE)
WIDE_COLUMNS = 256
"""Columns of that tile where the matrix instruction reads SRAM, on Hopper and B200: cuBLAS runs 128 x 256 there."""
GIVEN = "given"
"""Origin of a tile whose edges a user gives."""
CLUSTER = 2
"""Blocks of a cluster on Hopper and B200, which share the loads of one operand. Source: kernel names of cuBLAS of CUDA 13, 2x1 and 1x2."""
SMALLEST_ROWS = 16
"""Fewest rows of a tile: the rows of one matrix instruction."""
ACCUMULATORS_PER_THREAD = 128
"""Sums that one thread holds: a warp works on 64 x 64 of C, as in CUTLASS's 128 x 128 kernel of four warps."""


def slices_bytes(tile: Tile, size: Number) -> Number:
    """SRAM of one block: a slice of A and one of B."""
    return (tile.br + tile.bc) * SLICE_DEPTH * size


def tile_threads(br: int, bc: int) -> int:
    """Threads of the block that works on a tile: 128 sums each, in groups of four warps, one per sub-partition; at most 1,024.

    >>> tile_threads(128, 128), tile_threads(256, 128), tile_threads(16, 16)
    (128, 256, 128)
    """
    return min(128 * -(-br * bc // (128 * ACCUMULATORS_PER_THREAD)), 1024)


def tile_rows(rows: Number, most: int = TENSOR_TILE) -> int:
    """Edge of a tile along ``rows`` rows or columns: the next power of two, at least 16 and at most ``most``.

    >>> tile_rows(1), tile_rows(20), tile_rows(4096)
    (16, 32, 128)
    """
    return min(max(1 << (int(rows) - 1).bit_length(), SMALLEST_ROWS), most)


def product_tile(shape: tuple[Number, Number], largest: Tile) -> Tile:
    """``largest`` with edges no longer than a product with ``shape`` (rows, columns) needs, and the threads of that tile."""
    br, bc = (tile_rows(length, int(edge)) for length, edge in zip(shape, (largest.br, largest.bc), strict=True))
    return largest._replace(br=br, bc=bc, threads=tile_threads(br, bc))


class OnChip(NamedTuple):
    """Fast memory of one block in bytes: SRAM, and the registers of a multiprocessor (0 where unknown)."""

    sram: int
    registers: int

    @property
    def total(self) -> int:
        """M in bytes."""
        return self.sram + self.registers


def on_chip(device: Device) -> OnChip:
    """Fast memory on ``device``; UnavailableError if its profile has no SRAM per block."""
    registers = device.limits.registers_per_multiprocessor
    return OnChip(device.sram_per_block, 0 if registers is None else 4 * int(registers.number))


def check_sram(size: int, device: Device) -> None:
    """UsageError for a block with more SRAM than all multiprocessors of ``device`` have together; less is allowed as a what-if."""
    level, count = device.level("sram"), device.multiprocessors
    if level is None or level.capacity is None or count is None or size <= level.capacity.number * count.number:
        return
    block = level.per_block or level.capacity
    raise UsageError(
        f"--sram is {size} B, more than a block on {device.id} can have, and than all its multiprocessors",
        f"give at most {block.number} B, such as {format_binary(int(block.number))}; DRAM is not SRAM",
    )


def with_sram(device: Device, size: int) -> Device:
    """``device`` with ``size`` bytes of SRAM per block, and on each multiprocessor at least as many; UsageError as ``check_sram``."""
    check_sram(size, device)
    quantity = Quantity(f"{size} B", "derived", "given", size)
    level = device.level("sram") or MemoryLevel("sram", "multiprocessor", "SRAM")
    room = Quantity(f"{size + RESERVED_BYTES} B", "derived", "given", size + RESERVED_BYTES)
    capacity = room if level.capacity is None or level.capacity.number < room.number else level.capacity
    others = [other for other in device.memory if other.level != "sram"]
    memory = [replace(level, per_block=quantity, capacity=capacity), *others]
    return replace(device, memory=memory, sources={**device.sources, "given": "--sram"})


def held_bytes(tile: Tile, size: int, chip: OnChip) -> tuple[int, int]:
    """Bytes of SRAM and of registers that ``tile`` takes; sums are in SRAM if the profile has no registers."""
    slices, sums = int(slices_bytes(tile, size)), tile.br * tile.bc * ACCUMULATOR_SIZE
    return (slices, sums) if chip.registers else (slices + sums, 0)


def fits(tile: Tile, size: int, chip: OnChip) -> bool:
    """Whether ``tile`` and its slices fit."""
    sram, registers = held_bytes(tile, size, chip)
    return sram <= chip.sram and registers <= chip.registers


def choose_tile(
    dtype: Dtype, chip: OnChip, shape: tuple[Number, Number], largest: Tile, br: int | None = None, bc: int | None = None
) -> Tile:
    """The given tile, else ``largest`` for 16 bit on a tensor unit, else the largest power-of-two square up to 128.

    Edges that are not given are no longer than ``shape`` needs.

    UsageError if it does not fit, with how much is missing and a tile that would fit.
    """
    for option, given in (("tile-m", br), ("tile-n", bc)):
        if given is not None:
            positive_int(option, given)
    size, origin = dtype.size, "largest power-of-two square that fits"
    squares = (TENSOR_TILE >> shift for shift in range(TENSOR_TILE.bit_length()))
    square = next((edge for edge in squares if fits(Tile(edge, edge), size, chip)), None)
    columns = square or 1
    if square == TENSOR_TILE and size == 2 and dtype.matmul_unit == TENSOR:
        origin = "default for 16 bit on a tensor unit, as in CUTLASS"
        if br is None and fits(largest, size, chip):
            columns = int(largest.bc)
    tile = product_tile(shape, largest._replace(br=square or 1, bc=columns))
    tile = tile._replace(br=br or tile.br, bc=bc or tile.bc, origin=origin if br is bc is None else GIVEN)
    if not fits(tile, size, chip):
        raise _misfit(tile, size, chip, square)
    return tile._replace(threads=tile_threads(tile.br, tile.bc))


def _misfit(tile: Tile, size: int, chip: OnChip, square: int | None) -> UsageError:
    sram, registers = held_bytes(tile, size, chip)
    if sram > chip.sram:
        resource, needed, has = "SRAM per block", sram, chip.sram
    else:
        resource, needed, has = "registers per multiprocessor", registers, chip.registers
    message = f"a {tile.br} x {tile.bc} tile needs {needed:,} B of {resource}, {needed - has:,} B more than the {has:,} B there are"
    fix = "give a device (or --sram) with more SRAM per block" if square is None else f"--tile-m {square} --tile-n {square} fits"
    return UsageError(message, fix)


def tile_block(tile: Tile, size: Number, device: Device) -> ThreadBlock:
    """The thread block of ``tile``: its slices in SRAM, and the most registers per thread, which large sums need."""
    per_thread, per_multiprocessor = device.limits.max_registers_per_thread, device.limits.registers_per_multiprocessor
    registers = None if per_thread is None else int(per_thread.number)
    if registers is not None and per_multiprocessor is not None:
        registers = min(registers, int(per_multiprocessor.number) // tile.threads // 8 * 8)  # nvcc allots them in eights
    return ThreadBlock(tile.threads, registers, slices_bytes(tile, size))
