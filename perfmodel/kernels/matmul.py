"""C = A B, tiled and output-stationary: counts, tile, waves, the IO lower bound, and each number as its formula.

One thread block per tile of C, which stays in registers while slices of A and B, ``SLICE_DEPTH`` deep, stream through SRAM.
With split-k, ``split_k`` blocks share a tile: each stores an fp32 partial sum and a second kernel adds them up.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.core.architectures import wide_matrix
from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.core.cache import MatmulLaunch, resident_blocks
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, matmul_work, once
from perfmodel.core.dtypes import DTYPES, SCALED_BLOCKS, TENSOR, Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.occupancy import Occupancy, block_limits, multiprocessor, occupancy
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.trace import label
from perfmodel.kernels.tile import (
    ACCUMULATOR_SIZE,
    CLUSTER,
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
    "Kwasniewski et al. 2019 (COSMA), arXiv 1908.09606: 2mnk/sqrt(M) + mn; "
    "quoted from memory, not checked against the paper; no schedule was found below it"
)
SCALE_SIZE = 4
"""Bytes of a scale of a block: fp32."""
SCALE_BLOCKS = {"aiter-blockscale": 128, "deepgemm": 128, "fp8-block-scaled": 128}
"""Edge of the blocks that share a scale, for implementations whose fp8 operands have a scale per block.

Source: DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3: 1 x 128 of activations, 128 x 128 of weights."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """C [m, n] = A [m, k] B [k, n], ``batch`` times; the k of a tile is shared by ``split_k`` blocks.

    ``scale_block``: elements of a row of A, and edge of the squares of B, that share an fp32 scale; 0 without scales. ``stored``: bytes of
    an element of B with its share of scales, if B is stored narrower than it is multiplied; else 0. ``aligned``: number of elements that
    divides row lengths in memory, if known for transposed operands; 0: use n and k. ``crossed``: whether A or B
    does not lie along k in memory, as in the gradients of a linear layer.
    """

    m: Number
    n: Number
    k: Number
    batch: Number = 1
    split_k: Number = 1
    dtype: Dtype = DTYPES["fp16"]
    scale_block: int = 0
    stored: float = 0.0
    aligned: int = 0
    crossed: bool = False

    @property
    def b_bytes(self) -> float:
        """Bytes of an element of B."""
        return self.stored or self.dtype.bytes

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
            Access("B", READ, b * rows, self.b_bytes, b, b, reread=True),
            *scales(self.m, self.n, self.k, self.batch, self.scale_block),
        )
        stored = once("C", WRITE, self.outputs, self.dtype.result_size)
        executed = 2 * self.batch * rows * tile.br * columns * tile.bc * self.k
        blocks = label("grid", "thread blocks", self.batch * rows * columns * self.split_k)
        groups = self.batch * self.split_k
        grid = MatmulLaunch(blocks, groups, slices_bytes(tile, size), tile.threads, lockstep=True, cluster=tile.cluster)
        work, needed = matmul_work(self.dtype, executed), matmul_work(self.dtype, flops(self))
        product = Kernel("matmul", self.dtype, (*loads, stored), flops(self), executed, work, needed, grid)
        if not self.split_k > 1:
            return [product]
        partial_sums = self.split_k * self.outputs
        read, written = (once("partial C", kind, partial_sums, ACCUMULATOR_SIZE, compulsory=0, handoff=True) for kind in (READ, WRITE))
        added = Kernel("sum of parts", self.dtype, (read, stored), work=Work(0, (self.split_k - 1) * self.outputs))
        return [product._replace(accesses=(*loads, written)), added]

    def check(self) -> Matmul:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        for option in ("m", "n", "k", "batch", "split_k"):
            positive_int(option.replace("_", "-"), getattr(self, option))
        if self.split_k > self.k:
            raise UsageError(f"--split-k {self.split_k} is more than --k {self.k}", f"give at most {self.k}")
        if self.k % (block := SCALED_BLOCKS.get(self.dtype.name, 1)):
            raise UsageError(f"--k is {self.k}: in {self.dtype.name} {block} elements share a scale", f"give a multiple of {block}")
        return self

    @property
    def outputs(self) -> Number:
        """Elements of C."""
        return self.batch * self.m * self.n


# Counts


def scale_block(implementation: str, dtype: str) -> int:
    """Edge of the blocks that share a scale with ``implementation`` in ``dtype``; 0 if it has no such blocks."""
    return SCALE_BLOCKS.get(implementation, 0) if dtype == "fp8" else 0


def scales(m: Number, n: Number, k: Number, batch: Number, block: int) -> tuple[Access, ...]:
    """Reads of scales, each once: of A [m, k] per 1 x ``block``, of B [k, n] per square. Empty for ``block`` 0.

    >>> [access.bytes for access in scales(16, 256, 512, 1, 128)]
    [256, 32]
    """
    if not block:
        return ()
    along, down = ceil_div(k, block), ceil_div(n, block)
    sizes = {"scales of A": batch * m * along, "scales of B": batch * along * down}
    return tuple(once(name, READ, count, SCALE_SIZE) for name, count in sizes.items())


def flops(w: Matmul) -> Number:
    """FLOP; a multiply-add counts 2.

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


