"""C = A B, tiled and output-stationary: counts, tile, waves, the IO lower bound, and each number as its formula.

One thread block per tile of C, which stays in registers while slices of A and B, ``SLICE_DEPTH`` deep, stream through SRAM.
With split-k, ``split_k`` blocks share a tile: each stores an fp32 partial sum and a second kernel adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.core.architectures import wide_matrix
from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.core.cache import MatmulLaunch, resident_blocks
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, matmul_work, memory_bytes, once
from perfmodel.core.dtypes import DTYPES, MX_BLOCK, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.explain import explain_kernels, sourced, with_symbols
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import SOURCE as OCCUPANCY_SOURCE
from perfmodel.core.occupancy import Occupancy, ThreadBlock, block_limits, mark, multiprocessor, occupancy
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.trace import FormulaStep, Trace, label
from perfmodel.kernels.matmul_bytes import in_bytes, scales
from perfmodel.kernels.tile import (
    ACCUMULATOR_SIZE,
    TENSOR_TILE,
    WIDE_COLUMNS,
    OnChip,
    choose_tile,
    on_chip,
    slices_bytes,
    tile_block,
)

SOURCE = "tiled output-stationary matmul, NVIDIA Matrix Multiplication Background User's Guide"
COMPULSORY_SOURCE = "each input read once, each output written once"
MEMORY_SOURCE = "every tensor allocated at once"
BOUND_SOURCE = (
    "Kwasniewski et al. 2019 (COSMA), arXiv 1908.09606: 2mnk/sqrt(M) + mn; the formula is from memory, no schedule was found below it"
)


@dataclass(frozen=True, slots=True)
class Matmul:
    """C [m, n] = A [m, k] B [k, n], ``batch`` times; the k of a tile is shared by ``split_k`` blocks.

    ``scale_block``: an fp32 scale for that many elements of a row of A, and for a square of that edge of B; 0: none.
    """

    m: Number
    n: Number
    k: Number
    batch: Number = 1
    split_k: Number = 1
    dtype: Dtype = DTYPES["fp16"]
    scale_block: int = 0

    def kernels(self, tile: Tile) -> list[Kernel]:
        """The matmul, and with split-k the sum of its partial results.

        Elements without split-k: k (m ceil(n/bn) + n ceil(m/bm)) + mn.
        Source: NVIDIA Matrix Multiplication Background User's Guide, derived; equal to a walk over the tiles.

        >>> [kernel] = Matmul(1000, 500, 64).kernels(Tile(128, 128))
        >>> kernel.elements("read", "write")
        1012000
        """
        size, rows, columns = self.dtype.bytes, row_tiles(self, tile), column_tiles(self, tile)
        a, b = self.batch * self.m * self.k, self.batch * self.k * self.n
        loads = (
            Access("A", READ, a * columns, size, a, a, reread=True),
            Access("B", READ, b * rows, size, b, b, reread=True),
            *scales(self.m, self.n, self.k, self.batch, self.scale_block),
        )
        stored = once("C", WRITE, self.outputs, self.dtype.result_size)
        executed = 2 * self.batch * rows * tile.br * columns * tile.bc * self.k
        blocks = label("grid", "thread blocks", self.batch * rows * columns * self.split_k)
        grid = MatmulLaunch(blocks, self.batch * self.split_k, slices_bytes(tile, size), tile.threads, lockstep=True)
        work, needed = matmul_work(self.dtype, executed), matmul_work(self.dtype, flops(self))
        product = Kernel("matmul", self.dtype, (*loads, stored), flops(self), executed, work, needed, grid)
        if not self.split_k > 1:
            return [product]
        summed = self.split_k * self.outputs
        parts = [once("partial C", kind, summed, ACCUMULATOR_SIZE, compulsory=0, handoff=True) for kind in (READ, WRITE)]
        added = Kernel("sum of parts", self.dtype, (parts[0], stored), work=Work(0, (self.split_k - 1) * self.outputs))
        return [replace(product, accesses=(*loads, parts[1])), added]

    def check(self) -> Matmul:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        for option in ("m", "n", "k", "batch", "split_k"):
            positive_int(option.replace("_", "-"), getattr(self, option))
        if self.split_k > self.k:
            raise UsageError(f"--split-k {self.split_k} is more than --k {self.k}", f"give at most {self.k}")
        if self.dtype.packed and self.k % MX_BLOCK:
            raise UsageError(f"--k is {self.k}: in {self.dtype.name} {MX_BLOCK} elements share a scale", f"give a multiple of {MX_BLOCK}")
        return self

    @property
    def outputs(self) -> Number:
        """Elements of C."""
        return self.batch * self.m * self.n


# Counts


def flops(w: Matmul) -> Number:
    """FLOP, a multiply-add counts 2.

    >>> flops(Matmul(8192, 128, 8192))
    17179869184
    """
    return 2 * w.batch * w.m * w.n * w.k


def minimum_elements(w: Matmul) -> Number:
    """Elements if A and B are read once and C is written once.

    >>> minimum_elements(Matmul(8192, 128, 8192))
    69206016
    """
    return w.batch * (w.m * w.k + w.k * w.n + w.m * w.n)


def minimum_intensity(w: Matmul) -> Number:
    """FLOP/B at minimum traffic: mnk / (mk + kn + mn) at 16 bit.

    >>> round(minimum_intensity(Matmul(8192, 128, 8192)), 2), round(minimum_intensity(Matmul(8192, 8192, 8192)), 2)
    (124.12, 2730.67)
    """
    return flops(w) / in_bytes(w, minimum_elements(w))


def row_tiles(w: Matmul, tile: Tile) -> Number:
    """T_m, tiles along the rows of C."""
    return label("T_m", "tiles along the rows of C", ceil_div(w.m, tile.br))


def column_tiles(w: Matmul, tile: Tile) -> Number:
    """T_n, tiles along the columns of C."""
    return label("T_n", "tiles along the columns of C", ceil_div(w.n, tile.bc))


def tiled_loads(w: Matmul, tile: Tile) -> Number:
    """Elements of A and B loaded: each row of A once per column of tiles, each column of B once per row of tiles.

    >>> tiled_loads(Matmul(1000, 500, 64), Tile(128, 128))
    512000
    """
    return w.batch * w.k * (w.m * column_tiles(w, tile) + w.n * row_tiles(w, tile))


def extra_memory_bytes(w: Matmul) -> Number:
    """Bytes beyond A, B and C: the partial sums of split-k."""
    return w.split_k * w.outputs * ACCUMULATOR_SIZE if w.split_k > 1 else 0


def tile_reuse(w: Matmul, tile: Tile) -> Number:
    """How many times fewer loads than without tiles, where each multiply-add loads its two operands: T for T x T tiles.

    >>> tile_reuse(Matmul(64, 64, 64), Tile(2, 2))
    2.0
    """
    return flops(w) / tiled_loads(w, tile)


def tile_quantization(w: Matmul, tile: Tile) -> Number:
    """Share of the tiles' area that is C; the rest is padding.

    >>> tile_quantization(Matmul(192, 128, 64), Tile(128, 128))
    0.75
    """
    return w.m * w.n / (row_tiles(w, tile) * tile.br * column_tiles(w, tile) * tile.bc)


def wave_count(blocks: Number, slots: Number) -> Number:
    """Waves of ``blocks`` if ``slots`` run at once; a fraction is a last wave that is not full."""
    return blocks / slots


def wave_quantization(blocks: Number, slots: Number) -> Number:
    """Share of the waves' slots that work.

    >>> wave_quantization(120, 108)
    0.5555555555555556
    """
    return wave_count(blocks, slots) / ceil_div(blocks, slots)


def io_lower_bound(w: Matmul, on_chip: Number) -> Number:
    """Elements that any schedule moves with ``on_chip`` elements of fast memory (M): max(mk + kn + mn, 2mnk/sqrt(M) + mn).

    Source: Kwasniewski et al. 2019 (COSMA); Smith et al. 2017 has the same leading term. Classical matmul, not Strassen's.

    >>> io_lower_bound(Matmul(8192, 8192, 8192), 2**16)
    4362076160.0
    """
    per_matmul = 2 * w.m * w.n * w.k / on_chip**0.5 + w.m * w.n
    return w.batch * maximum(w.m * w.k + w.k * w.n + w.m * w.n, per_matmul)


# Answer


@dataclass(frozen=True, slots=True)
class MatmulResult:
    """One matmul on one device. ``slots`` blocks run at once; None, like ``occupancy``, where the profile has no limits.

    ``tile_asked``: rows and columns that were asked for.
    """

    workload: Matmul
    device: Device
    tile: Tile
    chip: OnChip
    kernels: list[tuple[Kernel, Estimate]]
    total: Estimate
    occupancy: Occupancy | None
    slots: int | None
    tile_asked: tuple[int | None, int | None] = (None, None)

    @property
    def blocks(self) -> int:
        """Thread blocks of the matmul kernel."""
        launch = self.kernels[0][0].launch
        return 0 if launch is None else int(launch.blocks)


def default_columns(device: Device) -> int:
    """Columns of the default tile of 16-bit matmuls on ``device``."""
    return WIDE_COLUMNS if wide_matrix(device) else TENSOR_TILE


def evaluate(w: Matmul, device: Device, br: int | None = None, bc: int | None = None) -> MatmulResult:
    """``w`` with the tile given or its default. UsageError if the tile does not fit, UnavailableError without SRAM or peak."""
    chip = on_chip(device)
    tile = choose_tile(w.dtype, chip, br, bc, default_columns(device))
    listed = w.kernels(tile)
    costs = [(kernel, estimate(kernel, device)) for kernel in listed]
    sm, block = multiprocessor(device), tile_block(tile, w.dtype.bytes, device)
    filled = occupancy(block, sm) if sm.count is not None and block_limits(block, sm) else None
    slots = None if filled is None or listed[0].launch is None else resident_blocks(listed[0].launch, device)
    return MatmulResult(w, device, tile, chip, costs, total(cost for _, cost in costs), filled, slots, (br, bc))


_SYMBOLS = {
    "m": ("m", "rows of A and C"),
    "n": ("n", "columns of B and C"),
    "k": ("k", "columns of A, rows of B"),
    "batch": ("b", "matmuls"),
    "split_k": ("s", "blocks that share a tile"),
}


def explain(result: MatmulResult) -> list[FormulaStep]:
    """The formula of every number of ``result``, as steps; a step uses the results of earlier ones."""
    trace, tile = Trace(), result.tile
    w = with_symbols(trace, result.workload, _SYMBOLS)
    rows: Number = trace.symbol("B_m", tile.br, "tile rows", tile.origin)
    columns: Number = trace.symbol("B_n", tile.bc, "tile columns", tile.origin)
    tile = replace(tile, br=rows, bc=columns)
    slots = _explain_slots(trace, tile, result)
    listed = explain_kernels(trace, w.kernels(tile), result.device, w.dtype)
    trace.define("memory", "bytes", memory_bytes(listed), MEMORY_SOURCE)
    trace.define("extra memory", "bytes beyond A, B and C", extra_memory_bytes(w), MEMORY_SOURCE)
    minimum = trace.define("minimum traffic", "elements, each operand moved once", minimum_elements(w), COMPULSORY_SOURCE)
    trace.define("minimum traffic in B", "B", in_bytes(w, minimum), COMPULSORY_SOURCE)
    trace.define("intensity, minimum traffic", "FLOP/B", minimum_intensity(w))
    tiled = trace.define("tiled traffic", "elements, without the partial sums of split-k", tiled_loads(w, tile) + w.outputs)
    trace.define("tile reuse", "loads without tiles over loads with them", tile_reuse(w, tile))
    trace.define("tile quantization", "share of the tiles' area that is C", tile_quantization(w, tile))
    launch = listed[0].launch
    if slots is not None and launch is not None:
        trace.define("waves", "waves of blocks", wave_count(launch.blocks, slots), SOURCE)
        trace.define("wave quantization", "share of the waves' slots that work", wave_quantization(launch.blocks, slots))
    sram = trace.symbol("M_sram", result.chip.sram, "B of SRAM per block", f"profile of {result.device.id}, or --sram")
    registers = trace.symbol("M_registers", result.chip.registers, "B of registers per multiprocessor", f"profile of {result.device.id}")
    fast = trace.define("M", "elements of fast memory", (sram + registers) / w.dtype.bytes, BOUND_SOURCE)
    bound = trace.define("IO lower bound", "elements", io_lower_bound(w, fast), BOUND_SOURCE)
    trace.define("minimum / bound", "ratio", minimum / bound, BOUND_SOURCE)
    trace.define("tiled / bound", "ratio", tiled / bound, BOUND_SOURCE)
    return sourced(trace, SOURCE)


def _explain_slots(trace: Trace, tile: Tile, result: MatmulResult) -> Number | None:
    """Occupancy of the tile, named; None where the profile has no limits."""
    if result.occupancy is None:
        return None
    device = result.device
    block = tile_block(result.tile, result.workload.dtype.bytes, device)
    registers = trace.symbol("registers", block.registers, "per thread, the most it can have", device.id) if block.registers else None
    threads = trace.symbol("threads", block.threads, "threads per block", "128 sums per thread, as in CUTLASS")
    sram = trace.define("SRAM of slices", "B per block", slices_bytes(tile, result.workload.dtype.bytes), SOURCE)
    sm = multiprocessor(device, trace)
    filled = occupancy(ThreadBlock(threads, registers, sram), sm)
    slots = trace.define("slots", "blocks that run at once", sm.count * filled.blocks)
    mark(trace, OCCUPANCY_SOURCE)
    return slots