def in_bytes(w: Matmul, elements: Number) -> Number:
    """Bytes of ``elements`` of A, B and C, which include all of C, and of the scales.

    >>> from perfmodel.core.dtypes import PRODUCTS
    >>> in_bytes(Matmul(32, 64, 128, dtype=PRODUCTS["mxfp4"]), 32 * 128 + 128 * 64 + 32 * 64)
    10624.0
    """
    moved = elements * w.dtype.bytes
    if w.dtype.result_size != w.dtype.bytes:
        moved = moved + w.outputs * (w.dtype.result_size - w.dtype.bytes)
    for access in scales(w.m, w.n, w.k, w.batch, w.scale_block):
        moved = moved + access.bytes
    return moved


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
    """Factor by which tiles reduce loads, compared with two loads per multiply-add: T for T x T tiles.

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
    """Share of the slots of all waves that have a block.

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


class MatmulResult(NamedTuple):
    """One matmul on one device. ``slots``: blocks that run at once. ``slots`` and ``occupancy`` are None if the profile has no limits.

    ``tile_asked``: the rows and columns that the user gave.
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


def library_tile(device: Device, dtype: Dtype) -> Tile:
    """Tile of large products in ``dtype`` on ``device``, with its cluster.

    Source: kernel names of cuBLAS of CUDA 13 on an H200: nvjet's tiles of 128 x 256 in 16 bits, in clusters of two and more.
    """
    if dtype.matmul_unit != TENSOR or not wide_matrix(device):
        return Tile(TENSOR_TILE, TENSOR_TILE)
    return Tile(TENSOR_TILE, WIDE_COLUMNS if dtype.size == 2 else TENSOR_TILE, cluster=CLUSTER)


def default_tile(w: Matmul, device: Device, br: int | None = None, bc: int | None = None) -> Tile:
    """The tile with the edges given; without them the library's tile, or the largest that fits the SRAM."""
    return choose_tile(w.dtype, on_chip(device), (w.m, w.n), library_tile(device, w.dtype), br, bc)


def evaluate(w: Matmul, device: Device, br: int | None = None, bc: int | None = None, tile: Tile | None = None) -> MatmulResult:
    """The result of ``w`` in ``tile``, or in the default tile with the edges given.

    UsageError if the edges given do not fit, UnavailableError without SRAM or peak.
    """
    chip = on_chip(device)
    tile = tile or default_tile(w, device, br, bc)
    kernels = [(kernel, estimate(kernel, device)) for kernel in w.kernels(tile)]
    costs = total(cost for _, cost in kernels)
    sm, block = multiprocessor(device), tile_block(tile, w.dtype.bytes, device)
    launch = kernels[0][0].launch
    if sm.count is None or launch is None or not block_limits(block, sm):
        return MatmulResult(w, device, tile, chip, kernels, costs, None, None, (br, bc))
    return MatmulResult(w, device, tile, chip, kernels, costs, occupancy(block, sm), resident_blocks(launch, device), (br, bc))
